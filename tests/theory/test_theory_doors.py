"""What the doors of the theory say to shapes, types and traced values that they cannot take."""

import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkdyn import theory
from qkdyn.errors import InputError

PAPER = theory.Setting(5, 50, 50, 5)
TWO, THREE = np.array([1.0, 2.0]), np.array([0.2, 0.3, 0.4])
PAIRED = {
    "at_loss": ("r", "loss"),
    "at_time": ("r", "t"),
    "at_attention": ("r", "alpha"),
    "ratio_for": ("alpha", "loss"),
    "mu_qk_of": ("r", "mu_ov"),
    "class_competition": ("r", "loss"),
    "background_rate": ("r", "kappa"),
}
# Setting is a dataclass; the other names of the package are results.
DOORS = [name for name in theory.__all__ if inspect.isfunction(getattr(theory, name))]


def call(name, first, second):
    names = PAIRED[name]
    return getattr(theory, name)(PAPER, **dict(zip(names, (first, second), strict=True)))


def test_every_door_is_knocked_at():
    assert set(DOORS) == {*PAIRED, "integrate", "lemma3_bounds"}


@pytest.mark.parametrize("name", PAIRED)
def test_shapes_that_do_not_broadcast(name):
    one, other = PAIRED[name]
    first = TWO / 5 if one == "alpha" else TWO
    with pytest.raises(InputError, match=rf"the shapes of {one} and {other} must .*, got \(\(2,\), \(3,\)\)"):
        call(name, first, THREE)
    assert np.shape(call(name, first[:, None], THREE)[0])[-1:] == (3,)


@pytest.mark.parametrize("name", PAIRED)
def test_traced_values(name):
    one, other = PAIRED[name]
    for transform in (jax.jit, jax.grad, jax.vmap):
        value = jnp.array([0.3]) if transform is jax.vmap else 0.3
        with pytest.raises(InputError, match=f"{one} must be .*the theory is numpy and scipy: call it outside jit"):
            transform(lambda x: call(name, x, 0.2))(value)
        with pytest.raises(InputError, match=f"{other} must be .*the theory is numpy and scipy: call it outside jit"):
            transform(lambda x: call(name, 0.2, [x]))(value)


def test_traced_rates_and_starts():
    with pytest.raises(InputError, match="eta_ov must be .*call it outside jit"):
        jax.jit(lambda x: theory.background_rate.__wrapped__(PAPER, 1.0, kappa=1.0, eta_ov=x))(0.3)
    with pytest.raises(InputError, match="initial must be .*call it outside jit"):
        jax.jit(lambda x: theory.at_loss(PAPER, 1.0, 0.1, initial=(x, x)))(0.3)
    # Arrays of JAX that are not traced are numbers like any other.
    assert theory.at_loss(PAPER, jnp.array([1.0, 2.0]), 0.1).alpha.shape == (2,)


PROGRAM = """
import numpy as np
from qkdyn import theory
from qkdyn.errors import InputError
PAPER = theory.Setting(5, 50, 50, 5)
calls = {
    "at_loss": (1.0, 0.1), "at_time": (1.0, 0.1), "at_attention": (1.0, 0.5), "ratio_for": (0.5, 0.1),
    "mu_qk_of": (1.0, 0.1), "class_competition": (1.0, 0.1), "integrate": (1.0, [1.0]), "lemma3_bounds": (1.0, [1.0]),
}
for setting in (None, (5, 50, 50, 5), theory.Setting):
    for name, arguments in calls.items():
        try:
            getattr(theory, name)(setting, *arguments)
        except InputError as error:
            print(name, error)
    try:
        theory.background_rate(setting, 1.0, kappa=1.0)
    except InputError as error:
        print("background_rate", error)
"""


def test_settings_of_the_wrong_type():
    """In a process of its own: here, types are checked before the functions see them."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 3 * len(DOORS)
    assert all("setting must be a Setting, got" in line and "pass Setting(m, n, b, M)" in line for line in lines)
