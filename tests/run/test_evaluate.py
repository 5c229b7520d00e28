"""Evaluation: exactly the episodes that were asked for, none preferred, and what is said about them."""

import io
import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from rich.console import Console
from tests.support.eval_cases import LONG, Lengths

from casa import atari57
from casa.cli import main
from casa.config.load import make_config
from casa.engines.build import build_network, build_system
from casa.engines.resolve import pick_backbone
from casa.envs import make_env
from casa.envs.types import env_seeds
from casa.errors import UserError
from casa.run import evaluate_view
from casa.run.agent import Agent, load
from casa.run.evaluate import bootstrap_interval, evaluate
from casa.run.evaluate_view import evaluate_command, table
from casa.run.training import train
from casa.runtime.seeds import seed_for

SMALL = {
    "recipe": "ppo-casa",
    "preset": "laptop",
    "device": "cpu",
    "steps": 120,
    "net": {"hidden": 16},
    "data": {"batch": 4, "seq_len": 10},
    "log": {"tensorboard": "no"},
}


def agent_for(env, weights=1.0, **settings):
    config = make_config({**SMALL, "env": {"id": env, "num_envs": 8}, **settings})
    made = make_env(config.env, 1, 0)
    made.close()
    config = replace(config, net=replace(config.net, backbone=pick_backbone(config, made.spec.kind)))
    torch.manual_seed(0)
    network = build_network(config, made.spec)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(weights)
    return Agent(config, made.spec, network)


def known_length(seed):
    env = Lengths()
    env.reset(seed=seed)
    return env.length


@pytest.mark.parametrize("env", ["Lengths", "same_step", "disabled"])
def test_every_environment_plays_the_episode_of_its_seed_and_no_other(env):
    agent = agent_for(f"tests.support.eval_cases:{env}")
    found = evaluate(agent, episodes=21, num_envs=8, seed=3)
    assert found["num_envs"] == 7  # three equal rounds
    expected = [known_length(seed) for row in found["seeds"] for seed in row]
    assert len(expected) == 21 and set(expected) == {1, LONG}
    for mode in ("greedy", "sampled"):
        result = found["modes"][mode]
        assert result["lengths"] == expected and result["returns"] == expected
        assert result["episode_truncated"] == [length == LONG for length in expected]
        assert result["truncated"] == expected.count(LONG)


def test_copies_of_an_episode_are_counted_once():
    """Greedy play depends on the length alone here; drawn actions make every long episode another one."""
    modes = evaluate(agent_for("tests.support.eval_cases:Lengths"), episodes=21)["modes"]
    assert set(modes["greedy"]["lengths"]) == {1, LONG} and modes["greedy"]["different"] == 2
    drawn = modes["sampled"]
    assert drawn["lengths"].count(LONG) < drawn["different"] <= drawn["lengths"].count(LONG) + 3
    poles = evaluate(agent_for("CartPole-v1"), 10, ("greedy",))["modes"]["greedy"]  # other starts, the same few actions
    assert len(set(poles["lengths"])) < poles["different"] == 10


def test_a_round_that_is_not_full():
    found = evaluate(agent_for("tests.support.eval_cases:Lengths"), episodes=5, num_envs=3)
    expected = [known_length(seed) for row in found["seeds"] for seed in row]
    assert found["num_envs"] == 3 and len(found["seeds"]) == 2
    assert found["modes"]["greedy"]["lengths"] == expected[:5]


def first_to_finish(env, episodes, seed):
    """What is not done: environments that start again at once, until enough episodes have ended."""
    env.reset(seed)
    lengths, finished = np.zeros(env.spec.num_envs), []
    while len(finished) < episodes:
        env.send(np.zeros(env.spec.num_envs, np.int64))
        step = env.recv()
        lengths += ~step.dummy
        ended = step.terminated | step.truncated
        finished += lengths[ended].tolist()
        lengths[ended] = 0
    return np.array(finished[:episodes])


def test_short_episodes_are_not_preferred():
    agent = agent_for("tests.support.eval_cases:Lengths")
    result = evaluate(agent, 200, ("greedy",), num_envs=100)["modes"]["greedy"]
    true_mean = (1 + LONG) / 2
    assert abs(result["mean"] - true_mean) < 3 * result["standard_error"]
    env = make_env(agent.config.env, 100, 0)
    biased = first_to_finish(env, 100, seed=0).mean()
    env.close()
    assert biased < true_mean / 4


def test_an_episode_without_end_is_cut_at_the_cap():
    agent = agent_for("tests.support.eval_cases:Endless", **{"env.max_frames": 9})
    result = evaluate(agent, 5, ("greedy",), num_envs=2)["modes"]["greedy"]
    assert result["lengths"] == [9] * 5 and result["truncated"] == 5 and result["mean"] == 9


