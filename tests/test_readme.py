"""The README's example runs as it stands, and is as short as it claims."""

import json
import re
import shlex
from pathlib import Path

import torch

from casa.cli import main

README = Path(__file__).parent.parent / "README.md"


def test_the_example_updates_a_plain_actor_critic():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 15
    names: dict = {}
    torch.manual_seed(0)
    exec(code, names)
    assert torch.isfinite(names["loss"])
    for layer in ("body", "advantage", "value"):
        assert names[layer].weight.grad.abs().max() > 0


def test_links_lead_somewhere():
    for page in (README, *README.parent.glob("docs/*.md")):
        # Mathematics has brackets too: a link leads to a file with an ending.
        for target in re.findall(r"\]\(([\w./-]+\.\w+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_example_environment_is_solved_by_its_own_commands(tmp_path, monkeypatch, capsys):
    """As its docstring says, but for a shorter time: the best return is 1, and a random walk rarely comes that far."""
    folder = README.parent / "examples"
    text = (folder / "corridor.py").read_text(encoding="utf-8")
    train, evaluate = re.findall(r"^    casa (.*)$", text, re.MULTILINE)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    run = str(tmp_path / "run")
    fast = ["--env.num-envs", "8", "--env.vectorization", "sync", "--log.tensorboard", "no", "--seed", "1"]
    assert main([*shlex.split(train.replace("runs/own", run)), *fast]) == 0, capsys.readouterr()
    found = tmp_path / "found.json"
    assert main([*shlex.split(evaluate.replace("runs/own", run)), "--json", str(found)]) == 0, capsys.readouterr()
    assert json.loads(found.read_text())["modes"]["greedy"]["mean"] == 1.0
