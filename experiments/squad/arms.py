"""The protocols of Table 1 on SQuAD, at two scales: which arms are trained, by which recipe, and which are compared."""

from dataclasses import dataclass, replace
from typing import Any

from experiments.squad.recipe import Recipe, Run
from experiments.text.arms import Comparison
from experiments.text.recipe import TextArm, check_seeds
from qkdyn.errors import reject

# The published rates: of all parameters, in the faster arm a tenth of it with QK x20; of W_E always a tenth.
BASE, SLOW, FAST = 5e-4, 5e-5, 20.0
EMBED, DECAY = 0.1, 0.05
SEEDS = (1234, 1235, 1236, 1237, 1238)
# The paper's tuning: base rates, then query-key multipliers at the rate that was chosen.
RATES = (1e-2, 1e-3, 5e-4, 1e-4, 5e-5, 1e-5)
MULTIPLIERS = (5.0, 10.0, 20.0, 30.0, 100.0)


@dataclass(frozen=True)
class Scale:
    """How large it all is.

    Attributes:
        sizes: of the recipe, where they are not the published ones.
        epochs: of the published baseline; its faster arm has 10/7 as many.
        seeds: of the controlled protocol.
        others: seeds of the other two.
    """

    sizes: dict[str, Any]
    epochs: int
    seeds: tuple[int, ...]
    others: tuple[int, ...]


SCALES = {
    "laptop": Scale(
        {
            "vocabulary": 8192,
            "n_layers": 2,
            "d_model": 128,
            "n_heads": 4,
            "d_mlp": 512,
            "questions": 8192,
            "dev": 500,
            # Updates are few here, and those of a quarter of the published questions teach more in the same time.
            "batch": 8,
            # The published part of the baseline's updates.
            "warmup": 6 * 1000 / 65_590,
        },
        epochs=6,
        seeds=SEEDS[:3],
        others=SEEDS[:1],
    ),
    "full": Scale({"bfloat16": True}, epochs=70, seeds=SEEDS, others=SEEDS),
}


@dataclass(frozen=True)
class Protocol:
    """What is trained.

    Attributes:
        recipe: what all arms share.
        arms: all of them.
        seeds: one run of each arm for each.
        comparisons: which are compared, each with its first arm.
        published: whether it is one of the published recipes, to be set beside the printed numbers.
    """

    recipe: Recipe
    arms: tuple[TextArm, ...]
    seeds: tuple[int, ...]
    comparisons: tuple[Comparison, ...]
    published: bool = False

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if not names or len(set(names)) < len(names):
            reject("arms", names, "at least one, all different")
        check_seeds(self.seeds)

    @property
    def reading(self) -> str:
        """Where the arms are compared first: as published at each run's best epoch, else after equally many."""
        return "best" if self.published else "end"

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every arm from every seed, in the order in which they are trained: a seed of every arm before the next seed."""
        return tuple(Run(arm, seed) for seed in self.seeds for arm in self.arms)


def _arm(name: str, epochs: int, rate: float, **changes: float) -> TextArm:
    settings: dict[str, Any] = {"embed": EMBED, "decay": DECAY, **changes}
    return TextArm(name, epochs, rate, **settings)


def protocol(name: str, scale: str = "laptop") -> Protocol:
    """One of as_coded, as_written, controlled, quick; the last has one size.

    Raises:
        InputError: another name or scale.
    """
    makers = {"controlled": controlled, "as_coded": as_coded, "as_written": as_written, "quick": quick}
    for what, value, known in (("protocol", name, makers), ("scale", scale, SCALES)):
        if value not in known:
            reject(what, value, "one of " + ", ".join(known))
    return makers[name](SCALES[scale])


def as_coded(scale: Scale) -> Protocol:
    """The two published recipes: OV ten times slower in the faster arm, QK twice as fast, and more epochs."""
    arms = (
        _arm("same", scale.epochs, BASE),
        _arm("fast", round(scale.epochs * 10 / 7), SLOW, qk=FAST),
    )
    return Protocol(_published(scale), arms, scale.others, (Comparison("published", ("same", "fast")),), True)


def as_written(scale: Scale) -> Protocol:
    """The paper's text: one rate for every parameter, and QK x20 in the faster arm and nothing else."""
    arms = (_arm("slow", scale.epochs, SLOW, embed=1.0), _arm("slow-qk20", scale.epochs, SLOW, embed=1.0, qk=FAST))
    return Protocol(_published(scale), arms, scale.others, (Comparison("published", ("slow", "slow-qk20")),), True)


def controlled(scale: Scale) -> Protocol:
    """The missing controls: both base rates with and without QK x20, and the published QK rate on the baseline's OV rate.

    `slow` is the published faster arm without its QK x20; `slow-even` has all parameters at 5e-5, W_E too, which is what the
    paper says of its baseline. Equal epochs; contexts that are not centred on the answer; epochs chosen on articles that are
    not trained on.
    """
    epochs = scale.epochs
    arms = (
        _arm("base", epochs, BASE),
        _arm("slow", epochs, SLOW),
        _arm("base-qk20", epochs, BASE, qk=FAST),
        _arm("slow-qk20", epochs, SLOW, qk=FAST),
        _arm("base-qk2", epochs, BASE, qk=2.0),
        _arm("slow-even", epochs, SLOW, embed=1.0),
    )
    comparisons = (
        Comparison("dose", ("base", "base-qk2", "base-qk20")),
        Comparison("slow", ("slow", "slow-qk20", "slow-even")),
        Comparison("as_published", ("base", "slow", "slow-qk20")),
        Comparison("equal_qk", ("base-qk2", "slow-qk20")),
    )
    return Protocol(replace(Recipe(), **scale.sizes), arms, scale.seeds, comparisons)


def quick(scale: Scale) -> Protocol:
    """Two arms of a tiny model on few questions: a look, no result."""
    sizes = {"vocabulary": 1024, "n_layers": 2, "d_model": 32, "n_heads": 2, "d_mlp": 64, "n_ctx": 160}
    sizes |= {
        "questions": 256,
        "dev": 64,
        "selection": 64,
        "learned": 64,
        "size": 150,
        "most": 4,
        "shapes": 1,
        "warmup": 0.1,
    }
    arms = (_arm("base", 2, 2e-3, embed=1.0), _arm("base-qk20", 2, 2e-3, embed=1.0, qk=FAST))
    compared = (Comparison("quick", ("base", "base-qk20")),)
    return Protocol(replace(Recipe(), **sizes), arms, SEEDS[:1], compared)


def tuning(protocol: Protocol) -> tuple[Protocol, Protocol]:
    """The paper's tuning in a protocol's recipe: base rates; and QK multipliers at each of them.

    Of the latter only those at the rate that is chosen are trained. One seed.
    """
    first = protocol.arms[0]
    rates = tuple(replace(first, name=f"rate-{rate:g}", rate=rate) for rate in RATES)
    faster = tuple(replace(arm, name=f"{arm.name}-qk{r:g}", qk=r) for arm in rates for r in MULTIPLIERS)
    alone = replace(protocol, seeds=protocol.seeds[:1], comparisons=(), published=False)
    return replace(alone, arms=rates), replace(alone, arms=faster)


def _published(scale: Scale) -> Recipe:
    """The published recipe: windows around the answer everywhere, and epochs chosen on the first dev questions."""
    recipe = Recipe(chosen_by="dev", windows="centred", evaluated="centred", keep_cue=False, by_length=False)
    return replace(recipe, **scale.sizes)