def alone(agent, seed, remember=True):
    """The return of one greedy CartPole episode, played with predict."""
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=seed)
    state, total, over = None, 0.0, False
    while not over:
        action, state = agent.predict(obs, state if remember else None, deterministic=True)
        obs, reward, terminated, truncated, _ = env.step(int(action))
        total, over = total + float(reward), terminated or truncated
    return total


def test_a_recurrent_agent_plays_as_it_does_alone():
    agent = agent_for("CartPole-v1", weights=3.0, **{"net.lstm": 64})
    found = evaluate(agent, 7, ("greedy",), num_envs=4)
    seeds = [seed for row in found["seeds"] for seed in row][:7]
    returns = found["modes"]["greedy"]["returns"]
    assert returns == [alone(agent, seed) for seed in seeds]
    assert returns != [alone(agent, seed, remember=False) for seed in seeds]


def test_the_same_seed_gives_the_same_result_and_another_one_other_episodes():
    agent = agent_for("CartPole-v1")
    first, again, other = (evaluate(agent, 6, ("sampled",), seed=seed) for seed in (1, 1, 2))
    assert first["modes"]["sampled"]["returns"] == again["modes"]["sampled"]["returns"]
    assert not set(first["seeds"][0]) & set(other["seeds"][0])
    greedy_only = evaluate(agent, 6, ("greedy",), seed=1)
    assert greedy_only["seeds"] == first["seeds"]


def test_seeds_are_not_trainings():
    config = make_config({**SMALL, "env": {"id": "CartPole-v1", "num_envs": 8}})
    for run_seed in (0, 1):
        system = build_system(replace(config, seed=run_seed))
        system.close()
        words = [seed_for(run_seed, "episodes", i) for i in range(500)]
        training = {seed for word in words for seed in env_seeds(word, 8)}
        ours = [seed_for(run_seed, "evaluation starts", seed, i) for seed in range(5) for i in range(20)]
        assert not training & {seed for word in ours for seed in env_seeds(word, 64)}
        assert len(set(ours)) == 100 and not set(ours) & set(words)


def test_bootstrap_interval():
    rng = np.random.default_rng(0)
    values = rng.normal(10, 2, 400)
    low, high = bootstrap_interval(values)
    error = values.std(ddof=1) / 20
    np.testing.assert_allclose([low, high], values.mean() + np.array([-1.96, 1.96]) * error, atol=0.2 * error)
    assert bootstrap_interval(values) == (low, high)
    assert bootstrap_interval(np.array([3.0])) == (3.0, 3.0)
    narrow, wide = bootstrap_interval(values, level=0.5)
    assert low < narrow < values.mean() < wide < high
    covered = [low <= 0 <= high for low, high in (bootstrap_interval(rng.normal(size=30)) for _ in range(60))]
    assert 0.85 <= np.mean(covered) <= 1


def test_a_large_sample_is_resampled_in_parts():
    values = np.random.default_rng(1).normal(size=3000)  # 10,000 resamples of it take 240 MB of indices
    low, high = bootstrap_interval(values)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 3000**0.5, rel=0.05)


