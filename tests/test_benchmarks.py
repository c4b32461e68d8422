"""The benchmarks' own arithmetic: who is measured beside whom, medians and ratios, and a record that grows by parts."""

import itertools
import json
import math
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import __main__ as bench
from benchmarks import (
    checkpoints,
    devices,
    language,
    memory,
    optimizer,
    record,
    squad,
    startup,
    text,
    text_posts,
    throughput,
    tokens,
    watching,
)
from benchmarks.job import runs_of
from benchmarks.measure import Bench, Finished, Row, interleaved, rows, run_process, seconds_of
from benchmarks.throughput import COUNTS, count_in, name_of
from experiments import sweep
from experiments.text.data import TextData
from helpers import max_difference, quick
from qkdyn import observe, results
from qkdyn.config import main_guard, parse
from qkdyn.errors import InputError, OutputError
from qkdyn.metrics.sharpness import attention_entropy
from qkdyn.train.sweep import Grid


def test_every_repeat_measures_all_and_every_other_in_reverse():
    order = []
    numbers = iter(range(6))
    told = []

    def measured(name):
        order.append(name)
        return float(next(numbers))

    actions = {name: lambda name=name: measured(name) for name in ("a", "b")}
    found = interleaved(actions, 3, lambda share, status: told.append((share, status)))
    assert "".join(order) == "abbaab"
    assert found == {"a": [0.0, 3.0, 4.0], "b": [1.0, 2.0, 5.0]}
    assert [share for share, _ in told] == pytest.approx([k / 6 for k in range(6)])
    assert [name for _, name in told] == order
    with pytest.raises(InputError, match="repeats must be an integer >= 1, got 0"):
        interleaved(actions, 0)


def test_time_is_taken_around_the_action():
    now = [10.0]
    assert seconds_of(lambda: now.append(12.5), lambda: now[-1]) == 2.5


def test_ratios_are_taken_within_repeats():
    # The machine halves its speed: the values say so, the ratios do not.
    one, two = rows("p", {"base": [1.0, 2.0, 4.0], "other": [3.0, 6.0, 12.0]}, "s", "base")
    assert (one.value, one.ratio, one.spread) == (2.0, 1.0, 1.5)
    assert two == Row("p", "other", 6.0, "s", "base", 3.0, 3.0, 3.0, 1.5, 3)
    far = rows("p", {"base": [1.0, 1.0, 1.0], "other": [5.0, 1.0, 2.0]}, "s", "base")[1]
    assert (far.value, far.ratio, far.ratio_low, far.ratio_high, far.spread) == (2.0, 2.0, 1.0, 5.0, 2.0)


def test_rows_without_baseline_or_repeats_claim_nothing():
    (alone,) = rows("p", {"one": [3.0]}, "s")
    assert alone.baseline == "" and alone.repeats == 1
    assert all(map(math.isnan, (alone.ratio, alone.ratio_low, alone.ratio_high, alone.spread)))
    assert math.isnan(rows("p", {"zero": [0.0], "one": [1.0]}, "s", "zero")[1].ratio)
    with pytest.raises(InputError, match="baseline must be one of one, got two"):
        rows("p", {"one": [3.0]}, "s", "two")
    with pytest.raises(InputError, match="as many repeats"):
        rows("p", {"one": [3.0], "two": [1.0, 2.0]}, "s", "one")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_process_reports_its_own_memory_and_its_failure(tmp_path):
    held = bytearray(400_000_000)  # the parent's memory is not the child's
    # Nor is what the child only reserves.
    code = "import mmap, os, time; assert os.environ['XDG_CACHE_HOME'] == {!r}; m = mmap.mmap(-1, 10**9); "
    code += "a = bytearray({}); time.sleep(0.3)"
    small, large = (run_process(["-c", code.format(str(tmp_path), size)], tmp_path).peak for size in (1, 100_000_000))
    assert len(held) > large > small and 95e6 < large - small < 105e6
    with pytest.raises(OutputError, match="ended with status 1: ValueError: no such luck"):
        run_process(["-c", "raise ValueError('no such luck')"], tmp_path)


def test_names_of_throughput_are_read_back():
    assert [count_in(name_of("FAFO", count)) for count in COUNTS] == [("FAFO", count) for count in COUNTS]
    assert count_in("FAFO x 200, block 5") is None


def test_measured_runs_are_different_and_of_the_grid():
    runs = runs_of("CACO", 1000)
    which = set(zip(runs.r.tolist(), runs.seed.tolist(), runs.sampled.tolist(), strict=True))
    assert len(which) == 1000 and len(set(runs.r.tolist())) == 5 and runs.sampled.mean() == 0.5
    assert runs_of("CACO", 1).r.tolist() == [1.0]
    grid = Grid()
    reference = {(r, s, d == "sampled") for r in np.float32(grid.r).tolist() for s in grid.seeds for d in grid.designs}
    runs = runs_of("CACO", 50)
    assert set(zip(runs.r.tolist(), runs.seed.tolist(), runs.sampled.tolist(), strict=True)) == reference


