"""Macro F1 against scikit-learn; what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkdyn.errors import InputError
from qkdyn.metrics import cores
from qkdyn.metrics.classification import macro_f1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=12))
def test_against_scikit_learn(rows):
    from sklearn.metrics import f1_score

    predicted, label, counted = (np.array(column) for column in zip(*rows, strict=True))
    expected = f1_score(label, predicted, labels=range(3), average="macro", zero_division=0)
    assert float(macro_f1(predicted, label, 3)) == pytest.approx(expected)
    both = macro_f1(np.stack([predicted, label]), label, 3)
    present = len(set(label.tolist()))
    assert both == pytest.approx([expected, present / 3])
    if counted.any():
        expected = f1_score(label[counted], predicted[counted], labels=range(3), average="macro", zero_division=0)
        assert cores.macro_f1(np, predicted, label, 3, counted) == pytest.approx(expected)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: macro_f1([0, 3], [0, 1], 3), r"predicted\[1\] must be integers from 0 to 2, got 3"),
        (lambda: macro_f1([0, 1], [0, -1], 3), r"label\[1\] must be integers from 0 to 2, got -1"),
        (lambda: macro_f1([0.0, 1.0], [0, 1], 3), "predicted must be integers from 0 to 2"),
        (lambda: macro_f1([], [], 3), "predicted must be integers"),
        (lambda: macro_f1(1, 1, 3), "predicted must be an array of classes"),
        (lambda: macro_f1([0, 1], [0], 3), r"shapes of predicted and label .*got \(\(2,\), \(1,\)\)"),
        (lambda: macro_f1([0], [0], 0), "classes must be an integer >= 1, got 0"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()
