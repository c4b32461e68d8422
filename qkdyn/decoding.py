"""Greedy decoding, batched, with a cache of keys and values: what `qkdyn.transformer.forward` would write, token for token.

A prompt goes through the model once; then each new token goes alone, and attends to the keys and values kept of those before.
Prompts of different lengths lie in one batch, padded on the right: a token that is written takes the place of the first pad,
and no row attends beyond its own position.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qkdyn.errors import check_count, check_positive, reject
from qkdyn.transformer import head
from qkdyn.transformer_config import TransformerConfig, check_shapes, check_values
from qkdyn.transformer_parts import attend, keys_of, mlp, normed, picked, queries_of, values_of, written


class Decoded(NamedTuple):
    """What was written after each prompt.

    Attributes:
        tokens: (B, n), `end` from the first one on.
        count: (B,), tokens before the end; n where it was not reached.
        steps: (B,), tokens chosen, the end counted where it was reached.
        probability: (B, n), of each chosen token, 0 after the end.
        rows: (B, n, layers, T + n), the mean over heads of the attention of the row that chose each token, in each layer; 0
            after the end. None unless asked for.
        rollout: (B, n, T + n), that row of the attention rollout; likewise.
    """

    tokens: Any
    count: Any
    steps: Any
    probability: Any
    rows: Any = None
    rollout: Any = None


class _State(NamedTuple):
    """Between two tokens: how many are written, the newest, what is kept of those before it, and what was found."""

    step: Any
    token: Any
    kept: Any
    out: Decoded


class _Kept(NamedTuple):
    """Of one layer: keys and values (B, H, S, dh), and the rollout up to its input (B, S, S), or None."""

    keys: Any
    values: Any
    rollout: Any


def decode(
    params: Any,
    config: TransformerConfig,
    tokens: Int[Array | np.ndarray, "B T"],
    length: Int[Array | np.ndarray, " B"],
    *,
    most: int,
    end: int,
    residual: float | None = None,
) -> Decoded:
    """Write the likeliest token after each prompt, again and again, up to `end` or `most` tokens.

    Args:
        params: of the transformer.
        config: static; causal.
        tokens: prompts, padded on the right.
        length: tokens of each prompt, 1 to T.
        most: n, tokens that are written at most.
        end: id that ends an answer.
        residual: the weight w of attention in the rollout w mean_heads(A) + (1 - w) I of each layer, as in
            `qkdyn.metrics.rollout`; None for no attention.

    Raises:
        InputError: a model that is not causal; prompts that leave no room for `most` tokens within n_ctx; an end that is no
            token; what `qkdyn.transformer.forward` refuses.
    """
    check_shapes(params, config, tokens, length, None, None, False)
    check_values(config, tokens, length, None)
    if not config.causal:
        reject("causal", config.causal, "True for a model that writes")
    most = check_count("most", most)
    if not 0 <= check_count("end", end, minimum=0) < config.vocabulary:
        reject("end", end, f"a token, from 0 to {config.vocabulary - 1}")
    if residual is not None and check_positive("residual", residual, zero=True) > 1:
        reject("residual", residual, "a share in [0, 1]")
    longest = int(np.max(np.asarray(length)))
    if config.positions and longest + most - 1 > config.n_ctx:
        reject("most", most, f"at most {config.n_ctx - longest + 1} after a prompt of {longest} tokens", "cut prompts")
    return decoded(params, config, tokens, length, most, end, residual)


@functools.partial(jax.jit, static_argnames=("config", "most", "end", "residual"))
def decoded(
    params: Any, config: TransformerConfig, tokens: Any, length: Any, most: int, end: int, residual: float | None
) -> Decoded:
    """`decode` without its checks, for use within other programs."""
    params = jax.tree.map(jnp.asarray, params)
    (B, T), L = tokens.shape, config.n_layers
    logits, kept, row = _read_prompts(params, config, tokens, length, most, residual)
    out = Decoded(
        jnp.full((B, most), end, jnp.int32),
        jnp.zeros(B, jnp.int32),
        jnp.zeros(B, jnp.int32),
        jnp.zeros((B, most), logits.dtype),
    )
    if residual is not None:
        rows = jnp.zeros((B, most, L, T + most), logits.dtype)
        out = out._replace(rows=rows, rollout=rows[:, :, 0])

    def choose(step: Any, done: Any, logits: Any, row: Any, out: Decoded) -> tuple[Array, Decoded]:
        token, chosen = _likeliest(logits)
        token = jnp.where(done, end, token)
        out = out._replace(
            tokens=out.tokens.at[:, step].set(token),
            count=out.count + (token != end),
            steps=out.steps + ~done,
            probability=out.probability.at[:, step].set(jnp.where(done, 0, chosen)),
        )
        if residual is not None:
            rows, rollout = (jnp.where(done.reshape(B, *(1,) * (part.ndim - 1)), 0, part) for part in row)
            out = out._replace(rows=out.rows.at[:, step].set(rows), rollout=out.rollout.at[:, step].set(rollout))
        return token, out

    def going(state: _State) -> Array:
        return (state.step < most) & (state.token != end).any()

    def write(state: _State) -> _State:
        logits, kept, row = _read_token(params, config, state.token, length + state.step - 1, state.kept, residual)
        token, out = choose(state.step, state.token == end, logits, row, state.out)
        return _State(state.step + 1, token, kept, out)

    token, out = choose(0, jnp.zeros(B, bool), logits, row, out)
    return jax.lax.while_loop(going, write, _State(jnp.int32(1), token, kept, out)).out


def _likeliest(logits: Float[Array, "B M"]) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """The likeliest token, of equals the first, and its probability; the last token where logits are no numbers."""
    M = logits.shape[1]
    # Computed once, so that the largest is found again.
    logits = jax.lax.optimization_barrier(logits)
    top = logits.max(-1, keepdims=True)
    # On CPUs five times as fast as argmax.
    token = jnp.where(logits == top, jnp.arange(M, dtype=jnp.int32)[None], M - 1).min(-1)
    return token, 1 / jnp.exp(logits - top).sum(-1)


def _read_prompts(params, config, tokens, length, most, residual):
    """Logits after each prompt; what is kept of each layer, with room for `most` more tokens; the last token's attention."""
    (B, T), L = tokens.shape, config.n_layers
    position = jnp.arange(T)
    x = params["embed"]["W_E"][tokens]
    if config.positions:
        x = x + params["embed"]["W_pos"][None, :T]
    rollout = jnp.broadcast_to(jnp.eye(T, dtype=x.dtype), (B, T, T))
    last, kept, rows = (length - 1)[:, None], [], []
    for number, layer in enumerate(params["layers"]):
        read = normed(layer, config, "1", x)
        keys, values = keys_of(layer, read), values_of(layer, read)
        kept.append(_Kept(_room(keys, most, 2), _room(values, most, 2), None))
        if residual is not None:
            kept[-1] = kept[-1]._replace(rollout=_room(_room(rollout, most, 1), most, 2))
        reading = jnp.broadcast_to(position[None], (B, T))
        if number == L - 1:
            x, read, reading = picked(x, last), picked(read, last), last
        allowed = position[None, None] <= reading[:, :, None]
        x, attention = _rest_of_layer(layer, config, x, read, keys, values, allowed)
        if residual is not None:
            mean = attention.mean(1)
            own = picked(rollout, last) if number == L - 1 else rollout
            rollout = residual * mean @ rollout + (1 - residual) * own
            rows.append(mean if number == L - 1 else picked(mean, last))
    row = None if residual is None else (_room(jnp.concatenate(rows, 1), most, 2), _room(rollout[:, 0], most, 1))
    return head(params, config, x)[:, 0], tuple(kept), row


