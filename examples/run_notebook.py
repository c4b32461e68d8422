"""Run a notebook from its first cell to its last and keep what it shows, with a mark of the cells that showed it.

Command:  python examples/run_notebook.py [NOTEBOOK ...]      (or make notebook; needs nbclient and ipykernel)
Expect:   within minutes the notebooks as they were, with the outputs of this run; default: those of this folder.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def digest(notebook: Any) -> str:
    """Which code cells these are, whatever they showed."""
    sources = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def execute(notebook: Any, folder: Path, environment: Mapping[str, str], timeout: int = 600) -> Any:
    """Run the cells, in place, in a kernel of their own in `folder`; a cell that fails raises nbclient's CellExecutionError."""
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=timeout, startup_timeout=timeout, resources=where, record_timing=False)
    client.execute(env=dict(environment))
    notebook["metadata"]["language_info"] = {"name": "python"}  # without the version of this machine's Python
    notebook["metadata"]["executed"] = digest(notebook)
    return notebook


def main(paths: Sequence[str]) -> None:
    """Execute notebooks in place."""
    for path in map(Path, paths or sorted(map(str, Path(__file__).parent.glob("*.ipynb")))):
        notebook = execute(nbformat.read(path, as_version=4), path.parent, os.environ)
        nbformat.write(notebook, path)
        print(f"{path}: {len(notebook['cells'])} cells")


if __name__ == "__main__":
    main(sys.argv[1:])
