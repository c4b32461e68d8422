"""The protocols of Table 1 on HateXplain: which arms are trained, by which recipe, and which are compared with each other."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from experiments.text.recipe import Recipe, TextArm
from qkdyn.errors import check_count, reject

FAST = 30.0
# What the published recipe changes together, in the order of the names of arms.
FACTORS: dict[str, dict[str, Any]] = {
    "qk30": {"qk": FAST},
    "embed30": {"embed": FAST},
    "frozen": {"mlp": 0.0},
    "decay": {"decay": 1e-3},
}
BASELINE = "baseline"
COMBINATION = "+".join(FACTORS)
LONG = "-long"
# The published tuning: base rates, then query-key multipliers at the rate that was chosen.
RATES = (1e-2, 1e-3, 1e-4, 5e-5, 1e-5, 1e-6)
MULTIPLIERS = (5.0, 10.0, 20.0, 30.0, 100.0)
RATE = 5e-5
DEPTHS = (1, 2, 4)


@dataclass(frozen=True)
class Comparison:
    """Arms that are read side by side, the first of them the one that the others are compared with."""

    name: str
    arms: tuple[str, ...]

    @property
    def factors(self) -> tuple[str, ...]:
        """Of a factorial: they make the name of its last arm, which has all of them."""
        return tuple(self.arms[-1].split("+"))


@dataclass(frozen=True)
class Protocol:
    """What is trained.

    Attributes:
        recipe: what all arms share.
        groups: arms that train together, of equal epochs and few enough for the memory of one machine (about 15 MB a run).
        comparisons: which are compared.
        limit: only so many posts of each split; None for all.
    """

    recipe: Recipe
    groups: tuple[tuple[TextArm, ...], ...]
    comparisons: tuple[Comparison, ...]
    limit: int | None = None

    def __post_init__(self) -> None:
        for group in self.groups:
            if len({arm.epochs for arm in group}) != 1:
                each = {arm.name: arm.epochs for arm in group}
                reject(
                    "the arms of a group", each, "at least one, all of as many epochs", "put others into another group"
                )
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            reject("the names of arms", names, "all different: each is that of a record")
        if self.limit is not None:
            check_count("limit", self.limit)

    @property
    def arms(self) -> tuple[TextArm, ...]:
        """All of them."""
        return tuple(arm for group in self.groups for arm in group)


def as_coded() -> Protocol:
    """The published notebooks: embeddings x30 with QK, the MLP never trained, ten times the decay, padding in view.

    Position embeddings and the biases of queries and keys keep the base rate. The gradients of the untrained MLP add up and
    take part in clipping. The measured row is that of the last slot, not the one that predicts.
    """
    recipe = replace(_published_recipe(), apart=("W_pos", "b_Q", "b_K"))
    faster = TextArm("faster", 30, qk=FAST, embed=FAST, mlp=0.0, decay=1e-3, stale=True)
    return Protocol(recipe, ((TextArm(BASELINE, 30), faster),), (Comparison("published", (BASELINE, "faster")),))


def as_written() -> Protocol:
    """The paper's text: QK x30 and nothing else, in the published model and as published measured."""
    arms = (TextArm(BASELINE, 30), TextArm("qk30", 30, qk=FAST))
    return Protocol(_published_recipe(), (arms,), (Comparison("published", (BASELINE, "qk30")),))


def controlled() -> Protocol:
    """What was changed together taken apart, the dose of QK, and training three times as long."""
    crossed = tuple(
        _combined(dict(zip(FACTORS, on, strict=True))) for on in product((False, True), repeat=len(FACTORS))
    )
    doses = tuple(TextArm(f"qk{dose:g}", qk=dose) for dose in (5.0, 10.0, 100.0))
    other = (TextArm("ov30", ov=FAST), TextArm("all30", rate=FAST * RATE))
    known = {arm.name: arm for arm in (*crossed, *doses)}
    kept = (BASELINE, "qk10", "qk30", "qk30+embed30", COMBINATION)
    longer = tuple(replace(known[name], name=name + LONG, epochs=30) for name in kept)
    comparisons = (
        Comparison("factorial", tuple(arm.name for arm in crossed)),
        Comparison("dose", (BASELINE, "qk5", "qk10", "qk30", "qk100", "ov30", "all30")),
        Comparison("long", tuple(arm.name for arm in longer)),
    )
    # Two halves of the factorial: without QK and with it.
    half = len(crossed) // 2
    return Protocol(Recipe(), (crossed[:half], crossed[half:], (*doses, *other), longer), comparisons)


def quick() -> Protocol:
    """Two arms on few posts, for two seeds: a look, no result."""
    arms = (TextArm(BASELINE, 2, rate=1e-3, embed=3.0), TextArm("qk30", 2, rate=1e-3, embed=3.0, qk=FAST))
    recipe = replace(Recipe(), seeds=(1234, 1235))
    return Protocol(recipe, (arms,), (Comparison("quick", (BASELINE, "qk30")),), limit=1200)


def tuning(protocol: Protocol) -> Protocol:
    """The published tuning of a protocol's first arm: a group of base rates, and for each rate one of QK multipliers.

    Of the latter only the group of the chosen rate is trained.
    """
    first = protocol.groups[0][0]
    rates = tuple(replace(first, name=f"rate-{rate:g}", rate=rate) for rate in RATES)
    faster = (tuple(replace(arm, name=f"{arm.name}-qk{r:g}", qk=r) for r in MULTIPLIERS) for arm in rates)
    return replace(protocol, groups=(rates, *faster), comparisons=())


def deepened(protocol: Protocol, layers: int) -> Protocol:
    """The protocol with the published model of two or four layers (Table 3).

    No training of two layers was published: its arms are those of one. That of four trains the MLP of its faster arm. With
    more than one layer the rollout counts, and where it is ours to choose the residual stream is half of it.

    Raises:
        InputError: another number of layers.
    """
    if layers not in DEPTHS:
        reject("layers", layers, "one of 1, 2, 4, the models of the paper's Tables 1 and 5")
    if layers == 1:
        return protocol
    own = protocol.recipe
    changed: dict[str, Any] = {"n_layers": layers, "residual": own.residual if _is_published(own) else 0.5}
    if layers == 2:
        changed |= {"d_model": 32, "d_head": 8, "d_mlp": 128, "n_ctx": 96, "positions": 96 + own.query_token}
    groups = protocol.groups
    if layers == 4:
        groups = tuple(tuple(replace(arm, mlp=1.0, stale=False) if arm.stale else arm for arm in g) for g in groups)
    return replace(protocol, recipe=replace(own, **changed), groups=groups)


def _published_recipe() -> Recipe:
    """The published model, as it was measured."""
    return Recipe(
        vocabulary="wordpiece",
        query_token=False,
        readout="first_pad",
        measured="last_slot",
        mask_padding=False,
        agreement="mean3",
        by_length=False,
        share=0.05,
        share_of="slots",
        order="rank",
    )


def _is_published(recipe: Recipe) -> bool:
    return recipe.measured == "last_slot"


def _combined(on: dict[str, bool]) -> TextArm:
    """The arm of the factorial in which these factors are on."""
    names = [name for name, switched in on.items() if switched]
    changes = {key: value for name in names for key, value in FACTORS[name].items()}
    return TextArm("+".join(names) or BASELINE, **changes)
