"""Rollout against loops and its special cases; rows of it, of layers and of heads; maps that are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import measures_by_hand as hand
from qkdyn.errors import InputError
from qkdyn.metrics.rollout import head_rows, rollout, rollout_row


def maps(seed=0, lead=(3,), layers=2, heads=2, T=4):
    """Causal attention, (..., layers, heads, T, T)."""
    weight = np.random.default_rng(seed).exponential(size=(*lead, layers, heads, T, T)) * np.tri(T)
    return weight / weight.sum(-1, keepdims=True)


@given(
    st.integers(0, 50), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.sampled_from([0.0, 0.3, 0.5, 1.0])
)
def test_against_loops(seed, layers, heads, T, weight):
    whole = maps(seed, (2,), layers, heads, T)
    found = rollout(whole, weight)
    for n in range(2):
        np.testing.assert_allclose(found[n], hand.rollout(list(whole[n]), weight), atol=1e-13)
        for position in range(-T, T):
            np.testing.assert_allclose(rollout_row(whole, position, weight)[n], found[n, position], atol=1e-13)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-12)
    as_list = [whole[:, layer] for layer in range(layers)]
    np.testing.assert_array_equal(rollout(as_list, weight), found)


def test_special_cases():
    one = maps(layers=1)
    np.testing.assert_allclose(rollout(one, 1.0), one.mean(-3)[:, 0], atol=1e-15)
    np.testing.assert_allclose(rollout(maps(layers=3), 0.0), np.broadcast_to(np.eye(4), (3, 4, 4)))
    # Abnar & Zuidema: half of attention, half of the residual stream.
    first, second = np.array([[[1.0, 0], [0.5, 0.5]]]), np.array([[[1.0, 0], [1, 0]]])
    expected = (second[0] + np.eye(2)) / 2 @ ((first[0] + np.eye(2)) / 2)
    np.testing.assert_allclose(rollout([first, second], 0.5), expected)
    assert expected.tolist() == [[1, 0], [0.625, 0.375]]


def test_a_position_for_each_instance():
    whole, position = maps(4, (3, 2)), np.array([[0, 3], [1, 2], [-1, 0]])
    row = rollout_row(whole, position, 0.5)
    expected = np.take_along_axis(rollout(whole, 0.5), (position % 4)[..., None, None], -2)[..., 0, :]
    np.testing.assert_allclose(row, expected, atol=1e-14)


def test_the_last_layer_may_hold_the_measured_row_alone():
    whole, position = maps(5), np.array([2, 0, 3])
    layers = [whole[:, 0], np.take_along_axis(whole[:, 1], position[:, None, None, None], -2)]
    for weight in (0.5, 1.0):
        np.testing.assert_allclose(
            rollout_row(layers, position, weight), rollout_row(whole, position, weight), atol=1e-14
        )
    np.testing.assert_array_equal(head_rows(layers, position), head_rows(whole, position))
    alone = rollout_row(layers[1:], position, 1.0)
    np.testing.assert_allclose(alone, layers[1][..., 0, :].mean(1))
    with pytest.raises(InputError, match=r"shapes of attentions must be \(\.\.\., heads, T, T\) with the same T, got"):
        rollout(layers, 0.5)


def test_rows_of_layers_and_heads():
    whole = maps(6, (3,), layers=2, heads=3)
    rows = head_rows(whole, -1)
    assert rows.shape == (2, 3, 3, 4)
    for layer in range(2):
        for n in range(3):
            for head in range(3):
                assert rows[layer, n, head].tolist() == whole[n, layer, head, 3].tolist()
    each = head_rows(whole, np.array([1, 2, 3]))
    assert each[1, 1, 2].tolist() == whole[1, 1, 2, 2].tolist()


def test_empty_rows_at_padding_alone():
    whole, padding = maps(7), np.arange(4) >= np.array([2, 4, 3])[:, None]
    whole = np.where(padding[:, None, None, :, None], 0, whole)
    with pytest.raises(
        InputError, match=r"layer 0, instance 0, head 0, row 2 must be 1 \(or 0, at padding alone\), got 0.0"
    ):
        rollout(whole, 0.5)
    half, alone = rollout(whole, 0.5, padding=padding), rollout(whole, 1.0, padding=padding)
    for n, length in enumerate([2, 4, 3]):
        inside = [layer[:, :length, :length] for layer in whole[n]]
        for found, weight in ((half[n], 0.5), (alone[n], 1.0)):
            np.testing.assert_allclose(found[:length, :length], hand.rollout(inside, weight), atol=1e-14)
        np.testing.assert_array_equal(half[n, length:], np.eye(4)[length:])
        assert not alone[n, length:].any()
    np.testing.assert_allclose(rollout_row(whole, 3, 0.5, padding=padding), half[:, 3], atol=1e-15)
    np.testing.assert_allclose(rollout_row(whole, 3, 1.0, padding=padding), alone[:, 3], atol=1e-15)
    # One mask for all instances; it allows empty rows, and does not ask for them.
    np.testing.assert_array_equal(
        rollout(maps(), 0.5, padding=np.array([False, False, True, True])), rollout(maps(), 0.5)
    )


def spoiled(layer, head, row, value, lead=()):
    whole = maps(8, lead)
    whole[..., layer, head, row, 0] = value
    return whole


GOOD = maps(9, ())


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: rollout(spoiled(1, 0, 2, 0.9), 0.5),
            r"the sum over keys of layer 1, head 0, row 2 must be 1 .*got 1\.\d+; pass maps after the softmax",
        ),
        (
            lambda: rollout_row(spoiled(0, 1, 3, 0.9, (2,)), 0, 0.5),
            r"the sum over keys of layer 0, instance 0, head 1, row 3 must be 1",
        ),
        (lambda: rollout(GOOD / 2, 0.5, padding=np.ones(4, bool)), "layer 0, head 0, row 0 must be .*got 0.5"),
        (lambda: rollout(spoiled(0, 0, 0, np.nan), 0.5), r"attentions\[0, 0, 0, 0\] must be .*got nan"),
        (lambda: rollout([*spoiled(1, 0, 1, -0.2)], 0.5), r"attentions\[1\]\[0, 1, 0\] must be .*got -0\.2"),
        (lambda: rollout([], 0.5), "attentions must be maps of at least one layer"),
        (
            lambda: rollout(GOOD[0, 0], 0.5),
            r"shape of attentions must be \(\.\.\., layers, heads, T, T\), got \(4, 4\)",
        ),
        (lambda: rollout([GOOD[0], maps(T=3, lead=())[0]], 0.5), r"shapes of attentions .*\(2, 4, 4\), \(2, 3, 3\)"),
        (lambda: rollout([GOOD[0, 0]], 0.5), r"shapes of attentions .*got \[\(4, 4\)\]"),
        (lambda: rollout([GOOD[0, :, :3]], 0.5), r"shapes of attentions .*got \[\(2, 3, 4\)\]"),
        (lambda: rollout(GOOD, 1.5), "residual must be a number from 0 to 1, got 1.5"),
        (lambda: rollout(GOOD, 0.5, padding=np.zeros(4)), "type of padding must be bool"),
        (lambda: rollout(GOOD, 0.5, padding=np.zeros(3, bool)), "shapes of padding and attentions"),
        (
            lambda: rollout(GOOD, 0.5, padding=np.zeros((2, 4), bool)),
            r"shape of padding must be \(4,\), .*got \(2, 4\)",
        ),
        (lambda: rollout_row(GOOD, 4, 0.5), "position must be integers from -4 to 3, got 4"),
        (lambda: rollout_row(GOOD, -5, 0.5), "position must be integers from -4 to 3, got -5"),
        (lambda: rollout_row(GOOD, 1.0, 0.5), "position must be integers from -4 to 3, got 1.0"),
        (lambda: head_rows(GOOD, np.array([0, 9])), r"position\[1\] must be .*got 9"),
        (lambda: head_rows(maps(), np.array([0, 1])), r"shape of position must be \(\) or \(3,\), .*got \(2,\)"),
    ],
)
def test_refused(call, message, unchecked):
    with pytest.raises(InputError, match=message):
        call()
