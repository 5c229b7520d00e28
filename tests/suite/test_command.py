"""`casa suite` as a user runs it: real processes, killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from casa.cli import main
from casa.experiments.state import busy

FLAGS = ["--seeds", "1", "--episodes", "2", "--jobs", "1", "--env.num-envs", "32", "--device", "cpu"]


def suite(directory, steps):
    return ["suite", "CartPole-v1", "--steps", str(steps), "--dir", str(directory), *FLAGS]


@pytest.mark.slow
def test_killed_resumed_and_never_repeated(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("casa.experiments.estimate.PROBE_LIMIT", 0.0)
    args = suite(tmp_path, 20_000)
    code = "import sys, casa.cli, casa.experiments.estimate as estimate; estimate.PROBE_LIMIT = 0.0; "
    code += "sys.exit(casa.cli.main(sys.argv[1:]))"
    process = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.DEVNULL)
    log = tmp_path / "runs" / "casa" / "CartPole-v1" / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while busy(log.parent) and time.monotonic() < deadline:  # its run saves and exits
        time.sleep(0.02)
    assert main(args) == 0
    out = capsys.readouterr().out
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert rows[-1]["step"] >= 20_000 and [row["step"] for row in rows] == sorted({row["step"] for row in rows})
    assert "resumed at" in (log.parent / "output.log").read_text() and "1 will be resumed" in out
    found = json.loads((log.parent / "eval-suite.json").read_text())
    assert found["step"] >= 20_000 and list(found["modes"]) == ["sampled"]
    assert len(found["modes"]["sampled"]["returns"]) == 2
    before = {file: file.stat().st_mtime_ns for file in log.parent.rglob("*") if file.is_file()}
    assert main(args) == 0 and "1 are finished" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in log.parent.rglob("*") if file.is_file()} == before
    assert main([*suite(tmp_path, 30_000)]) == 2
    assert "holds a suite with steps 20000, but the command has 30000" in capsys.readouterr().err


def test_the_plan_starts_nothing(tmp_path, capsys, monkeypatch):
    from casa.experiments.estimate import Speed

    speeds = {"DR-Trace": Speed(10.0, 1000.0, 10**7)}
    monkeypatch.setattr("casa.experiments.estimate._probe", lambda missing, place: speeds)
    args = ["suite", "atari5", "--games", "Qbert,Phoenix", "--steps", "3_600_000", "--jobs", "2"]
    args += ["--dir", str(tmp_path / "s")]
    assert main([*args, "--plan", "--preset", "laptop"]) == 0
    out = capsys.readouterr().out
    assert "14,400,000 frames" in out and "10 runs in" in out and "0.3 GB" in out
    cells = [[cell.strip() for cell in line.split("│")] for line in out.splitlines() if line.startswith("│")]
    hours = {machines: hours for _, machines, hours, *_ in cells}
    assert hours == {"1": "5.01", "2": "2.51", "4": "1.25", "8": "1.00"}  # 10 runs of 3,610 s; the longest takes 1 h
    assert not (tmp_path / "s").exists()
    assert main([*args, "--plan", "--preset", "laptop", "--share", "1/2"]) == 0
    assert "5 runs in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["atari5", "--share", "5/4"], "--share must be PART/PARTS"),
        (["atari5", "--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["atari5", "--recipe", "cas"], "did you mean 'casa'?"),
        (["atari5", "--lerner.lr", "1"], "unknown flag --lerner.lr"),
        (["report", "nowhere"], "nowhere holds no suite"),
        (["merge", "a"], "at least one other directory"),
    ],
)
def test_a_wrong_request_is_one_sentence(args, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["suite", *args]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
