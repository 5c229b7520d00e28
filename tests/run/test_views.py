"""What a person sees of a run elsewhere: TensorBoard, Weights & Biases, a terminal."""

import io
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from rich.console import Console
from tests.support.runs import rows, run, run_config

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