def few_posts(n_ctx):
    splits = (text_posts.made_posts(np.random.default_rng(0), size, n_ctx, 100) for size in (40, 9, 9))
    return TextData(*splits, 100, (), {})


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    "part",
    ["throughput", "startup", "checkpoints", "devices", "memory", "optimizer", "watching", "tokens", "text", "squad"],
)
def test_every_part_asks_for_commands_that_exist_and_names_its_rows_once(part, quick, tmp_path, monkeypatch):
    """All that computes is replaced: what is left is what is asked for, in which order, and what becomes of the answers."""
    numbers, told, folders = itertools.count(1), [], []

    def process(arguments, cache):
        if "experiments.sweep" in arguments and "--help" not in arguments:
            _, options = parse(sweep.PROTOCOLS, sweep.Options(), arguments[2:], prog="", description="")
            folders.append(options.folder)
        return Finished(float(next(numbers)), float(next(numbers)))

    def train(form, count, store):
        store.spent.extend([1.0, 2.0] if store.every == 0 else [])
        return float(next(numbers))

    for module in (startup, checkpoints, devices, memory):
        monkeypatch.setattr(module, "run_process", process)
    monkeypatch.setattr(checkpoints, "_train", train)
    monkeypatch.setattr(throughput, "_measured", lambda *what: lambda: float(next(numbers)))
    monkeypatch.setattr(language, "begun", lambda *what: None)
    for module in (optimizer, watching):
        monkeypatch.setattr(module, "_timed", lambda *what: lambda: float(next(numbers)))
    for name in ("start_runs", "advance_runs"):
        monkeypatch.setattr(startup, name, lambda *what: [1])
    monkeypatch.setattr("jax.clear_caches", lambda: None)
    monkeypatch.setattr(tokens, "_engine", lambda *what: lambda: float(next(numbers)))
    monkeypatch.setattr(tokens, "_products", lambda *what: float(next(numbers)))
    for name in ("loop", "vmapped"):
        monkeypatch.setattr(tokens, name, lambda *what: lambda steps: float(next(numbers)))
    with_torch = SimpleNamespace(find_spec=lambda name: quick or None)
    for module in (tokens, text, squad):
        monkeypatch.setattr(module, "importlib", SimpleNamespace(util=with_torch))
    monkeypatch.setattr(text, "posts_of", lambda recipe: ("few posts", few_posts(recipe.n_ctx)))
    training = SimpleNamespace(train=lambda: np.ones(1), rate=lambda: float(next(numbers)), tokens=1)
    for module in (text, squad):
        monkeypatch.setattr(module, "start", lambda *what, **how: training)
    one = {"1 thread": lambda: float(next(numbers))}
    monkeypatch.setattr(
        text, "_torch_training", lambda *what: {f"{kind}, {n}": one[n] for kind in text.KINDS for n in one}
    )
    monkeypatch.setattr(squad, "_torch", lambda *what: {f"{kind}, {n}": one[n] for kind in squad.KINDS for n in one})
    monkeypatch.setattr(squad, "_compared", lambda *what: "all the same")
    monkeypatch.setattr(squad, "_writers", lambda *what: (lambda: np.zeros((2, 3)), lambda count: np.zeros((2, 3))))
    monkeypatch.setattr(squad, "product_speed", lambda recipe: float(next(numbers)))
    monkeypatch.setattr(text, "_reading", lambda ours, *what: dict.fromkeys((ours, text.ONE_BY_ONE), one["1 thread"]))

    found = bench.PARTS[part](Bench(quick, tmp_path, tmp_path / "cache", lambda share, status: told.append(share)))
    names = [row.name for row in found]
    assert part != "throughput" or len(names) == (4 if quick else 14)
    assert len(set(names)) == len(names) >= 2 and {row.part for row in found} == {part}
    assert part not in ("tokens", "text", "squad") or any("PyTorch" in name for name in names) == quick
    assert all(math.isfinite(row.value) and math.isfinite(row.ratio) for row in found)
    assert {row.baseline for row in found} <= {*names, "interval of 10 s"}
    assert told == sorted(told) and told[0] >= 0 and told[-1] < 1
    # Each process trains anew, where no other has left anything, and out of the results' way.
    assert len(set(folders)) == len(folders) and all(tmp_path in folder.parents for folder in folders)
    assert quick or min(row.repeats for row in found) >= 2


