"""What the published runs on SQuAD need, computed: operations, as trained here and as published, and hours.

Command:  python -m benchmarks.squad_cost
Time:     seconds.
Expect:   a line for each way to train; docs/performance.md has them.
"""

import sys

from benchmarks.squad_runs import LONGEST, MEAN
from experiments.squad.arms import SCALES
from experiments.squad.cost import forward
from experiments.squad.recipe import Recipe

# An accelerator's dense bfloat16 products as its maker states them (an H100), and shares of that speed: what large models
# reach, and what one as narrow as this may.
PEAK, SHARES = 989e12, (0.4, 0.1)


def operations(recipe: Recipe, slots: int, labels: float) -> float:
    """Of learning from one question: the forward pass and twice as much backward.

    Args:
        recipe: sizes of the model.
        slots: of the question with its padding.
        labels: rows at which the head is computed.
    """
    return 3 * forward(recipe, slots, slots, labels)


def hours(total: float, peak: float, share: float) -> float:
    """Time of so many operations at a share of the peak, in hours."""
    return total / (share * peak) / 3600


def lines(recipe: Recipe, epochs: int) -> list[str]:
    """One run of so many epochs: trimmed with the head at labels, as here; and in n_ctx slots with the head everywhere."""
    ways = {
        f"head at labels, {LONGEST} slots": (LONGEST, MEAN),
        f"head everywhere, {recipe.n_ctx} slots": (recipe.n_ctx, recipe.n_ctx),
    }
    out = []
    for name, (slots, labels) in ways.items():
        each = operations(recipe, slots, labels)
        total = recipe.questions * epochs * each
        times = [f"{hours(total, PEAK, share):.2g} h at {share:.0%}" for share in SHARES]
        out.append(
            f"{name}: {each / slots / 1e6:.3g} MFLOP a token, {each / 1e9:.3g} GFLOP a question, "
            f"{total / 1e15:.3g} PFLOP a run; {' or '.join(times)} of {PEAK / 1e12:.0f} TFLOP/s"
        )
    return out


def main() -> int:
    """Print the cost of one published run."""
    epochs = SCALES["full"].epochs
    print(f"{Recipe().questions:,} questions, {epochs} epochs", *lines(Recipe(), epochs), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
