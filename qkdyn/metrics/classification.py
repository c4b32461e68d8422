"""How well classes are predicted, where classes are not equally frequent."""

import numpy as np
from jaxtyping import Float, Integer

from qkdyn.errors import check_count, reject
from qkdyn.metrics import cores
from qkdyn.metrics.checks import as_counts, check_match


def macro_f1(
    predicted: Integer[np.ndarray, "*#batch N"], label: Integer[np.ndarray, "*#batch N"], classes: int
) -> Float[np.ndarray, "*batch"]:
    """Macro F1 over N instances: the mean over classes of 2 hits / (times predicted + times true).

    A class that is neither predicted nor true counts as 0, as in `sklearn.metrics.f1_score` told of all `classes`.

    Args:
        predicted: classes from 0 to classes - 1, (..., N).
        label: the true ones, (..., N). Leading axes broadcast.
        classes: their number.

    Returns:
        In [0, 1], (...), float64.

    Raises:
        InputError: classes that are not integers or out of range, no instance, shapes that do not match.
    """
    number = check_count("classes", classes)
    guess, truth = (_classes(name, values, number) for name, values in (("predicted", predicted), ("label", label)))
    check_match(predicted=guess, label=truth)
    guess, truth = np.broadcast_arrays(guess, truth)
    return np.asarray(cores.macro_f1(np, guess, truth, number))


def _classes(name: str, values: np.ndarray, number: int) -> np.ndarray:
    """Classes of instances, checked."""
    array = as_counts(name, values, number - 1, least=0)
    if array.ndim == 0:
        reject(name, values, "an array of classes, one for each instance")
    return array
