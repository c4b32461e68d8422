"""The orthogonal task: exact symmetry of the balanced design, the law of the sampled one, Theorem 1's gradient, refusals."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import quick
from qkdyn.circuits import on_ansatz
from qkdyn.errors import InputError
from qkdyn.tasks.orthogonal import OrthogonalTask
from qkdyn.train.probe import AnsatzProbe
from qkdyn.train.step import batch_loss

# One program instead of one for each operation, compiled quickly.
batch_of = quick(OrthogonalTask.batch_of, static_argnums=0)


def task_of(m, n, b, M, K, query, copies=1):
    return OrthogonalTask(m=m, n=n, b=b, M=M, backgrounds=K, query=query, batch=copies * unit_of(m, b, M, query))


def unit_of(m, b, M, query):
    return 2 * M * (b // math.gcd(m, b)) * (b if query == "single" else 1)


tasks = st.builds(
    task_of,
    m=st.integers(1, 5),
    n=st.integers(1, 4),
    b=st.integers(1, 5),
    M=st.integers(2, 4),
    K=st.integers(1, 5),
    query=st.sampled_from(["single", "mean"]),
    copies=st.integers(1, 3),
)


@settings(max_examples=6)
@given(tasks, st.integers(0, 99))
def test_balanced_design_has_the_populations_symmetries(task, seed):
    batch = batch_of(task, jax.random.key(seed), False)
    X, x_T, y = (np.asarray(leaf, float) for leaf in batch)
    assert X.shape == (task.batch, task.m + task.n, task.d) and x_T.shape == (task.batch, task.d)
    S = np.asarray([task.directions()["qk"][k * task.b : (k + 1) * task.b].max(0) for k in range(task.M)])
    for k in range(task.M):
        own = y == k
        assert own.sum() == task.batch / task.M
        tokens, queries, nu = X[own, : task.m].mean(1), x_T[own], X[own, task.m :].sum(1)
        # E[x_j x_T^T | y] = S_y S_y^T / b^2, E[nu | y] = 0 and E[nu x_T^T | y] = 0, all exactly.
        np.testing.assert_allclose(tokens.T @ queries / own.sum(), np.outer(S[k], S[k]) / task.b**2, atol=1e-6)
        np.testing.assert_allclose(nu.mean(0), 0, atol=1e-7)
        np.testing.assert_allclose(nu.T @ queries, 0, atol=1e-5)
        np.testing.assert_allclose(queries @ S[k], 1, atol=1e-6)


@settings(max_examples=6)
@given(tasks, st.integers(0, 99))
def test_tokens_are_signed_unit_vectors_in_their_places(task, seed):
    for sampled in (False, True):
        X, _, y = batch_of(task, jax.random.key(seed), sampled)
        assert (np.abs(X).sum(-1) == 1).all()
        owner = np.abs(X).argmax(-1)
        assert (owner[:, : task.m] // task.b == y[:, None]).all() and (X[:, : task.m].sum(-1) == 1).all()
        assert (owner[:, task.m :] >= task.M * task.b).all()


def test_sampled_tokens_are_uniform_independent_draws():
    from scipy.stats import chisquare

    task = OrthogonalTask(m=2, n=1, b=3, M=2, backgrounds=2, batch=36)
    keys = jax.random.split(jax.random.key(0), 400)
    drawn = quick(jax.vmap(lambda k: task.batch_of(k, True).X[: task.batch // 2]))(keys)
    X, nu = np.split(drawn, [task.m], 2)
    tau = X.argmax(-1).reshape(-1, 2) % task.b
    counts = [np.sum((tau == pair).all(1)) for pair in itertools.product(range(3), repeat=2)]
    assert chisquare(counts).pvalue > 1e-3
    nu = nu.reshape(-1, task.d)
    signed = [np.sum(nu[:, -k] == s) for k in (1, 2) for s in (1, -1)]
    assert chisquare(signed).pvalue > 1e-3


def test_batches_depend_on_the_key_and_only_in_what_is_random():
    task = OrthogonalTask()
    a, b = (batch_of(task, jax.random.key(k), False) for k in (0, 1))
    assert not np.array_equal(a.X[:, task.m :], b.X[:, task.m :]) and np.array_equal(a.X[:, : task.m], b.X[:, : task.m])
    a, b = (batch_of(task, jax.random.key(k), True) for k in (0, 1))
    assert not np.array_equal(a.X[:, : task.m], b.X[:, : task.m]) and np.array_equal(a.x_T, b.x_T)


@pytest.mark.parametrize(
    "m,n,b,M,K,query",
    [(4, 8, 4, 4, 16, "single"), (2, 3, 5, 3, 4, "single"), (5, 2, 3, 2, 3, "mean"), (3, 4, 6, 5, 2, "mean")],
)
def test_on_the_ansatz_the_gradient_is_theorem_1s(m, n, b, M, K, query, x64):
    task = task_of(m, n, b, M, K, query)
    directions, probe = task.directions(), AnsatzProbe(task)
    look = quick(lambda params, key: (jax.grad(batch_loss)(params, task.batch_of(key, False)), probe(params)))
    for mu_ov, mu_qk in ((0.0, 0.0), (0.7, 0.4), (3.0, 2.0)):
        params = {"qk": {"W_QK": mu_qk * directions["qk"]}, "ov": {"W_OV": mu_ov * directions["ov"]}}
        gradient, measured = look(params, jax.random.key(1))
        alpha = m * np.exp(mu_qk) / (m * np.exp(mu_qk) + n)
        E = np.exp(alpha * mu_ov)
        f = alpha / (b * (E + M - 1))
        g = (M - 1) * alpha * (1 - alpha) * mu_ov / (M * b**2 * (E + M - 1))
        np.testing.assert_allclose(-gradient["ov"]["W_OV"], f * directions["ov"], atol=1e-13)
        np.testing.assert_allclose(-gradient["qk"]["W_QK"], g * directions["qk"], atol=1e-13)
        expected = {"loss": np.log1p((M - 1) / E), "mu_ov": mu_ov, "mu_qk": mu_qk, "alpha": alpha}
        for name, value in expected.items():
            assert float(measured[name]) == pytest.approx(value, abs=1e-12)


def test_probe_reads_any_parameterization():
    task = OrthogonalTask()
    for form in ("FAFO", "CAFO", "FACO", "CACO"):
        measured = quick(AnsatzProbe(task))(on_ansatz(task.directions(), form, mu_ov=0.5, mu_qk=0.25))
        assert float(measured["mu_ov"]) == pytest.approx(0.5, rel=1e-5)
        assert float(measured["mu_qk"]) == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"m": 0}, "m must be an integer >= 1, got 0"),
        ({"n": 1.5}, "n must be an integer >= 1, got 1.5"),
        ({"b": "4"}, "b must be an integer >= 1, got '4'"),
        ({"M": 1}, "M must be an integer >= 2, got 1; one class leaves nothing to predict"),
        ({"backgrounds": -3}, "backgrounds must be"),
        ({"query": "last"}, "query must be one of single, mean, got 'last'"),
        ({"batch": 65}, "batch must be a multiple of 32 .* got 65; take 96"),
    ],
)
def test_sizes_are_refused(change, message, unchecked):
    with pytest.raises(InputError, match=message):
        OrthogonalTask(**change)