def test_the_language_model_is_the_same_fused_or_not_and_watched_or_not():
    (params, ids), (whole, _) = (language.begun(language.QUICK, fused) for fused in (False, True))
    for block, other in zip(params["blocks"], whole["blocks"], strict=True):
        other["attn"] = {"qkv": jnp.concatenate([block["attn"][name] for name in "qkv"], -1), "o": block["attn"]["o"]}
        other["fc"] = block["fc"]
    whole["tokens"] = params["tokens"]

    @quick
    def run(params, whole, ids):
        watched, plain = (watching.steps(watching.begun(params, ids), ids, every) for every in (5, 0))
        return language.loss(params, ids), language.loss(whole, ids)[0], watched, plain[:2]

    (loss, (first, *_)), other, (*state, records, number), plain = run(params, whole, ids)
    assert loss == pytest.approx(other, rel=1e-5) and 1 < loss < 10
    assert max_difference(state, plain) == 0 and max_difference(state[0], params) > 1e-3
    ds = observe.to_dataset(records)
    assert ds.step.values.tolist() == [0, 5] and number == watching.CALL == 10
    assert float(ds.loss[0]) == pytest.approx(float(loss), rel=1e-5) and ds.loss[1] < ds.loss[0]
    np.testing.assert_allclose(ds.entropy.values[0, 0], attention_entropy(first).mean((0, 2)), rtol=1e-4)
    assert {"top_1_mass", "top_5_mass"} < set(ds)
    sizes = jax.eval_shape(lambda: language.begun(language.FULL, False)[0])
    assert 10e6 < sum(leaf.size for leaf in jax.tree.leaves(sizes)) < 10.5e6


# The record.

FIRST = [
    Row("throughput", "CACO, 1 run", 100.0, "run-steps/s", "CACO, 1 run", 1.0, 1.0, 1.0, 0.1, 5),
    Row("throughput", "CACO, 40 runs", 2000.0, "run-steps/s", "CACO, 1 run", 20.0, 19.0, 21.0, 0.1, 5),
]


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """The devices and the cache of this process stay as the other tests want them."""
    monkeypatch.setattr(bench, "settle", lambda: None)


def parts(monkeypatch, **given):
    monkeypatch.setattr(bench, "PARTS", {name: lambda told, found=found: found for name, found in given.items()})


def test_a_part_measured_again_replaces_its_rows_and_no_others(tmp_path, monkeypatch, capsys):
    old, new = [Row("memory", "x", 1.0, "MB"), Row("memory", "gone", 2.0, "MB")], [Row("memory", "x", 3.0, "MB")]
    foreign = [Row("theory", "later", 5.0, "s")]
    out = ["--out", str(tmp_path)]
    parts(monkeypatch, throughput=FIRST, memory=old, theory=foreign)
    assert bench.main(out) == 0
    parts(monkeypatch, memory=new, throughput=FIRST)
    assert bench.main(["memory", "--quick", *out]) == 0
    found = record.read(tmp_path / "bench.csv")
    assert [(row.part, row.name, row.value) for row in found] == [
        ("memory", "x", 3.0),
        *((row.part, row.name, row.value) for row in FIRST),
        ("theory", "later", 5.0),
    ]
    assert found[1:3] == FIRST and found[0].baseline == "" and math.isnan(found[0].ratio)
    assert results.verify(tmp_path) == []
    told = json.loads((tmp_path / "run.json").read_text())["config"]["parts"]
    assert {name: of["quick"] for name, of in told.items()} == {"throughput": False, "memory": True, "theory": False}
    assert "throughput.png" in capsys.readouterr().out


def test_what_is_measured_is_kept_when_a_later_part_fails(tmp_path, monkeypatch):
    parts(monkeypatch, throughput=FIRST, memory=[])
    monkeypatch.setitem(bench.PARTS, "memory", lambda told: run_process(["-c", "1/0"], told.cache))
    with pytest.raises(OutputError, match="ZeroDivisionError"):
        bench.main(["--out", str(tmp_path)])
    assert record.read(tmp_path / "bench.csv") == FIRST and results.verify(tmp_path) == []


def test_the_figure_shows_what_was_measured():
    (axes,) = record.draw([*FIRST, Row("throughput", "CACO x 40, not exact", 9.0, "run-steps/s")]).axes
    (line,) = [line for line in axes.get_lines() if len(line.get_xdata()) == 2 and line.get_marker() == "s"]
    assert line.get_xdata().tolist() == [1, 40] and line.get_ydata().tolist() == [100, 2000]
    low, high = axes.get_ylim()
    assert low < 100 and high > 2000 and axes.get_xscale() == axes.get_yscale() == "log"
    assert record.draw([]).axes[0].texts[0].get_text() == "nothing measured"


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "part,name,value\nx,y,z\n"])
def test_a_foreign_record_is_refused_and_stays(tmp_path, monkeypatch, text):
    parts(monkeypatch, throughput=FIRST)
    (tmp_path / "bench.csv").write_text(text)
    with pytest.raises((InputError, OutputError), match=r"bench\.csv.*remove it, or choose another --out"):
        bench.main(["--out", str(tmp_path)])
    assert (tmp_path / "bench.csv").read_text() == text


def test_an_unknown_part_is_refused_before_anything_is_made(tmp_path, capsys):
    out = tmp_path / "new"
    assert main_guard(lambda: bench.main(["throughput", "speed", "--out", str(out)])) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: each part must be one of throughput, startup,") and "got 'speed'" in told
    assert not out.exists()
