"""Presets: overrides that adapt a recipe to a machine.

`paper` changes nothing. A preset is a table: family or recipe -> dotted field -> value.
"""

from __future__ import annotations

from typing import Any

_EIGHTH_NEW: dict[str, Any] = {"data.reuse": 8, "data.batch": 16}
"""Batches of two new sequences and fourteen old ones: as many learner steps as reuse 4 with batches of 8."""

# Rewards in units of the return's spread, L_Q and J in units of the advantages': the size of a policy step depends on
# neither the game's rewards nor tau. Many small updates; each transition is used four times.
_IMAGES: dict[str, Any] = {
    # Fewer actions to learn, and no value to carry across a death: both are learned sooner.
    "env.full_action_space": False,
    "env.terminal_lives": True,
    "agent.reward": "raw",
    "agent.reward_scale": "return",
    "agent.advantage_unit": "tau",
    "agent.advantage_norm": True,
    "agent.policy_loss": "clip",  # bounds the policy step, without which four uses of a transition are too many
    "agent.entropy_cost": 0.003,  # with 0.01 and long traces the policy stays near uniform in YarsRevenge
    "agent.tau": 0.02,
    "agent.weights": (0.5, 0.1, 1.0),
    "agent.discount": 0.99,
    "net.head_layers": 1,
    "net.lstm": 0,
    "data.burn_in": 0,
    "data.seq_len": 32,
    "data.reuse": 4,
    "learner.warmup": 100,
    "learner.betas": (0.9, 0.999),
    "learner.adam_eps": 1e-5,
    "learner.weight_decay": 0.0,
    "learner.clip_norm": 0.5,
    "learner.publish_every": 4,
}
_NO_Q: dict[str, Any] = {"agent.weights": (0.5, 0.0, 1.0)}

# A small network needs, and allows, smaller batches and a larger learning rate.
_TWO_CORES: dict[str, Any] = {
    **_IMAGES,
    "net.images": "impala-shallow",
    "env.num_envs": 32,  # data is at least num_envs · reuse / batch learner steps old: more envs, more staleness
    "data.batch": 4,
    "data.rollout": 32,
    "learner.lr": 1e-3,
    "learner.pull_every": 32,
    "steps": 1_000_000,
}

_OLD_AND_NEW: dict[str, Any] = {
    "data.reuse": 8,
    "data.batch": 8,
    "data.replay_frames": 100_000,
    "data.min_fill": 5_000,
}

# Explore much at first and little in the end. Lost lives are terminal and the discount is that of the other families.
_REPLAY_IMAGES: dict[str, Any] = {
    "env.terminal_lives": True,
    "agent.discount": 0.99,
    "agent.epsilon_decay": 0.05,
}
_AS_PUBLISHED: dict[str, Any] = {"env.terminal_lives": False}

LAPTOP: dict[str, dict[str, Any]] = {
    "PPO": _TWO_CORES,
    "R2D2": {
        **_REPLAY_IMAGES,
        "net.images": "impala-shallow",
        "net.lstm": 0,
        "data.burn_in": 0,
        "env.num_envs": 32,
        "data.seq_len": 20,
        # A run of minutes sees 1% of the paper's data: more updates from smaller batches, more reuse, a larger lr.
        "data.batch": 8,
        "data.reuse": 4,
        "data.replay_frames": 100_000,
        "data.min_fill": 5_000,
        "learner.lr": 1e-3,
        "learner.warmup": 100,
        "learner.target_period": 250,
        "learner.publish_every": 5,
        "learner.pull_every": 10,
        "steps": 1_000_000,
    },
    "DR-Trace": {**_TWO_CORES, "agent.c_bar": 0.8},  # shorter traces: less variance of the advantages
    **dict.fromkeys(("ppo", "ppo-v1", "ppo-pcgrad", "ppo-gaussian", "impala"), _NO_Q),
    "laser": {**_NO_Q, **_OLD_AND_NEW},
    "casa-plus": _OLD_AND_NEW,
    "rainbow": {**_AS_PUBLISHED, "net.hidden": 256, "learner.lr": 2.5e-4},
}

