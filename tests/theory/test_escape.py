"""The balanced start that a small random start is worth: exact where it is balanced, the mean over draws, and in a flow."""

import jax
import numpy as np
import pytest

from qkdyn.circuits import init_params, on_ansatz
from qkdyn.errors import InputError
from qkdyn.tasks.orthogonal import OrthogonalTask
from qkdyn.theory import Setting
from qkdyn.theory.escape import effective_start, expected_start

TASK = OrthogonalTask(m=2, n=3, b=2, M=3, backgrounds=4, batch=12)
SETTING = Setting(2, 3, 2, 3)
FORMS = ("FAFO", "CAFO", "FACO", "CACO")


@pytest.mark.parametrize("form", FORMS)
def test_a_start_on_the_ansatz_is_worth_itself(form):
    start = 0.3 * (form[2] == "F"), 0.2 * (form[0] == "F")
    params = on_ansatz(TASK.directions(), form, mu_ov=start[0], mu_qk=start[1])
    np.testing.assert_allclose(effective_start(params, TASK.directions()), start, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_the_mean_over_draws(form):
    def draw(seed):
        normal = jax.nn.initializers.normal(0.1 / TASK.d**0.5)
        return init_params(jax.random.key(seed), form, d=TASK.d, M=TASK.M, qk=normal, ov=normal)

    found = np.mean([effective_start(draw(seed), TASK.directions()) for seed in range(200)], axis=0)
    np.testing.assert_allclose(found, expected_start(SETTING, form, 0.1), rtol=0.06)


def test_the_linear_flow_forgets_what_is_not_counted():
    # Near zero W_O and W_V follow dW_O = G W_V^T, dW_V = W_O^T G with a fixed G: the product must become that of the
    # effective start, along each singular pair.
    key = jax.random.key(3)
    normal = jax.nn.initializers.normal(1e-3)
    params = init_params(key, "CAFO", d=TASK.d, M=TASK.M, qk=normal, ov=normal)
    Sbar = TASK.directions()["ov"]
    U, s, Vh = np.linalg.svd(Sbar, full_matrices=False)
    W_O, W_V = (np.asarray(params["ov"][name], np.float64) for name in ("W_O", "W_V"))
    t, grown = 5.0, []
    for u, size, v in zip(U.T[:2], s[:2], Vh[:2], strict=True):
        a, b = W_O.T @ u, W_V @ v
        up, down = (a + b) / 2 * np.exp(size * t), (a - b) / 2 * np.exp(-size * t)
        grown.append((up + down) @ (up - down) / np.exp(2 * size * t) / size)
    np.testing.assert_allclose(
        np.mean(grown), effective_start(params, {"ov": Sbar, "qk": TASK.directions()["qk"]})[0], rtol=1e-5
    )


def test_wrong_input_is_refused():
    with pytest.raises(InputError, match="sigma must be"):
        expected_start(SETTING, "FAFO", 0.0)
    with pytest.raises(InputError, match="sigma must be between 1e-75"):
        expected_start(SETTING, "FAFO", 1e200)
    with pytest.raises(InputError):
        expected_start(SETTING, "FOFO", 1.0)


GOOD, EYE = TASK.directions(), np.eye(4)


@pytest.mark.parametrize(
    "params, directions, told",
    [
        (None, GOOD, "params must be Params"),
        ({"qk": {"W_QK": np.full((10, 10), np.nan)}, "ov": {"W_OV": np.ones((3, 10))}}, GOOD, "W_QK must be finite"),
        ("fits", None, "directions must be D"),
        ("fits", {"qk": GOOD["qk"]}, "directions must be D"),
        ("fits", {"qk": EYE, "ov": EYE}, r"must be not zero and of shapes \(10, 10\) and \(3, 10\)"),
        ("fits", {"qk": GOOD["qk"], "ov": np.zeros((3, 10))}, "must be not zero"),
        ("fits", {"qk": GOOD["qk"], "ov": np.full((3, 10), np.nan)}, "directions ov must be finite"),
    ],
)
def test_what_does_not_fit_is_refused(unchecked, params, directions, told):
    start = on_ansatz(GOOD, "FAFO", mu_ov=0.1, mu_qk=0.1) if params == "fits" else params
    with pytest.raises(InputError, match=told):
        effective_start(start, directions)
