"""The plug-in example as a user runs it: trained, resumed, loaded and evaluated from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import casa
from casa import tables
from casa.config.plugins import load
from casa.errors import UserError
from casa.learn.estimators import TARGETS, Steps

ROOT = Path(__file__).parents[2]
NAME = "examples.plugin"
FAST = ["--env.num-envs", "8", "--env.vectorization", "sync", "--log.tensorboard", "no", "--net.hidden", "32"]


def casa_command(*args):
    return subprocess.run(
        [sys.executable, "-m", "casa", *map(str, args)], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture
def plugin(monkeypatch):
    """Loaded in this process for one test, and forgotten afterwards."""
    monkeypatch.chdir(ROOT)
    yield load([NAME], trust=True)
    for table in tables.TABLES.values():
        table.remove_from(NAME)
    sys.modules.pop(NAME, None)


def test_it_is_one_short_file():
    assert len((ROOT / "examples/plugin.py").read_text().splitlines()) <= 60


@pytest.mark.slow
def test_trained_resumed_loaded_and_evaluated(tmp_path, plugin):
    run = tmp_path / "run"
    start = ["train", "--plugin", NAME, "--recipe", "cautious", "--env", "CartPole-v1", "--steps", 2000, *FAST]
    done = casa_command(*start, "--run-dir", run)
    assert done.returncode == 0, done.stderr
    text = (run / "config.yaml").read_text()
    assert f"plugins:\n- {NAME}\n" in text and "head: mean-dueling" in text and "targets: short-vtrace" in text

    for command in (["resume", run, "--steps", 3000, "--lr", 1e-4], ["eval", run, "--episodes", 2]):
        refused = casa_command(*command)
        assert refused.returncode == 2
        assert f"names the plug-in {NAME}, which runs code of that module; add --trust" in refused.stderr
        assert "Traceback" not in refused.stderr
        trusted = casa_command(*command, "--trust")
        assert trusted.returncode == 0, trusted.stderr
    (found,) = run.glob("eval-*.json")
    assert json.loads(found.read_text())["step"] >= 3000

    agent = casa.load(run, trust=True)
    assert agent.network.head.formula.startswith("π = softmax")
    assert agent.predict([0.0, 0.1, 0.0, -0.1])[0] in (0, 1)


def test_the_recipe_is_listed(plugin):
    assert tables.RECIPES["cautious"].base == "casa"
    assert tables.RECIPES.origin("cautious") == NAME


@pytest.mark.parametrize("n", [1, 3, 50])
def test_its_target_is_the_sum_that_its_docstring_says(plugin, n):
    """Against a double loop; with n beyond the sequence it is V-Trace itself."""
    generator = torch.Generator().manual_seed(n)
    rewards, log_rhos = (torch.randn(7, 4, generator=generator) for _ in range(2))
    ends = torch.rand(7, 4, generator=generator) < 0.2
    values = torch.randn(8, 4, generator=generator)
    out = [casa.HeadOutput(v, None, v.unsqueeze(-1)) for v in (values[:-1], values[1:])]
    discounts = 0.9 * (~ends).float()
    steps = Steps(rewards, discounts, ends, log_rhos, *out, None, None)
    agent = casa_agent(n_step=n, rho_bar=1.0, c_bar=0.8)
    found = TARGETS["short-vtrace"](steps, agent)
    rho, c = log_rhos.exp().clamp(max=1.0), log_rhos.exp().clamp(max=0.8)
    for t in range(7):
        for b in range(4):
            total, weight = values[t, b].clone(), 1.0
            for k in range(t, min(t + n, 7)):
                total += weight * rho[k, b] * (rewards[k, b] + discounts[k, b] * values[k + 1, b] - values[k, b])
                weight *= float(discounts[k, b] * c[k, b])
                if ends[k, b]:
                    break
            torch.testing.assert_close(found.v[t, b], total)
    if n == 50:
        whole = casa.targets.vtrace(rewards, discounts, values[:-1], values[1:], log_rhos, ends, 1.0, 0.8)
        torch.testing.assert_close(found.v, whole)


def casa_agent(**changes):
    from casa.config.load import make_config

    return make_config({"preset": "laptop", **{f"agent.{k}": v for k, v in changes.items()}}).agent


class TestMistakes:
    @pytest.mark.parametrize(
        ("code", "sentence"),
        [
            ("import casa\ncasa.register.recipe('x', base='cassa', settings={})", "recipe 'cassa' is unknown"),
            (
                "import casa\ncasa.register.recipe('x', base='casa', settings={'agent.tua': 1})",
                "field 'agent.tua' is unknown; did you mean 'agent.tau'?",
            ),
            (
                "import casa\n@casa.register.reward('raw')\ndef f(r): return r",
                "reward 'raw' is registered by casa.learn.rewards already",
            ),
            ("1 / 0", "importing 'broken_plugin' failed: ZeroDivisionError"),
        ],
    )
    def test_a_mistake_in_a_plugin_is_one_sentence(self, code, sentence, tmp_path, monkeypatch):
        (tmp_path / "broken_plugin.py").write_text(code)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(UserError) as caught:
            load(["broken_plugin"], trust=True)
        assert sentence in str(caught.value) and "\n" not in str(caught.value)
        sys.modules.pop("broken_plugin", None)

    @pytest.mark.parametrize(("name", "hint"), [("./my.py", "; write 'my'"), ("a/b.py", "; write 'a.b'"), ("", "")])
    def test_a_path_is_no_module(self, name, hint):
        with pytest.raises(UserError, match=f"is not the name of a module{hint}"):
            load([name], trust=True)

    def test_a_built_in_entry_cannot_be_replaced(self):
        with pytest.raises(UserError, match=r"head 'casa' is registered by casa.heads already"):
            casa.register.head("casa", outputs=("advantage", "value"))(casa.heads.type1_head)

    def test_a_head_may_name_its_outputs_freely(self, tmp_path):
        @casa.register.head("preferences", outputs=("preference", "value"))
        def preferences(preference, value, tau):
            return casa.casa_head(preference, value, tau)

        try:
            settings = {"agent.head": "preferences", "env.vectorization": "sync", "log.tensorboard": "no"}
            run = casa.train("casa", "CartPole-v1", 64, run_dir=tmp_path / "run", quiet=True, **settings)
            assert run.config.preset == "classic"
        finally:
            tables.HEADS.remove_from(__name__)

    def test_a_module_that_is_not_there(self):
        with pytest.raises(UserError, match="plug-in 'nowhere_at_all': no module 'nowhere_at_all' in"):
            load(["nowhere_at_all"], trust=True)

    def test_an_unknown_name_names_the_nearest(self, plugin):
        with pytest.raises(UserError, match="head 'mean-dueling2' is unknown; did you mean 'mean-dueling'"):
            tables.HEADS["mean-dueling2"]
