"""One step of one run: measure, record, and unless it has ended, one update on a fresh batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from qkdyn.attention import cross_entropy, forward
from qkdyn.circuits import Params
from qkdyn.train.state import Plan, Run, RunState, Status

Measure = Callable[[Params], dict[str, Array]]
BatchOf = Callable[[Array, Array], Any]
# Of parameters, the key of a batch, and the run: what one update descends along.
Gradient = Callable[[Params, Array, Run], Params]
# Finished runs on record are known by this number: raise it when a change of task, probe, step or engine moves bits.
ENGINE = 1


def batch_loss(params: Params, batch: Any) -> Array:
    """Training loss of one batch (X, x_T, y)."""
    logits, _ = forward(params, batch.X, batch.x_T)
    return cross_entropy(logits, batch.y)


def data_key(seed: Int[Array, ""] | int, step: Int[Array, ""] | int) -> Array:
    """The key of the batch that update `step` + 1 uses: a resumed run needs nothing but its seed and step."""
    return jax.random.fold_in(jax.random.key(seed), step)


def gradient_on(batch_of: BatchOf) -> Gradient:
    """The gradient of a task's batch."""
    return lambda params, key, run: jax.grad(batch_loss)(params, batch_of(key, run.sampled))


def advance(
    state: RunState, run: Run, *, tx: Any, measure: Measure, gradient: Gradient, plan: Plan, every: int = 1
) -> RunState:
    """Measure `state`, record it, decide whether it ends here, and update it if not; an ended run is returned as it is.

    With `every`, so many updates come between two measurements; steps count updates all the same.
    """
    measures = measure(state.params)
    loss = measures["loss"]
    running = state.status == Status.running
    finite = jnp.isfinite(loss)
    status = jnp.where(loss <= plan.stop_loss, Status.stopped, state.status)
    status = jnp.where((status == Status.running) & (state.step >= plan.max_steps), Status.budget, status)
    status = jnp.where(finite, status, Status.diverged).astype(jnp.int32)

    def update(i: int | Array, at: tuple[Params, Any]) -> tuple[Params, Any]:
        params, opt_state = at
        updates, opt_state = tx.update(gradient(params, data_key(run.seed, state.step + i), run), opt_state, params)
        return jax.tree.map(jnp.add, params, updates), opt_state

    params, opt_state = update(0, (state.params, state.opt_state))
    if every > 1:
        params, opt_state = jax.lax.fori_loop(1, every, update, (params, opt_state))
    goes_on = running & (status == Status.running)
    keep = finite & running
    following = RunState(
        params=_where(goes_on, params, state.params),
        opt_state=_where(goes_on, opt_state, state.opt_state),
        step=state.step + every * goes_on,
        status=status,
        diverged_step=jnp.where(finite, state.diverged_step, state.step),
        previous=measures,
        records=_record(state, measures, jnp.asarray(plan.record_steps)),
        matched=_cross(state, measures, jnp.asarray(plan.losses, loss.dtype), every),
    )
    # A run that is not finite keeps its last finite records; only its mark changes.
    following = following.replace(
        records=_where(keep, following.records, state.records), matched=_where(keep, following.matched, state.matched)
    )
    return _where(running, following, state)


def _where(condition: Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _record(state: RunState, measures: dict[str, Array], record_steps: Array) -> dict[str, Array]:
    here = record_steps == state.step
    return {name: jnp.where(here, value, state.records[name]) for name, value in measures.items()}


def _cross(state: RunState, measures: dict[str, Array], losses: Array, every: int) -> dict[str, Array]:
    """States at the levels crossed since the last measurement, interpolated linearly in ln(loss); a first crossing counts."""
    before, now = state.previous["loss"], measures["loss"]
    crossed = (before > losses) & (now <= losses) & jnp.isnan(state.matched["loss"])
    share = (jnp.log(before) - jnp.log(losses)) / (jnp.log(before) - jnp.log(now))

    def at(old: Array, a: Array, b: Array) -> Array:
        return jnp.where(crossed, a + share * (b - a), old)

    step = state.step.astype(losses.dtype)
    matched = {name: at(state.matched[name], state.previous[name], value) for name, value in measures.items()}
    return matched | {
        "loss": jnp.where(crossed, losses, state.matched["loss"]),
        "step": at(state.matched["step"], step - every, step),
    }
