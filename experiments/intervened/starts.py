"""What an arm does to the start of its circuits: products scaled, factors brought out of balance."""

import math

from experiments.intervened.arms import Arm

# The circuit of a matrix by its place in (OV, QK), and whether imbalance multiplies (1) or divides (-1) it; 0: no factor.
SIDES = {"W_OV": (0, 0), "W_O": (0, 1), "W_V": (0, -1), "W_QK": (1, 0), "W_K": (1, 1), "W_Q": (1, -1)}


def multiple(arm: Arm, name: str) -> float:
    """What the matrix of this name is multiplied by before the first step: 1 unless it belongs to a circuit."""
    if name not in SIDES:
        return 1.0
    i, side = SIDES[name]
    return arm.start[i] if side == 0 else math.sqrt(arm.start[i]) * arm.apart[i] ** side