_ONE_GPU: dict[str, Any] = {
    **_IMAGES,
    "net.images": "impala-deep",
    "env.num_envs": 32,
    "data.batch": 8,
    "data.rollout": 32,
    "learner.lr": 2.5e-4,
    "learner.pull_every": 8,
    "steps": 10_000_000,
}

GPU: dict[str, dict[str, Any]] = {
    "PPO": _ONE_GPU,
    # Values go through h, so their errors are small in games with small rewards: Adam's ε must be far below the
    # gradient, and the target network must follow within some 10,000 agent steps.
    "R2D2": {
        **_REPLAY_IMAGES,
        "net.images": "impala-norm",
        "env.num_envs": 64,
        "data.seq_len": 16,
        "data.batch": 16,
        "data.reuse": 4,
        "learner.lr": 2.5e-4,
        "learner.warmup": 100,
        "learner.betas": (0.9, 0.999),
        "learner.adam_eps": 1e-8,
        "learner.weight_decay": 0.0,
        "learner.clip_norm": 10.0,
        "learner.target_period": 150,
        "learner.publish_every": 4,
        "learner.pull_every": 8,
        "steps": 10_000_000,
    },
    "DR-Trace": {**_ONE_GPU, "agent.c_bar": 0.9},
    **dict.fromkeys(("ppo", "ppo-v1", "ppo-pcgrad", "ppo-gaussian", "impala"), _NO_Q),
    "laser": {**_NO_Q, **_EIGHTH_NEW, "data.replay_frames": 1_000_000},
    "rainbow": {**_AS_PUBLISHED, "net.images": "impala-deep", "net.hidden": 256, "learner.adam_eps": 1.5e-4},
    "casa-plus": {**_EIGHTH_NEW, "data.replay_frames": 1_000_000},
}

_UNCLIPPED: dict[str, Any] = {"agent.reward": "raw", "learner.betas": (0.9, 0.98)}
"""For `rainbow`, whose atoms are then in units of the return's spread."""

_VECTORS: dict[str, Any] = {
    # A step of a small network costs less than handing it to another thread, or to a GPU.
    "mode": "sync",
    "device": "cpu",
    "agent.reward": "raw",
    "agent.reward_scale": "return",
    "agent.advantage_unit": "tau",
    "agent.discount": 0.99,
    "net.backbone": "mlp-tanh",
    "net.head_layers": 1,
    "net.hidden": 64,
    "net.lstm": 0,
    "net.obs_norm": True,
    "data.burn_in": 0,
    "learner.lr": 1e-3,
    "learner.warmup": 10,
    "learner.betas": (0.9, 0.999),
    "learner.adam_eps": 1e-5,
    "learner.weight_decay": 0.0,
    "learner.clip_norm": 0.5,
    "steps": 200_000,
}

_MORE_UPDATES: dict[str, Any] = {
    "env.num_envs": 16,
    "data.seq_len": 16,
    "data.batch": 16,
    "data.reuse": 16,
    "data.min_fill": 1_000,
    "learner.publish_every": 4,
    "learner.pull_every": 4,
}
"""For mixed data: twice as many updates per step as `casa` makes, each on one new sequence and 15 old ones."""

_EIGHT_USES: dict[str, Any] = {"agent.discount": 0.995, "agent.trust_region": 0.3}
"""For eight uses of each step (results/learning/annealing)."""

