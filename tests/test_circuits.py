"""Circuits: shapes, products, balance, labels, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import max_difference, trees_equal
from qkdyn.circuits import (
    Parameterization,
    balanced_factors,
    balancedness,
    circuit_labels,
    collapse,
    factorize,
    init_params,
    on_ansatz,
    parameterization_of,
    scaled_identity,
    torch_uniform,
)
from qkdyn.errors import InputError, LabelError
from qkdyn.tasks.orthogonal import OrthogonalTask

NORMAL = jax.nn.initializers.normal(0.3)
FORMS = list(Parameterization)


def draw(form, d=6, M=3, key=0, dtype=jnp.float32):
    return init_params(jax.random.key(key), form, d=d, M=M, qk=NORMAL, ov=NORMAL, dtype=dtype)


@pytest.mark.parametrize("form", FORMS)
def test_shapes_and_names_are_the_papers(form):
    shapes = jax.tree.map(jnp.shape, draw(form))
    qk = {"W_K": (6, 6), "W_Q": (6, 6)} if form in ("FAFO", "FACO") else {"W_QK": (6, 6)}
    ov = {"W_O": (3, 6), "W_V": (6, 6)} if form in ("FAFO", "CAFO") else {"W_OV": (3, 6)}
    assert shapes == {"qk": qk, "ov": ov}
    assert parameterization_of(draw(form)) is form


def test_every_matrix_has_a_key_of_its_own():
    leaves = [np.asarray(leaf)[:3] for leaf in jax.tree.leaves(draw("FAFO"))]
    for i, a in enumerate(leaves):
        for b in leaves[i + 1 :]:
            assert not np.allclose(a, b)


@pytest.mark.parametrize("form", FORMS)
def test_collapse_is_the_product(form):
    params = draw(form)
    flat = collapse(params)
    if form.factorized_qk:
        expected = np.asarray(params["qk"]["W_K"]) @ np.asarray(params["qk"]["W_Q"]).T
        np.testing.assert_allclose(flat["qk"]["W_QK"], expected, atol=1e-6)
    else:
        assert flat["qk"] is not params["qk"] and trees_equal(flat["qk"], params["qk"])
    if form.factorized_ov:
        expected = np.asarray(params["ov"]["W_O"]) @ np.asarray(params["ov"]["W_V"])
        np.testing.assert_allclose(flat["ov"]["W_OV"], expected, atol=1e-6)


def test_collapse_keeps_leading_axes():
    stacked = jax.vmap(lambda k: init_params(k, "FAFO", d=4, M=2, qk=NORMAL, ov=NORMAL))(
        jax.random.split(jax.random.key(0), 5)
    )
    one = jax.tree.map(lambda leaf: leaf[3], stacked)
    assert max_difference(jax.tree.map(lambda leaf: leaf[3], collapse(stacked)), collapse(one)) < 1e-6


@given(rows=st.integers(1, 9), d=st.integers(1, 9), rank=st.integers(1, 9), seed=st.integers(0, 99))
def test_balanced_factors_of_any_shape_and_rank(rows, d, rank, seed):
    rng = np.random.default_rng(seed)
    W = (rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, d))).astype(np.float32)
    A, B = map(np.asarray, balanced_factors(jnp.asarray(W)))
    assert A.shape == (rows, d) and B.shape == (d, d)
    size = np.abs(W).max()
    np.testing.assert_allclose(A @ B, W, atol=1e-5 * size)
    np.testing.assert_allclose(A.T @ A, B @ B.T, atol=1e-5 * size)


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("M,d", [(3, 6), (6, 6), (9, 6)])
def test_factorize_keeps_the_function_and_balances(target, M, d, x64):
    params = draw("FAFO", d=d, M=M, dtype=jnp.float64)
    assert balancedness(params)["ov"] > 0.1
    other = factorize(params, target)
    assert parameterization_of(other) is target
    assert max_difference(collapse(other), collapse(params)) < 1e-13
    defects = balancedness(other)
    assert set(defects) == {c for c, f in (("qk", target.factorized_qk), ("ov", target.factorized_ov)) if f}
    assert all(defect < 1e-14 for defect in defects.values())


def test_balancedness_is_the_relative_defect():
    params = draw("FAFO")
    K, Q = (np.asarray(params["qk"][k], float) for k in ("W_K", "W_Q"))
    left, right = K.T @ K, Q.T @ Q
    expected = np.linalg.norm(left - right) / (np.linalg.norm(left) + np.linalg.norm(right))
    assert balancedness(params)["qk"] == pytest.approx(expected, rel=1e-5)
    assert balancedness(draw("CACO")) == {}


@pytest.mark.parametrize("form", FORMS)
def test_on_ansatz_starts_at_the_scalars(form):
    directions = OrthogonalTask().directions()
    params = on_ansatz(directions, form, mu_ov=0.2, mu_qk=0.3)
    flat = collapse(params)
    np.testing.assert_allclose(flat["ov"]["W_OV"], 0.2 * directions["ov"], atol=1e-6)
    np.testing.assert_allclose(flat["qk"]["W_QK"], 0.3 * directions["qk"], atol=1e-6)
    assert all(defect < 1e-6 for defect in balancedness(params).values())


@pytest.mark.parametrize("form", FORMS)
def test_on_ansatz_in_double_precision(form):
    directions = OrthogonalTask().directions()
    params = on_ansatz(directions, form, mu_ov=0.2, mu_qk=0.3, dtype=jnp.float64)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float64")}
    with jax.enable_x64(True):
        flat = collapse(params)
        np.testing.assert_allclose(flat["ov"]["W_OV"], 0.2 * directions["ov"], atol=1e-14)
        np.testing.assert_allclose(flat["qk"]["W_QK"], 0.3 * directions["qk"], atol=1e-14)
        assert all(defect < 1e-14 for defect in balancedness(params).values())


def test_initializers():
    key = jax.random.key(1)
    np.testing.assert_array_equal(scaled_identity(0.5)(key, (2, 3), jnp.float32), [[0.5, 0, 0], [0, 0.5, 0]])
    drawn = np.asarray(torch_uniform()(key, (400, 25), jnp.float32))
    assert np.abs(drawn).max() <= 0.2 and drawn.std() == pytest.approx(0.2 / np.sqrt(3), rel=0.02)


def test_factorized_circuit_at_zero_is_refused_with_the_reason():
    zeros = jax.nn.initializers.zeros
    with pytest.raises(InputError, match=r"W_O and W_V must not both be zero.*saddle.*0\.1"):
        init_params(jax.random.key(0), "CAFO", d=4, M=2, qk=zeros, ov=zeros)
    with pytest.raises(InputError, match="W_K and W_Q must not both be zero"):
        on_ansatz(OrthogonalTask().directions(), "FACO", mu_ov=0.0, mu_qk=0.0)
    assert not np.any(init_params(jax.random.key(0), "CACO", d=4, M=2, qk=zeros, ov=zeros)["qk"]["W_QK"])


@pytest.mark.parametrize(
    "change,message",
    [
        ({"parameterization": "FOCA"}, "parameterization must be one of FAFO, CAFO, FACO, CACO, got 'FOCA'"),
        ({"parameterization": None}, "parameterization must be one of"),
        ({"d": 0}, "d must be an integer >= 1, got 0"),
        ({"M": 2.0}, "M must be an integer >= 1, got 2.0"),
        ({"M": True}, "M must be an integer >= 1, got True"),
    ],
)
def test_init_refuses(change, message, unchecked):
    arguments = {"parameterization": "FAFO", "d": 4, "M": 2} | change
    form = arguments.pop("parameterization")
    with pytest.raises(InputError, match=message):
        init_params(jax.random.key(0), form, qk=NORMAL, ov=NORMAL, **arguments)


def test_scales_are_refused():
    with pytest.raises(InputError, match="mu_ov must be a finite number >= 0, got -1.0"):
        on_ansatz(OrthogonalTask().directions(), "CACO", mu_ov=-1.0, mu_qk=0.0)
    with pytest.raises(InputError, match="scale must be a finite number > 0, got nan"):
        scaled_identity(float("nan"))


def test_params_of_no_parameterization_are_refused():
    with pytest.raises(InputError, match=r"params must be .*W_K, W_Q.* got .*W_V"):
        collapse({"qk": {"W_QK": jnp.eye(2)}, "ov": {"W_V": jnp.eye(2)}})


labelled = st.sampled_from(["qk", "ov", "rest", "embed", "mlp", "head"])
names = st.text("abcxyz", min_size=1, max_size=3)
subtree = st.recursive(st.just(0.0), lambda s: st.dictionaries(names, s, min_size=1, max_size=3), max_leaves=6)


@given(st.dictionaries(labelled, subtree, min_size=1, max_size=4))
def test_labels_cover_every_leaf_of_any_tree(tree):
    tree = {"qk": 0.0} | tree  # without a circuit there is nothing to label
    labels = circuit_labels({"layer": [tree, tree]})
    assert jax.tree.structure(labels) == jax.tree.structure({"layer": [tree, tree]})
    for name, part in tree.items():
        assert set(jax.tree.leaves(labels["layer"][1][name])) == {name}
        assert len(jax.tree.leaves(labels["layer"][1][name])) == len(jax.tree.leaves(part))


def test_labels_by_keys_go_before_what_names_say():
    tree = {"qk": {"W_Q": 1.0, "value": 2.0}, "ov": {"key": 3.0}, "mlp": {"out": 4.0}, "b": [5.0]}
    labels = {"qk": {"W_Q": "qk", "value": "qk"}, "ov": {"key": "ov"}, "mlp": {"out": "mlp"}, "b": ["rest"]}
    assert circuit_labels(tree) == labels
    with pytest.raises(LabelError, match=r"no attention found in these parameters\n(.*\n)*  a/w +scalar +rest"):
        circuit_labels({"a": {"w": 1.0}, "b": [2.0], "mlp": {"W_in": 3.0}})
