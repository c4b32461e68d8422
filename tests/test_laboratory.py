"""The theory laboratory: every statement comes out as it ought to, and what a check says about its number."""

import math

import numpy as np
import pytest

from experiments.laboratory import identities, instabilities, omega, theorem1
from experiments.laboratory.check import Check


@pytest.mark.parametrize(
    "part", [identities, omega, theorem1, instabilities], ids=lambda part: part.__name__.split(".")[-1]
)
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