CLASSIC: dict[str, dict[str, Any]] = {
    # Whole rollouts under one policy, each used ten times, as PPO is usually run on such environments.
    "PPO": {
        **_VECTORS,
        "agent.lam": 0.95,
        "agent.tau": 0.02,
        "agent.weights": (0.5, 1.0, 10.0),
        "env.num_envs": 8,
        "data.seq_len": 64,
        "data.batch": 2,
        "data.rollout": 8,
        "data.reuse": 10,
        "learner.lr": 3e-4,
        "learner.publish_every": 40,
        "learner.pull_every": 64,
    },
    # Many small updates, a target network that follows quickly, and an ε that falls. Rewards in units of the return's
    # spread instead of values through h.
    "R2D2": {
        "mode": "sync",
        "device": "cpu",
        "agent.reward_scale": "return",
        "agent.value_rescale": False,
        "agent.discount": 0.99,
        "agent.epsilon_range": (2.0, 8.0),
        "agent.epsilon_decay": 0.02,
        "net.backbone": "mlp-tanh",
        "net.head_layers": 1,
        "net.hidden": 64,
        "net.obs_norm": True,
        "env.num_envs": 8,
        "data.seq_len": 5,
        "data.batch": 32,
        "data.reuse": 16,
        # A solved CartPole has no failures: when those of the beginning leave the replay, the agent forgets them.
        "data.replay_frames": 400_000,
        "data.min_fill": 1_000,
        "learner.lr": 2e-3,
        "learner.warmup": 50,
        "learner.adam_eps": 1e-8,
        "learner.weight_decay": 0.0,
        "learner.target_period": 20,
        "learner.publish_every": 4,
        "learner.pull_every": 4,
        "steps": 200_000,
    },
    # A settles at (1 + w_π / w_q) times the advantage, so the policy has the temperature τ / 11.
    "DR-Trace": {
        **_VECTORS,
        "agent.tau": 0.02,
        "agent.weights": (1.0, 10.0, 100.0),
        "agent.c_bar": 0.98,
        "env.num_envs": 64,
        "data.seq_len": 32,
        "data.batch": 8,
        "data.reuse": 8,
        "data.replay_frames": 50_000,
        "data.min_fill": 2_000,
        "learner.publish_every": 32,
        "learner.pull_every": 32,
    },
    "laser": {"agent.weights": (0.5, 0.0, 1.0), "agent.c_bar": 1.0, **_EIGHTH_NEW},
    "impala": {"agent.weights": (0.5, 0.0, 1.0), "agent.c_bar": 1.0, **_EIGHT_USES},
    **dict.fromkeys(("casa", "casa-no-dr"), _EIGHT_USES),
    # With tanh features and smaller steps LunarLander was not learned (docs/training.md).
    "rainbow": {
        **_UNCLIPPED,
        "net.backbone": "mlp-norm",
        "net.hidden": 128,
        "learner.lr": 3e-3,
        "data.replay_frames": 100_000,
    },
    "casa-plus": {**_MORE_UPDATES, "agent.discount": 0.995},
    **{name: {"agent.weights": (0.5, 0.0, 1.0)} for name in ("ppo", "ppo-v1", "ppo-pcgrad", "ppo-gaussian")},
    "ppo-v2": {"agent.weights": (0.5, 1.0, 1.0)},
}
"""Vector observations: the reward's unit does not matter, and neither does the observations'."""

_CELLS: dict[str, Any] = {
    **_VECTORS,
    "net.backbone": "grid",
    "net.hidden": 256,
    # A settles at 3 times the advantage: with tau / 3 the policy is softer than that of `classic`, and explores longer.
    "agent.advantage_norm": True,
    "agent.policy_loss": "clip",
    "agent.entropy_cost": 0.01,
    "agent.tau": 0.1,
    "agent.tau_decay": 0.1,  # in the end a detour of a few steps in MiniGrid is worth avoiding
    "agent.weights": (0.5, 0.5, 1.0),
    "env.num_envs": 16,
    "data.seq_len": 32,
    "data.batch": 4,
    "data.rollout": 16,
    "data.reuse": 4,
    "learner.publish_every": 16,
    "learner.pull_every": 32,
}

_MORE_ENTROPY: dict[str, Any] = {"agent.entropy_cost": 0.03}
"""For heads whose logits no advantage bounds."""

