"""What is measured of many runs on posts: prediction, attention of the measured row, and what deleting tokens does to them."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qkdyn.metrics import cores
from qkdyn.text.batches import evaluation_plan
from qkdyn.text.encoded import Encoded
from qkdyn.train.text_batches import readouts
from qkdyn.train.text_engine import TextState
from qkdyn.transformer import TransformerConfig, forward

# Runs times slots of a batch: bounds the memory of a reading.
ROOM = 2**18


@dataclass(frozen=True)
class Reading:
    """How runs are measured; static.

    Attributes:
        model: the transformer.
        last_slot: measure attention at the last of the n_ctx slots, not at the readout.
        slots: delete and keep tokens among all slots, padding included, not among content tokens.
        by_rank: kept tokens stand by falling attention, not in the order of the text.
        residual: weight of attention in the rollout.
        top: share of the content tokens whose mass is `top_mass` and that are the hard selection of `token_f1`.
        faithful: measure what deleting tokens does, which takes two more passes through the model.
    """

    model: TransformerConfig
    last_slot: bool = False
    slots: bool = False
    by_rank: bool = False
    residual: float = 1.0
    top: float = 0.2
    faithful: bool = True


class Posts(NamedTuple):
    """A batch of posts to read; leaves (B, ...)."""

    tokens: Any
    length: Any
    readout: Any
    label: Any
    relevant: Any
    content: Any
    count: Any
    last: Any
    places: Any = None


def read(
    how: Reading,
    state: TextState,
    data: Encoded,
    share: float,
    *,
    widths: tuple[int, ...],
    seeds: int,
    places: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Measures of every post by every run, each (S, A, N), those of heads (S, A, N, layers * heads).

    Args:
        how: what is measured.
        state: settled (`text_engine.settle`).
        data: N posts.
        share: of the tokens, that are deleted or kept for `comprehensiveness` and `sufficiency`.
        widths: bucket widths, see `slots_of`.
        seeds: S.
        places: K sets of tokens of each post, (N, K, T), whose mass is asked for.

    Returns:
        predicted class, probability of the true class, loss; mass on relevant tokens, entropy in nats, top_mass, auprc,
        token_f1, iou_f1 of the measured row (mean over heads; of several layers their rollout), heads_mass, heads_entropy,
        heads_auprc and heads_top_mass of each head; of `places` their masses, (S, A, N, K), and heads_places,
        (S, A, N, layers * heads, K); comprehensiveness and sufficiency where they are asked for. All of them NaN, and
        the predicted class -1, where a run's probabilities or attention are not finite.
    """
    arms = state.table.shape[1]
    where = readouts(data, how.model)
    slots = slots_of(how, data)
    batch = int(max(8, min(256, ROOM // (seeds * arms * widths[-1]) // 8 * 8)))
    plan = evaluation_plan(slots, batch=batch, widths=widths)
    candidates = np.full(len(data), data.n_ctx) if how.slots else data.content.sum(1)
    count = cores.top_count(np, candidates, share)
    found: dict[str, np.ndarray] = {}
    waiting = []
    for posts, width in zip(plan.posts, plan.width, strict=True):
        some = data.take(posts, int(width))
        there = posts >= 0
        batch_of = Posts(
            some.tokens,
            np.where(there, some.length, 1),
            np.where(there, where[posts], 0),
            some.label,
            some.relevant,
            some.content,
            np.where(there, count[posts], 1),
            np.int32(data.n_ctx - 1),
            None if places is None else _in_slots(places[posts], int(width)),
        )
        waiting.append(
            (posts, there, _read(how, seeds, state.params, state.table, jax.tree.map(jnp.asarray, batch_of)))
        )
        if len(waiting) > 2:
            _put(found, len(data), *waiting.pop(0))
    for ready in waiting:
        _put(found, len(data), *ready)
    return found


def slots_of(how: Reading, data: Encoded) -> np.ndarray:
    """How many slots a reading of each post takes, (N,): bucket widths are to hold these.

    The last of n_ctx slots is measured in the first slot after the post where padding gets no attention: all between is masked.
    """
    if not how.last_slot:
        return np.maximum(readouts(data, how.model) + 1, data.length)
    if how.model.mask_padding:
        return np.minimum(data.length + 1, data.n_ctx)
    return np.full(len(data), data.n_ctx)


def _in_slots(places: np.ndarray, width: int) -> np.ndarray:
    """(B, K, T) in `width` slots."""
    missing = max(0, width - places.shape[-1])
    return np.pad(places[..., :width], ((0, 0), (0, 0), (0, missing)))


def _put(found: dict[str, np.ndarray], size: int, posts: np.ndarray, there: np.ndarray, new: dict[str, Any]) -> None:
    """Set the rows of the posts that are there."""
    for name, values in new.items():
        values = np.asarray(values)
        whole = found.setdefault(name, np.zeros((*values.shape[:2], size, *values.shape[3:]), values.dtype))
        whole[:, :, posts[there]] = values[:, :, there]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _read(how: Reading, seeds: int, params: Any, table: Any, posts: Posts) -> dict[str, Any]:
    """All runs on one batch: (S, A, B) of each measure."""
    start = jnp.arange(seeds)[:, None, None] * how.model.vocabulary
    vectors = jnp.moveaxis(table[start + posts.tokens[None]], 3, 1)
    one = functools.partial(_one, how)
    return jax.vmap(jax.vmap(one, in_axes=(0, 0, None)), in_axes=(0, 0, None))(params, vectors, posts)


def _one(how: Reading, params: Any, x: Any, posts: Posts) -> dict[str, Any]:
    """One run on one batch, from the vectors of its tokens."""
    T = posts.tokens.shape[1]
    measured = jnp.full_like(posts.readout, T - 1) if how.last_slot else posts.readout
    queries = jnp.stack([posts.readout, measured], 1) if how.last_slot else posts.readout[:, None]
    seen = _with_last(params, posts.last, T) if how.last_slot and how.model.mask_padding else params
    out = forward(seen, how.model, posts.tokens, posts.length, embedded=x, queries=queries)
    probability = jax.nn.softmax(out.logits[:, 0])
    predicted = probability.argmax(-1)
    true = jnp.take_along_axis(probability, posts.label[:, None], 1)[:, 0]
    row, heads = _rows(how, out.attention, measured)
    hit = posts.relevant > 0
    count = cores.top_count(jnp, posts.content.sum(-1), how.top)
    top = cores.top_mask(jnp, row, posts.content, count)
    found = {
        "predicted": predicted,
        "probability": true,
        "loss": -jnp.log(jnp.maximum(true, 1e-30)),
        "mass": cores.mass(jnp, row, posts.relevant),
        "entropy": cores.entropy(jnp, row),
        "top_mass": cores.mass(jnp, row, top),
        "auprc": cores.auprc(jnp, row, hit, posts.content),
        "token_f1": cores.token_f1(jnp, top, hit),
        "iou_f1": cores.iou_f1(jnp, top, hit),
        "heads_mass": cores.mass(jnp, heads, posts.relevant[:, None]),
        "heads_entropy": cores.entropy(jnp, heads),
        "heads_auprc": cores.auprc(jnp, heads, hit[:, None], posts.content[:, None]),
        "heads_top_mass": cores.topk_mass(jnp, heads, count[:, None], posts.content[:, None]),
    }
    if posts.places is not None:
        weights = posts.places.astype(row.dtype)
        found["places"] = cores.mass(jnp, row[:, None], weights)
        found["heads_places"] = cores.mass(jnp, heads[:, :, None], weights[:, None])
    if how.faithful:
        found |= _faithful(how, params, x, posts, row, probability)
    # Comparisons with NaN are false: without this, a diverged run would have no entropy and the sharpest attention.
    known = jnp.isfinite(out.logits[:, 0]).all(-1) & jnp.isfinite(heads).all((1, 2))

    def guarded(values: Any) -> Any:
        where = known.reshape(-1, *(1,) * (values.ndim - 1))
        return jnp.where(where, values, -1 if jnp.issubdtype(values.dtype, jnp.integer) else jnp.nan)

    return {name: guarded(values) for name, values in found.items()}


def _faithful(how: Reading, params: Any, x: Any, posts: Posts, row: Any, probability: Any) -> dict[str, Any]:
    """How far the probability falls without the top tokens, and with them alone."""
    candidates = jnp.ones_like(posts.content) if how.slots else posts.content
    real = candidates if how.slots else jnp.arange(row.shape[1])[None] < posts.length[:, None]
    chosen = cores.top_mask(jnp, row, candidates, posts.count)
    found = {}
    for name, keep in (
        ("comprehensiveness", cores.without_top(jnp, real, chosen)),
        ("sufficiency", cores.only_top(jnp, real, candidates, chosen)),
    ):
        # As numpy's partition of the negated attention leaves them, which the published code does not sort.
        score = -row if how.by_rank and name == "sufficiency" else None
        reduced = _reduced(how, params, x, posts, keep, score)
        found[name] = cores.probability_drop(jnp, probability, reduced)
    return found


def _with_last(params: Any, last: Any, T: int) -> Any:
    """Parameters whose last of T positions is that of slot `last`."""
    W_pos = params["embed"]["W_pos"]
    return params | {"embed": params["embed"] | {"W_pos": W_pos.at[T - 1].set(W_pos[last])}}


def _rows(how: Reading, attention: Any, measured: Any) -> tuple[Any, Any]:
    """The measured row of the rollout, (B, T), and of every head of every layer, (B, layers * heads, T)."""
    last = attention[-1][:, :, -1]
    pick = measured[:, None, None, None]
    heads = [jnp.take_along_axis(layer, pick, 2)[:, :, 0] for layer in attention[:-1]] + [last]
    row = cores.rollout_row(jnp, (*attention[:-1], attention[-1][:, :, -1:]), measured, how.residual)
    return row, jnp.concatenate(heads, 1)


def _reduced(how: Reading, params: Any, x: Any, posts: Posts, keep: Any, score: Any) -> Any:
    """Class probabilities of the posts of which only what `keep` says is left, in its order or by rising `score`."""
    slot = jnp.arange(keep.shape[1])[None]
    order = jnp.argsort(jnp.where(keep, slot if score is None else score, jnp.inf), axis=1)
    if how.slots and how.model.mask_padding:
        # The mask goes along with the slots that are kept: padding, which has no attention, comes last in either order.
        length = jnp.maximum((keep & (slot < posts.length[:, None])).sum(1), 1)
    else:
        length = keep.sum(1)
    x = jnp.take_along_axis(x, order[:, :, None], 1)
    if how.model.readout == "first_pad":
        pads = (order >= posts.length[:, None]) & (slot < length[:, None])
        readout = pads.argmax(1)
    else:
        readout = length - 1
    out = forward(params, how.model, posts.tokens, length, embedded=x, queries=readout[:, None])
    return jax.nn.softmax(out.logits[:, 0])
