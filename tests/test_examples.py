"""The language models in examples/: what they read, that runs differ in the ratio alone, what they print and draw."""

import ast
import contextlib
import functools
import importlib
import io
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import QUICK

EXAMPLES = Path(__file__).parent.parent / "examples"
LANGUAGE = ("language_linen", "language_nnx", "language_equinox")
TINY = {"LENGTH": 6, "BATCH": 2, "WIDTH": 8, "HEADS": 2, "LAYERS": 1}
SAME = 1.000001  # a ratio so near to one that its run must be that of one
STEPS = 20


@pytest.fixture(scope="module")
def load():
    """Examples import `common` from their own folder, as they do when they are run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module


@pytest.fixture(scope="module")
def common(load):
    return load("common")


def hurried(jit, name):
    """`jax.jit` that compiles quickly what an example has jitted itself; what is inside of that has no options."""

    def own(function=None, **options):
        if getattr(function, "__module__", "") == name or type(function).__name__ == "JitFn":
            options["compiler_options"] = QUICK
        return functools.partial(own, **options) if function is None else jit(function, **options)

    return own


@pytest.fixture(scope="module")
def run(load, tmp_path_factory):
    """Run an example's main at a tiny size; what it printed, returned and left in its folder."""

    def small(name, ratios, **options):
        folder, printed, drawn, common = tmp_path_factory.mktemp(name), io.StringIO(), {}, load("common")
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setattr(jax, "jit", hurried(jax.jit, name))
            module = load(name)
            for constant, value in {**TINY, "RATIOS": ratios}.items():
                patch.setattr(module, constant, value)
            if hasattr(module, "CAUSAL"):
                axes = module.CAUSAL.ndim
                causal = jnp.tril(jnp.ones((TINY["LENGTH"],) * 2, bool))
                patch.setattr(module, "CAUSAL", causal.reshape((1,) * (axes - 2) + causal.shape))
            draw = common.draw
            patch.setattr(common, "draw", lambda runs, loss, path: drawn.update(runs) or draw(runs, loss, path))
            table = module.main(STEPS, folder, **options)
        return SimpleNamespace(text=printed.getvalue(), table=table, folder=folder, runs=drawn)

    return small


@pytest.fixture(scope="module", params=LANGUAGE)
def shown(request, run):
    # NNX compiles for each ratio anew; and its modules change in place, so that a start is easily not the same.
    found = run(request.param, (1.0, SAME) if request.param == "language_nnx" else (1.0, SAME, 10.0))
    found.name = request.param
    return found


def test_batches_are_pieces_of_the_story_before_its_last_tenth(common):
    story, (characters, batches, held_out) = (EXAMPLES / "lighthouse.txt").read_text(), common.read_text(300, 8, 16)
    assert batches.shape == (300, 8, 17)
    pieces = {"".join(characters[i] for i in window) for window in batches.reshape(-1, 17)}
    told = ["".join(characters[i] for i in window) for window in held_out]
    begin = story.rindex(told[0])
    assert begin == len(story) * 9 // 10 and all(piece in story[:begin] for piece in pieces)
    assert len(pieces) > 1000
    assert told == [story[i : i + 17] for i in range(begin, begin + 8 * len(told), 8)]
    assert len(story) - begin - 8 * len(told) < 17
    np.testing.assert_array_equal(common.read_text(300, 8, 16).batches, batches)


def test_the_story_is_plain_and_of_the_length_that_is_said():
    story = (EXAMPLES / "lighthouse.txt").read_text()
    assert story.isascii() and 10_000 < len(story) < 20_000
    for name in (*LANGUAGE, "pytorch_recipe"):
        assert f"story of {round(len(story) / 1000)} kB" in (EXAMPLES / f"{name}.py").read_text()


@pytest.mark.parametrize("name", LANGUAGE)
def test_examples_are_short_and_mark_what_they_add(name):
    source = (EXAMPLES / f"{name}.py").read_text()
    assert len(source.splitlines()) < 120
    assert f"Command:  python examples/{name}.py" in (ast.get_docstring(ast.parse(source)) or "")
    body = source[source.index("RATIOS") :]
    added = r"\blabels\b|circuit_labels|circuit_table|circuit_optimizer|observe"
    for line in body.splitlines():
        assert bool(re.search(added, line)) == line.endswith("# qkdyn"), line