def test_value_based_agents_say_how_they_act():
    agent = agent_for("CartPole-v1", recipe="r2d2")
    modes = evaluate(agent, 2)["modes"]
    assert [modes[mode]["policy"] for mode in modes] == ["argmax Q", "argmax Q, ε = 0.001"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": 0}, "episodes must be >= 1, got 0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"num_envs": -2}, "num_envs must be >= 0, got -2"),
        ({"modes": ("gready",)}, "mode 'gready' is unknown; did you mean 'greedy'?"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        evaluate(agent_for("tests.support.eval_cases:Lengths"), **arguments)


def test_an_environment_that_has_changed_since_training():
    agent = agent_for("tests.support.eval_cases:Lengths")
    agent.config = replace(agent.config, env=replace(agent.config.env, id="tests.support.eval_cases:FourActions"))
    with pytest.raises(UserError, match="has actions 4 actions here, but the agent was trained with 3 actions"):
        evaluate(agent, 1)


@pytest.fixture(scope="module")
def atari_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "breakout"
    settings = {"env": {"id": "Breakout", "num_envs": 2, "max_frames": 102}, "run_dir": str(path)}
    train(make_config({**SMALL, "steps": 60, **settings}), Console(quiet=True))
    return path


def test_casa_eval_on_atari(atari_run, capsys):
    assert main(["eval", str(atari_run), "--episodes", "2"]) == 0
    shown = capsys.readouterr().out
    found = json.loads((atari_run / "eval-60.json").read_text(encoding="utf-8"))
    assert found["step"] == 60 and found["frames"] == 240 and found["max_steps"] == 26
    assert found["config"]["env"]["max_frames"] == 102 and found["config"]["recipe"] == "ppo-casa"
    assert found["reference"]["human"] == 30.5
    for result in found["modes"].values():
        # ALE itself stops at the cap, within the 26th action
        assert result["lengths"] == [26, 26] and result["truncated"] == 2
        assert result["hns"] == pytest.approx(atari57.hns("Breakout", result["mean"]))
        assert result["saber"] == pytest.approx(atari57.saber("Breakout", result["mean"]))
    for text in ("greedy", "sampled", "HNS", "SABER", "random", "CASA, paper", "864.0", f"{atari_run}/eval-60.json"):
        assert text in shown


def test_casa_eval_writes_where_it_is_told(atari_run, tmp_path, capsys):
    target = tmp_path / "x.json"
    folder = load(atari_run, 0).path
    arguments = ["--policy", "sampled", "--episodes", "1", "--seed", "4", "--json", str(target)]
    assert main(["eval", str(folder), *arguments]) == 0
    found = json.loads(target.read_text(encoding="utf-8"))
    assert list(found["modes"]) == ["sampled"] and (found["step"], found["seed"]) == (0, 4)
    assert found["modes"]["sampled"]["standard_error"] is None
    capsys.readouterr()
    assert main(["eval", str(atari_run), "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "is no directory" in capsys.readouterr().err
    assert main(["eval", str(atari_run), "--checkpoint", "bets"]) == 2
    assert "did you mean 'best'?" in capsys.readouterr().err


def test_casa_eval_with_another_temperature(atari_run, capsys):
    assert main(["eval", str(atari_run), "--episodes", "1", "--policy", "sampled", "--tau", "0.5"]) == 0
    assert "a ~ softmax(A / 0.5)" in capsys.readouterr().out
    step = load(atari_run).step
    written = json.loads((atari_run / f"eval-{step}-tau-0.5.json").read_text())
    assert written["modes"]["sampled"]["policy"] == "a ~ softmax(A / 0.5)" and written["tau"] == 0.5
    assert main(["eval", str(atari_run), "--tau", "0"]) == 2
    assert "tau must be from" in capsys.readouterr().err
    assert main(["eval", str(atari_run), "--tau", "0.5", "--policy", "greedy"]) == 2
    assert "tau 0.5 has no meaning for greedy play alone" in capsys.readouterr().err


def test_progress_in_a_terminal_and_in_a_pipe(atari_run, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate_view, "PLAIN_EVERY", 0.0)
    for terminal in (True, False):
        console = Console(force_terminal=terminal, width=120, file=io.StringIO())
        evaluate_command(console, atari_run, episodes=2, json_path=tmp_path / "x.json", device="cpu")
        text = console.file.getvalue()
        assert ("greedy: 2 of 2 episodes, 52 steps" in text) is not terminal
        assert ("2/2" in text) is terminal


def test_the_table_of_an_environment_without_references():
    console = Console(width=120, file=io.StringIO())
    console.print(table(evaluate(agent_for("tests.support.eval_cases:Lengths"), 3)))
    text = console.file.getvalue()
    assert "mean return" in text and "HNS" not in text and "human" not in text
    assert "different episodes" in text and " of 3" in text


def test_a_strangers_environment_is_not_run(tmp_path):
    """A run directory whose configuration names a module's callable is refused until the user says otherwise."""
    from rich.console import Console

    from casa.config.load import make_config, to_yaml
    from casa.run.evaluate_view import evaluate_command
    from casa.run.training import resume, train

    quiet = Console(quiet=True)
    settings = {"recipe": "ppo-casa", "env": "CartPole-v1", "steps": 64, "env.num_envs": 4, "data.seq_len": 4}
    config = make_config({**settings, "run_dir": str(tmp_path / "run"), "net.hidden": 8})
    train(config, quiet)
    touched = tmp_path / "touched"
    text = to_yaml(config).replace("CartPole-v1", "os:system")
    text = text.replace("kwargs: ''", f"kwargs: '{{command: touch {touched}}}'")
    assert str(touched) in text
    (tmp_path / "run" / "config.yaml").write_text(text)
    with pytest.raises(UserError, match="--trust"):
        resume(tmp_path / "run", quiet, steps=128)
    for meta in (tmp_path / "run" / "checkpoints").glob("*/meta.json"):
        assert "os:system" not in meta.read_text()  # the evaluation reads the checkpoint's own configuration
    evaluate_command(quiet, tmp_path / "run", episodes=1)
    assert not touched.exists()
