"""The printed table: every parameter once, sizes that add up, rates as the optimizer has them."""

import functools

import numpy as np
import optax
import pytest

from qkdyn.circuit_table import circuit_table
from qkdyn.circuits import circuit_labels
from qkdyn.errors import LabelError
from qkdyn.slices import fused

ATTENTION = {"qkv": np.zeros((4, 12)), "proj": np.zeros((4, 4))}
PARAMS = {"attn": ATTENTION, "mlp": {"w": np.zeros((4, 5))}, "norm": np.zeros(4), "t": 1.0}


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
    assert cells["attn/qkv"] == ["4x12", "qk 0:4, qk 4:8, ov 8:12 of axis -1", "48", "0.01, 0.0005, then as scheduled"]
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
