"""`casa verify`: every verdict is pinned, the exit code follows the decisions, the output is plain when piped."""

from __future__ import annotations

import io
import json
import math
import time

import pytest
import torch
from rich.console import Console

from casa import targets
from casa.errors import UserError
from casa.theory import sampling, verify
from casa.theory.check import Statement, Verdict, below, identity
from casa.theory.sampling import enumeration_checks

HOLDS = {
    "casa-gradient",
    "lemma-all-actions",
    "chi-casa",
    "chi-iff",
    "entropy-lemma",
    "entropy-bonus",
    "greedy-limit",
    "compatible",
    "compatible-tau",
    "settles-at-multiple",
    "continuous-gradient",
    "continuous-chi",
    "hat-integrals",
    "hat-gradient",
    "hat-chi",
    "hat-entropy",
    "hat-greedy",
    "density-gradient",
    "gaussian-head",
    "targets-are-operators",
    "vtrace-fixed-point",
    "vtrace-rate",
    "retrace",
    "dr-lemma-q",
    "dr-lemma-v",
    "dr-converges",
    "dr-fixed-point-pi",
    "dr-rate-bound",
    "dr-behaviour-fixed-point",
    "dr-small-steps",
    "dr-multiple",
}
FAILS = {
    "lemma-own-action",
    "chi-any-factor",
    "chi-collapsed",
    "entropy-bonus-off-policy",
    "chi-beta",
    "settles-at-truth",
    "vtrace-needs-small-c",
    "dr-advantage-alone",
    "dr-stays-centred",
    "dr-literal-converges",
    "dr-old-baseline",
    "dr-named-pair",
    "dr-fixed-point-pi-tilde",
    "dr-sup-norm",
    "dr-rate-gamma",
    "dr-rate-vtrace",
    "dr-behaviour-full",
    "dr-with-policy-gradient",
}
STATEMENT = Statement("key", "words", "x = y", "extra")


@pytest.fixture(scope="module")
def checks():
    calls = []
    started = time.perf_counter()
    found = verify.run(2, lambda title, done, total: calls.append((done, total)))
    assert time.perf_counter() - started < 60
    assert calls == [(done, len(verify.GROUPS)) for done in range(len(verify.GROUPS) + 1)]
    return found


def test_verdicts(checks):
    found = {check.statement.key: check.verdict for check in checks}
    assert len(found) == len(checks)
    assert found == dict.fromkeys(HOLDS, Verdict.HOLDS) | dict.fromkeys(FAILS, Verdict.FAILS)


def test_every_check_says_what_and_where(checks):
    for check in checks:
        assert check.statement.words
        assert check.statement.equation
        assert check.statement.reference
        assert check.measure
        assert math.isfinite(check.measured)


def test_fixed_point_table_has_every_clipping(checks):
    (rows,) = [check.details["table"] for check in checks if "table" in check.details]
    assert len(rows) == 16
    for row in rows:
        assert row["limit_to_v_pi"] < 1e-9
        assert (row["limit_to_v_pi_tilde"] > 0.1) == (row["rho_bar"] < 1e9)


def test_render_shows_statements_table_and_count(checks):
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(verify.render(checks))
    text = console.export_text()
    assert f"{len(checks)} statements: {len(HOLDS)} holds, {len(FAILS)} does not hold, 0 undecided." in text
    assert "∇Q = τ ∇log π" in text
    assert "1e+09" in text


def test_json_is_strict_and_complete(checks):
    document = json.loads(verify.to_json(checks, 2), parse_constant=pytest.fail)
    assert [entry["key"] for entry in document["checks"]] == [check.statement.key for check in checks]
    assert {entry["verdict"] for entry in document["checks"]} == {"holds", "does not hold"}


@pytest.mark.parametrize(("error", "code"), [(0.0, 0), (1.0, 0), (math.nan, 1), (1e-6, 1)])
def test_exit_code_is_about_decisions(monkeypatch, tmp_path, capsys, error, code):
    """Holds and does not hold are both decided; a number that says neither is not."""
    monkeypatch.setattr(verify, "GROUPS", (("one", lambda seeds: [identity(STATEMENT, "error", [error])]),))
    path = tmp_path / "verify.json"
    assert verify.verify_command(str(path), seeds=1) == code
    written = json.loads(path.read_text(encoding="utf-8"))["checks"][0]
    assert written["measured"] == (None if math.isnan(error) else error)
    output = capsys.readouterr().out
    assert "[1/1] one" in output
    assert "\x1b" not in output


def test_checks_run_on_one_thread_and_leave_the_setting_as_it_was(monkeypatch):
    seen = []
    monkeypatch.setattr(verify, "GROUPS", (("one", lambda seeds: seen.append(torch.get_num_threads()) or []),))
    torch.set_num_threads(2)
    try:
        assert verify.run(1) == []
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(1)


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="seeds"):
        verify.run(0)
    with pytest.raises(UserError, match="does not exist"):
        verify.verify_command(str(tmp_path / "nowhere" / "x.json"))


def test_verdict_rules():
    assert identity(STATEMENT, "", [1e-12, 1e-10]).verdict is Verdict.HOLDS
    assert identity(STATEMENT, "", [1e-12, 0.5]).verdict is Verdict.FAILS
    assert identity(STATEMENT, "", [0.5, math.nan]).verdict is Verdict.UNDECIDED
    assert identity(STATEMENT, "", []).verdict is Verdict.UNDECIDED
    assert below(STATEMENT, "", [0.5, 0.9], 1.0).verdict is Verdict.HOLDS
    assert below(STATEMENT, "", [0.5, math.inf], 1.0).verdict is Verdict.FAILS
    assert below(STATEMENT, "", [1.0], 1.0).verdict is Verdict.UNDECIDED


def test_broken_targets_are_found_out(monkeypatch):
    assert enumeration_checks([0])[0].verdict is Verdict.HOLDS
    original = targets.dr_trace

    def swapped(*args, rho_bar, c_bar):
        return original(*args, rho_bar=c_bar, c_bar=rho_bar)

    monkeypatch.setattr(sampling.targets, "dr_trace", swapped)
    assert enumeration_checks([0])[0].verdict is Verdict.FAILS
