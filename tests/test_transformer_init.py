"""The published start by its formulas, parameter by parameter; token vectors read from a file, and files that are none."""

import math

import jax
import numpy as np
import pytest
from made import bpe_entries, write, write_data

from qkdyn.errors import DataError, InputError
from qkdyn.text.vocabulary import byte_bpe
from qkdyn.transformer_config import TransformerConfig, shapes
from qkdyn.transformer_init import init_language, load_vectors

D, HEADS, DH, MLP, V, CTX = 40, 3, 20, 70, 300, 50
# Xavier's bound at a gain of 1/sqrt(2) with the fans of PyTorch's linear layers, and the bound of their biases.
XAVIER = {
    "W_Q": (D, HEADS * DH),
    "W_K": (D, HEADS * DH),
    "W_V": (D, HEADS * DH),
    "W_O": (HEADS * DH, D),
    "W_in": (D, MLP),
    "W_out": (MLP, D),
    "W_pos": (CTX, D),
    "W_U": (D, V),
}
FAN_IN = {"b_Q": D, "b_K": D, "b_V": D, "b_O": HEADS * DH, "b_in": D, "b_out": MLP, "b_U": D}


def config(**changed):
    sizes = {"n_layers": 2, "d_model": D, "n_heads": HEADS, "d_head": DH, "d_mlp": MLP, "layer_norm": "pre"}
    return TransformerConfig(**({"vocabulary": V, "n_ctx": CTX, "n_outputs": V} | sizes | changed))


def flat(params):
    return [(path[-1].key, np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_has_its_published_distribution(tied):
    params = init_language(jax.random.key(3), config(tied=tied))
    assert jax.tree.map(np.shape, params) == shapes(config(tied=tied))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    for name, leaf in flat(params):
        if name == "W_E":
            assert leaf.std() == pytest.approx(0.1, rel=0.03) and abs(leaf).max() > 0.3
            continue
        if name[:2] in ("g_", "b_") and name not in FAN_IN:
            assert (leaf == (name[0] == "g")).all()
            continue
        bound = math.sqrt(0.5 * 6 / sum(XAVIER[name])) if name in XAVIER else 1 / math.sqrt(FAN_IN[name])
        # Uniform: near its bound, and of its deviation.
        assert abs(leaf).max() <= bound
        assert abs(leaf).max() > bound * (1 - 8 / leaf.size)
        assert leaf.std() == pytest.approx(bound / math.sqrt(3), abs=2 * bound / math.sqrt(leaf.size))
    drawn = [leaf.ravel()[:20] for name, leaf in flat(params) if name[0] in "Wb" and leaf.std() > 0]
    scaled = [np.sign(leaf).tolist() for leaf in drawn]
    assert all(left != right for i, left in enumerate(scaled) for right in scaled[:i])
    assert jax.tree.all(jax.tree.map(np.array_equal, params, init_language(jax.random.key(3), config(tied=tied))))


def test_known_vectors_take_their_rows():
    vectors = np.full((V, D), np.nan, np.float32)
    vectors[[2, 7]] = 5.0
    drawn, known = (init_language(jax.random.key(0), config(), given)["embed"]["W_E"] for given in (None, vectors))
    changed = (drawn != known).any(1)
    assert changed.nonzero()[0].tolist() == [2, 7] and (known[[2, 7]] == 5).all()
    with pytest.raises(InputError, match=r"vectors must be of shape \(300, 40\), a row for each token, got \[300, 3\]"):
        init_language(jax.random.key(0), config(), vectors[:, :3])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("data"), 3, bpe=None) / "gpt2_bpe"
    return byte_bpe(folder / "encoder.json", folder / "vocab.bpe", expected=None)


def test_tokens_are_looked_up_in_three_forms(tmp_path, vocabulary):
    lines = ["ba 1 -2", "Ġbe 3 4", "be 5 6e-1", "k 7 8", "of the 9 9", "ba 0 0", "unheard 1 1"]
    rows = load_vectors(write(tmp_path / "glove.txt", "\n".join(lines) + "\n", zipped=True), vocabulary)
    ids, _ = bpe_entries()
    assert rows.shape == (vocabulary.size, 2) and rows.dtype == np.float32
    known = {symbol: rows[ids[symbol]].tolist() for symbol in ("ba", "Ġba", "Ġbe", "be", "k", "K")}
    # As it is; lower-cased without the mark of a space; the first of equal words.
    assert known == {
        "ba": [1, -2],
        "Ġba": [1, -2],
        "Ġbe": [3, 4],
        "be": [5, np.float32(0.6)],
        "k": [7, 8],
        "K": [7, 8],
    }
    assert np.isnan(rows).all(1).sum() == vocabulary.size - 6
    marked = write(tmp_path / "marked.txt", "\ufeff" + "\n".join(lines))
    assert np.array_equal(load_vectors(marked, vocabulary), rows, equal_nan=True)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["ba 1 2", "be 3"], "line 2 has 1 numbers, not 2"),
        (["ba"], "line 1 has 0 numbers, not 1"),
        (["ba 1 2", "be 3 x"], "line 2 holds 'x', not a finite number"),
        (["ba 1 nan"], "line 1 holds 'nan', not a finite number"),
        (["ba 1 2", "be 3 1e39"], "line 2 holds '1e39', not a finite number of float32"),
        (["ba 1 -4e38"], "line 1 holds '-4e38', not a finite number of float32"),
        (["ba 1 1_0"], "line 1 holds '1_0', not a finite number"),
        (
            ["2 3", "ba 1 2 3", "be 1 2 3"],
            "line 1 is the header of a word2vec file, '2 3': remove it; give a file with",
        ),
        (["unheard 1 2"], r"has a vector for none of \d+ tokens"),
        ([], r"has a vector for none of \d+ tokens"),
    ],
)
def test_wrong_files_are_refused(tmp_path, vocabulary, lines, message):
    path = write(tmp_path / "glove.txt", "\n".join(lines))
    with pytest.raises(DataError, match=rf"glove\.txt {message}"):
        load_vectors(path, vocabulary)


def test_no_file_and_no_text(tmp_path, vocabulary):
    with pytest.raises(DataError, match=r"cannot read .*nowhere"):
        load_vectors(tmp_path / "nowhere", vocabulary)
    (tmp_path / "bytes").write_bytes(b"ba 1 2\n\xff\xfe 1 2\n")
    with pytest.raises(DataError, match=r"bytes is not UTF-8 text"):
        load_vectors(tmp_path / "bytes", vocabulary)
