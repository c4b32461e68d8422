"""What every test runs under: shapes that broadcast by accident are errors, figures need no display."""

import os

os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("ci")


@pytest.fixture
def x64():
    """Double precision for one test."""
    with jax.enable_x64(True):
        yield


def pytest_make_parametrize_id(val):
    """Parameterizations by their name in test ids."""
    return str(val) if isinstance(val, str) else None


@pytest.fixture
def unchecked():
    """Annotations unchecked, as users run the package: our own errors are what they see of a wrong type."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
