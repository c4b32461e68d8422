"""From which attention and which probability on an instance counts as confident."""

from dataclasses import dataclass

# Edges of the published heat maps of HateXplain.
EDGES = (0.0, 0.33, 0.66, 1.1)


@dataclass(frozen=True)
class Levels:
    """Thresholds of AC and ACMC, and bins.

    Attributes:
        attention: mass on relevant tokens from which an instance counts for AC and ACMC.
        probability: of the true class, from which it counts for ACMC.
        ac_probability: of the true class, from which it counts for AC; None asks for none.
        edges: of the bins of heat maps, on both axes.
    """

    attention: float
    probability: float
    ac_probability: float | None = None
    edges: tuple[float, ...] = EDGES
