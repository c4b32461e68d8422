"""Posts, models and arms small enough to be followed by hand; starts whose random numbers need no compilation."""

import jax
import jax.numpy as jnp
import numpy as np

from qkdyn.text.encoded import Encoded
from qkdyn.train.lazy_adam import NEVER
from qkdyn.train.text_engine import TextRuns, begin
from qkdyn.transformer import TransformerConfig
from qkdyn.transformer_config import is_shape, shapes


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
    sizes = {"vocabulary": 40, "n_ctx": 16, "n_outputs": 3, "d_model": 8, "n_heads": 2, "d_head": 4, "d_mlp": 8}
    return TransformerConfig(**{**sizes, **changed})


def drawn_params(config, seed=0, scale=0.2):
    """Parameters of one run, as numpy draws them."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda shape: scale * rng.standard_normal(shape, np.float32), shapes(config), is_leaf=is_shape)


def drawn(job, seeds, arms):
    """As `begin`, whose random numbers take longer to compile than a whole training here."""
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: begin(job, seeds, arms)))
    runs = [drawn_params(job.model, seed) for seed in seeds]
    whole = jax.tree.map(lambda *leaves: np.repeat(np.stack(leaves)[:, None], arms, 1), *runs)
    table = whole["embed"].pop("W_E").swapaxes(1, 2).reshape(zeros.table.shape)
    return jax.tree.map(jnp.asarray, zeros._replace(params=whole, table=table, last=np.full_like(zeros.last, NEVER)))


def runs_of(*arms):
    """Arms as (qk, embed, mlp, decay, stale) at a rate high enough to leave the start."""
    columns = [np.array(column, np.float32) for column in zip(*arms, strict=True)]
    ones = np.ones(len(arms), np.float32)
    names = dict(zip(("qk", "embed", "mlp"), columns, strict=False))
    multipliers = {"ov": ones, "head": ones, "rest": ones, **names}
    # Of two groups the decay is another one.
    decay = {name: columns[3] * np.float32({"head": 0, "qk": 2}.get(name, 1)) for name in multipliers}
    return TextRuns(0.01 * ones, multipliers, decay, columns[4] > 0)
