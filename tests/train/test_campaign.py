"""A sweep with a store: resumed, extended, regrouped and refused; always the bits of one that was never interrupted."""

import dataclasses
import functools
import json
import shutil
import signal

import jax
import numpy as np
import optax
import pytest
from test_sweep import RATES, TASK, starts, sweep

from qkdyn.errors import CheckpointError, ConflictError, InputError, Interrupted, OutputError, OutputWarning
from qkdyn.train import campaign, checkpoint
from qkdyn.train.interrupt import Request, on_request
from qkdyn.train.lock import lock
from qkdyn.train.probe import AnsatzProbe
from qkdyn.train.state import Plan
from qkdyn.train.store import differences, interruption, open_store

PLAN = Plan(losses=(0.8, 0.4), stop_loss=0.3, max_steps=200, records=12, chunk=10, block=3)


@pytest.fixture(scope="module")
def whole():
    return sweep(plan=PLAN, parameterizations=("FACO", "CACO"))


def store_in(folder, every=1e9, **identity):
    return open_store(folder, identity or {"plan": 1}, every=every)


def interrupted_after(chunks, folder, every=1e9, max_runs=None, of=None, **axes):
    """A sweep that is asked to end after some chunks, of the parameterization `of` if given."""
    request, seen = Request(), []

    def count(form, now):
        if of in (None, form):
            seen.append(now)
        if len(seen) == chunks:
            request.name = "SIGTERM"

    how = {"store": store_in(folder, every), "request": request, "max_runs": max_runs}
    with pytest.raises(Interrupted, match="SIGTERM"):
        sweep(plan=PLAN, on_chunk=count, how=how, **{"parameterizations": ("FACO", "CACO")} | axes)


@pytest.mark.parametrize("chunks", [1, 4, 9, 13])
@pytest.mark.parametrize("max_runs", [None, 3])
def test_resumed_is_uninterrupted_to_the_bit(chunks, max_runs, tmp_path, whole):
    interrupted_after(chunks, tmp_path, max_runs=max_runs)
    seen = []
    how = {"store": store_in(tmp_path), "max_runs": max_runs}
    ds = sweep(
        plan=PLAN, parameterizations=("FACO", "CACO"), how=how, on_chunk=lambda form, now: seen.append(now.step.max())
    )
    assert ds.identical(whole) and seen[0] > PLAN.chunk  # further than a first chunk takes it


def numbered(folder):
    """Numbers of the checkpoints under `folder`, of all parts."""
    return {path.name: checkpoint.numbers(path) for path in (folder / "checkpoints").iterdir()}


def test_checkpoints_come_when_due_and_go_when_a_part_is_done(tmp_path, whole, monkeypatch):
    saved = []
    real = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *a, **k: saved.append(a[1]) or real(*a, **k))
    ds = sweep(plan=PLAN, parameterizations=("FACO", "CACO"), how={"store": store_in(tmp_path, every=1e-9)})
    assert ds.identical(whole) and saved == list(range(1, len(saved) + 1)) and len(saved) > 5
    assert list(numbered(tmp_path).values()) == [[], []] and len(list((tmp_path / "parts").glob("*.npz"))) == 2


def test_after_a_restart_checkpoints_are_numbered_on(tmp_path, whole, monkeypatch):
    interrupted_after(3, tmp_path, every=0.0)
    ((newest, _),) = numbered(tmp_path).values()
    saved, real = [], checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *a, **k: saved.append(a[1]) or real(*a, **k))
    ds = sweep(plan=PLAN, parameterizations=("FACO", "CACO"), how={"store": store_in(tmp_path, every=0.0)})
    assert ds.identical(whole) and saved[0] == newest + 1


def test_a_checkpoint_is_due_by_a_clock_that_only_goes_forward(tmp_path, monkeypatch):
    store = open_store(tmp_path, {}, every=10.0)
    begun = store._last
    monkeypatch.setattr("time.time", lambda: pytest.fail("a clock that may jump"))
    monkeypatch.setattr(checkpoint, "save", lambda *a, **k: None)

    def due(after):
        monkeypatch.setattr("time.monotonic", lambda: begun + after)
        return store.due()

    assert not due(9.0) and due(10.5) and due(17.0)
    store.save({}, {"key": "k"})
    assert not due(26.0) and due(27.5)