def _read_token(params, config, token, position, kept, residual):
    """The same after one more token at `position` (B,), read alone."""
    B, S = len(token), kept[0].keys.shape[2]
    x = params["embed"]["W_E"][token][:, None]
    if config.positions:
        x = x + params["embed"]["W_pos"][position][:, None]
    allowed = (jnp.arange(S)[None] <= position[:, None])[:, None]
    rollout = None if residual is None else jax.nn.one_hot(position, S, dtype=x.dtype)
    each, rows, after = jnp.arange(B), [], []
    for layer, own in zip(params["layers"], kept, strict=True):
        read = normed(layer, config, "1", x)
        keys, values = keys_of(layer, read), values_of(layer, read)
        own = own._replace(
            keys=own.keys.at[each, :, position].set(keys[:, :, 0]),
            values=own.values.at[each, :, position].set(values[:, :, 0]),
        )
        x, attention = _rest_of_layer(layer, config, x, read, own.keys, own.values, allowed)
        if residual is not None:
            mean = attention.mean(1)[:, 0]
            own = own._replace(rollout=own.rollout.at[each, position].set(rollout))
            rollout = residual * jnp.einsum("bs,bst->bt", mean, own.rollout) + (1 - residual) * rollout
            rows.append(mean)
        after.append(own)
    row = None if residual is None else (jnp.stack(rows, 1), rollout)
    return head(params, config, x)[:, 0], tuple(after), row


def _rest_of_layer(
    layer: Any,
    config: TransformerConfig,
    x: Float[Array, "B Q d"],
    read: Float[Array, "B Q d"],
    keys: Float[Array, "B H S dh"],
    values: Float[Array, "B H S dh"],
    allowed: Bool[Array, "B Q S"],
) -> tuple[Float[Array, "B Q d"], Float[Array, "B H Q S"]]:
    """Rows x after attention to keys and values and after the MLP, and the attention."""
    attention, mixed = attend(queries_of(layer, config, read), keys, values, allowed[:, None])
    attended = written(layer, mixed)
    return mlp(layer, config, x + attended if config.residual else attended), attention


def _room(x: Array, more: int, axis: int) -> Array:
    """Zeros for `more` entries at the end of an axis."""
    return jnp.pad(x, [(0, more if number == axis else 0) for number in range(x.ndim)])
