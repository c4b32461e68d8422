"""What circuit_optimizer costs beside plain AdamW on a language model of ten million parameters, fused and unfused."""

from typing import Any

import jax
import optax

from benchmarks import language
from benchmarks.measure import Bench, Row, interleaved, rows, seconds_of
from qkdyn.optim import circuit_optimizer

PART = "optimizer"
PLAIN, OURS = "plain AdamW", "circuit_optimizer"


def optimizer(bench: Bench) -> list[Row]:
    """Milliseconds of an update alone, and of a whole step of training: loss, gradient, update."""
    sizes = language.QUICK if bench.quick else language.FULL
    repeats = 2 if bench.quick else 9
    made = {
        PLAIN: (False, optax.adamw(1e-3)),
        OURS: (False, _ours()),
        f"{PLAIN}, fused": (True, optax.adamw(1e-3)),
        f"{OURS}, fused": (True, _ours()),
    }
    found: list[Row] = []
    for share, (what, step) in enumerate({"update": _update, "step": _step}.items()):
        actions = {
            f"{name}: {what}": _timed(step, language.begun(sizes, fused), tx) for name, (fused, tx) in made.items()
        }
        values = interleaved(actions, repeats, bench.phase(share / 2, (share + 1) / 2))
        for end in ("", ", fused"):
            own = {name: values[name] for name in (f"{PLAIN}{end}: {what}", f"{OURS}{end}: {what}")}
            found += rows(PART, own, "ms", f"{PLAIN}{end}: {what}")
    return found


def _ours() -> optax.GradientTransformationExtraArgs:
    return circuit_optimizer(optax.adamw, multipliers={"qk": 10.0, "ov": 1.0, "rest": 1.0}, learning_rate=1e-3)


def _update(tx: Any, params: Any, state: Any, ids: Any) -> tuple[Any, Any]:
    """An update alone; the parameters are as good a gradient as any."""
    updates, state = tx.update(params, state, params)
    return optax.apply_updates(params, updates), state


def _step(tx: Any, params: Any, state: Any, ids: Any) -> tuple[Any, Any]:
    updates, state = tx.update(jax.grad(language.loss, has_aux=True)(params, ids)[0], state, params)
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
