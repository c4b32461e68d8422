"""The notebook that walks through docs/choosing_r.md: its cells run, and what it shows is what these cells showed."""

import importlib
import os
import re
from pathlib import Path

import nbformat
import pytest

from helpers import QUICK

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOK = EXAMPLES / "choosing_r.ipynb"
TINY = """
STEPS, EVERY, RATES, RATIOS, SEEDS = 20, 10, (1e-3, 2e-3), (1.0, 1.000001, 30.0), (0, 1)
LENGTH, BATCH, WIDTH, HEADS, LAYERS = 6, 2, 8, 2, 1
"""
# What has to be so whatever the sizes are, in the notebook's own kernel.
CHECKS = """
same = tuning.sel(rate=rate, drop=True)
for r in (1.0, 1.000001):
    for name in sweep:
        np.testing.assert_allclose(sweep[name].sel(r=r, drop=True), same[name], rtol=2e-4, err_msg=name)
assert traces and len(traces) == 1
assert abs(sweep.entropy.sel(r=30.0) - sweep.entropy.sel(r=1.0)).max() > 1e-3
# The mean of ln 1, ..., ln 6 is the entropy of uniform attention.
assert (sweep.entropy > 0).all() and (sweep.entropy <= np.log(np.arange(1, LENGTH + 1)).mean() + 1e-5).all()
assert abs(sweep.loss.isel(step=0) - np.log(len(text.characters))).max() < 1.5
assert matched == max(float(sweep.loss.sel(r=r, seed=s).min()) for r in RATIOS for s in SEEDS)
assert set(kept) | set(too_high) == set(RATIOS) and 1.0 in kept and pick in kept
assert abs(solvable[1.0] - 0.263) < 1e-3
"""


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module("run_notebook")


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_every_cell_runs_and_what_it_computes_holds_together(script):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (sizes,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    sizes.source = TINY
    notebook.cells.append(nbformat.v4.new_code_cell(CHECKS))
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"} | {"XLA_FLAGS": flags}
    script.execute(notebook, EXAMPLES, environment, timeout=300)
    shown = outputs(notebook)
    assert not [output.text for output in shown if output.output_type == "stream" and output.name == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 1
    assert notebook.metadata.executed == script.digest(notebook) != script.digest(nbformat.read(NOTEBOOK, as_version=4))


def test_what_is_committed_was_shown_by_these_cells(script):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.metadata.executed == script.digest(notebook), "the cells have changed: make notebook"
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert {output.output_type for output in outputs(notebook)} == {"stream", "display_data"}
    assert {output.name for output in outputs(notebook) if output.output_type == "stream"} == {"stdout"}
    assert NOTEBOOK.stat().st_size < 300_000
    # Numbers are what cells print; text has none that was measured.
    told = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert not re.findall(r"\d\.\d+", re.sub("`[^`]*`|6\\.1", "", told))
