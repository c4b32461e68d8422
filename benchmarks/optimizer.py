"""What circuit_optimizer costs beside plain AdamW on a language model of ten million parameters, fused and unfused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.measure import Bench, Row, interleaved, rows, seconds_of
from qkdyn.optim import circuit_optimizer

PART = "optimizer"
HEADS = 5
# (width, layers, vocabulary, posts, tokens of each): 10.2 million parameters, and next to nothing.
FULL, QUICK = (320, 8, 1000, 4, 64), (20, 1, 30, 2, 8)
PLAIN, OURS = "plain AdamW", "circuit_optimizer"


def optimizer(bench: Bench) -> list[Row]:
    """Milliseconds of an update alone, and of a whole step of training: loss, gradient, update."""
    sizes = QUICK if bench.quick else FULL
    repeats = 2 if bench.quick else 9
    made = {
        PLAIN: (False, optax.adamw(1e-3)),
        OURS: (False, _ours()),
        f"{PLAIN}, fused": (True, optax.adamw(1e-3)),
        f"{OURS}, fused": (True, _ours()),
    }
    found: list[Row] = []
    for share, (what, step) in enumerate({"update": _update, "step": _step}.items()):
        actions = {f"{name}: {what}": _timed(step, _begun(sizes, fused), tx) for name, (fused, tx) in made.items()}
        values = interleaved(actions, repeats, bench.phase(share / 2, (share + 1) / 2))
        for end in ("", ", fused"):
            own = {name: values[name] for name in (f"{PLAIN}{end}: {what}", f"{OURS}{end}: {what}")}
            found += rows(PART, own, "ms", f"{PLAIN}{end}: {what}")
    return found


def _ours() -> optax.GradientTransformationExtraArgs:
    return circuit_optimizer(optax.adamw, multipliers={"qk": 10.0, "ov": 1.0, "rest": 1.0}, learning_rate=1e-3)


def _begun(sizes: tuple[int, ...], fused: bool) -> tuple[Any, Any]:
    """Parameters and token ids."""
    d, layers, vocabulary, posts, length = sizes
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(d))

    attention = ({"qkv": (d, 3 * d)} if fused else dict.fromkeys(("q", "k", "v"), (d, d))) | {"o": (d, d)}
    shapes = {"attn": attention, "fc": {"in": (d, 4 * d), "out": (4 * d, d)}}
    blocks = [jax.tree.map(lambda s: drawn(*s), shapes, is_leaf=lambda n: isinstance(n, tuple)) for _ in range(layers)]
    params = {"blocks": blocks, "tokens": drawn(vocabulary, d)}
    return params, jnp.asarray(rng.integers(0, vocabulary, (posts, length)))


def _loss(params: Any, ids: Any) -> Any:
    """Mean cross-entropy of the next token."""
    x = params["tokens"][ids]
    mask = jnp.tril(jnp.ones((ids.shape[1],) * 2, bool))[None, None]
    for block in params["blocks"]:
        own = block["attn"]
        normed = jax.nn.standardize(x)
        q, k, v = jnp.split(normed @ own["qkv"], 3, -1) if "qkv" in own else (normed @ own[name] for name in "qkv")
        q, k, v = (part.reshape(*part.shape[:2], HEADS, -1).swapaxes(1, 2) for part in (q, k, v))
        scores = jnp.where(mask, q @ k.mT / np.sqrt(q.shape[-1]), -jnp.inf)
        x = x + (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape) @ own["o"]
        x = x + jax.nn.gelu(jax.nn.standardize(x) @ block["fc"]["in"]) @ block["fc"]["out"]
    logits = jax.nn.log_softmax(x[:, :-1] @ params["tokens"].T)
    return -jnp.take_along_axis(logits, ids[:, 1:, None], -1).mean()


def _update(tx: Any, params: Any, state: Any, ids: Any) -> tuple[Any, Any]:
    """An update alone; the parameters are as good a gradient as any."""
    updates, state = tx.update(params, state, params)
    return optax.apply_updates(params, updates), state


def _step(tx: Any, params: Any, state: Any, ids: Any) -> tuple[Any, Any]:
    updates, state = tx.update(jax.grad(_loss)(params, ids), state, params)
    return optax.apply_updates(params, updates), state


def _timed(step: Any, begun: tuple[Any, Any], tx: Any):
    """Milliseconds of one call, compiled and run once before; the state given is used up, as in training."""
    params, ids = begun
    held = [(params, jax.jit(tx.init)(params))]
    compiled = jax.jit(lambda params, state, ids: step(tx, params, state, ids), donate_argnums=(0, 1))

    def once() -> None:
        held[0] = jax.block_until_ready(compiled(*held[0], ids))

    once()
    return lambda: 1e3 * min(seconds_of(once) for _ in range(5))
