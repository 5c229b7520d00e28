"""A small part of the fault campaign: real processes, once. `python benchmarks/faults.py` runs all of it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import faults

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kill", "signals"])
def test_a_quick_round(name):
    result = faults.run_one(name, faults.TESTS[name], seed=0, quick=True)
    assert result["passed"], result["error"]


def test_a_failure_is_a_row_of_the_table():
    def fails(lab):
        """Nothing is lost."""
        lab.fact("3 kills")
        raise AssertionError("step 7 was lost")

    def holds(lab):
        """Nothing else is."""

    results = [faults.run_one("a", fails, 0, True), faults.run_one("b", holds, 0, True)]
    assert [result["passed"] for result in results] == [False, True]
    table = faults.table(results)
    assert "FAIL  0/1  a" in table and "AssertionError: step 7 was lost (test_faults.py, line " in table
    assert "pass  1/1  b" in table and "seed 0: 1 of 2 tests passed" in table


def test_the_documentation_names_every_test():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in text for name in faults.TESTS) and len(faults.TESTS) == 15
