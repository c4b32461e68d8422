"""All runs of one parameterization brought to their end: what is on record is not trained again, the rest goes on."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import jax
import numpy as np

from qkdyn.errors import Interrupted, check_count
from qkdyn.train.checkpoint import Arrays, arrays_digest, check_structure, flat
from qkdyn.train.engine import Job, Start, advance_runs, params_of, start_runs
from qkdyn.train.interrupt import Request
from qkdyn.train.processes import agree, in_turn
from qkdyn.train.state import Run, RunState, Status
from qkdyn.train.store import Store, key_of

Outcome = dict[str, np.ndarray]


class Snapshot(NamedTuple):
    """Where all runs of a parameterization stand: step, status and loss, each (runs,)."""

    step: np.ndarray
    status: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True)
class Campaign:
    """How runs are brought to their end.

    Attributes:
        job: what is trained, measured and recorded.
        store: keeps parts and checkpoints; None keeps nothing.
        max_runs: runs held in memory at once; None chooses from what they need and the memory there is.
        request: noted signals, after which the state is saved and `Interrupted` raised.
    """

    job: Job
    store: Store | None = None
    max_runs: int | None = None
    request: Request | None = None

    def __post_init__(self) -> None:
        if self.max_runs is not None:
            check_count("max_runs", self.max_runs)

    def finish(self, initial: Start, runs: Run, label: str, on_chunk: Callable[[Snapshot], None]) -> Outcome:
        """Train all `runs` from `initial`, or take from the records what they have of them.

        Args:
            initial: where the runs start, see `run_sweep`.
            runs: N different runs.
            label: the parameterization.
            on_chunk: hears after each chunk where all runs stand.

        Returns:
            Arrays by name, each with the N runs as first axis: what `outcome` keeps of a state.

        Raises:
            Interrupted: a signal was noted; the state is saved. OutputError: a part cannot be written.
            PeerError: another process of a distributed run is gone.
        """
        key = f"{label}-{_key(self.job, initial, runs)}"
        store = self.store
        parts = in_turn(lambda: store.parts(key)) if store else []
        names = _names(runs)
        had = {name for part in parts for name in _names(_runs_of(part))}
        todo = np.array([i for i, name in enumerate(names) if name not in had], int)
        standing = _standing(_gather(parts, names), names)
        for group, states in self._groups(initial, runs, todo, key):
            part = self._train(states, jax.tree.map(lambda leaf: leaf[group], runs), key, group, standing, on_chunk)  # noqa: B023
            parts.append(part)
        on_chunk(standing)
        return _gather(parts, names)

    def _groups(self, initial: Start, runs: Run, todo: np.ndarray, key: str) -> Iterator[tuple[np.ndarray, RunState]]:
        """The runs to do in groups that fit into memory, first those that a checkpoint has, each with its states."""
        found = self.store.newest(key) if self.store and todo.size else None
        if found:
            arrays = found[0]
            place = {name: row for row, name in enumerate(_names(_runs_of(arrays)))}
            mine = [i for i in todo if _names(runs)[i] in place]
            if mine:
                rows = [place[_names(runs)[i]] for i in mine]
                like = start_runs(initial, jax.tree.map(lambda leaf: leaf[mine], runs), self.job)
                yield np.array(mine, int), _restore(like, {n: a[rows] for n, a in arrays.items()}, key)
                todo = np.setdiff1d(todo, mine)
        if not todo.size:
            return
        size = self.max_runs or fitting_runs(self.job, initial)
        for i in range(0, todo.size, size):
            group = todo[i : i + size]
            yield group, start_runs(initial, jax.tree.map(lambda leaf: leaf[group], runs), self.job)  # noqa: B023

    def _train(
        self,
        states: RunState,
        runs: Run,
        key: str,
        group: np.ndarray,
        standing: Snapshot,
        on_chunk: Callable[[Snapshot], None],
    ) -> Outcome:
        for states in advance_runs(states, runs, self.job):  # noqa: B020
            for whole, part in zip(standing, (states.step, states.status, states.previous["loss"]), strict=True):
                whole[group] = part
            on_chunk(standing)
            stop, due = agree(bool(self.request and self.request.name), bool(self.store and self.store.due()))
            if self.store and (stop or due):
                self.store.save(flat({"run": runs, "state": states}), {"key": key})
            if stop:
                raise Interrupted(self.request.name if self.request and self.request.name else "a signal elsewhere")
        part = outcome(states, runs)
        if self.store:
            self.store.write_part(key, part)
        return part


def outcome(states: RunState, runs: Run) -> Outcome:
    """What is kept of ended runs: which they are, records, matched states, status, step and diverged_step."""
    kept = ("records", "matched", "status", "step", "diverged_step")
    return flat({"run": runs, "state": {name: getattr(states, name) for name in kept}})


def fitting_runs(job: Job, initial: Start) -> int:
    """How many runs' states a quarter of the free memory holds, with the copies that are made of them on the way."""
    import os

    one = Run(*(np.zeros(1, kind) for kind in (np.float32, np.int32, np.bool_, np.float32)))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(start_runs(initial, one, job)))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # The state itself, the copy that is sent, the one that comes back, and one on its way to the disk.
    return max(job.plan.block, free // 4 // (4 * size))


def _key(job: Job, initial: Start, runs: Run) -> str:
    """Names all that decides a run's bits but which run it is."""
    plan = {name: value for name, value in asdict(job.plan).items() if name != "chunk"}
    base = getattr(job.base, "func", job.base), getattr(job.base, "args", ()), getattr(job.base, "keywords", {})
    described = (base[0].__module__, base[0].__qualname__, *base[1:])
    rate = sorted({float(value) for value in runs.eta_ov})
    # A function of the seed is known by two of its values: which seeds there are must not change the name.
    starts = [arrays_digest(flat(params_of(initial, seed))) for seed in ((0, 1) if callable(initial) else (0,))]
    return key_of(repr(job.task), plan, described, job.exact, rate, *starts)


def _restore(like: RunState, arrays: Arrays, where: str) -> RunState:
    """The state in `arrays`, with the structure of `like`."""
    wanted = flat({"state": like})
    found = {name: value for name, value in arrays.items() if name.startswith("state/")}
    check_structure(found, wanted, where)
    return jax.tree.unflatten(jax.tree.structure(like), [np.array(found[name]) for name in wanted])


def _runs_of(arrays: Arrays) -> Run:
    return Run(**{name: arrays[f"run/{name}"] for name in ("r", "seed", "sampled", "eta_ov")})


def _names(runs: Run) -> list[tuple[bool, float, int]]:
    return list(zip(runs.sampled.tolist(), runs.r.tolist(), runs.seed.tolist(), strict=True))


def _gather(parts: list[Outcome], names: list[tuple[bool, float, int]]) -> Outcome:
    """The rows of `names` that the parts have, in the order of `names`."""
    place = {name: (p, row) for p, part in enumerate(parts) for row, name in enumerate(_names(_runs_of(part)))}
    found = [place[name] for name in names if name in place]
    if not found:
        return {}
    return {array: np.stack([parts[p][array][row] for p, row in found]) for array in parts[0]}


def _standing(recorded: Outcome, names: list[tuple[bool, float, int]]) -> Snapshot:
    """Where all runs stand before any is trained further."""
    count = len(names)
    standing = Snapshot(np.zeros(count, np.int32), np.full(count, Status.running, np.int32), np.full(count, np.nan))
    if recorded:
        index = {name: i for i, name in enumerate(names)}
        rows = [index[name] for name in _names(_runs_of(recorded))]
        standing.step[rows], standing.status[rows] = recorded["state/step"], recorded["state/status"]
    return standing
