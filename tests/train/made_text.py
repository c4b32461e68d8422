"""Posts, models and arms small enough to be followed by hand."""

import numpy as np

from qkdyn.text.encoded import Encoded
from qkdyn.train.text_engine import TextRuns
from qkdyn.transformer import TransformerConfig


def made_posts(config, posts=21, seed=0, query=True):
    rng = np.random.default_rng(seed)
    length = rng.integers(2, 13, posts)
    content = np.arange(16) < length[:, None] - query
    tokens = np.where(content, rng.integers(3, config.vocabulary, content.shape), 0).astype(np.int32)
    if query:
        tokens[np.arange(posts), length - 1] = 2
    relevant = (content & (rng.random(content.shape) < 0.3)).astype(np.float32)
    label = rng.integers(0, 3, posts).astype(np.int32)
    marked = (relevant > 0).any(1)
    return Encoded(tokens, length.astype(np.int32), label, relevant, content, marked, pad=0, n_ctx=16, cut=0, empty=0)


def config_of(**changed):
    return TransformerConfig(vocabulary=40, n_ctx=16, n_outputs=3, d_model=8, n_heads=2, d_head=4, d_mlp=8, **changed)


def runs_of(*arms):
    """Arms as (qk, embed, mlp, decay, stale) at a rate high enough to leave the start."""
    columns = [np.array(column, np.float32) for column in zip(*arms, strict=True)]
    ones = np.ones(len(arms), np.float32)
    names = dict(zip(("qk", "embed", "mlp"), columns, strict=False))
    multipliers = {"ov": ones, "head": ones, "rest": ones, **names}
    # Of two groups the decay is another one.
    decay = {name: columns[3] * np.float32({"head": 0, "qk": 2}.get(name, 1)) for name in multipliers}
    return TextRuns(0.01 * ones, multipliers, decay, columns[4] > 0)