def test_a_matched_loss_is_read_at_the_first_crossing(common):
    run = {"step": np.array([10, 20, 30, 40]), "loss": np.array([3.0, 2.0, 1.0, 2.5])}
    run |= {name: np.array([1.0, 2.0, 4.0, 9.0]) * (i + 1) for i, name in enumerate(common.MEASURES)}
    found = common.at_loss(run, 1.25)
    assert found == {"step": 27.5, "entropy": 3.5, "effective_tokens": 7.0, "top_1_mass": 10.5}
    assert common.at_loss(run, 3.5)["step"] == 10.0
    with pytest.raises(ValueError, match="never reached"):
        common.at_loss(run, 0.5)


def test_runs_differ_in_the_ratio_alone(shown):
    one, same, ten = (shown.runs.get(r) for r in (1.0, SAME, 10.0))
    np.testing.assert_array_equal(one["step"], [10, 20])
    for name in ("loss", "entropy", "effective_tokens", "top_1_mass"):
        assert np.isfinite(one[name]).all()
        np.testing.assert_allclose(same[name], one[name], rtol=1e-4)
    if ten is not None:
        assert abs(ten["entropy"] - one["entropy"]).max() > 1e-3
    # The mean of ln 1, ..., ln 6, which is that of uniform attention, and the start's loss is near ln 42.
    for of in (one, ten or one):
        assert (of["entropy"] < np.log(np.arange(1, 7)).mean() + 1e-5).all() and (of["entropy"] > 0).all()
        assert (of["loss"] < 4.5).all() and (np.diff(of["loss"]) < 0).all()


def test_what_is_printed_is_what_was_measured(shown, common):
    loss = max(run["loss"].min() for run in shown.runs.values())
    assert f"attention at loss {loss:.3f} on text held out" in shown.text
    rows = dict(re.findall(r"^r = (\S+) {5,}(.*)$", shown.text, re.MULTILINE))
    for r, run in shown.runs.items():
        found = common.at_loss(run, loss)
        assert shown.table[r] == found
        np.testing.assert_allclose(
            np.array(rows[f"{r:g}" if r != SAME else "1"].split(), float)[1], found["entropy"], atol=1e-3
        )
    assert shown.text.rstrip().endswith(f"figure: {shown.folder / f'{shown.name}.png'}")
    assert (shown.folder / f"{shown.name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_queries_and_keys_at_ten_times_the_rate(shown):
    lines = [line.split() for line in shown.text.splitlines() if re.search(r" (qk|ov|rest) ", line)]
    rates = {(line[0], line[-1]) for line in lines if len(line) == 5}
    parts = {name: rate for name, rate in rates if "attention" in name}
    assert len(parts) >= 4
    for name, rate in parts.items():
        fast = "0.01" if 10.0 in shown.runs else "0.001"
        assert rate == (fast if re.search("query|key", name) else "0.001"), name
    assert {rate for name, rate in rates if "attention" not in name} == {"0.001"}


def test_pytorch_fused_and_not_fused_are_the_same_run(run):
    pytest.importorskip("torch", reason="PyTorch is an extra that is not installed here: pip install torch")
    fused = run("pytorch_recipe", (1.0, SAME, 10.0))
    apart = run("pytorch_recipe", (1.0, 10.0), unfused=True)
    for r in (1.0, 10.0):
        for name, values in fused.runs[r].items():
            np.testing.assert_allclose(apart.runs[r][name], values, rtol=1e-3)
    np.testing.assert_allclose(fused.runs[SAME]["entropy"], fused.runs[1.0]["entropy"], rtol=1e-4)
    assert abs(fused.runs[10.0]["entropy"] - fused.runs[1.0]["entropy"]).max() > 1e-3
    assert "qk: 144 at 0.01; ov: 144 at 0.001" in fused.text
    assert (fused.folder / "pytorch_recipe.png").stat().st_size > 10_000
