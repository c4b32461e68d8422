"""What the published runs on SQuAD need, computed: operations of the way trained here and of the published way, and hours."""

from benchmarks.squad_runs import LONGEST, MEAN
from experiments.squad.cost import forward
from experiments.squad.recipe import Recipe

# Questions and epochs of one published run, of the baseline.
QUESTIONS, EPOCHS = 60_000, 70
# An accelerator's dense bfloat16 products as its maker states them (one H100), and shares of that speed that may be reached:
# a usual one, and one for a model as narrow as this.
PEAK, SHARES = 989e12, (0.4, 0.1)


def operations(recipe: Recipe, slots: int, labels: float) -> float:
    """Of learning from one question: the forward pass and twice as much backward.

    Args:
        recipe: sizes of the model.
        slots: of the question with its padding.
        labels: rows at which the head is computed.
    """
    return 3 * forward(recipe, slots, slots, labels)


def needed(recipe: Recipe) -> dict[str, float]:
    """Operations of one run: trimmed and with the head at labels, as here, or in 256 slots with the head everywhere."""
    ours = operations(recipe, LONGEST, MEAN)
    published = operations(recipe, recipe.n_ctx, recipe.n_ctx)
    return {name: QUESTIONS * EPOCHS * each for name, each in {"trimmed": ours, "published": published}.items()}


def hours(total: float, peak: float, share: float) -> float:
    """Time of so many operations at a share of the peak, in hours."""
    return total / (share * peak) / 3600
