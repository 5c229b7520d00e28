"""Tests 9, 11 and 14: broken weights, a stranger's run directory, and spaces and sizes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from casa.learn.learner import fault_of
from casa.run import checkpoint
from fault_tests.files import made
from fault_tests.lab import TRACEBACK, Lab, newest, rows, train

BOMB = "a: &a [x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(9 * [f'*{old}'])}]\n" for old, new in zip("abcdefghij", "bcdefghijk", strict=True)
)
GIB = 6.0
"""Address space of a process that reads a stranger's directory; PyTorch alone takes 3 to 4."""


def weights(lab: Lab) -> None:
    """Broken weights are never saved as good, however they break; eval says when they are."""
    for lr in (10 ** lab.rng.uniform(5, 12),) if lab.quick else (1e10, 10 ** lab.rng.uniform(5, 12)):
        run = lab.new("run")
        flags = {"learner__warmup": 0, "learner__lr": f"{lr:g}", "checkpoint__every_steps": 100, "checkpoint__keep": 2}
        done = lab.refused(*train(run, 20_000, **flags))
        assert "last good checkpoint" in done.err, done.err[-300:]
        for folder in (run / "checkpoints").glob("step-*"):
            fault = fault_of(checkpoint.load(folder).state["model"])
            assert not fault, f"lr {lr:g}: {folder.name} was saved although {fault}"
        best = checkpoint.load(run, "best").step if (run / "checkpoints" / "best.json").exists() else newest(run)
        lab.fact(f"lr {lr:.1e}: kept {newest(run)}, best {best}")
    run = made(lab)
    saved = checkpoint.load(run)
    state = {**saved.state, "model": {name: 1e10 * x for name, x in saved.state["model"].items()}}
    checkpoint.save(run, 500, state, saved.meta)
    done = lab.casa("eval", run, "--episodes", 1)
    assert done.status == 0 and "are broken" in done.err and TRACEBACK not in done.err, done.err[-300:]


def sign(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the metadata of every checkpoint, with checksums that fit."""
    for folder in (run / "checkpoints").glob("step-*"):
        meta = json.loads((folder / "meta.json").read_text())
        change(meta["meta"])
        text = json.dumps(meta).encode()
        (folder / "meta.json").write_bytes(text)
        body = json.loads((folder / "manifest.json").read_text())["manifest"]
        body["files"]["meta.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        outer = {"manifest": body, "sha256": hashlib.sha256(canonical).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(outer))


def stranger(lab: Lab) -> None:
    """A run directory from a stranger costs neither memory nor a traceback, and runs no code without --trust."""
    whole = made(lab)
    hostile = '"\\e]0;owned\\a\\e[2J\u202ebad_envs:Bad"'

    def hidden(text: str) -> str:
        return text.replace("hidden: 16", "hidden: 40000")

    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "aliases": lambda meta: meta.update(config=BOMB),
        "nesting": lambda meta: meta.update(config="a: " + 100_000 * "["),
        "a wide network": lambda meta: meta.update(config=hidden(meta["config"])),
        "large metadata": lambda meta: meta.update(more="x" * 200_000_000),
        "no spec": lambda meta: meta.pop("spec"),
        "a wrong spec": lambda meta: meta.update(spec=[lab.rng.random()]),
        "a vast observation": lambda meta: meta["spec"]["observation"].update(shape=[10**12]),
        "no config": lambda meta: meta.update(config=None),
        "a module": lambda meta: meta.update(config=meta["config"].replace("id: CartPole-v1", f"id: {hostile}")),
        "a plug-in": lambda meta: meta.update(config=meta["config"].replace("plugins: []", "plugins: [antigravity]")),
    }
    for name in lab.rng.sample(list(changes), 1 if lab.quick else 4):
        run = lab.new(name)
        shutil.copytree(whole, run)
        sign(run, changes[name])
        lab.fact(name)
        lab.refused("eval", run, "--episodes", 1, gib=GIB, seconds=60)
        (run / "config.yaml").unlink()  # what is lacking comes from the checkpoint
        if not lab.quick:
            lab.refused("resume", run, "--steps", 800, "--lr", "1e-4", gib=GIB, seconds=60)
    name, text = lab.rng.choice([("aliases", BOMB), ("width", hidden((whole / "config.yaml").read_text()))])
    (whole / "config.yaml").write_text(text)
    lab.refused("resume", whole, "--steps", 800, "--lr", "1e-4", gib=GIB, seconds=60)
    assert (whole / "config.yaml").read_text() == text, f"{name} in config.yaml: overwritten"
    lab.fact(f"within {GIB:g} GiB of address space")


def sizes(lab: Lab) -> None:
    """Large spaces work or are refused before they are allocated, with the advice that helps."""

    def words(how: str, steps: int = 200, **changes: object) -> list[str]:
        kwargs = f"{{how: {how}, at: 30}}"
        return train(lab.new("run"), steps, env="bad_envs:Bad", env__kwargs=kwargs, **changes)

    for how in ("actions", "states"):
        argv = words(how)
        done = lab.casa(*argv, seconds=240)
        assert done.status == 0, f"{how}: {done.err[-300:]}"
        run = Path(argv[argv.index("--run-dir") + 1])
        assert rows(run)[-1]["step"] >= 200
    refused = {
        "make the observations smaller": words("more states"),
        "net.hidden": words("image", env__frame_stack=1, net__hidden=4096),
        "has no observation_space": words("no space"),
        "as float32, is inf": words("1e300"),
        "lower net.hidden": words("", net__hidden=1_000_000),
        "are too large": words("", net__hidden=10**12),
        "steps must be at most 10^18": words("", steps=10**399),
    }
    for text in lab.rng.sample(list(refused), 4):
        argv = refused[text]
        done = lab.refused(*argv, seconds=120)
        assert text in done.err, f"{text}: {done.err[-300:]}"
