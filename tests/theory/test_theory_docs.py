"""docs/theory.md and results/verify.json tell the same story."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recorded():
    document = json.loads((ROOT / "results" / "verify.json").read_text(encoding="utf-8"))
    return {check["key"]: check for check in document["checks"]}


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")


def test_the_page_lists_every_recorded_verdict(page, recorded):
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE)
    assert dict(rows) == {key: check["verdict"] for key, check in recorded.items()}


def test_the_pages_fixed_point_table_is_the_recorded_one(page, recorded):
    rows = re.findall(r"^\| ([0-9.e+]+) \| ([0-9.e+]+) \| (.*) \|$", page, re.MULTILINE)
    table = recorded["dr-fixed-point-pi-tilde"]["details"]["table"]
    found = {
        (float(rho), float(c)): [float(cell) for cell in rest.split(" | ")]
        for rho, c, rest in rows
        if rest.count("|") == 8
    }
    assert len(found) == len(table) == 16
    for row in table:
        cells = found[row["rho_bar"], row["c_bar"]]
        assert cells[1] == pytest.approx(row["limit_to_v_pi_tilde"], abs=0.006)
        assert cells[4] == pytest.approx(row["radius"], abs=6e-4)
        assert cells[8] == pytest.approx(row["literal_radius"], abs=6e-3)
