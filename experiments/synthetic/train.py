"""One arm trained and measured: its record, a plain dictionary small enough to be committed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.synthetic.arms import Arm
from qkdyn.config import as_dict, digest
from qkdyn.errors import InputError
from qkdyn.metrics.attention import acmc, attention_confidence
from qkdyn.metrics.dtap import dtap_counts
from qkdyn.train.interrupt import Request
from qkdyn.train.store import Store
from qkdyn.train.token_campaign import TokenCampaign
from qkdyn.train.token_probe import TokenProbe, evaluate
from qkdyn.train.tokens import TokenRun, TokenState, start_tokens, token_runs

# Points of a trace that are kept.
TRACE = 60
# What the lines of a record's parts say.
WHICH, ATTENTION = ("multiplier", "seed"), ("distinct", "query")
PARTS = {
    "runs": (
        *WHICH,
        "steps",
        "stopped",
        "training_loss",
        *ATTENTION,
        "loss",
        "accuracy",
        "confidence",
        "acmc",
        "counts",
    ),
    "matched": (*WHICH, "level", "step", *ATTENTION),
    "trace": (*WHICH, "step", "training_loss", "evaluation", *ATTENTION),
}


def train_arm(
    arm: Arm,
    evaluation: int,
    store: Store | None = None,
    request: Request | None = None,
    update: Callable[[float, str], None] = lambda share, status: None,
) -> dict[str, Any]:
    """Train all runs of `arm`, or go on from its checkpoint, and measure them on fresh sequences.

    Args:
        arm: what is trained.
        evaluation: batches of fresh sequences for each run.
        store: keeps checkpoints.
        request: noted signals.
        update: hears the share done and a status line.

    Returns:
        The arm's settings and digest, and three lists: runs (one line each), matched (a line for each run and level that
        was reached) and trace (up to `TRACE` epochs of each run).

    Raises:
        Interrupted: a signal was noted; the state is saved. InputError: a run has diverged.
    """
    with jax.enable_x64(False):
        probe = TokenProbe(arm.task)
        states = start_tokens(arm.starts())
        begin = jax.tree.map(np.asarray, jax.jit(jax.vmap(probe))(states.params))
        campaign = TokenCampaign(arm.task, arm.epochs, arm.batches, probe, arm.reset, store, request)

        names = [(r, seed) for r in arm.multipliers for seed in arm.seeds]

        def hear(states: TokenState, records: dict[str, np.ndarray]) -> None:
            done = records["loss"].shape[1]
            for i in np.flatnonzero(np.isnan(records["evaluation"][:, -1]) & ~states.stopped):
                where = "arm {}, multiplier {:g}, seed {}".format(arm.name, *names[i])
                raise InputError(f"{where} has diverged by epoch {done}; its rates must be lower")
            seen = np.nanmin(records["loss"][:, -1]) if not np.isnan(records["loss"][:, -1]).all() else np.nan
            ended = int(states.stopped.sum())
            update(
                done / arm.epochs, f"{arm.name}: epoch {done}, loss from {seen:.2g}, {ended}/{len(states.step)} stopped"
            )

        states, records = campaign.finish(states, _runs(arm), digest(arm), hear)
        measured = [_measure(arm, states.params, i, seed, evaluation) for i, (_, seed) in enumerate(names)]
    whole = {name: np.concatenate([begin[name][:, None], records[name]], 1) for name in begin}
    lines = [
        {"multiplier": r, "seed": seed, **_end(states, records["loss"][i], i), **measured[i]}
        for i, (r, seed) in enumerate(names)
    ]
    matched = [
        {"multiplier": r, "seed": seed, **line}
        for i, (r, seed) in enumerate(names)
        for line in _matched(arm, {name: values[i] for name, values in whole.items()})
    ]
    trace = [
        {"multiplier": r, "seed": seed, **line}
        for i, (r, seed) in enumerate(names)
        for line in _trace(arm, records["loss"][i], {name: values[i] for name, values in whole.items()})
    ]
    found = {"arm": as_dict(arm), "digest": digest(arm), "evaluation": evaluation}
    return found | {"runs": lines, "matched": matched, "trace": trace}


def _runs(arm: Arm) -> TokenRun:
    """The runs, multiplier by multiplier."""
    total, stop = arm.epochs * arm.batches, arm.stop_loss
    parts = [
        token_runs(arm.seeds, eta_ov=arm.eta_ov, eta_qk=r * arm.eta_ov, ramp=arm.ramp, total=total, stop_loss=stop)
        for r in arm.multipliers
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _measure(arm: Arm, params: Any, i: int, seed: int, evaluation: int) -> dict[str, Any]:
    """DTAP counts and means of run i on fresh sequences."""
    key = jax.random.fold_in(jax.random.key(seed), 2**31 - 2)
    own = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), params)
    sequences = evaluate(own, key, evaluation, arm.task)
    counts = np.asarray(dtap_counts(sequences.distinct, sequences.probability))
    found = jax.tree.map(np.asarray, sequences)
    return {
        "distinct": float(found.distinct.mean()),
        "query": float(found.query.mean()),
        "loss": float(-np.log(np.maximum(found.probability, 1e-30)).mean()),
        "accuracy": float(found.correct.mean()),
        "confidence": float(attention_confidence(found.distinct)),
        "acmc": float(acmc(found.distinct, found.probability)),
        "counts": counts.tolist(),
    }


def _end(states: TokenState, losses: np.ndarray, i: int) -> dict[str, Any]:
    """How a run ended: epochs taken, whether by the stop rule, mean training loss of the last hundred epochs."""
    known = losses[np.isfinite(losses)]
    last = float(known[-100:].mean()) if known.size else float("nan")
    return {"steps": int(states.step[i]), "stopped": bool(states.stopped[i]), "training_loss": last}


def _matched(arm: Arm, whole: dict[str, np.ndarray]) -> list[dict[str, float]]:
    """Attention where the evaluation loss first crosses each level, interpolated in ln(loss) between epochs."""
    loss, found = whole["evaluation"], []
    for level in arm.levels:
        crossed = np.flatnonzero((loss[1:] <= level) & (loss[:-1] > level))
        if not crossed.size:
            continue
        k = int(crossed[0])
        share = float(np.log(loss[k] / level) / np.log(loss[k] / loss[k + 1]))
        at = {name: float(values[k] + share * (values[k + 1] - values[k])) for name, values in whole.items()}
        found.append(
            {"level": level, "step": (k + share) * arm.batches, "distinct": at["distinct"], "query": at["query"]}
        )
    return found


def _trace(arm: Arm, losses: np.ndarray, whole: dict[str, np.ndarray]) -> list[dict[str, float]]:
    """Loss and attention at up to `TRACE` epochs, evenly spaced in their logarithm; epochs after the end are left out."""
    epochs = np.unique(np.geomspace(1, len(losses), TRACE).round().astype(int))
    return [
        {
            "step": int(epoch) * arm.batches,
            "training_loss": _short(losses[epoch - 1]),
            **{name: _short(values[epoch]) for name, values in whole.items()},
        }
        for epoch in epochs
        if np.isfinite(losses[epoch - 1])
    ]


def _short(value: Any) -> float:
    return float(f"{value:.6g}")
