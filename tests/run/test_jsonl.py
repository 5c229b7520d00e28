"""Logs: valid JSON whatever is written, whole after a crash at any byte, rewound in one piece."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from casa.errors import UserError
from casa.run import jsonl
from casa.run.jsonl import JsonlWriter, last_record, read_jsonl


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def strict(text: str) -> Any:
    """JSON as the standard has it: NaN and Infinity are errors."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def test_one_object_a_line_at_once(path: Path) -> None:
    log = JsonlWriter(path)
    log.write({"step": 1, "loss": 0.1, "name": "a\nb\u2028 é"})
    assert path.read_bytes().count(b"\n") == 1, "on the way to the file before the next record, and on one line"
    log.write({"step": 2})
    log.close()
    log.close()
    assert list(read_jsonl(path)) == [{"step": 1, "loss": 0.1, "name": "a\nb\u2028 é"}, {"step": 2}]
    with pytest.raises(ValueError, match="closed"):
        log.write({"step": 3})


def test_everything_becomes_valid_json(path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    record = {
        "step": np.int64(3),
        "python": [nan, inf, -inf, 1.5, None, True, "nan"],
        "numpy": [np.float32("nan"), np.float64("inf"), np.float32(0.5), np.int8(-1), np.bool_(True)],
        "array": np.array([[1.0, nan]]),
        "tensor": torch.tensor(nan),
        "tensors": (torch.tensor(2), torch.tensor([0.5, -inf]).bfloat16()),
        "nested": {7: {"x": nan}},
    }
    with_log(path, [record])
    assert strict(path.read_text()) == {
        "step": 3,
        "python": [None, None, None, 1.5, None, True, "nan"],
        "numpy": [None, None, 0.5, -1, True],
        "array": [[1.0, None]],
        "tensor": None,
        "tensors": [2, [0.5, None]],
        "nested": {"7": {"x": None}},
    }


def with_log(path: Path, records: list[dict[str, Any]]) -> JsonlWriter:
    log = JsonlWriter(path)
    for record in records:
        log.write(record)
    log.close()
    return log


def test_wrong_records_are_refused(path: Path) -> None:
    log = JsonlWriter(path)
    for record in ({}, {"step": None}, {"step": 1.0}, {"step": "1"}):
        with pytest.raises(ValueError, match="integer step"):
            log.write(record)
    with pytest.raises(TypeError, match="object"):
        log.write({"step": 1, "x": object()})
    assert path.read_bytes() == b""


@pytest.mark.parametrize("block", [3, 2**16])
def test_torn_at_every_byte(path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(jsonl, "_BLOCK", block)
    records = [{"step": i, "x": "{}" * i} for i in range(4)]
    with_log(path, records)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        complete = whole[:length].count(b"\n")
        assert list(read_jsonl(path)) == records[:complete], "reading needs no repair"
        assert path.stat().st_size == length, "and makes none"
        log = with_log(path, [{"step": 9}])
        assert log.repaired == length - len(b"".join(lines[:complete]))
        assert list(read_jsonl(path)) == [*records[:complete], {"step": 9}]


def test_damage_in_the_middle_is_named_and_skipped(path: Path) -> None:
    with_log(path, [{"step": 1}, {"step": 2}, {"step": 3}])
    lines = path.read_bytes().splitlines(keepends=True)
    for bad in (b"\0" * 11 + b"\n", b"[1]\n", b"\n", b"\xff\n", b"[" * 100_000 + b"\n"):
        path.write_bytes(lines[0] + bad + lines[2])
        with pytest.warns(RuntimeWarning, match=r"metrics\.jsonl, line 2, is damaged"):
            assert list(read_jsonl(path)) == [{"step": 1}, {"step": 3}]
    assert JsonlWriter(path).rewind(5) == 1
    assert list(read_jsonl(path)) == [{"step": 1}, {"step": 3}]


def test_no_such_file(path: Path) -> None:
    with pytest.raises(UserError, match=r"is .* a run directory"):
        list(read_jsonl(path))
    with pytest.raises(UserError, match="cannot open"):
        JsonlWriter(path / "below")


def test_rewind_drops_what_comes_after_and_goes_on(path: Path) -> None:
    log = JsonlWriter(path)
    for step in (10, 20, 20, 30, 40):
        log.write({"step": step})
    inode = path.stat().st_ino
    assert log.rewind(40) == 0
    assert path.stat().st_ino == inode, "nothing to drop, nothing rewritten"
    assert log.rewind(20) == 2
    log.write({"step": 25})
    assert [r["step"] for r in read_jsonl(path)] == [10, 20, 20, 25]
    assert log.rewind(0) == 4
    log.write({"step": 1})
    assert [r["step"] for r in read_jsonl(path)] == [1]
    assert [p.name for p in path.parent.iterdir()] == ["metrics.jsonl"]


def test_rewind_on_a_full_disk_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonlWriter(path)
    for step in (1, 2):
        log.write({"step": step})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left"):
            log.rewind(1)
    log.write({"step": 3})
    assert [r["step"] for r in read_jsonl(path)] == [1, 2, 3]
    assert [p.name for p in path.parent.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("written", [0, 5, -1])
def test_full_disk_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    """The disk takes nothing, or a piece of a line (a short write, then the error the next time)."""
    log = JsonlWriter(path)
    log.write({"step": 1})
    log.write({"step": 2, "x": "y" * 100})
    log.rewind(1)  # the file is another one now, and shorter
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if written < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:written])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl: No space left"):
            log.write({"step": 2})
    log.write({"step": 3})
    assert [r["step"] for r in read_jsonl(path)] == [1, 3]


def test_threads_do_not_mix_lines(path: Path) -> None:
    log = JsonlWriter(path)

    def work(name: int) -> None:
        for step in range(200):
            log.write({"step": step, "from": name, "x": "y" * 500})

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = list(read_jsonl(path))
    for name in range(4):
        assert [r["step"] for r in records if r["from"] == name] == list(range(200))


def test_kill_while_writing(path: Path) -> None:
    script = """
        import itertools, sys
        from pathlib import Path
        from casa.run.jsonl import JsonlWriter
        log = JsonlWriter(Path(sys.argv[1]))
        for step in itertools.count():
            log.write({"step": step, "x": "y" * 300})
            if step == 1000:
                print("going", flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"going\n"
        seen = sum(1 for _ in read_jsonl(path))
        process.send_signal(signal.SIGKILL)
    assert seen > 1000
    with_log(path, [{"step": 0}])
    steps = [record["step"] for record in read_jsonl(path)]
    assert steps == [*range(len(steps) - 1), 0]
    assert len(steps) > seen


def test_the_last_record_is_the_last_complete_one_of_a_plain_file(tmp_path):
    log = tmp_path / "metrics.jsonl"
    assert last_record(log) == {}
    log.write_bytes(b'{"step": 1}\n' + 9000 * b'{"step": 2}\n' + b"damaged\n" + b'{"step": 3')
    assert last_record(log) == {"step": 2}
    (tmp_path / "link").symlink_to(log)
    assert last_record(tmp_path / "link") == {}
    os.mkfifo(tmp_path / "fifo")
    assert last_record(tmp_path / "fifo") == {}
