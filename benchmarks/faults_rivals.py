"""What other libraries do in those tests of the fault campaign that can be put to them.

    python benchmarks/faults_rivals.py                                  # Stable-Baselines3, of this environment
    python benchmarks/faults_rivals.py --sample-factory VENV/bin/python # Sample Factory, of its own environment

Each is run as its documentation advises, with its own checkpoints. Results are written to results/faults-rivals.json.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).parent
TRACEBACK = "Traceback (most recent call last)"


class Rival:
    """How a library is started, and what it leaves: `files` are its checkpoints, `whole` tells whether one loads."""

    def __init__(self, name: str, python: str, script: str, pattern: str, load: str, package: str) -> None:
        self.name, self.python, self.script = name, python, str(HERE / "rivals" / script)
        self.pattern, self.load, self.package = pattern, load, package
        self.patience = 270.0 if name == "Sample Factory" else 100.0  # seconds; its processes start slowly

    def version(self) -> str:
        code = f"from importlib.metadata import version; print(version('{self.package}'))"
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()

    @contextmanager
    def start(self, folder: Path, *argv: object, **options: object) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [self.python, self.script, str(folder), *map(str, argv)],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options},
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # ignored under nohup
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def files(self, folder: Path) -> list[Path]:
        """The checkpoints, oldest first; a library may remove one meanwhile."""
        found = {}
        for path in folder.rglob(self.pattern):
            with suppress(FileNotFoundError):
                found[path] = path.stat().st_mtime
        return sorted(found, key=lambda path: found[path])

    def saved_since(self, folder: Path, moment: float) -> bool:
        files = self.files(folder)
        return bool(files) and files[-1].stat().st_mtime > moment

    def whole(self, file: Path) -> str:
        """"" if a checkpoint loads, otherwise the error's type; then the largest weight."""
        done = subprocess.run([self.python, "-c", self.load, str(file)], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else f"error: {done.stderr.strip().splitlines()[-1][:150]}"

    def wait_for(self, folder: Path, process: subprocess.Popen[str], seconds: float = 240) -> None:
        """Until it has written two checkpoints; a library may keep only the newest."""
        end, seen = time.monotonic() + seconds, set[Path]()
        while len(seen) < 2:
            seen.update(self.files(folder))
            assert process.poll() is None and time.monotonic() < end, "no checkpoint"
            time.sleep(0.02)


def kill_in_save(rival: Rival, home: Path) -> str:
    """kill -9 while a checkpoint is being written"""
    rng, torn = random.Random(0), 0
    kills = 5
    for kill in range(kills):
        folder = home / f"kill{kill}"
        with rival.start(folder, "--width", 1500) as process:
            rival.wait_for(folder, process)
            before = len(rival.files(folder))
            end = time.monotonic() + 60
            while len(rival.files(folder)) == before and time.monotonic() < end:
                time.sleep(0.0005)
            time.sleep(rng.uniform(0, 0.02))
            process.kill()
            process.wait()
        torn += rival.whole(rival.files(folder)[-1]).startswith("error")
    return f"the newest checkpoint was unreadable after {torn} of {kills} kills"


def terminated(rival: Rival, home: Path) -> str:
    """SIGTERM to the group"""
    with rival.start(home / "run", "--processes") as process:
        rival.wait_for(home / "run", process)
        sent = time.time()
        os.killpg(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        saved = rival.saved_since(home / "run", sent)
    return f"status {process.returncode}, {out.count(TRACEBACK)} tracebacks, {'saved' if saved else 'not saved'}"


def hung_up(rival: Rival, home: Path) -> str:
    """the terminal is closed (SIGHUP)"""
    with rival.start(home / "run") as process:
        rival.wait_for(home / "run", process)
        sent = time.time()
        os.kill(process.pid, signal.SIGHUP)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=30)
        saved = rival.saved_since(home / "run", sent)
    return f"status {process.returncode}, {'saved' if saved else 'not saved'}"


def broken_pipe(rival: Rival, home: Path) -> str:
    """the reader of its output leaves"""
    read, write = os.pipe()
    os.close(read)
    with rival.start(home / "run", "--steps", 2_000, stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        _, err = process.communicate(timeout=120)
    ended = "reached the end" if list((home / "run").glob("last*")) else "did not reach the end"
    return f"status {process.returncode}, {err.count(TRACEBACK)} tracebacks, {ended}"


def locked(rival: Rival, home: Path) -> str:
    """two processes with one folder"""
    with rival.start(home / "run", "--steps", 2_000) as one, rival.start(home / "run", "--steps", 2_000) as other:
        statuses = [one.wait(timeout=200), other.wait(timeout=200)]
    return "both wrote into it" if statuses == [0, 0] else f"statuses {statuses}"


def bad(how: str, processes: bool) -> Callable[[Rival, Path], str]:
    def test(rival: Rival, home: Path) -> str:
        with rival.start(home / "run", "--how", how, *(["--processes"] if processes else [])) as process:
            try:
                out, _ = process.communicate(timeout=rival.patience)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    out, _ = process.communicate(timeout=20)
                except subprocess.TimeoutExpired:
                    return f"did not end within {rival.patience:g} s, nor after Ctrl-C"
                said = "named it" if "not answered" in out else "no word of it"
                after = f"status {process.returncode}, {out.count(TRACEBACK)} tracebacks"
                return f"{said} in {rival.patience:g} s; after Ctrl-C {after}"
        steps = [path.name for path in rival.files(home / "run")][-1:]
        lines = len(out[out.find(TRACEBACK) :].splitlines()) if TRACEBACK in out else 0
        return f"status {process.returncode}, {lines} lines of traceback, newest checkpoint {steps}"

    test.__doc__ = f"an environment: {how}, in {'processes' if processes else 'one process'}"
    return test


def weights(rival: Rival, home: Path) -> str:
    """a learning rate of 1e10"""
    for name, rate in {"usual": 1e-4, "run": 1e10}.items():
        with rival.start(home / name, "--lr", rate, "--steps", 4_000) as process:
            try:
                out, _ = process.communicate(timeout=rival.patience)
            except subprocess.TimeoutExpired:
                return f"did not end within {rival.patience:g} s with a learning rate of {rate:g}"
    found = [rival.whole(path) for path in rival.files(home / "run")[-1:]]
    return f"status {process.returncode}, {out.count(TRACEBACK)} tracebacks, largest weight in the newest: {found}"


def exact(rival: Rival, home: Path) -> str:
    """a run that is resumed from a checkpoint against one that is not"""

    def finish(*argv: object) -> None:
        with rival.start(*argv, stdout=subprocess.DEVNULL) as process:
            assert process.wait(timeout=rival.patience) == 0

    finish(home / "whole", "--steps", 1600)
    finish(home / "half", "--steps", 800)
    resumed = home / "half"
    if rival.name == "Sample Factory":  # it goes on in the same folder
        finish(resumed, "--steps", 1600)
    else:
        resumed = home / "rest"
        finish(resumed, "--load", rival.files(home / "half")[-1], "--steps", 800)
    ends = [rival.whole(rival.files(folder)[-1]) for folder in (home / "whole", resumed)]
    return "equal" if ends[0] == ends[1] else "differs"


def stranger(rival: Rival, home: Path) -> str:
    """a checkpoint from a stranger"""
    if rival.name == "Sample Factory":
        return "not tested"  # its checkpoints are of another format
    with rival.start(home / "run", "--steps", 800, stdout=subprocess.DEVNULL) as process:
        assert process.wait(timeout=200) == 0
    file = rival.files(home / "run")[-1]
    proof = home / "proof"
    class Run:
        def __reduce__(self):
            return Path.touch, (proof,)

    hostile = home / "hostile.zip"
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(hostile, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "data":
                entries = json.loads(data)
                entries["clip_range"] = {
                    ":type:": "x",
                    ":serialized:": base64.b64encode(pickle.dumps(Run())).decode(),
                }
                data = json.dumps(entries).encode()
            target.writestr(name, data)
    rival.whole(hostile)
    return "runs the stranger's code" if proof.exists() else "runs no code of this kind"


TESTS: dict[str, Callable[[Rival, Path], str]] = {
    "kill-in-save": kill_in_save,
    "exact": exact,
    "locks": locked,
    "signals: SIGTERM": terminated,
    "signals: SIGHUP": hung_up,
    "signals: pipe": broken_pipe,
    "weights": weights,
    "environments: exit": bad("exit", processes=False),
    "environments: killed": bad("killed", processes=True),
    "environments: hang": bad("hang", processes=True),
    "stranger": stranger,
}
SB3 = """
import sys, torch
from stable_baselines3 import PPO
model = PPO.load(sys.argv[1], device="cpu")
print(max(x.abs().max().item() for x in model.policy.state_dict().values()))
"""


SAMPLE_FACTORY = """
import sys, torch
saved = torch.load(sys.argv[1], map_location="cpu", weights_only=False)
print(max(x.abs().max().item() for x in saved["model"].values()))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TESTS, default=list(TESTS), metavar="TEST")
    parser.add_argument("--sample-factory", metavar="PYTHON", help="test it with this Python, instead of SB3")
    parser.add_argument("--json", type=Path, default=HERE.parent / "results" / "faults-rivals.json")
    options = parser.parse_args()
    if options.sample_factory:
        python = options.sample_factory
        rival = Rival(
            "Sample Factory", python, "sample_factory_faults.py", "checkpoint_*.pth", SAMPLE_FACTORY, "sample-factory"
        )
    else:
        rival = Rival(
            "Stable-Baselines3", sys.executable, "sb3_faults.py", "rl_model_*.zip", SB3, "stable-baselines3"
        )
    # Results of the other library, and of tests that are not run now, are kept.
    before = json.loads(options.json.read_text())["results"] if options.json.exists() else []
    results = [row for row in before if row["library"] != rival.name or row["test"] not in options.only]
    for name in options.only:
        test = TESTS[name]
        with tempfile.TemporaryDirectory(prefix="rival-") as home:
            try:
                found = test(rival, Path(home))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                found = f"could not be tested: {error}"
        what = (test.__doc__ or "").strip()
        row = {"library": rival.name, "version": rival.version(), "test": name, "what": what, "found": found}
        results.append(row)
        print(f"{rival.name}, {what}: {found}", flush=True)
        options.json.write_text(json.dumps({"results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
