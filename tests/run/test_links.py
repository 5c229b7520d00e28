"""Links, FIFOs and devices in a run directory: refused in one sentence, and what they point to stays as it is."""

import os
from pathlib import Path

import pytest

from casa import cli
from casa.errors import UserError
from casa.run import checkpoint
from casa.run.digest import digest
from casa.run.jsonl import read_jsonl
from casa.run.rundir import RunDir

FILES = [".lock", "metrics.jsonl", "episodes.jsonl"]


def run_in(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    with RunDir.create(path) as run:
        run.write_config("steps: 1\n")
        run.metrics.write({"step": 1})
    for name in FILES:
        (path / name).unlink()
    return path


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_what_a_link_points_to_is_not_touched(tmp_path: Path, name: str, link) -> None:
    path = run_in(tmp_path)
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("no newline at the end")
    link(thesis, path / name)
    with pytest.raises(UserError, match=rf"{name}: it is a (symbolic|hard) link"):
        RunDir.open(path).__enter__()
    assert thesis.read_text() == "no newline at the end"
    (path / name).unlink()
    with RunDir.open(path):  # the refusal has released the lock
        pass


@pytest.mark.parametrize("name", FILES)
def test_a_dangling_link_creates_nothing(tmp_path: Path, name: str) -> None:
    path = run_in(tmp_path)
    (path / name).symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match="it is a symbolic link"):
        RunDir.open(path).__enter__()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", [*FILES, "config.yaml"])
def test_a_fifo_does_not_hang(tmp_path: Path, name: str) -> None:
    path = run_in(tmp_path)
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    with pytest.raises(UserError, match=rf"{name}: it is not a plain file"):
        RunDir.open(path).__enter__().read_config()
    with pytest.raises(UserError, match="it is not a plain file"):
        list(read_jsonl(path / name))


def test_linked_checkpoints_are_neither_written_nor_pruned(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for step in (1, 2, 3):
        checkpoint.save(other, step, {}, {})
    before = sorted((other / "checkpoints").rglob("*"))
    path = run_in(tmp_path)
    (path / "checkpoints").symlink_to(other / "checkpoints")
    with pytest.raises(UserError, match="checkpoints: it is a symbolic link"):
        RunDir.open(path).__enter__()
    with pytest.raises(UserError, match="it is a symbolic link"):
        checkpoint.save(path, 4, {}, {}, keep=1)
    assert sorted((other / "checkpoints").rglob("*")) == before


def test_a_directory_without_a_run_gets_no_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["resume", str(tmp_path)]) == 2
    assert "holds no run to resume" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_report_neither_hangs_nor_shows_what_a_link_points_to(tmp_path: Path) -> None:
    path = run_in(tmp_path)
    (path / "metrics.jsonl").write_text('{"step": 1}\n')
    (path / "config.yaml").unlink()
    for name in ("config.yaml", "eval-1.json"):
        os.mkfifo(path / name)
    (tmp_path / "secret").write_text("secret")
    (path / "videos").mkdir()
    (path / "videos" / "a.mp4").symlink_to(tmp_path / "secret")
    (path / "videos" / "b.mp4").symlink_to(tmp_path / "missing")
    found = digest(path)
    assert (found.config, found.evaluations, found.videos) == ({}, [], {})


def test_a_lock_of_another_host_is_named(tmp_path: Path) -> None:
    path = run_in(tmp_path)
    (path / ".lock").write_text('{"pid": 77, "host": "node17", "started": "2026-01-01T00:00:00+00:00"}')
    with RunDir.open(path) as run:
        (note,) = run.notes
    assert "process 77 on node17" in note and "killed" not in note


def test_a_very_large_or_very_long_file_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_in(tmp_path)
    with RunDir.open(path) as run:
        os.truncate(run.config, 2**40)  # sparse
        with pytest.raises(UserError, match="more than 262,144 bytes"):
            run.read_config()
    monkeypatch.setattr("casa.run.jsonl.LONGEST", 100)
    (path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "x": "' + 1000 * "x" + '"}\n{"step": 3}\n')
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert [record["step"] for record in read_jsonl(path / "metrics.jsonl")] == [1, 3]
    with RunDir.open(path) as run:
        run.drop_after(5)
        assert run.metrics.path.read_text() == '{"step": 1}\n{"step": 3}\n'
