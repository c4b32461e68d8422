"""Records on the device, carried through a training loop and read afterwards, against a plain list."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

from helpers import QUICK, compilations, quick
from qkdyn import observe
from qkdyn.errors import InputError, OutputWarning
from qkdyn.metrics import sharpness
from qkdyn.results import load_dataset, save_dataset

X = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)
LAYERS = {"layer_10": 1, "layer_2": 3}


def values_at(i):
    """Measures that tell which record, layer, head and measure they are, and a scalar beside them."""
    return {"loss": np.float32(i / 4)} | {
        layer: {name: np.float32(1000 * i + 100 * n + 10 * heads + np.arange(heads)) for n, name in enumerate("ab")}
        for layer, heads in LAYERS.items()
    }


@pytest.fixture(scope="module")
def write():
    return quick(observe.write)


@pytest.fixture
def filled(write):
    def fill(number, capacity=4):
        records = observe.start(capacity, values_at(0))
        for i in range(number):
            records = write(records, 10 * i, values_at(i))
        return records

    return fill


def told(records, **options):
    heard = []
    return observe.emit(records, lambda step, values: heard.append((step, values)), **options), heard


def test_a_dataset_has_named_axes_and_survives_a_file(filled, tmp_path):
    ds = observe.to_dataset(filled(3))
    assert dict(ds.sizes) == {"step": 3, "layer": 2, "head": 3} and ds.a.dims == ("step", "layer", "head")
    assert list(ds.step.values) == [0, 10, 20] and ds.attrs["replaced"] == 0
    assert ds.loss.dims == ("step",) and ds.loss.values.tolist() == [0, 0.25, 0.5]
    # Numbers in names by their size, and missing heads are NaN.
    assert list(ds.layer.values) == ["layer_2", "layer_10"]
    for i in range(3):
        for layer, heads in LAYERS.items():
            for name in "ab":
                row = ds[name].sel(step=10 * i, layer=layer).values
                np.testing.assert_array_equal(row[:heads], values_at(i)[layer][name])
                assert np.isnan(row[heads:]).all()
    save_dataset(ds, tmp_path / "data.nc")
    xr.testing.assert_identical(load_dataset(tmp_path / "data.nc"), ds)
    assert observe.to_dataset(filled(0)).sizes["step"] == 0


def test_a_logger_hears_every_record_once(filled):
    seen, heard = told(filled(2))
    assert seen == 2 and [step for step, _ in heard] == [0, 10]
    means = {"layer_2/a": 1031, "layer_2/b": 1131, "layer_10/a": 1010, "layer_10/b": 1110}
    assert heard[1][1] == {"loss": 0.25, **means} and list(heard[0][1]) == ["loss", *means]
    assert all(type(v) is float for v in heard[0][1].values())
    seen, heard = told(filled(4), seen=seen)
    assert seen == 4 and [step for step, _ in heard] == [20, 30]
    assert told(filled(4), seen=4) == (4, [])
    _, heard = told(filled(1), heads=True)
    assert heard[0][1]["layer_2/head_1/b"] == 131 and heard[0][1]["layer_2/b"] == 131 and len(heard[0][1]) == 1 + 4 + 8


def test_a_full_buffer_replaces_the_oldest_and_says_so(filled):
    with pytest.warns(OutputWarning, match="2 records were replaced"):
        ds = observe.to_dataset(filled(6))
    assert list(ds.step.values) == [20, 30, 40, 50] and ds.attrs["replaced"] == 2
    np.testing.assert_array_equal(ds.a.sel(layer="layer_10", head=0), [2010, 3010, 4010, 5010])
    # Who has seen the two that are gone has missed nothing.
    assert [step for step, _ in told(filled(6), seen=2)[1]] == [20, 30, 40, 50]
    with pytest.warns(OutputWarning, match="1 records were replaced"):
        told(filled(6), seen=1)


@pytest.fixture(scope="module")
def training():
    """(state, watched loop of six steps, one step by itself with its maps)."""
    attention = nn.MultiHeadDotProductAttention(2)
    optimizer = optax.sgd(0.1)

    def loss(params):
        output, variables = attention.apply(params, X, sow_weights=True, mutable=["intermediates"])
        return (output**2).mean(), observe.sown(variables)

    def update(state):
        params, inner = state
        (value, maps), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        change, inner = optimizer.update(gradient, inner)
        return (optax.apply_updates(params, change), inner), value, maps

    def measures(value, maps):
        return {"loss": value, **observe.measure(maps)}

    def loop(state, records, first):
        def body(carry, step):
            state, *seen = update(carry[0])
            return (state, observe.write_every(carry[1], step, 3, lambda: measures(*seen))), None

        return jax.lax.scan(body, (state, records), first + jnp.arange(6))[0]

    rng, shapes = np.random.default_rng(1), jax.eval_shape(attention.init, jax.random.key(0), X)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    return (params, optimizer.init(params)), loop, update, measures


def test_training_is_recorded_without_a_round_trip(training):
    state, loop, update, measures = training
    like = jax.eval_shape(lambda state: measures(*update(state)[1:]), state)
    # Nothing in the program calls the host.
    program = jax.jit(loop, compiler_options=QUICK)
    records = observe.start(4, like)
    assert "callback" not in str(jax.make_jaxpr(loop)(state, records, 0))
    arguments = jax.device_put((state, records, jnp.int32(0), jnp.int32(6)))
    with compilations() as compiled:
        first = program(*arguments[:3])
        with jax.transfer_guard("disallow"):
            _, records = program(*first, arguments[3])
    assert len([line for line in compiled if "loop" in line]) == 1
    # Against single steps, measured outside jit.
    one, expected = quick(update), {}
    for step in range(12):
        state, value, maps = one(state)
        if step % 3 == 0:
            expected[step] = value, sharpness.attention_entropy(*maps.values()).mean((0, 2))
    ds = observe.to_dataset(records)
    assert list(ds.step.values) == list(expected)
    for step, (value, entropy) in expected.items():
        np.testing.assert_allclose(ds.entropy.sel(step=step, layer="layer_0"), entropy, rtol=1e-4)
        np.testing.assert_allclose(ds.loss.sel(step=step), value, rtol=1e-5)
    assert np.ptp(ds.entropy.values) > 1e-3 and np.ptp(ds.loss.values) > 1e-3


def test_records_of_seeds_that_train_together():
    def run(seed):
        records = observe.start(3, values_at(0))
        for i in range(2):
            records = observe.write(records, 5 * i, jax.tree.map(lambda leaf: leaf + seed, values_at(i)))
        return records

    records = quick(jax.vmap(run))(jnp.arange(2))
    ds = observe.to_dataset(records, axes=("seed",))
    assert ds.a.dims == ("seed", "step", "layer", "head") and ds.step.values.tolist() == [0, 5]
    assert ds.loss.dims == ("seed", "step") and ds.loss.values.tolist() == [[0, 0.25], [1, 1.25]]
    assert ds.a.sel(layer="layer_10", head=0).values.tolist() == [[10, 1010], [11, 1011]]
    with pytest.raises(InputError, match="of one run"):
        told(records)
    with pytest.raises(InputError, match="names for the 1 axes"):
        observe.to_dataset(records)
    with pytest.raises(InputError, match="recorded the same steps"):
        observe.to_dataset(records._replace(step=records.step + np.arange(2)[:, None]), axes=("seed",))
    _, heard = told(jax.tree.map(lambda leaf: leaf[1], records))
    assert heard[1][1]["layer_10/a"] == 1011


def fewer():
    return {"layer_2": values_at(0)["layer_2"]}


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: observe.start(0, values_at(0)), "capacity must be an integer >= 1"),
        (lambda: observe.start(3, {}), "like must be {layer"),
        (lambda: observe.start(3, {"a": np.ones(3)}), "like must be {layer"),
        (lambda: observe.start(3, {"a": {"b": np.ones((3, 1))}}), r"like\['a'\]\['b'\] must be one array"),
        (lambda: observe.start(3, {"loss": np.float32(1)}), "like must be {layer"),
        (lambda: observe.start(3, fewer() | {"loss": np.ones(2)}), r"like\['loss'\] must be one number"),
        (lambda: observe.start(3, fewer() | {"loss": "low"}), r"like\['loss'\] must be one number"),
        (
            lambda: observe.start(3, fewer() | {"a": 1.0}),
            "each scalar must be called otherwise than a, b, head, layer, step",
        ),
        (lambda: observe.start(3, fewer() | {"step": 1.0}), "each scalar must be called otherwise"),
        (
            lambda: observe.write(observe.start(2, fewer() | {"loss": 0.5}), 0, fewer()),
            r"loss: \(\) in the buffer, none given",
        ),
        (lambda: observe.write(observe.start(2, values_at(0)), 0, fewer()), "layer_10/a: .* none given"),
        (lambda: observe.write(observe.start(2, fewer()), 0, values_at(0)), r"none in the buffer, \(1,\) given"),
        (lambda: observe.write_every(observe.start(2, fewer()), 0, 0, fewer), "every must be"),
        (lambda: observe.write_every(observe.start(2, fewer()), 0, 2, fewer()), "values must be a function"),
        *(
            (lambda step=step: observe.write(observe.start(3, fewer()), step, fewer()), message)
            for step, message in [
                (np.int64(3_000_000_000), r"step must be below 2\^31"),
                (3_000_000_000, r"step must be below 2\^31"),
                (2.7, "step must be an integer"),
                (np.nan, "step must be an integer"),
                (-5, "step must be an integer >= 0"),
                (np.arange(3), "step must be an integer"),
                (jnp.arange(3), "step must be one integer"),
                (jnp.float32(2), "step must be one integer"),
            ]
        ),
        (
            lambda: observe.write(jax.tree.map(lambda x: np.stack([x] * 3), observe.start(3, fewer())), 0, fewer()),
            "shape of records.step must be .* inside jax.vmap",
        ),
        (lambda: observe.emit(observe.start(2, fewer()), None), "on_record must be a function"),
        (lambda: observe.emit(observe.start(2, fewer()), print, seen=-1), "seen must be"),
        (lambda: observe.to_dataset(observe.start(2, fewer()), axes=("seed",)), "axes must be names for the 0 axes"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()