def test_a_larger_grid_trains_only_what_is_new(tmp_path, monkeypatch):
    sweep(plan=PLAN, r=(0.5,), seeds=(0, 3), how={"store": store_in(tmp_path)})
    trained = []
    real = campaign.start_runs
    monkeypatch.setattr(
        campaign, "start_runs", lambda p, runs, job: trained.append(runs.seed.size) or real(p, runs, job)
    )
    store = store_in(tmp_path)
    ds = sweep(plan=PLAN, r=(0.5, 2.0), seeds=(0, 3, 4), how={"store": store, "max_runs": 100})
    assert trained == [4] and ds.identical(sweep(plan=PLAN, r=(0.5, 2.0), seeds=(0, 3, 4)))
    trained.clear()
    smaller = sweep(plan=PLAN, r=(2.0,), seeds=(4, 0), how={"store": store})
    assert trained == [] and smaller.identical(ds.sel(r=[2.0], seed=[4, 0]))


def test_a_grid_that_changed_while_interrupted_uses_what_there_is(tmp_path):
    interrupted_after(3, tmp_path, parameterizations=("CACO",))
    ds = sweep(plan=PLAN, r=(2.0, 5.0), seeds=(3, 9), how={"store": store_in(tmp_path)})
    assert ds.identical(sweep(plan=PLAN, r=(2.0, 5.0), seeds=(3, 9)))


def test_damaged_parts_and_checkpoints_are_trained_again(tmp_path, whole):
    interrupted_after(3, tmp_path, every=1e-9, of="CACO")
    (part,) = (tmp_path / "parts").glob("*.npz")
    part.write_bytes(part.read_bytes()[:-200])
    ((key, newest),) = ((key, found[0]) for key, found in numbered(tmp_path).items() if found)
    (tmp_path / "checkpoints" / key / str(newest) / "manifest.json").write_text("{")
    with pytest.warns(OutputWarning) as said:
        ds = sweep(plan=PLAN, parameterizations=("FACO", "CACO"), how={"store": store_in(tmp_path)})
    told = " ".join(str(w.message) for w in said)
    assert ds.identical(whole) and "is damaged" in told and "train again" in told


def test_a_part_whose_numbers_were_changed_is_found(tmp_path):
    sweep(plan=PLAN, r=(0.5,), seeds=(0,), how={"store": store_in(tmp_path)})
    (part,) = (tmp_path / "parts").glob("*.npz")
    with np.load(part) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["state/step"] = arrays["state/step"] + 1
    np.savez(part, **arrays)
    with pytest.warns(OutputWarning, match="its checksum is not that of its name"):
        assert store_in(tmp_path).parts(part.name.rsplit("-", 1)[0]) == []
    assert not part.exists()


def test_what_decides_the_bits_decides_the_key(tmp_path):
    sweep(plan=PLAN, r=(0.5,), seeds=(0,), how={"store": store_in(tmp_path)})
    before = len(list((tmp_path / "parts").glob("*.npz")))
    longer = Plan(losses=(0.8, 0.4), stop_loss=0.2, max_steps=200, records=12, chunk=10, block=3)
    sweep(plan=longer, r=(0.5,), seeds=(0,), how={"store": store_in(tmp_path)})
    sweep(plan=PLAN, r=(0.5,), seeds=(0,), exact=False, how={"store": store_in(tmp_path)})
    chunked = Plan(losses=(0.8, 0.4), stop_loss=0.3, max_steps=200, records=12, chunk=77, block=3)
    sweep(plan=chunked, r=(0.5,), seeds=(0,), how={"store": store_in(tmp_path)})
    assert len(list((tmp_path / "parts").glob("*.npz"))) == before + 2


@dataclasses.dataclass(frozen=True)
class Elsewhere(AnsatzProbe):
    """The same measures under another name."""


def test_all_that_decides_the_bits_and_only_that_is_in_the_key(monkeypatch):
    start = starts()["CACO"]

    def key(job=None, initial=start, of=None, **change):
        return campaign._key(dataclasses.replace(job or _job(), **change), initial, of or _run())

    def other(seed):
        return jax.tree.map(lambda leaf: leaf + np.float32(seed), start)

    momentum = functools.partial(optax.sgd, momentum=0.5)
    keys = [
        key(),
        key(task=dataclasses.replace(TASK, batch=24)),
        key(plan=dataclasses.replace(PLAN, block=4)),
        key(base=optax.adam),
        key(base=momentum),
        key(base=functools.partial(optax.sgd, momentum=0.9)),
        key(exact=False),
        key(probe=Elsewhere(TASK)),
        key(initial=jax.tree.map(lambda leaf: leaf + np.float32(1), start)),
        key(initial=other),
        key(initial=lambda seed: other(2 * seed)),
        key(of=_run().replace(eta_ov=np.full(1, 0.1, "f4"))),
    ]
    for name, value in (("ENGINE", campaign.ENGINE + 1), ("jax.default_backend", lambda: "gpu")):
        with monkeypatch.context() as patch:
            patch.setattr(f"qkdyn.train.campaign.{name}", value)
            keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == key(plan=dataclasses.replace(PLAN, chunk=99))
    assert key() == key(of=_run().replace(r=np.full(1, 9, "f4"), seed=np.full(1, 9, "i4"), sampled=np.ones(1, bool)))


