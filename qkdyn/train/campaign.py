"""All runs of one parameterization brought to their end: what is on record is not trained again, the rest goes on."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import jax
import numpy as np

from qkdyn.errors import check_count
from qkdyn.train.checkpoint import Arrays, arrays_digest, check_structure, flat
from qkdyn.train.devices import free_memory
from qkdyn.train.engine import Job, Start, advance_runs, params_of, start_runs
from qkdyn.train.interrupt import Request
from qkdyn.train.processes import agree, first_alone, in_turn, least_share
from qkdyn.train.state import Run, RunState, Status
from qkdyn.train.step import ENGINE
from qkdyn.train.store import Store, described, interruption, key_of

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
            Interrupted: a signal was noted; the state is saved if there is a store. OutputError: a part cannot be written.
            InputError: with a store, the job has a part without a name, such as a closure. PeerError: another process of a
            distributed run is gone.
        """
        store, names = self.store, _names(runs)
        key = f"{label}-{_key(self.job, initial, runs)}" if store else label
        parts = in_turn(lambda: store.parts(key)) if store else []
        had = {name for part in parts for name in _names(_runs_of(part))}
        todo = np.array([i for i, name in enumerate(names) if name not in had], int)
        if store:
            store.counts["taken_from_records"] += len(names) - todo.size
        standing = _standing(_gather(parts, names), names)
        for group, states in self._groups(initial, runs, todo, key):
            part = self._train(states, jax.tree.map(lambda leaf: leaf[group], runs), key, group, standing, on_chunk)  # noqa: B023
            parts.append(part)
        if store:
            store.clear(key)
        on_chunk(standing)
        return _gather(parts, names)

    def _groups(self, initial: Start, runs: Run, todo: np.ndarray, key: str) -> Iterator[tuple[np.ndarray, RunState]]:
        """The runs to do in groups that fit into memory, first those that a checkpoint has, each with its states."""
        if not todo.size:
            return
        size, names = self.max_runs or fitting_runs(self.job, initial), _names(runs)
        arrays = found[0] if self.store and (found := self.store.newest(key)) else {}
        place = {name: row for row, name in enumerate(_names(_runs_of(arrays)))} if arrays else {}
        mine = np.array([i for i in todo if names[i] in place], int)
        new = np.setdiff1d(todo, mine)
        if self.store:
            self.store.counts["resumed"] += mine.size
            self.store.counts["trained"] += new.size
        for some, from_checkpoint in ((mine, True), (new, False)):
            for i in range(0, some.size, size):
                group = some[i : i + size]
                states = start_runs(initial, jax.tree.map(lambda leaf: leaf[group], runs), self.job)  # noqa: B023
                if from_checkpoint:
                    rows = [place[names[i]] for i in group]
                    states = _restore(states, {name: array[rows] for name, array in arrays.items()}, key)
                yield group, states

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
                name = self.request.name if self.request and self.request.name else "a signal elsewhere"
                raise interruption(name, self.store)
        part = outcome(states, runs)
        if store := self.store:
            first_alone(lambda: store.write_part(key, part))
        return part


def outcome(states: RunState, runs: Run) -> Outcome:
    """What is kept of ended runs: which they are, records, matched states, status, step and diverged_step."""
    kept = ("records", "matched", "status", "step", "diverged_step")
    return flat({"run": runs, "state": {name: getattr(states, name) for name in kept}})


# Measured by `make bench`: a run that is held takes 5.5 times the bytes of its state (74 kB of 13.5 kB) - the state, the
# copy that is sent, the one that comes back, one on its way to the disk, its part of the results.
COPIES = 6


def bytes_of_run(job: Job, initial: Start) -> int:
    """Memory that a run takes while it is trained."""
    one = Run(*(np.zeros(1, kind) for kind in (np.float32, np.int32, np.bool_, np.float32)))
    return COPIES * sum(leaf.nbytes for leaf in jax.tree.leaves(start_runs(initial, one, job)))


def fitting_runs(job: Job, initial: Start) -> int:
    """How many runs a quarter of the free memory holds, the same in every process: as many as in that with the least."""
    return max(job.plan.block, least_share(free_memory()) // 4 // bytes_of_run(job, initial))


def _key(job: Job, initial: Start, runs: Run) -> str:
    """Names all that decides a run's bits but which run it is, and the versions of the libraries.

    Raises:
        InputError: the task, the probe or the optimizer cannot be told by a name.
    """
    plan = {name: value for name, value in asdict(job.plan).items() if name != "chunk"}
    parts = [described(name, getattr(job, name)) for name in ("task", "probe", "base")]
    rate = sorted({float(value) for value in runs.eta_ov})
    # A function of the seed is known by two of its values: which seeds there are must not change the name.
    starts = [arrays_digest(flat(params_of(initial, seed))) for seed in ((0, 1) if callable(initial) else (0,))]
    return key_of(ENGINE, jax.default_backend(), parts, plan, job.exact, rate, *starts)


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
