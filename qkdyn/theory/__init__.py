"""Theorem 1 and Lemma 3 on two scalars, for all four parameterizations: integrated, in closed form, bounded.

Importing this package loads numpy and scipy.special alone; `integrate` brings JAX and diffrax in when it is called.
"""

from qkdyn.theory.bounds import Bounds, lemma3_bounds
from qkdyn.theory.closed_form import MatchedState, at_attention, at_loss, at_time, ratio_for
from qkdyn.theory.curve import mu_qk_of
from qkdyn.theory.scalar import Trajectory, integrate
from qkdyn.theory.setting import Setting
from qkdyn.theory.stability import Amplification, background_rate, class_competition

__all__ = [
    "Amplification",
    "Bounds",
    "MatchedState",
    "Setting",
    "Trajectory",
    "at_attention",
    "at_loss",
    "at_time",
    "background_rate",
    "class_competition",
    "integrate",
    "lemma3_bounds",
    "mu_qk_of",
    "ratio_for",
]