def _momentum(value):
    return lambda rate: optax.sgd(rate, value)


class Nameless:
    def __call__(self, rate):
        return optax.sgd(rate)


@pytest.mark.parametrize(
    "base",
    [_momentum(0.1), lambda rate: optax.sgd(rate), Nameless(), functools.partial(optax.sgd, momentum=np.ones(1))],
    ids=["closure", "lambda", "object", "array"],
)
def test_what_has_no_name_of_its_own_is_not_taken_from_records(base, tmp_path, unchecked):
    with pytest.raises(InputError, match=r"base must be a function or dataclass .*functools\.partial"):
        sweep(plan=PLAN, base=base, how={"store": store_in(tmp_path)})


def test_another_configuration_is_refused_with_the_difference(tmp_path):
    store_in(tmp_path / "checkpoints", plan={"max_steps": 10}, rate=1.0)
    with pytest.raises(ConflictError, match=r"another configuration \(plan.max_steps: 10 there, 20 here\).*--fresh"):
        store_in(tmp_path / "checkpoints", plan={"max_steps": 20}, rate=1.0)
    store_in(tmp_path / "checkpoints", plan={"max_steps": 10}, rate=1.0)
    (tmp_path / "checkpoints" / "parts").mkdir()
    open_store(tmp_path / "checkpoints", {"plan": {"max_steps": 20}}, fresh=True)
    assert json.loads((tmp_path / "checkpoints" / "job.json").read_text()) == {"plan": {"max_steps": 20}}
    assert not (tmp_path / "checkpoints" / "parts").exists()


def test_differences_are_named_by_their_path():
    assert differences({"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"b": 1, "c": 3}}) == [
        "a.c: 2 there, 3 here",
        "d: 1 there, null here",
    ]
    assert differences({"a": [1]}, {"a": [1]}) == []


def test_a_state_of_another_shape_is_not_taken():
    state = campaign.start_runs(starts()["CACO"], _run(), _job())
    arrays = checkpoint.flat({"state": state})
    arrays["state/params/ov/W_OV"] = arrays["state/params/ov/W_OV"].astype(np.float16)
    with pytest.raises(CheckpointError, match=r"array state/params/ov/W_OV is float16\[1, 3, 10\], expected float32"):
        campaign._restore(state, arrays, "there")


def _run():
    from qkdyn.train.state import Run

    return Run(
        r=np.ones(1, "f4"), seed=np.zeros(1, "i4"), sampled=np.zeros(1, bool), eta_ov=np.full(1, RATES["CACO"], "f4")
    )


def _job():
    from qkdyn.train.engine import Job

    return Job(TASK, AnsatzProbe(TASK), PLAN)


def test_runs_that_fit_follow_from_what_one_needs(monkeypatch):
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(campaign.start_runs(starts()["CACO"], _run(), _job())))
    assert campaign.bytes_of_run(_job(), starts()["CACO"]) == 6 * size
    for free, fit in ((4 * 6 * 100 * size + 1, 100), (1, PLAN.block)):
        monkeypatch.setattr(campaign, "free_memory", lambda free=free: free)
        assert campaign.fitting_runs(_job(), starts()["CACO"]) == fit
    with pytest.raises(InputError, match="max_runs must be an integer >= 1, got 0"):
        campaign.Campaign(_job(), max_runs=0)


def test_groups_are_as_large_as_fits_unless_told(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "fitting_runs", lambda job, initial: 3)
    for told, parts in ((None, 2), (1, 4)):
        sweep(plan=PLAN, how={"store": store_in(tmp_path / str(told)), "max_runs": told})
        assert len(list((tmp_path / str(told) / "parts").glob("*.npz"))) == parts


def test_a_resumed_group_is_cut_too(tmp_path, monkeypatch):
    interrupted_after(3, tmp_path, parameterizations=("CACO",))
    trained, real = [], campaign.start_runs
    monkeypatch.setattr(campaign, "start_runs", lambda p, runs, job: trained.append(runs.r.size) or real(p, runs, job))
    store = store_in(tmp_path)
    ds = sweep(plan=PLAN, how={"store": store, "max_runs": 3})
    assert trained == [3, 1] and store.counts == {"taken_from_records": 0, "resumed": 4, "trained": 0}
    assert ds.identical(sweep(plan=PLAN))


