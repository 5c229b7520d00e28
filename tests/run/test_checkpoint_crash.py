"""kill -9 and full disks during a save: the old checkpoint or the new one, whole."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.support.checkpoint_cases import assert_is, folders, put

from casa.errors import UserError
from casa.run.checkpoint import load

DRIVER = """
    import os, signal, sys
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[2])
    from tests.support.checkpoint_cases import put

    root = Path(sys.argv[1])
    calls = ("fsync", "rename", "replace", "mkdir", "rmdir", "unlink", "open")
    stage = 0
    while True:
        run = root / str(stage)
        put(run, 1, keep=1, best=True)
        child = os.fork()
        if child == 0:
            left = [stage // 2]
            def deadly(function, after):
                def wrapped(*args, **options):
                    left[0] -= 1
                    if left[0] < 0 and not after:
                        os.kill(os.getpid(), signal.SIGKILL)
                    result = function(*args, **options)
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return result
                return wrapped
            for name in calls:
                setattr(os, name, deadly(getattr(os, name), stage % 2))
            put(run, 2, keep=1, best=True)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        stage += 1
    print(stage)
"""


def test_kill_at_every_stage_of_a_save(tmp_path: Path) -> None:
    """kill -9 before and after each system call that changes the disk: the old one or the new one, whole."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path), str(Path(__file__).parents[2])],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    stages = int(done.stdout)
    assert stages >= 30
    seen = []
    for stage in range(stages + 1):
        run = tmp_path / str(stage)
        checkpoint = load(run)
        assert checkpoint.damaged == []
        assert_is(checkpoint, checkpoint.step)
        best = load(run, "best")
        assert_is(best, best.step)
        seen.append((checkpoint.step, best.step))
        put(run, 3, keep=1, best=True)
        assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["best.json", "step-000000000003"]
    assert seen == sorted(seen), "once the new one is there it stays there"
    assert set(seen) == {(1, 1), (2, 1), (2, 2)}


def test_order_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files reach the disk before their folder, the folder before its name, the name before the pointer."""
    events: list[str] = []
    real_fsync, real_rename, real_replace = os.fsync, os.rename, os.replace

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(f"sync {re.sub('[.]tmp-[0-9]+-', '.tmp-', path.name)}")
        real_fsync(descriptor)

    def rename(a: Path, b: Path) -> None:
        events.append(f"rename {Path(b).name}")
        real_rename(a, b)

    def replace(a: Path, b: Path) -> None:
        events.append(f"replace {Path(b).name}")
        real_replace(a, b)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", replace)
    put(tmp_path, 1, best=True)
    assert events == [
        f"sync {tmp_path.name}",
        "sync model.safetensors",
        "sync optimizer.safetensors",
        "sync replay.safetensors",
        "sync meta.json",
        "sync manifest.json",
        "sync .tmp-step-000000000001",
        "rename step-000000000001",
        "sync checkpoints",
        "sync .tmp-best.json",
        "replace best.json",
        "sync checkpoints",
    ]


@pytest.mark.parametrize("call", range(1, 10))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, code: int) -> None:
    put(tmp_path, 1)
    count = [0]
    real = os.fsync

    def full(descriptor: int) -> None:
        count[0] += 1
        if count[0] == call:
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    if call == 9:  # one more than a save makes: the control
        put(tmp_path, 2)
        assert_is(load(tmp_path), 2)
        return
    with pytest.raises(UserError) as caught:
        put(tmp_path, 2)
    assert str(tmp_path / "checkpoints") in str(caught.value)
    if code != errno.EIO:
        needed = int(re.search(r"needs ([0-9,]+) bytes", str(caught.value))[1].replace(",", ""))
        assert needed > 40 * 84
    renamed = call == 8
    assert folders(tmp_path) == ["step-000000000001"] + ["step-000000000002"] * renamed
    assert_is(load(tmp_path), 1 + renamed)


def test_real_full_disk(tmp_path: Path) -> None:
    """A limit on file size is the one full disk that needs no rights: the write itself fails, half-way."""
    put(tmp_path, 1)
    script = """
        import resource, signal, sys
        from pathlib import Path
        import torch
        from casa.errors import UserError
        from casa.run.checkpoint import save
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save(Path(sys.argv[1]), 2, {"model": {"w": torch.zeros(10**6)}})
        except UserError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert f"cannot save a checkpoint in {tmp_path / 'checkpoints'}: File too large" in done.stdout, done.stderr
    assert os.listdir(tmp_path / "checkpoints") == ["step-000000000001"]
    assert_is(load(tmp_path), 1)


def test_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(UserError, match="cannot save a checkpoint in"):
        put(tmp_path, 1)
