"""What it costs to watch attention: a training step that measures every head of every layer, beside one that does not."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from benchmarks import language
from benchmarks.measure import Bench, Row, interleaved, rows, seconds_of
from qkdyn import observe

PART = "watching"
PLAIN = "plain step"
# Steps from one record to the next; 0 is never.
EVERY = {PLAIN: 0, "watched at every step": 1, "watched at every tenth step": 10}
CALL = 10  # steps of one call, so that each has as many records as it should


def watching(bench: Bench) -> list[Row]:
    """Milliseconds of a step of training with AdamW: loss, gradient, update, and the record where there is one."""
    sizes = language.QUICK if bench.quick else language.FULL
    actions = {name: _timed(language.begun(sizes, False), every) for name, every in EVERY.items()}
    return rows(PART, interleaved(actions, 2 if bench.quick else 9, bench.phase(0, 1)), "ms", PLAIN)


def _measures(value: Any, maps: Any, ids: Any) -> dict[str, Any]:
    """Loss, entropy, effective tokens, and the mass on the first and the first five keys."""
    return {"loss": value, **observe.measure(maps, mask=language.causal(ids), k=(1, 5))}


def steps(state: Any, ids: Any, every: int) -> Any:
    """(parameters, moments, records, number of the step) after CALL steps; no records where `every` is 0."""
    tx = optax.adamw(1e-3)

    def step(state: Any, _: Any) -> tuple[Any, None]:
        params, moments, records, number = state
        (value, maps), gradient = jax.value_and_grad(language.loss, has_aux=True)(params, ids)
        if every:
            records = observe.write_every(records, number, every, lambda: _measures(value, maps, ids))
        updates, moments = tx.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments, records, number + 1), None

    return jax.lax.scan(step, state, length=CALL)[0]


def begun(params: Any, ids: Any) -> Any:
    """The state at step 0, with room for the records of one call."""
    like = jax.eval_shape(lambda: _measures(*language.loss(params, ids), ids))
    return params, optax.adamw(1e-3).init(params), observe.start(CALL, like), 0


def _timed(given: tuple[Any, Any], every: int) -> Callable[[], float]:
    """Milliseconds of one step, compiled and run once before; the state given is used up, as in training."""
    params, ids = given
    held = [jax.jit(begun)(params, ids)]
    compiled = jax.jit(lambda state, ids: steps(state, ids, every), donate_argnums=0)

    def once() -> None:
        held[0] = jax.block_until_ready(compiled(held[0], ids))

    once()
    return lambda: 1e3 / CALL * seconds_of(once)
