"""Newton's method kept inside a bracket, for many increasing functions at once."""

from collections.abc import Callable

import numpy as np

ROUNDS = 200


def bracketed_newton(
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    low: np.ndarray,
    high: np.ndarray,
    guess: np.ndarray,
    settled: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Find the root of each increasing function in [low, high].

    Args:
        evaluate: x -> (value, Newton step value / slope), elementwise.
        low: lower ends of the brackets.
        high: upper ends, of the same shape.
        guess: where to start.
        settled: (step, x) -> where a step is so small that quadratic convergence leaves less than rounding.

    Returns:
        The roots. A Newton step is replaced by bisection where it leaves the bracket or is not half the one before:
        between two flat parts of a steep function Newton's method would jump to and fro for ever.
    """
    x, before = guess, high - low
    for _ in range(ROUNDS):
        value, step = evaluate(x)
        low, high = np.where(value <= 0, x, low), np.where(value >= 0, x, high)
        done = settled(np.abs(step), x)
        newton = x - step
        bisect = ~done & ((newton < low) | (newton > high) | (np.abs(step) > before / 2))
        before = np.where(bisect, (high - low) / 2, np.abs(step))
        x = np.where(bisect, (low + high) / 2, np.clip(newton, low, high))
        if done.all():
            break
    return x
