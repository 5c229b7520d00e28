"""The public names as a type checker sees them, in a script that a user would write."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = '''
import gymnasium as gym
import torch

import casa
from casa.register import AgentConfig, Estimate, Steps


class Solved(casa.Callback):
    def on_report(self, training: casa.Training, row: dict[str, object]) -> None:
        score = row["return"]
        if isinstance(score, float) and score > 475:
            training.stop("solved")


@casa.register.head("mine", outputs=("advantage", "value"))
def mine(advantage: torch.Tensor, value: torch.Tensor, tau: float) -> casa.HeadOutput:
    return casa.casa_head(advantage, value, tau)


@casa.register.target("ours")
def ours(steps: Steps, agent: AgentConfig) -> Estimate:
    v, q = casa.targets.gae(steps.rewards, steps.discounts, steps.now.v, steps.after.v, steps.ends, agent.lam)
    return Estimate(v, q, q - steps.now.v, None)


casa.register.recipe("mine", base="casa", settings={"agent.head": "mine", "agent.targets": "ours"})
run = casa.train(recipe="mine", env="CartPole-v1", steps=1_000, callbacks=[Solved()], learner__lr=1e-3, quiet=True)
agent: casa.Agent = casa.load(run, seed=0)
env: gym.Env[object, object] = agent.make_env()
obs, _ = env.reset(seed=0)
action, state = agent.predict(obs)
v, q, log_pi = casa.casa_head(torch.zeros(2, 3), torch.zeros(2), tau=0.1)
mean: float = casa.atari57.hns("Breakout", 30.5)
rows: list[dict[str, object]] = run.metrics
'''


@pytest.mark.slow
def test_a_users_script_is_typed(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    # The project's own settings and cache, so that torch is not read anew.
    check = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    check += ["--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run([*check, str(file)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    file.write_text(SCRIPT.replace("mean: float", "mean: str"))
    wrong = subprocess.run([*check, str(file)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert wrong.returncode == 1 and "Incompatible types in assignment" in wrong.stdout


def test_the_same_script_runs(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
