"""examples/minimal.py claims to be the paper in one file: every part of it is held against the library."""

import ast
import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

from helpers import quick
from qkdyn.attention import forward
from qkdyn.circuits import balancedness, collapse, on_ansatz
from qkdyn.optim import circuit_optimizer
from qkdyn.tasks.orthogonal import Batch, OrthogonalTask
from qkdyn.theory import Setting, at_loss, integrate
from qkdyn.train.step import batch_loss

PATH = Path(__file__).parent.parent / "examples" / "minimal.py"
FORMS = ("FAFO", "CAFO", "FACO", "CACO")
TASK = OrthogonalTask()
SETTING = Setting(TASK.m, TASK.n, TASK.b, TASK.M)
RATIOS = np.array([0.01, 0.1, 1.0, 10.0, 100.0])


def start(form):
    return 0.1 * form.endswith("FO"), 0.1 * form.startswith("FA")


@pytest.fixture(scope="module")
def minimal():
    spec = importlib.util.spec_from_file_location("minimal_example", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def shown(minimal, tmp_path_factory):
    """What one run of main prints and draws, and the curves it drew."""
    folder, printed, drawn = tmp_path_factory.mktemp("minimal"), io.StringIO(), {}
    draw = minimal.draw

    def spy(runs, path):
        drawn.update(runs)
        draw(runs, path)

    minimal.draw = spy
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
            minimal.main()
    finally:
        minimal.draw = draw
    return SimpleNamespace(folder=folder, text=printed.getvalue(), runs=drawn)


def random_params(form, key):
    shapes = on_ansatz(TASK.directions(), form, mu_ov=0.1, mu_qk=0.1)
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        tree, [0.3 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    )


def table(text):
    """{(form, simulated or theory): numbers} of the printed table."""
    rows, form = {}, ""
    for line in text.splitlines():
        if match := re.fullmatch(r"(FAFO|CAFO|FACO|CACO)?\s+(simulated|theory)((?:\s+[\d.]+)+)", line):
            form = match[1] or form
            rows[form, match[2]] = np.array([float(number) for number in match[3].split()])
    return rows


def test_only_jax_numpy_and_matplotlib_are_imported():
    roots = set()
    for node in ast.walk(ast.parse(PATH.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            roots.add((node.module or "").split(".")[0])
    assert roots - set(sys.stdlib_module_names) == {"jax", "numpy", "matplotlib"}


def test_it_stays_short_enough_to_show():
    lines = PATH.read_text().splitlines()
    assert len(lines) <= 300
    assert max(map(len, lines)) <= 128


def test_sizes_are_the_library_s_defaults(minimal):
    assert (minimal.m, minimal.n, minimal.b, minimal.M) == (TASK.m, TASK.n, TASK.b, TASK.M)
    assert (minimal.BACKGROUNDS, minimal.BATCH, minimal.d) == (TASK.backgrounds, TASK.batch, TASK.d)
    np.testing.assert_array_equal(minimal.RATIOS, RATIOS)


def test_batches_are_the_library_s_balanced_design(minimal):
    X, x_T, y = minimal.draw_batch(jax.random.key(0))
    ours = TASK.batch_of(jax.random.key(1), False)
    np.testing.assert_array_equal(y, ours.y)
    np.testing.assert_array_equal(x_T, ours.x_T)
    np.testing.assert_array_equal(X[:, : TASK.m], ours.X[:, : TASK.m])


def test_backgrounds_come_in_pairs_of_opposite_sign_and_differ_from_batch_to_batch(minimal):
    nu, other = (
        np.asarray(minimal.draw_batch(jax.random.key(seed))[0][:, TASK.m :]).reshape(2, -1, TASK.d) for seed in (0, 1)
    )
    np.testing.assert_array_equal(nu[0], -nu[1])
    np.testing.assert_array_equal(np.abs(nu).sum(-1), 1)
    assert not nu[..., : TASK.M * TASK.b].any()
    # Every direction with either sign: one batch draws 256 of 32 kinds.
    assert (nu[0].max(0)[TASK.M * TASK.b :] == 1).all() and (nu[0].min(0)[TASK.M * TASK.b :] == -1).all()
    assert (nu != other).any()


@pytest.mark.parametrize("form", FORMS)
def test_forward_is_the_library_s(minimal, form):
    params = random_params(form, jax.random.key(2))
    X, x_T, _ = minimal.draw_batch(jax.random.key(3))
    both = quick(lambda *of: (jax.vmap(minimal.forward, in_axes=(None, 0, 0))(*of), forward(*of)))
    (logits, attention), expected = both(params, X, x_T)
    assert float(np.ptp(expected[1])) > 0.1
    np.testing.assert_allclose(logits, expected[0], atol=2e-5)
    np.testing.assert_allclose(attention, expected[1], atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_start_is_balanced_and_on_the_ansatz(minimal, form):
    mine = minimal.initial(form)
    mu_ov, mu_qk = start(form)
    expected = on_ansatz(TASK.directions(), form, mu_ov=mu_ov, mu_qk=mu_qk)
    assert jax.tree.structure(mine) == jax.tree.structure(expected)
    for a, b in zip(*(jax.tree.leaves(collapse(params)) for params in (mine, expected)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)
    assert all(float(defect) < 1e-6 for defect in balancedness(mine).values())


@pytest.mark.parametrize("form", FORMS)
def test_one_step_is_the_library_s_gradient_step(minimal, form):
    params = random_params(form, jax.random.key(4))
    batch = minimal.draw_batch(jax.random.key(5))
    moved, (loss, alpha) = minimal.sgd_step(params, batch, 3.0, 0.5)
    theirs = Batch(batch[0], batch[1], jax.numpy.asarray(batch[2]))
    tx = circuit_optimizer(optax.sgd, multipliers={"qk": 6.0, "ov": 1.0}, learning_rate=0.5)

    def step(params):
        expected_loss, gradient = jax.value_and_grad(batch_loss)(params, theirs)
        updates, _ = tx.update(gradient, tx.init(params), params)
        return optax.apply_updates(params, updates), expected_loss, forward(params, theirs.X, theirs.x_T)[1]

    expected, expected_loss, attention = quick(step)(params)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(alpha, attention[:, : TASK.m].sum(-1).mean(), rtol=1e-5)
    assert jax.tree.structure(moved) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(moved), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_theory_at_a_matched_loss_is_the_library_s(minimal, form):
    r, loss = np.geomspace(1e-3, 1e3, 7)[:, None], np.array([1.0, 0.5, 0.1, 0.01, 1e-4])
    expected = at_loss(SETTING, r, loss, parameterization=form, initial=start(form)).alpha
    np.testing.assert_allclose(minimal.theory_alpha(form, r, loss), expected, rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_the_drawn_path_is_the_library_s(minimal, form):
    losses, alphas = minimal.theory_path(form, RATIOS)
    assert losses.shape == alphas.shape == (1000, 5)
    # As far as the picture shows it, and it does show that far.
    assert (losses.min(0) < 0.02).all()
    for r, loss, alpha in zip(RATIOS, losses[1:].T, alphas[1:].T, strict=True):
        seen = loss > 1e-4
        expected = at_loss(SETTING, r, loss[seen], parameterization=form, initial=start(form)).alpha
        np.testing.assert_allclose(alpha[seen], expected, rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_velocities_are_those_of_the_library_s_solutions(minimal, form):
    # A circuit at zero may stay there: pass a start away from it for every parameterization.
    t = np.array([0.0, 5.0, 5.001, 5.002])
    path = integrate(SETTING, 2.0, t, parameterization=form, initial=(0.3, 0.2))
    told = minimal.velocity(form, 2.0, path.mu_ov[2], path.mu_qk[2])
    slopes = [(x[3] - x[1]) / (t[3] - t[1]) for x in (path.mu_ov, path.mu_qk)]
    np.testing.assert_allclose(told, slopes, rtol=1e-6)


def test_simulated_alpha_reads_the_first_crossing(minimal):
    losses, alphas = np.array([1.0, 0.4, 0.1, 0.3, 0.05]), np.array([0.1, 0.2, 0.6, 0.3, 0.9])
    # 0.2 is the geometric mean of 0.4 and 0.1.
    assert minimal.simulated_alpha(losses, alphas, 0.2) == pytest.approx(0.4)
    assert np.isnan(minimal.simulated_alpha(losses, alphas, 0.01))
    assert np.isnan(minimal.simulated_alpha(losses, alphas, 2.0))


def test_main_prints_every_number_of_the_table(minimal, shown):
    rows = table(shown.text)
    assert set(rows) == {(form, kind) for form in FORMS for kind in ("simulated", "theory")}
    for form in FORMS:
        expected = at_loss(SETTING, RATIOS, 0.1, parameterization=form, initial=start(form)).alpha
        np.testing.assert_allclose(rows[form, "theory"], expected, atol=5.1e-5)
        runs = zip(*shown.runs[form], strict=True)
        read = [minimal.simulated_alpha(*run, 0.1) for run in runs]
        np.testing.assert_allclose(rows[form, "simulated"], read, atol=5.1e-5)


def test_training_agrees_with_the_theory_within_one_percent_and_sharpens_with_r(shown):
    rows, worst = table(shown.text), 0.0
    for form in FORMS:
        expected = at_loss(SETTING, RATIOS, 0.1, parameterization=form, initial=start(form)).alpha
        seen = rows[form, "simulated"]
        np.testing.assert_allclose(seen, expected, rtol=0.01)
        assert (np.diff(seen) > 0).all()
        worst = max(worst, 100 * np.abs(seen / expected - 1).max())
    said = re.search(r"largest relative difference: ([\d.]+)%", shown.text)
    # The table's four digits move the last one of what is said.
    assert said is not None and float(said[1]) == pytest.approx(worst, abs=0.03)


def test_the_picture_is_written_where_it_is_said_to_be(minimal, shown, tmp_path, monkeypatch):
    assert shown.text.rstrip().endswith("picture: minimal.png")
    assert [file.name for file in shown.folder.iterdir()] == ["minimal.png"]
    assert (shown.folder / "minimal.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(minimal, "train", lambda form, ratios: shown.runs[form])
    minimal.main(str(tmp_path / "elsewhere.png"))
    assert (tmp_path / "elsewhere.png").stat().st_size > 20_000


def test_what_is_drawn_reaches_the_end_of_the_picture(shown):
    for form in ("CACO", "FAFO"):
        losses, alphas = shown.runs[form]
        assert losses.shape == alphas.shape == (5, 2500)
        assert (losses.min(1) < 0.02).all()


def test_each_panel_lays_the_theory_over_the_training(minimal, shown, monkeypatch):
    kept = []
    monkeypatch.setattr(minimal.Figure, "savefig", lambda self, path: kept.append(self))
    minimal.draw(shown.runs, "nowhere.png")
    for axes, form in zip(kept[0].axes, ("CACO", "FAFO"), strict=True):
        assert form in axes.get_title()
        assert "loss" in axes.get_xlabel()
        curves = [line for line in axes.lines if len(line.get_xdata()) > 2]
        trained, told = curves[:5], curves[5:]
        for i, line in enumerate(trained):
            np.testing.assert_array_equal(line.get_xydata().T, [x[i] for x in shown.runs[form]])
            assert line.get_color() == minimal.COLOURS[RATIOS[i]] and line.get_linestyle() == "-"
        for expected, line in zip(np.moveaxis(minimal.theory_path(form, RATIOS), 2, 0), told, strict=True):
            np.testing.assert_array_equal(line.get_xydata().T, expected)
            assert line.get_linestyle() == "--"
    assert "alpha" in kept[0].axes[0].get_ylabel()
    key = kept[0].legends[0]
    assert [line.get_color() for line in key.get_lines()[:5]] == [minimal.COLOURS[r] for r in RATIOS[::-1]]
    named = [text.get_text() for text in key.get_texts()]
    assert named == ["r = 100", "r = 10", "r = 1", "r = 0.1", "r = 0.01", "Theorem 1"]
