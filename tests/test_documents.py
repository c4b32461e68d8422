"""The documents: the README's example prints what it says, its links and commands exist, the house is as it is described."""

import ast
import contextlib
import io
import re
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from helpers import quick

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readmes_example_prints_what_it_says():
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
    assert len(code.splitlines()) <= 16
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    assert out.getvalue() == printed


def test_the_readmes_five_lines_for_a_model_of_ones_own():
    code = re.search(r"## Your own model\n.*?```python\n(.*?)```", README, re.DOTALL).group(1)
    model, ours = code.split("\n\nfrom qkdyn", 1)
    ours = "from qkdyn" + ours
    assert len([line for line in ours.splitlines() if line]) == 5 and "params = " in model
    shown, as_shown = {}, io.StringIO()
    with contextlib.redirect_stdout(as_shown):
        exec(compile(code, "README.md", "exec"), shown)  # as printed, with nothing given
    for name, rate in {"query": "0.01", "key": "0.01", "value": "0.001", "out": "0.001"}.items():
        lines = [line.split()[-1] for line in as_shown.getvalue().splitlines() if line.startswith(name)]
        assert lines == [rate] * 2
    assert shown["tx"].init(shown["params"]) is not None
    # The five lines alone, on a tree of another kind.
    shapes = {"attn": dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (2, 2)), "norm": (2,)}
    params = jax.tree.map(lambda shape: np.ones(shape, np.float32), shapes, is_leaf=lambda of: isinstance(of, tuple))
    found, printed = {"params": params, "optax": optax}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ours, "README.md", "exec"), found)
    tx = found["tx"]
    updates = quick(lambda params: tx.update(params, tx.init(params), params)[0])(params)
    for name, times in {"q_proj": 10, "k_proj": 10, "v_proj": 1, "o_proj": 1}.items():
        np.testing.assert_allclose(updates["attn"][name], times * updates["norm"][0], rtol=1e-5)
        (line,) = (line.split() for line in printed.getvalue().splitlines() if name in line)
        assert line[-1] == f"{times / 1000:g}"
    assert -0.0011 < updates["norm"][0] < -0.0009


@pytest.mark.parametrize(
    "document", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(document):
    path = ROOT / document
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_targets_named_in_documents_are_in_the_makefile():
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set()
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        named |= set(re.findall(r"`make ([a-z0-9-]+)", document.read_text()))
    assert named and named <= targets


def test_the_rooms_of_the_house_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    for cell in re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE):
        names = re.findall(r"`([^`]+)`", cell)
        folder = (ROOT / names[0]).parent
        for name in names:
            assert (ROOT / name).exists() or (folder / name).exists(), name


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


ORDER = ["tasks", "text", "circuits", "attention", "counts", "transformer", "optim"]
ORDER += ["theory", "train", "results", "metrics", "readings", "figures"]


def test_imports_point_one_way():
    for path in (ROOT / "qkdyn").rglob("*.py"):
        own = path.relative_to(ROOT / "qkdyn").with_suffix("").parts[0]
        if own not in ORDER:
            continue
        for module in imports(path):
            parts = module.split(".")
            assert parts[0] != "experiments"
            if parts[0] == "qkdyn" and len(parts) > 1 and parts[1] in ORDER and parts[1] != own:
                assert ORDER.index(parts[1]) < ORDER.index(own), f"{path} imports {module}"
                assert {own, parts[1]} != {"theory", "train"}, f"{path} imports {module}"


def test_files_keep_to_their_size_and_say_what_they_are():
    for path in [*(ROOT / "qkdyn").rglob("*.py"), *(ROOT / "experiments").glob("*.py")]:
        source = path.read_text()
        assert len(source.splitlines()) <= 400, path
        assert ast.get_docstring(ast.parse(source)), path