GRID: dict[str, dict[str, Any]] = {
    "PPO": {**_CELLS, "agent.lam": 0.8},
    "R2D2": {
        **CLASSIC["R2D2"],
        "net.backbone": "grid",
        "net.hidden": 128,
        # The larger batches and the longer replay of `classic` have not been tried on grids.
        "data.batch": 16,
        "data.reuse": 8,
        "data.replay_frames": 50_000,
    },
    "DR-Trace": {**_CELLS, "agent.c_bar": 0.8, "data.replay_frames": 50_000, "data.min_fill": 2_000},
    **{name: {**_NO_Q, **_MORE_ENTROPY} for name in ("ppo", "ppo-v1", "ppo-pcgrad", "ppo-gaussian", "impala")},
    "ppo-v2": _MORE_ENTROPY,
    "laser": {**_NO_Q, **_MORE_ENTROPY, "data.reuse": 8, "data.batch": 8},
    "rainbow": _UNCLIPPED,
    # PPO's clipping would stop at replayed data, whose π/μ is far from 1.
    "casa-plus": {**_MORE_UPDATES, "agent.policy_loss": "score", "net.hidden": 128},
}
"""Small grids of pixels or symbols (MinAtar, MiniGrid): as `classic`, with a convolution."""

_CONTROL: dict[str, Any] = {
    # One action changes the return by little, so that advantages are small: they are normalised, and τ is low. A
    # settles at 11 times the advantage. It is smooth in the action: what is learned of one helps its neighbours.
    "agent.advantage_norm": True,
    "agent.advantage_centre": True,
    "agent.tau": 0.004,
    "agent.kernel": "polynomial",
    "agent.knots": 4,
    "agent.weights": (0.5, 0.1, 1.0),
    "agent.policy_loss": "clip",
    "net.initial_std": 0.6,
    "net.value_backbone": True,  # HalfCheetah and Walker2d return more than with shared features (docs/continuous.md)
    # PPO's usual epochs: 2,048 steps, ten times, in shuffled minibatches of 256.
    "env.num_envs": 16,
    "data.seq_len": 32,
    "data.batch": 8,
    "data.rollout": 64,
    "data.reuse": 10,
    "learner.lr": 1e-3,
    "learner.publish_every": 80,
    "learner.pull_every": 1,
    "steps": 1_000_000,
}

CONTINUOUS: dict[str, dict[str, Any]] = {
    "PPO": {**CLASSIC["PPO"], **_CONTROL},
    "R2D2": {
        **CLASSIC["R2D2"],
        "agent.reward_scale": "none",
        "agent.value_rescale": True,
        # The maximum over several dimensions adds up errors: bootstrap from E_π[Q], with bounded features.
        "agent.targets": "n-step-expected-q",
        "agent.tau": 0.03,
        "agent.epsilon_range": (2.0, 8.0),
        "agent.epsilon_decay": 1.0,
        "net.backbone": "mlp-norm",
        "net.hidden": 256,
        "data.batch": 48,
        "data.reuse": 32,
        "data.replay_frames": 1_000_000,
        "data.min_fill": 5_000,
        "learner.lr": 1e-3,
        "learner.target_period": 100,
        "steps": 1_000_000,
    },
    "DR-Trace": {**CLASSIC["DR-Trace"], **_CONTROL, "agent.c_bar": 0.95},
    **dict.fromkeys(("ppo", "ppo-pcgrad", "ppo-gaussian", "impala"), _NO_Q),
    # Their V is E_π[Q]: there is no V output to separate.
    "ppo-v1": {**_NO_Q, "net.value_backbone": False},
    "ppo-v2": {"net.value_backbone": False},
    # Batches of as many transitions as the family's: one new sequence and seven replayed ones.
    "laser": {**_NO_Q, "data.reuse": 8, "learner.publish_every": 8},
    # Its head is for a single discrete action, and an environment with others is refused.
    "rainbow": {"agent.targets": "n-step-categorical"},
    "casa-plus": {"data.reuse": 8, "learner.publish_every": 8},
}
"""Vector observations and continuous actions."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "gpu": GPU,
    "laptop": LAPTOP,
    "classic": CLASSIC,
    "grid": GRID,
    "continuous": CONTINUOUS,
}
"""Preset -> family or recipe name -> overrides; a recipe's overrides are applied after its family's."""

RECOMMENDED = {"continuous": "ppo-casa"}
"""Preset -> the recipe that runs if none is named; `casa` with the others."""
