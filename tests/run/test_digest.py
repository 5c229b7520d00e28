import json
import os

import pytest
from tests.support.runs import quiet, rows, run, run_config, said

import casa
from casa.errors import UserError
from casa.run import callbacks
from casa.run.digest import digest, write_report
from casa.run.training import train


def test_a_finished_run_has_written_its_report(tmp_path):
    path = run("casa", tmp_path / "run")
    page = (path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and "casa on CartPole-v1" in page
    assert casa.Run(path).report(tmp_path / "again.html").read_text(encoding="utf-8")[:500] == page[:500]
    data = digest(path)
    assert (data.name, data.config["env.id"], data.config["learner.lr"] > 0) == ("run", "CartPole-v1", True)
    assert list(data.rows) == rows(path)


def test_a_report_that_cannot_be_written_does_not_fail_the_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(callbacks, "write_report", full)
    console = quiet()
    row = train(run_config("casa", tmp_path / "run"), console)
    assert row["step"] >= 800
    assert "no report was written: OSError: no space left on device" in said(console)


def test_evaluations_and_videos_are_found_and_damaged_files_are_not(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step":1}\nno json\n{"step":2}\n')
    (tmp_path / "config.yaml").write_text("recipe: [unclosed")
    result = {"mean": 3.5, "interval": [3, 4], "returns": [3, 4]}
    found = {"step": 7, "tau": 0.1, "episodes": 2, "modes": {"greedy": result}}
    (tmp_path / "eval-7.json").write_text(json.dumps(found))
    for name, text in {"eval-1.json": "{", "eval-2.json": '{"modes": 3}', "eval-3.json": "[]"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "videos").mkdir()
    for age, (name, size) in enumerate({"new.mp4": 10, "old.mp4": 10, "large.mp4": 2_000_000}.items()):
        (tmp_path / "videos" / name).write_bytes(b"x" * size)
        os.utime(tmp_path / "videos" / name, (1e9 - age, 1e9 - age))
    data = digest(tmp_path)
    assert [row["step"] for row in data.rows] == [1, 2] and data.config == {}
    (row,) = data.evaluations
    assert (row["step"], row["mode"], row["episodes"], row["mean"]) == (7, "greedy, τ 0.1", 2, 3.5)
    assert [(name, content is None) for name, content in data.videos.items()] == [
        ("new.mp4", False),
        ("old.mp4", False),
        ("large.mp4", True),
    ]


def test_a_folder_that_is_no_run_and_a_place_that_cannot_be_written_are_user_errors(tmp_path):
    with pytest.raises(UserError, match=r"is .* a run directory"):
        digest(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step":1}\n')
    with pytest.raises(UserError, match="cannot write the report"):
        write_report([tmp_path], tmp_path / "metrics.jsonl" / "report.html")
