"""The direction of dependencies, and what an import costs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = [p for p in sorted((ROOT / "src/casa").iterdir()) if p.is_dir() and (p / "__init__.py").exists()]


def lint(config: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(config_filename=sys.argv[1]))"
    command = [sys.executable, "-c", code, str(config)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_rooms_import_only_what_is_below_them() -> None:
    found = lint(ROOT / "pyproject.toml", ROOT)
    assert found.returncode == 0, found.stdout


def test_an_import_upwards_is_found(tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    upside_down = text.replace('  "casa.engines",\n  "casa.learn",\n', '  "casa.learn",\n  "casa.engines",\n')
    assert upside_down != text
    config = tmp_path / "pyproject.toml"
    config.write_text(upside_down)
    assert lint(config, ROOT).returncode != 0


@pytest.mark.parametrize("room", ROOMS, ids=lambda p: p.name)
def test_every_room_says_what_it_is_for(room: Path) -> None:
    first = (room / "__init__.py").read_text().split('"""')[1]
    assert len(first.split()) >= 12, f"{room.name}/__init__.py: what is it for, what may it import, where to start?"


def test_importing_casa_needs_only_the_core() -> None:
    optional = ["matplotlib", "tensorboard", "wandb", "stable_baselines3", "onnx", "PIL", "imageio_ffmpeg"]
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {optional!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
import casa, casa.report.html, casa.run.training, casa.watch.command
for name in casa.__all__:
    getattr(casa, name)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("recipe", "env"), [("casa", "CartPole-v1"), ("ppo-casa", "Pendulum-v1")])
def test_a_run_loads_no_compiler_that_it_does_not_use(recipe: str, env: str, tmp_path: Path) -> None:
    """An optimizer object, a shape check or arithmetic on the device "meta" loads one: more than a second a run."""
    code = f"""
import sys, casa
casa.train({recipe!r}, {env!r}, 3_000, run_dir={str(tmp_path / "run")!r}, quiet=True, log__diagnostics_every=5)
print(sorted({{"torch._dynamo", "torch._inductor", "sympy"}} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[-2] == "[]"
