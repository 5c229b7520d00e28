"""Small systems that train in a second, and how they are run."""

from collections import defaultdict

from casa.config.load import make_config
from casa.config.recipes import RECIPES
from casa.engines.build import build_system
from casa.engines.loops import LOOPS
from casa.heads import HEADS
from tests.support.probes import LADDER, ProbeVec

SMALL = {
    "preset": "paper",
    "device": "cpu",
    "precision": "fp32",
    "env.num_envs": 96,
    "agent.discount": 0.8,
    "agent.reward": "raw",
    "net.hidden": 64,
    "net.lstm": 0,
    "data.seq_len": 4,
    "data.burn_in": 0,
    "data.batch": 96,
    "data.reuse": 2,
    "data.min_fill": 256,
    "data.replay_frames": 8000,
    "learner.lr": 1e-2,
    "learner.warmup": 5,
    "learner.weight_decay": 0,
    "learner.publish_every": 1,
    "learner.pull_every": 1,
    "learner.target_period": 10,
}
"""Any recipe on the probes: rewards as they are, γ = 0.8, a small network, weights exchanged at once."""


def small_config(recipe, **changes):
    return make_config({**SMALL, "recipe": recipe, **changes})


def probe_system(recipe, names=LADDER, groups=1, **changes):
    """A system of a recipe on probes, ready to be run."""
    config = small_config(recipe, **changes)
    system = build_system(config, groups, env_factory=lambda _, count, seed: ProbeVec(names, count, seed))
    system.begin()
    return system


def play(system, mode="sync"):
    """Run a system on probes to its end: scores of the episodes of each probe, in order."""
    names = system.envs[0].names
    scores = defaultdict(list)
    for progress in LOOPS[mode](system):
        for episode in progress.episodes:
            scores[names[episode.env % len(names)]].append(episode.score)
    return scores


GAUSSIAN = [name for name, head in HEADS.items() if "log_std" in head.outputs]
"""The heads that are for a Box alone."""
ATOMS = [name for name, head in HEADS.items() if head.takes_support]
"""The heads that are for a single choice alone, with a distribution of returns."""
DISCRETE = [name for name, row in RECIPES.items() if row["agent.head"] not in GAUSSIAN]
"""The recipes that act in the probes and in CartPole."""
