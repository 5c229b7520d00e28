"""Every recipe learns the values of environments whose values are known, and does not find them in the controls."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.support.probes import LADDER, PROBES, see
from tests.support.small import DISCRETE, SMALL, play, probe_system

from casa.config.recipes import RECIPES
from casa.targets.n_step_q import h

GAMMA = SMALL["agent.discount"]
FOREVER = 1 / (1 - GAMMA)
CASA_TAU_1 = 1 / (1 + math.exp(-2))
"""What the best action gets at τ = 1: A is twice the advantage, whose gap is 1, and σ(2) = 0.88 (see `settled_q`)."""


class Learned(NamedTuple):
    """What a recipe makes of a probe's states (cue, age): V, Q of each action, and the probe's late mean score."""

    v: dict
    q: dict
    score: float


@cache
def learned(recipe, mode="sync"):
    """One agent of a recipe that has played every probe and every control."""
    # ε-greedy tries the other action rarely, so what there is of it must be learned from more often.
    changes = {"data.reuse": 4, "learner.lr": 5e-3} if RECIPES[recipe].family == "R2D2" else {}
    system = probe_system(recipe, groups=2 if mode == "async" else 1, steps=48_000, **changes)
    scores = play(system, mode)
    found = {}
    for name in LADDER:
        states = [(cue, age) for cue in (-1, 1) for age in range(PROBES[name].length)]
        with torch.no_grad():
            out, _ = system.network(torch.tensor(np.stack([see(LADDER, name, *state) for state in states]))[None])
        # r2d2 has no use for V: what it knows of a state is the largest Q.
        values = out.v[0] if RECIPES[recipe]["agent.weights"][0] else out.q[0].max(-1).values
        q = {} if out.q is None else dict(zip(states, out.q[0].tolist(), strict=True))
        late = scores[name][-len(scores[name]) // 4 :]
        found[name] = Learned(dict(zip(states, values.tolist(), strict=True)), q, float(np.mean(late)))
    return found


def scaled(recipe, value):
    """A value as the recipe's network holds it: R2D2's is h(value)."""
    return float(h(torch.tensor(value))) if RECIPES[recipe]["agent.value_rescale"] else value


def assert_values(recipe, name, expected, tolerance=0.12, mode="sync"):
    """V(cue, age) of what was learned on `name` is what the probe's definition says."""
    values = learned(recipe, mode)[name].v
    for state, value in expected.items():
        assert values[state] == pytest.approx(scaled(recipe, value), abs=scaled(recipe, tolerance)), (name, state)


VALUES = {
    "constant": {(-1, 0): 1, (1, 0): 1},
    "by-observation": {(-1, 0): 0, (1, 0): 1},
    "delayed": {(cue, age): GAMMA if age == 0 else 1 for cue in (-1, 1) for age in (0, 1)},
    "truncation": {(1, 0): FOREVER, (1, 4): FOREVER},
}


@pytest.mark.parametrize("probe", VALUES)
@pytest.mark.parametrize("recipe", DISCRETE)
def test_values(recipe, probe):
    assert_values(recipe, probe, VALUES[probe], tolerance=0.35 if probe == "truncation" else 0.12)


@pytest.mark.parametrize("recipe", ["casa", "ppo-casa", "r2d2-casa"])
def test_the_loop_that_overlaps_learns_the_same(recipe):
    """Two groups of environments and a learner that go on side by side."""
    for probe, expected in VALUES.items():
        assert_values(recipe, probe, expected, 0.5 if probe == "truncation" else 0.15, "async")
    both = learned(recipe, "async")
    assert both["by-both"].score > 0.75 > 0.6 > both["by-both!"].score


@pytest.mark.parametrize("probe", VALUES)
@pytest.mark.parametrize("recipe", DISCRETE)
def test_controls_have_other_values(recipe, probe):
    """The same assertion fails where the cause of the value was taken away, and the value is the control's own."""
    # A state that the control shows as the probe does, and its value there.
    state, own = {
        "constant": ((1, 0), 0.0),
        "by-observation": ((1, 0), 0.5),
        "delayed": ((-1, 0), 0.0),  # seen as age 0
        "truncation": ((1, 0), 1 / (1 - 4 / 5 * GAMMA)),  # one step of five has no future
    }[probe]
    with pytest.raises(AssertionError):
        assert_values(recipe, f"{probe}!", {state: VALUES[probe][state]}, 0.35 if probe == "truncation" else 0.12)
    assert_values(recipe, f"{probe}!", {state: own}, 0.35)


def best(recipe):
    """The mean score of a recipe's policy where the right action gets 1 and the wrong one 0."""
    if RECIPES[recipe].family == "R2D2":
        return 0.96  # ε-greedy
    row = RECIPES[recipe]
    return CASA_TAU_1 if row["agent.tau"] == 1 and row["agent.head"] == "casa" else 0.99