def test_progress_of_one_part_outlives_the_end_of_another(tmp_path, whole):
    interrupted_after(3, tmp_path, parameterizations=("CACO",))
    before = numbered(tmp_path)
    sweep(plan=PLAN, parameterizations=("FACO",), how={"store": store_in(tmp_path, every=0.0)})
    assert {key: found for key, found in numbered(tmp_path).items() if found} == before
    store = store_in(tmp_path)
    assert sweep(plan=PLAN, parameterizations=("FACO", "CACO"), how={"store": store}).identical(whole)
    assert store.counts == {"taken_from_records": 4, "resumed": 4, "trained": 0}


def test_parts_of_other_versions_are_taken_and_said_once(tmp_path, whole, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "versions", lambda: {"jax": "0.1", "numpy": np.__version__})
        sweep(plan=PLAN, parameterizations=("FACO", "CACO"), how={"store": store_in(tmp_path)})
    store = store_in(tmp_path)
    with pytest.warns(OutputWarning, match=r"has runs of jax 0\.1: taken, but .*--fresh trains anew") as said:
        ds = sweep(plan=PLAN, parameterizations=("FACO", "CACO"), how={"store": store})
    assert len(said) == 1 and ds.identical(whole) and store.counts["taken_from_records"] == 8


def test_a_failed_checkpoint_is_said_and_the_run_goes_on(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.warns(OutputWarning, match="No space left on device.*going on without it"):
        ds = sweep(plan=PLAN, parameterizations=("FACO", "CACO"), how={"store": store_in(tmp_path, every=1e-9)})
    assert ds.identical(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_noted_once_and_handlers_restored(number, capfd):
    def handlers():
        return [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]

    before = handlers()
    with on_request() as request:
        assert request.name is None and not set(handlers()) & set(before)
        signal.raise_signal(number)
        assert request.name == number.name and handlers() == before
        told = capfd.readouterr().err
        assert told.startswith(f"\n{number.name}: ") and "a second signal ends at once\n" in told
    assert handlers() == before
    with pytest.raises(KeyError), on_request():
        raise KeyError
    assert handlers() == before


def test_the_line_of_an_interruption_is_true(tmp_path, monkeypatch):
    store, fresh = store_in(tmp_path), open_store(tmp_path / "b", {}, fresh=True)
    assert str(interruption("SIGTERM", None)) == "SIGTERM: nothing is kept, the same command begins anew"
    assert str(interruption("SIGTERM", store)) == "SIGTERM: saved; the same command goes on from here"
    assert str(interruption("SIGINT", fresh)) == "SIGINT: saved; the same command without --fresh goes on from here"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.warns(OutputWarning, match="No space left"), pytest.raises(Interrupted) as stop:
        request = Request()
        how = {"store": store, "request": request}
        sweep(plan=PLAN, how=how, on_chunk=lambda form, now: setattr(request, "name", "SIGTERM"))
    assert str(stop.value) == (
        "SIGTERM: could not be saved; the same command goes on from what was saved before, if anything was"
    )


@pytest.mark.parametrize("what", ["checkpoints", "checkpoints/job.json", "checkpoints/parts", ".lock"])
@pytest.mark.parametrize("fresh", [False, True])
def test_whatever_is_in_the_way_is_one_line(what, fresh, tmp_path):
    """Files where folders should be and the reverse."""
    path = tmp_path / what
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if what in (".lock", "checkpoints/job.json") else path.write_text("a file")
    if fresh and what.startswith("checkpoints/"):
        open_store(tmp_path / "checkpoints", {}, fresh=True)  # all that is in the way is forgotten
        return
    with pytest.raises(OutputError, match=f"cannot write .*{what}"), lock(tmp_path):
        open_store(tmp_path / "checkpoints", {}, fresh=fresh).write_part("k", {})


def test_what_cannot_be_forgotten_is_said(tmp_path, monkeypatch):
    store_in(tmp_path / "checkpoints")

    def refuse(path, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(OutputError, match="cannot write .*checkpoints: Permission denied"):
        open_store(tmp_path / "checkpoints", {}, fresh=True)


def test_a_lock_is_held_once_and_names_its_holder(tmp_path):
    (tmp_path / ".lock").write_text("left by a process that died")
    with (
        lock(tmp_path),
        pytest.raises(
            ConflictError, match=r"another process is writing to .*: process \d+ on .* since .*choose another"
        ),
        lock(tmp_path),
    ):
        pass
    with lock(tmp_path):
        assert "pid" in json.loads((tmp_path / ".lock").read_text())
