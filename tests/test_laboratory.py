"""The theory laboratory: every statement comes out as it ought to, and what a check says about its number."""

import math

import numpy as np
import pytest

from experiments import theory
from experiments.laboratory import identities, instabilities, lemma3, omega, random_start, scalars, theorem1
from experiments.laboratory.check import Check
from qkdyn import results
from qkdyn.errors import InputError, OutputError, OutputWarning

PARTS = [identities, omega, theorem1, instabilities, scalars, lemma3, random_start]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__.split(".")[-1])
def test_every_statement_comes_out_as_it_ought_to(part):
    checks, tables = part.run(True)
    assert not [check for check in checks if check.holds != check.expected]
    assert {check.part for check in checks} == {part.PART}
    assert np.isfinite([(check.value, check.limit) for check in checks]).all()
    keys = [(check.statement, check.setting) for check in checks]
    assert len(set(keys)) == len(keys)
    assert all(check.statement and check.setting for check in checks)
    for table in tables.values():
        assert len(table) and not table.duplicated().any()


@pytest.mark.parametrize(
    ("value", "expected", "verdict"),
    [
        (1e-13, True, "holds"),
        (1e-12, True, "holds"),
        (2e-12, True, "does not hold (UNEXPECTED)"),
        (0.5, False, "does not hold"),
        (1e-13, False, "holds (UNEXPECTED)"),
        (math.nan, True, "does not hold (UNEXPECTED)"),
        (math.nan, False, "does not hold"),
        (-math.inf, True, "does not hold (UNEXPECTED)"),
    ],
)
def test_a_check_in_words(value, expected, verdict):
    check = Check("part", "statement", "setting", value, 1e-12, expected)
    assert check.verdict == verdict
    assert check.holds == verdict.startswith("holds")


def test_the_command_writes_a_page_and_draws_it_again(tmp_path, capsys):
    assert theory.main(["--quick", "--parts", "lemma3", "--out", str(tmp_path)]) == 0
    names = {"checks.csv", "bounds.csv", "bounds.png", "theory.md", "run.json"}
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == names
    assert results.verify(tmp_path) == []
    page = (tmp_path / "theory.md").read_text()
    assert "| Lemma 3, eq. (26) |" in page and "](bounds.png)" in page and "0 of all against expectation" in page
    assert theory.main(["--draw-only", "--out", str(tmp_path)]) == 0
    assert results.verify(tmp_path) == []  # The same files again.
    assert (tmp_path / "theory.md").read_text() == page
    (tmp_path / "run.json").unlink()  # As a kill while files are written leaves the folder.
    with pytest.warns(OutputWarning) as told:
        theory.main(["--draw-only", "--out", str(tmp_path)])
    assert [warning for warning in told if "bounds.csv" in str(warning.message)]
    assert "lemma 3" in capsys.readouterr().out


def test_a_statement_against_expectation_is_the_exit_status(tmp_path, monkeypatch, capsys):
    wrong = Check("lemma 3", "it holds", "somewhere", 1.0, 0.5)
    monkeypatch.setitem(theory.PARTS, "lemma3", lambda quick: ([wrong], {}))
    assert theory.main(["--quick", "--parts", "lemma3", "--out", str(tmp_path)]) == 1
    assert "does not hold (UNEXPECTED)" in (tmp_path / "theory.md").read_text()
    assert "it holds [somewhere]" in capsys.readouterr().out


@pytest.mark.parametrize("parts, told", [(("lemma4",), "one of identities, omega"), (("lemma3", "lemma3"), "distinct")])
def test_unknown_parts_are_refused(parts, told):
    with pytest.raises(InputError, match=told):
        theory.Config(parts=parts)


CHECKS = "part,statement,setting,value,limit,expected,note\n"


@pytest.mark.parametrize(
    "text, told",
    [
        ("garbage", "lacks the columns part, statement"),
        (CHECKS, "holds no row"),
        (CHECKS + "a,b,c,x,1,True,", "value in .* must hold numbers, got 'x'"),
        (CHECKS + ",b,c,1,1,True,", "blanks in part"),
        (CHECKS + "a,b,c,1,1,maybe,", "expected in .* must hold True or False"),
        (CHECKS + "1,b,c,1,1,True,", "part in .* must hold words"),
    ],
)
def test_damaged_checks_leave_the_page_as_it_is(text, told, tmp_path):
    (tmp_path / "checks.csv").write_text(text)
    (tmp_path / "theory.md").write_text("the page")
    with pytest.raises(InputError, match=told):
        theory.main(["--draw-only", "--out", str(tmp_path)])
    assert (tmp_path / "theory.md").read_text() == "the page"


def test_nothing_to_draw_is_said(tmp_path):
    with pytest.raises(OutputError, match="there is no such file"):
        theory.main(["--draw-only", "--out", str(tmp_path)])