@pytest.mark.parametrize("probe", ["by-action", "by-both"])
@pytest.mark.parametrize("recipe", DISCRETE)
def test_actions(recipe, probe):
    assert learned(recipe)[probe].score == pytest.approx(best(recipe), abs=0.05)


@pytest.mark.parametrize("probe", ["by-action!", "by-both!"])
@pytest.mark.parametrize("recipe", DISCRETE)
def test_chance_stays_chance(recipe, probe):
    assert learned(recipe)[probe].score == pytest.approx(0.5, abs=0.12)


def settled_q(recipe):
    """(Q of the right action, Q of the wrong one) where rewards are 1 and 0, as the recipe's gradients leave them.

    With L_Q alone Q is the reward. With α₂ L_Q and α₃ J on the CASA head both move A: their sum is still where
    α₂ (Q^ - Q) + α₃ (Q^ - V) is the same for every action, so Q - V is (1 + α₃/α₂) times Q^ - V. Behind ε-greedy play
    J has the factor ρ = min(π/μ, 1), V is close to the right action's value, and the wrong one has -ρ times that.
    """
    row = RECIPES[recipe]
    tau, (_, alpha_2, alpha_3) = row["agent.tau"], row["agent.weights"]
    one = scaled(recipe, 1.0)
    if alpha_3 == 0:
        return one, 0.0
    if row.family == "R2D2":
        mu, wrong = 0.4 ** torch.linspace(1, 8, 1000) / 2, 0.0
        for _ in range(50):
            pi = 1 / (1 + math.exp((one - wrong) / tau))
            wrong = -one * alpha_3 / alpha_2 * float(mu.clamp(max=pi).mean() / mu.mean())
        return one, wrong
    value = CASA_TAU_1 if tau == 1 else one
    factor = 1 + alpha_3 / alpha_2
    return value + factor * (one - value), value + factor * (0 - value)


@pytest.mark.parametrize("recipe", ["r2d2", "r2d2-v1", "r2d2-casa", "casa", "casa-no-dr"])
def test_q_of_both_actions(recipe):
    """The recipes that go on trying both actions know both values: a probe of its own, as the wrong one is rare."""
    system = probe_system(recipe, "by-both", **{"env.num_envs": 64, "data.batch": 32, "steps": 12_000})
    play(system)
    with torch.no_grad():
        out, _ = system.network(torch.tensor([[-1.0, 0.0], [1.0, 0.0]])[None])
    right, wrong = settled_q(recipe)
    # Where π decides, V and with it Q follow the sampled actions of the last batches.
    tolerance = 0.03 if RECIPES[recipe].family == "R2D2" else 0.12
    expected = torch.tensor([[right, wrong], [wrong, right]])
    torch.testing.assert_close(out.q[0], expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("recipe", [name for name in DISCRETE if RECIPES[name]["agent.head"] != "actor-critic"])
def test_q_of_the_right_action(recipe):
    """Whatever else a recipe trains, Q of the action that it takes is what that action brings."""
    right = settled_q(recipe)[0] if RECIPES[recipe].family != "PPO" else 1.0
    for cue in (-1, 1):
        q = learned(recipe)["by-both"].q[cue, 0]
        assert q[cue > 0] == pytest.approx(right, abs=0.25 * scaled(recipe, 1.0))


MEMORY = {
    "net.lstm": 16,
    "net.hidden": 32,
    "env.num_envs": 64,
    "data.batch": 64,
    "data.seq_len": 8,
    "steps": 48_000,
    "learner.lr": 5e-3,
}
"""Four agent steps an episode, and one in which it resets: 60,000 steps of environments."""
WITH_MEMORY = ["ppo", "ppo-casa", "r2d2", "r2d2-casa", "casa", "casa-no-dr", "impala"]


@pytest.mark.parametrize("burn_in", [0, 8])
@pytest.mark.parametrize("recipe", WITH_MEMORY)
def test_memory(recipe, burn_in):
    """The cue is three steps old when it is asked for."""
    if burn_in and RECIPES[recipe].family == "PPO":
        pytest.skip("on-policy data has no burn-in in the paper")
    scores = play(probe_system(recipe, "memory", **MEMORY, **{"data.burn_in": burn_in}))["memory"]
    assert np.mean(scores[-1000:]) == pytest.approx(best(recipe), abs=0.06)


@pytest.mark.parametrize("recipe", WITH_MEMORY)
def test_no_memory_without_an_lstm(recipe):
    scores = play(probe_system(recipe, "memory", **{**MEMORY, "net.lstm": 0}))["memory"]
    assert np.mean(scores[-1000:]) == pytest.approx(0.5, abs=0.06)
