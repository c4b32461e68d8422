"""The printed table: every parameter once, sizes that add up, rates as the optimizer has them."""

import functools
import re

import numpy as np
import optax
import pytest
from flax import nnx

from qkdyn.circuit_table import circuit_table
from qkdyn.circuits import circuit_labels
from qkdyn.errors import InputError, LabelError
from qkdyn.slices import Slices, fused

ATTENTION = {"qkv": np.zeros((4, 12)), "proj": np.zeros((4, 4))}
PARAMS = {"attn": ATTENTION, "mlp": {"w": np.zeros((4, 5))}, "norm": np.zeros(4), "t": np.ones(())}


def test_lines_rates_and_sums():
    warm = optax.linear_schedule(0.5, 1.0, 10)
    table = circuit_table(
        PARAMS, multipliers={"qk": 10.0, "ov": warm, "rest": 1.0}, learning_rate=1e-3, freeze=("mlp",)
    ).splitlines()
    assert table[0].split() == ["parameter", "shape", "circuit", "number", "rate"] and set(table[1]) == {"-"} == set(
        table[7]
    )
    rows = {line.split()[0]: line.split("  ") for line in table[2:7]}
    assert list(rows) == ["attn/proj", "attn/qkv", "mlp/w", "norm", "t"]
    cells = {path: [cell.strip() for cell in row if cell.strip()][1:] for path, row in rows.items()}
    assert cells["attn/proj"] == ["4x4", "ov", "16", "0.0005, then as scheduled"]
    assert cells["attn/qkv"] == ["4x12", "qk 0:4, qk 4:8, ov 8:12 of axis -1", "48", "0.01; 0.0005, then as scheduled"]
    assert cells["mlp/w"] == ["4x5", "mlp", "20", "frozen"] and cells["t"] == ["scalar", "rest", "1", "0.001"]
    assert [line.split()[:3] for line in table[8:]] == [
        ["mlp", "20", "frozen"],
        ["ov", "32", "0.0005,"],
        ["qk", "32", "0.01"],
        ["rest", "5", "0.001"],
    ]


def test_without_multipliers_and_with_ones_own_labels():
    labels = functools.partial(circuit_labels, rules={"qkv": fused("qkv", axis=-1, heads=2), "w$": "own"})
    table = circuit_table(PARAMS, labels=labels)
    assert "qk 0:2, qk 2:4, ov 4:6 of axis -1, 2 times over" in table and " own " in table
    assert " mlp " in circuit_table(PARAMS) and " mlp " not in circuit_table(
        PARAMS, multipliers={"qk": 1, "ov": 1, "rest": 2}
    )
    with pytest.raises(LabelError, match="labels must be a tree, or a prefix"):
        circuit_table(PARAMS, labels={"attn": "qk"})


def rows_of(table):
    return {cells[0]: cells[-1] for line in table.splitlines() if len(cells := re.split(" {2,}", line.strip())) > 2}


def test_rates_of_layers_heads_decay_clip_and_warm_up():
    rates = {"qk": 10.0, "ov": 1.0, "rest": 1.0}
    warm = optax.linear_schedule(0.0, 0.1, 10)
    layers = {"h": [ATTENTION, ATTENTION]}
    options = {"decay": {"qk": 0.3}, "clip": 5.0, "layers": {"qk": (1.0, 2.0)}, "heads": {"ov": (3.0, 4.0)}}
    table = circuit_table(layers, multipliers=rates, learning_rate=warm, **options)
    rows, head = rows_of(table), "0, then 1 x schedule, x 3 4 by head (axis 1)"
    assert rows["h/0/qkv"] == f"0, then 10 x schedule, decay 0.3; {head}"
    assert rows["h/1/qkv"] == f"0, then 20 x schedule, decay 0.3; {head}"
    assert rows["h/1/proj"] == "0, then 1 x schedule, x 3 4 by head (axis 0)"
    assert rows["qk"] == "0, then 10 x schedule, decay 0.3, x factors as above"
    assert table.endswith("\ngradients clipped to a global norm of 5")
    scanned = {"wq": (2, 4, 8), "wk": (2, 4, 4), "wv": (2, 4, 4), "wo": (2, 8, 4)}
    scanned = {name: np.zeros(shape) for name, shape in scanned.items()}
    heads = {"qk": np.arange(1.0, 9.0).reshape(2, 4)}
    rows = rows_of(circuit_table(scanned, multipliers=rates, layers={"ov": [1.0, 2.0]}, heads=heads))
    assert rows["wv"] == "1, x 1 2 by layer (axis 0)"
    assert rows["wk"] == "10, x 1 2 3 4 5 6 7 8 by layer and head (axis 2, 2 with the mean of theirs)"
    assert rows["wq"] == "10, x 1 2 3 4 5 6 7 8 by layer and head (axis 2)"


def test_an_nnx_module_is_its_parameters():
    module = nnx.eval_shape(lambda: nnx.MultiHeadAttention(2, 4, 4, decode=False, rngs=nnx.Rngs(0)))
    assert circuit_table(module) == circuit_table(nnx.state(module, nnx.Param))


@pytest.mark.parametrize(
    "options, said",
    [
        ({"multipliers": {"qk": 0, "ov": 1.0, "rest": 1.0}}, r"multipliers\['qk'\] must be a finite number > 0"),
        ({"multipliers": {"qk": -1.0, "ov": 1.0, "rest": 1.0}}, r"multipliers\['qk'\] must be a finite number > 0"),
        ({"multipliers": {"qk": 1.0, "ov": 1.0}}, "no multiplier for mlp/w -> 'mlp'"),
        ({"freeze": "mlp"}, "freeze must be a list of values"),
        ({"freeze": "mlp", "multipliers": None}, "freeze must be a list of values"),
        ({"freeze": ("zz",)}, "freeze 'zz' match no parameter"),
        (
            {
                "labels": {
                    "attn": {"qkv": Slices(-1, (("qk", 0, 13),)), "proj": "ov"},
                    "mlp": "rest",
                    "norm": "rest",
                    "t": "rest",
                }
            },
            "slices of attn/qkv do not divide",
        ),
        ({"decay": {"qk": -1.0}}, r"decay\['qk'\] must be"),
        ({"layers": {"qk": (1.0, 2.0)}}, "2 multipliers of layers for 'qk'"),
    ],
)
def test_what_the_optimizer_refuses_is_refused(options, said, unchecked):
    with pytest.raises(InputError, match=said):
        circuit_table(PARAMS, **({"multipliers": {"qk": 1.0, "ov": 1.0, "rest": 1.0}} | options))
