"""How the published question answerer starts: Xavier's matrices, PyTorch's biases, token vectors drawn or read from a file."""

import math
import re
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Key

from qkdyn.errors import DataError, reject
from qkdyn.text.sources import read_lines
from qkdyn.text.vocabulary import Vocabulary
from qkdyn.transformer_config import TransformerConfig, is_shape, shapes

GAIN = 2**-0.5
# Standard deviation of token vectors that no file has.
TOKEN_STD = 0.1
# How a byte-level symbol shows that a space comes before it.
_SPACE = "Ġ"
_HEADER = re.compile(r"\d+ \d+")


def init_language(
    key: Key[Array, ""],
    config: TransformerConfig,
    vectors: Float[np.ndarray | Array, "V d"] | None = None,
) -> dict[str, Any]:
    """The tree of `qkdyn.transformer.init_transformer` at the published start, in numpy, float32.

    Token vectors are N(0, 0.1^2); all other matrices, positions included, U(-a, a) with a = sqrt(3 / (fan_in + fan_out))
    (Xavier's at a gain of 1/sqrt(2)), heads being slices of one matrix of all; biases U(-1/sqrt(fan_in), 1/sqrt(fan_in));
    gains of LayerNorm 1, its biases 0. Each parameter has a stream of its own; nothing is compiled.

    Args:
        key: of all draws; not traced.
        config: of the model; its `init_std` is not used.
        vectors: token vectors that replace those drawn, in rows without NaN, see `load_vectors`.

    Raises:
        InputError: vectors of another shape.
    """
    if vectors is not None and vectors.shape != (config.vocabulary, config.d_model):
        allowed = f"of shape {(config.vocabulary, config.d_model)}, a row for each token"
        reject("vectors", list(vectors.shape), allowed, "take a file of d_model numbers a word")
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes(config), is_leaf=is_shape)
    seed = np.asarray(jax.random.key_data(key)).tolist()
    drawn = [
        _draw(np.random.default_rng([*seed, number]), path[-1].key, shape, config)
        for number, (path, shape) in enumerate(leaves)
    ]
    params = jax.tree.unflatten(structure, drawn)
    if vectors is not None:
        known = np.isfinite(vectors).all(1)
        params["embed"]["W_E"][known] = np.asarray(vectors)[known]
    return params


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...], config: TransformerConfig) -> np.ndarray:
    """One parameter by its name."""
    d, heads = config.d_model, config.n_heads * config.d_head
    if name == "W_E":
        return np.float32(TOKEN_STD) * rng.standard_normal(shape, np.float32)
    fan_in = {"b_O": heads, "b_out": config.d_mlp or d}.get(name, d)
    if name.startswith("W_"):
        # Of the matrix that has all heads side by side.
        bound = GAIN * math.sqrt(6 / (d + heads if len(shape) == 3 else sum(shape)))
    elif name in ("b_Q", "b_K", "b_V", "b_O", "b_in", "b_out", "b_U"):
        bound = fan_in**-0.5
    else:
        return np.full(shape, name.startswith("g_"), np.float32)
    return np.float32(bound) * (2 * rng.random(shape, np.float32) - 1)


def load_vectors(path: str | Path, vocabulary: Vocabulary) -> Float32[np.ndarray, "V d"]:
    """Pretrained vectors of the tokens that a file has: a word and its d numbers a line, as GloVe's files are.

    A token is looked up as it is, then lower-cased, then lower-cased without the mark of the space before it, as published.
    A file of word2vec or fastText is one once its first line, the numbers of words and of dimensions, is removed.

    Args:
        path: plain or gzipped text.
        vocabulary: byte-level pairs.

    Returns:
        A row for each token, NaN where none of its forms is in the file.

    Raises:
        DataError: no such file, no vector at all, a line with another count of numbers or with something that is none in
            float32, the header of another format, or none of the vocabulary's tokens.
    """
    forms = [(symbol, symbol.lower(), symbol.replace(_SPACE, "").lower()) for symbol in vocabulary.symbols]
    wanted = {form for three in forms for form in three if form}
    found: dict[str, np.ndarray] = {}
    size = None
    for number, line in enumerate(read_lines(path), start=1):
        line = line.rstrip()
        if number == 1 and _HEADER.fullmatch(line):
            _refuse(path, number, f"is the header of a word2vec file, {line[:40]!r}: remove it")
        spaces = line.count(" ")
        size = spaces if size is None else size
        if spaces < size or size < 1:
            _refuse(path, number, f"has {spaces} numbers, not {max(size, 1)}")
        word, _, numbers = line.partition(" ")
        # A word with a space in it is no token.
        if spaces == size and word in wanted and word not in found:
            found[word] = _numbers(path, number, numbers.split(" "))
    if not found:
        raise DataError(
            f"{path} has a vector for none of {vocabulary.size:,} tokens; give a text file of words and numbers"
        )
    rows = np.full((vocabulary.size, size or 0), np.nan, np.float32)
    for row, three in zip(rows, forms, strict=True):
        known = next((found[form] for form in three if form in found), None)
        if known is not None:
            row[:] = known
    return rows


def _numbers(path: str | Path, number: int, fields: list[str]) -> np.ndarray:
    values = [_number(field) for field in fields]
    wrong = next((field for field, value in zip(fields, values, strict=True) if math.isnan(value)), None)
    if wrong is not None:
        _refuse(path, number, f"holds {wrong[:40]!r}, not a finite number of float32")
    return np.array(values, np.float32)


def _number(field: str) -> float:
    """The number that is written there; NaN where it is none, or beyond float32."""
    try:
        value = float(field)
    except ValueError:
        return math.nan
    return value if abs(value) <= float(np.finfo(np.float32).max) and "_" not in field else math.nan


def _refuse(path: str | Path, number: int, what: str) -> NoReturn:
    raise DataError(f"{path} line {number} {what}; give a file with a word and its vector a line")
