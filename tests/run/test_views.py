"""What a person sees of a run elsewhere: TensorBoard, Weights & Biases, a terminal."""

import errno
import io
import shutil
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from rich.console import Console
from tests.support.runs import again, quiet, rows, run, run_config, said

from casa.errors import UserError
from casa.run.training import train
from casa.run.views import grouped


def test_tensorboard_shows_what_metrics_hold(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = run("casa", tmp_path / "a", **{"log.tensorboard": "yes"})
    events = accumulator.EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    for name in ("return", "loss_v", "entropy", "policy_lag"):
        shown = [(event.step, event.value) for event in events.Scalars(grouped(name))]
        held = [(row["step"], pytest.approx(row[name], rel=1e-5)) for row in rows(path) if row.get(name) is not None]
        assert shown == held and shown


def test_a_resumed_run_purges_the_points_that_it_writes_again(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = run("casa", tmp_path / "a", **{"log.tensorboard": "yes"})
    for folder in (path / "checkpoints").iterdir():  # as if it had been killed after step 400
        if folder.is_dir() and int(folder.name.split("-")[1]) > 500:
            shutil.rmtree(folder)
    again(path, steps=1000)
    events = accumulator.EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars(grouped("episodes"))] == [row["step"] for row in rows(path)]


class Full:
    """A disk that is full after `room` writes."""

    def __init__(self, room):
        self.room = room

    def write(self, *row):
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    close = finish = log = write


@pytest.mark.parametrize("room", [0, 2])
def test_a_view_that_fails_is_dropped_with_one_note(room, tmp_path, monkeypatch):
    monkeypatch.setattr("casa.run.views.EventFile", lambda *given: Full(room))
    console = quiet()
    train(run_config("casa", tmp_path / "a", **{"log.tensorboard": "yes"}), console)
    assert said(console).count("no more goes to tensorboard: No space left on device") == 1
    assert len(rows(tmp_path / "a")) == 4


def test_tensorboard_does_not_follow_a_link(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "a" / "tensorboard").symlink_to(tmp_path / "other")
    console = quiet()
    train(run_config("casa", tmp_path / "a", **{"log.tensorboard": "yes"}), console)
    assert "no more goes to tensorboard: it is a symbolic link" in said(console)
    assert not list((tmp_path / "other").iterdir())


def test_weights_and_biases_get_every_row(tmp_path, monkeypatch):
    calls, fake = [], types.ModuleType("wandb")
    fake.__spec__ = ModuleSpec("wandb", None)
    handle = types.SimpleNamespace(
        log=lambda numbers, step: calls.append((step, numbers)), finish=lambda: calls.append("finished")
    )
    fake.init = lambda **given: calls.append(given) or handle
    monkeypatch.setitem(sys.modules, "wandb", fake)
    path = run("casa", tmp_path / "a", **{"log.wandb": True})
    first, *logged, last = calls
    assert first["name"] == "a" and first["config"]["recipe"] == "casa" and last == "finished"
    assert [step for step, _ in logged] == [row["step"] for row in rows(path)]
    assert all(grouped("loss_v") in numbers for _, numbers in logged[1:])


def test_weights_and_biases_that_are_not_installed_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("casa.run.views.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="wandb is not installed"):
        run("casa", tmp_path / "a", **{"log.wandb": True})


def test_a_terminal_shows_progress_and_a_summary(tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=150, height=50)
    train(run_config("casa", tmp_path / "a"), console)
    shown = screen.getvalue()
    for word in ("steps/s", "return", "entropy", "paper preset", "metrics.jsonl"):
        assert word in shown
