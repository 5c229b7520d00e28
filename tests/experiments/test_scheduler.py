"""Many runs: what is started, resumed, repeated or left, with jobs that only pretend to train."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from casa.errors import UserError
from casa.experiments.scheduler import Scheduler
from casa.experiments.state import State, check_settings, last_row, prepare, state_of
from casa.experiments.studies import choose, plan

STEPS = 300


class Job:
    def __init__(self, path, outcome):
        self.path, self.outcome, self.polls, self.stopped = path, outcome, 0, False

    def poll(self):
        self.polls += 1
        if self.stopped:
            return 0
        if self.polls < 2 or self.outcome == "endless":
            return None
        if self.outcome == "fails":
            return 2
        write_rows(self.path, STEPS)
        return 0

    def stop(self):
        self.stopped = True

    kill = stop


class Place:
    """Pretends to run jobs; `outcomes`: (version, seed) -> "fails" or "endless"."""

    slots = 2

    def __init__(self, outcomes=None):
        self.outcomes, self.started, self.most = outcomes or {}, [], 0
        self.jobs = []

    def start(self, args, log):
        path = log.parent
        self.started.append((args[0], path.parts[-3], path.name))
        log.write_text("starting\nbroken for a reason\n")
        job = Job(path, self.outcomes.get((path.parts[-3], path.name)))
        self.jobs = [j for j in self.jobs if j.poll() is None] + [job]
        return job


def write_rows(path, step):
    path.mkdir(parents=True, exist_ok=True)
    (path / "metrics.jsonl").write_text(json.dumps({"step": step, "seconds": 1.0, "return": 3.0}) + "\n")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("casa.experiments.scheduler.POLL", 0.001)
    monkeypatch.setattr("casa.experiments.scheduler.HELD", 0.2)


@pytest.fixture
def runs(tmp_path):
    study = choose("ablation", envs="CartPole-v1", steps=STEPS, seeds=2, recipes="ppo-casa,ppo-type1")
    return plan(study, tmp_path)


def test_all_runs_are_trained_once(runs):
    place, seen = Place(), []
    progress = Scheduler(runs, place).go(lambda p: seen.append(len(p.running)))
    assert len(progress.finished) == 4 and not progress.failed and max(seen) <= 2
    assert {kind for kind, *_ in place.started} == {"train"}
    again = Place()
    assert len(Scheduler(runs, again).go(lambda p: None).finished) == 4 and again.started == []


def test_a_failure_is_kept_and_the_rest_goes_on(runs):
    progress = Scheduler(runs, Place({("ppo-casa", "seed-0"): "fails"})).go(lambda p: None)
    assert len(progress.finished) == 3
    (name, why), = progress.failed.items()
    assert name == "ppo-casa CartPole-v1 seed 0" and why == "exit status 2: broken for a reason"


def test_an_unfinished_run_is_resumed_and_a_stillborn_one_starts_again(runs):
    resumed, stillborn = runs[0].path, runs[1].path
    write_rows(resumed, STEPS // 2)
    (resumed / "config.yaml").write_text("x")
    (resumed / "checkpoints" / "step-10").mkdir(parents=True)
    write_rows(stillborn, 0)
    (stillborn / "config.yaml").write_text("x")
    place = Place()
    Scheduler(runs, place).go(lambda p: None)
    kinds = {(version, seed): kind for kind, version, seed in place.started}
    assert kinds["ppo-casa", "seed-0"] == "resume" and kinds["ppo-type1", "seed-0"] == "train"
    assert not (stillborn / "config.yaml").exists()


def test_the_limit_stops_and_keeps_what_is_left(runs):
    outcomes = {("ppo-casa", "seed-1"): "endless"}
    progress = Scheduler(runs, Place(outcomes), limit=0.3).go(lambda p: None)
    assert [run.name for run in progress.waiting] == ["ppo-casa CartPole-v1 seed 1"] and len(progress.finished) == 3


def test_a_directory_in_use_is_left_alone(runs):
    held = runs[0].path
    held.mkdir(parents=True)
    with open(held / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert state_of(held, STEPS) is State.BUSY
        place = Place()
        progress = Scheduler(runs, place).go(lambda p: None)
        assert "another process" in progress.failed["ppo-casa CartPole-v1 seed 0"]
        assert len(progress.finished) == 3
    assert state_of(held, STEPS) is State.NEW


def test_an_interrupt_stops_the_jobs(runs):
    place = Place({(version, f"seed-{seed}"): "endless" for version in ("ppo-casa", "ppo-type1") for seed in (0, 1)})

    def show(progress):
        if len(progress.running) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Scheduler(runs, place).go(show)
    assert len(place.jobs) == 2 and all(job.stopped for job in place.jobs)


def test_other_settings_in_the_same_directory_are_refused(runs):
    run = runs[0]
    prepare(run.path, dict(run.settings))
    check_settings(run.path, dict(run.settings))
    with pytest.raises(UserError, match="holds a run with steps 300, but 400 is asked for"):
        check_settings(run.path, {**run.settings, "steps": 400})


def test_a_torn_last_row_is_not_read(tmp_path):
    write_rows(tmp_path, 7)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 9')
    assert last_row(tmp_path)["step"] == 7
    assert last_row(tmp_path / "nowhere") == {}


def children(pid):
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to stop the children of a killed process")
def test_killed_and_started_again_finished_runs_are_not_repeated(tmp_path):
    """Real processes: kill -9 while the second run trains; its run ends too, and is resumed."""
    study = tmp_path / "two.yaml"
    study.write_text(
        "{recipes: {short: {recipe: ppo-casa}, long: {recipe: ppo-casa, env.num_envs: 4}}, envs: [CartPole-v1], "
        "steps: 3000, seeds: 1, settings: {checkpoint.every_steps: 500, log.every_steps: 500}}"
    )
    command = [sys.executable, "-m", "casa", "experiment", str(study), "--jobs", "1", "--dir", str(tmp_path / "out")]
    first, second = (tmp_path / "out/runs" / name / "CartPole-v1/seed-0" for name in ("short", "long"))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while last_row(second).get("step", 0) < 500 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    jobs = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert jobs and last_row(first)["step"] >= 3000 > last_row(second)["step"] >= 500
    while any(map(alive, jobs)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, jobs))
    before = (first / "metrics.jsonl").stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 are finished, 1 will be resumed, 0 are new" in again.stdout
    assert (first / "metrics.jsonl").stat().st_mtime_ns == before
    assert "resumed at" in (second / "output.log").read_text() and last_row(second)["step"] >= 3000
    assert (tmp_path / "out" / "two-rows.csv").exists() and (tmp_path / "out" / "two-table.md").exists()
