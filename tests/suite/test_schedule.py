"""Train, then evaluate, try again: with jobs that only pretend."""

import json
from pathlib import Path

import pytest
from tests.support.made_suite import STEPS, make_suite, write_evaluation, write_run

from casa.errors import UserError
from casa.experiments.state import State
from casa.suite.schedule import EVALUATION, SuiteScheduler, alone, evaluation_of
from casa.suite.spec import Evaluation


class Done:
    def __init__(self, status):
        self.status = status

    def poll(self):
        return self.status

    def stop(self):
        pass

    kill = stop


class Place:
    """`statuses`: (command, environment's folder) -> exit statuses of its jobs, in turn; 0 after that."""

    slots = 2

    def __init__(self, statuses=None):
        self.statuses, self.started = statuses or {}, []

    def start(self, args, log):
        path, command = log.parent, args[0]
        key = command, path.parts[-2]
        self.started.append((*key, path.name))
        statuses = self.statuses.get(key, [])
        status = statuses.pop(0) if statuses else 0
        if status == 0 and command == "eval":
            assert args[args.index("--policy") + 1] == "sampled" and args[args.index("--checkpoint") + 1] == "latest"
            write_evaluation(Path(args[args.index("--json") + 1]).parent, 1.0)
        elif status == 0:
            with open(path / "metrics.jsonl", "a") as file:
                file.write(json.dumps({"step": STEPS, "seconds": 1.0, "return": 3.0}) + "\n")
            (path / "checkpoints" / f"step-{STEPS:012d}").mkdir(parents=True)
        return Done(status)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("casa.experiments.scheduler.POLL", 0.001)


@pytest.fixture
def runs(tmp_path):
    return make_suite(seeds=(0,)).planned(tmp_path)


def go(runs, place, **more):
    return SuiteScheduler(runs, place, Evaluation(), **more).go(lambda progress: None)


def test_each_run_is_trained_then_evaluated_once(runs):
    place = Place()
    progress = go(runs, place)
    assert len(progress.finished) == 2 and not progress.failed
    assert sorted(command for command, *_ in place.started) == ["eval", "eval", "train", "train"]
    again = Place()
    assert len(go(runs, again).finished) == 2 and again.started == []


def test_a_failure_is_tried_again_but_not_for_ever(runs):
    place = Place({("train", "ALE-Pong-v5"): [-9], ("eval", "ALE-Breakout-v5"): [1, 1]})
    assert len(go(runs, place).finished) == 2 and len(place.started) == 7
    hopeless = Place({("eval", "ALE-Pong-v5"): [1] * 9})
    (runs[1].path / EVALUATION).unlink()
    progress = go(runs, hopeless)
    assert list(progress.failed) == [runs[1].name] and len(hopeless.started) == 3


def test_a_wrong_request_is_not_tried_again(runs):
    place = Place({("train", "ALE-Pong-v5"): [2]})
    assert list(go(runs, place).failed) == [runs[1].name]
    assert [command for command, env, _ in place.started if env == "ALE-Pong-v5"] == ["train"]


def test_a_fault_on_the_way_is_tried_again(runs):
    write_run(runs[1], evaluation=None, checkpoints=(0, STEPS // 2))  # an environment that dies gives status 2 too
    place = Place({("resume", "ALE-Pong-v5"): [2]})
    assert len(go(runs, place).finished) == 2


def test_an_evaluation_that_writes_nothing_is_no_endless_loop(runs, monkeypatch):
    monkeypatch.setattr("tests.support.made_suite.write_evaluation", lambda *args: None)
    monkeypatch.setitem(globals(), "write_evaluation", lambda *args: None)
    place = Place()
    assert len(go(runs, place, retries=1).failed) == 2
    assert sum(command == "eval" for command, *_ in place.started) == 4


def test_a_run_killed_between_its_log_and_its_last_checkpoint_is_resumed(runs):
    write_run(runs[0], evaluation=None, checkpoints=(STEPS // 2,))
    place = Place()
    go(runs[:1], place)
    assert [command for command, *_ in place.started] == ["resume", "eval"]


def test_a_killed_evaluation_is_done_and_nothing_else(runs):
    write_run(runs[0], evaluation=None)
    (runs[0].path / EVALUATION).write_text('{"step": 30')
    place = Place()
    go(runs[:1], place)
    assert [command for command, *_ in place.started] == ["eval"]


def test_logs_alone_count_as_finished(runs):
    write_run(runs[0], evaluation=None, checkpoints=())
    assert SuiteScheduler(runs[:1], Place(), Evaluation()).state(runs[0]) is State.FINISHED


def test_only_the_evaluation_that_is_asked_for_counts(runs):
    write_run(runs[0])
    assert evaluation_of(runs[0], Evaluation())["modes"]["sampled"]["mean"] == 5.0
    assert evaluation_of(runs[0], Evaluation(episodes=31)) is None
    assert evaluation_of(runs[0], Evaluation(policy="greedy")) is None
    write_evaluation(runs[0].path, 5.0, step=STEPS // 2)
    assert evaluation_of(runs[0], Evaluation()) is None
    assert evaluation_of(runs[0], Evaluation(checkpoint="best")) is not None


def test_one_suite_at_a_time_in_a_directory(tmp_path):
    with alone(tmp_path), pytest.raises(UserError, match="another casa suite runs in"), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass
