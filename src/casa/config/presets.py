"""Presets: what changes in a recipe to fit it to a machine.

`paper` changes nothing. A preset is a table: family or recipe -> dotted field -> value.
"""

from __future__ import annotations

from typing import Any

_TWO_CORES: dict[str, Any] = {
    "net.images": "impala-shallow",
    "net.lstm": 0,
    "data.burn_in": 0,
    "env.num_envs": 32,  # the data is num_envs · reuse / batch learner steps old, at least: more would make it stale
    "data.seq_len": 20,
    # A run of minutes sees a hundredth of the paper's data: it needs more and smaller updates, and larger ones.
    "data.batch": 8,
    "data.reuse": 4,
    "learner.lr": 1e-3,
    "learner.warmup": 100,
    "learner.publish_every": 5,
    "learner.pull_every": 10,
    "steps": 1_000_000,
}

LAPTOP: dict[str, dict[str, Any]] = {
    "PPO": _TWO_CORES,
    "R2D2": {**_TWO_CORES, "data.replay_frames": 100_000, "data.min_fill": 5_000, "learner.target_period": 250},
    # With tau = 1 softmax(A / tau) of the small advantages of a short run is flat; shorter traces and a shorter
    # horizon estimate those advantages with less noise.
    "DR-Trace": {**_TWO_CORES, "agent.tau": 0.1, "agent.c_bar": 0.8, "agent.discount": 0.99},
    # Nothing but their size holds logits back: without a price on entropy it collapses within 200,000 steps.
    **{name: {"learner.lr": 5e-4, "agent.entropy_cost": 0.01} for name in ("ppo", "ppo-v1", "ppo-v2")},
}

GPU: dict[str, dict[str, Any]] = {
    # softmax(2 A / tau) is flat for tens of millions of frames with tau = 1; and a learner step for every 2,560 agent
    # steps, of which the first 4,000 are warm-up, is little for a run of minutes.
    "DR-Trace": {
        "agent.tau": 0.1,
        "agent.c_bar": 0.8,
        "agent.discount": 0.99,
        "data.burn_in": 20,
        "data.seq_len": 20,
        "data.batch": 32,
        "learner.lr": 1e-3,
        "learner.warmup": 400,
        "learner.publish_every": 5,
        "learner.pull_every": 10,
        "steps": 10_000_000,
    },
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"paper": {}, "gpu": GPU, "laptop": LAPTOP}
"""Preset -> family or recipe name -> what it changes; a recipe's own entry comes after its family's."""
