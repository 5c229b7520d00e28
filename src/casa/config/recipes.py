"""The table of agents: each is head x targets x loss weights x behaviour x data, with the paper's hyperparameters.

A recipe sets fields of a run (`fields.py`). It is built from layers: each layer is a table of the paper, or our choice
where the paper gives no value. A row of `_ROWS` shows only what differs from its family. `Recipe.sources` records
where each value comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from casa.config.presets import PRESETS
from casa.errors import unknown
from casa.tables import RECIPES

Family = Literal["PPO", "R2D2", "DR-Trace"]


@dataclass(frozen=True)
class Recipe:
    """An agent: a value for every field of a run that has no default. A step is four frames on Atari.

    `settings` maps dotted fields to values. `base` is the recipe that this one is derived from, if any: the presets of
    `base` apply first, then the overrides `own`.
    """

    name: str
    summary: str
    paper: str
    """The tables and sections that define this row."""
    family: str
    settings: Mapping[str, Any] = field(repr=False)
    sources: Mapping[str, str] = field(repr=False, compare=False)
    """Field -> the paper's table, the preset or the module that its value comes from."""
    base: str = ""
    own: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]


Layer = tuple[str, dict[str, Any]]
"""(where the values come from, dotted field -> value)."""

COMMON: tuple[Layer, ...] = (
    (
        "Table 8",
        {
            "env.num_envs": 160,
            "learner.lr": 5e-4,
            "learner.warmup": 4000,
            "learner.betas": (0.9, 0.98),
            "learner.adam_eps": 1e-6,
            "learner.weight_decay": 0.01,
            "learner.clip_norm": 50.0,
            "learner.publish_every": 25,
            "learner.pull_every": 64,
        },
    ),
    # The paper gives one value of each; only the family that uses a field reads it.
    ("Table 9", {"agent.clip": 0.2, "agent.lam": 0.8}),
    (
        "Table 10",
        {
            "agent.n_step": 5,
            "agent.epsilon_base": 0.4,
            "agent.epsilon_range": (1.0, 8.0),
            "data.priority_exponent": 0.9,
            "data.replay_frames": 400_000,
        },
    ),
    ("Table 11", {"agent.rho_bar": 1.05, "agent.c_bar": 1.05}),
    ("Section 4.1", {"agent.entropy_cost": 0.0}),
    ("published R2D2", {"data.importance_exponent": 0.6, "data.eta": 0.9, "learner.target_period": 2500}),
    # 50M steps are 200M frames, as in the score tables; min_fill is 5% of the buffer, as in DQN.
    ("choice", {"net.hidden": 256, "data.min_fill": 20_000, "steps": 50_000_000, "agent.value_rescale": False}),
)

FAMILIES: dict[Family, Layer] = {
    "PPO": (
        "Table 9",
        {
            "agent.targets": "gae",
            "agent.policy_loss": "clip",
            "agent.behaviour": "sample",
            "agent.tau": 0.1,
            "agent.discount": 0.995,
            "agent.reward": "clip01",
            "data.kind": "on-policy",
            "data.reuse": 1,
            "data.burn_in": 0,
            "data.seq_len": 40,
            "data.batch": 8,
            "net.images": "impala-shallow",
            "net.lstm": 0,
        },
    ),
    "R2D2": (
        "Table 10",
        {
            "agent.targets": "n-step-q",
            "agent.policy_loss": "none",
            "agent.behaviour": "epsilon-greedy",
            "agent.tau": 0.1,
            "agent.discount": 0.997,
            "agent.reward": "raw",
            "agent.value_rescale": True,
            "data.kind": "prioritized",
            "data.reuse": 2,
            "data.burn_in": 0,
            "data.seq_len": 40,
            "data.batch": 8,
            "net.images": "impala-shallow",
            "net.lstm": 0,
        },
    ),
    "DR-Trace": (
        "Table 11",
        {
            "agent.head": "casa",
            "agent.targets": "dr-trace",
            "agent.weights": (1.0, 10.0, 10.0),
            "agent.policy_loss": "score",
            "agent.behaviour": "sample",
            "agent.tau": 1.0,
            "agent.discount": 0.997,
            "agent.reward": "log",
            "data.kind": "fifo",
            "data.reuse": 2,
            "data.burn_in": 40,
            "data.seq_len": 80,
            "data.batch": 64,
            "net.images": "impala-deep",
            "net.lstm": 256,
        },
    ),
}


def _row(
    name: str, summary: str, paper: str, family: Family, *, layers: tuple[Layer, ...] = (), **agent: Any
) -> Recipe:
    """settings = COMMON < the family's table < `layers` < the row's arguments.

    A field's source is the last layer that sets it.
    """
    settings: dict[str, Any] = {}
    sources: dict[str, str] = {}
    own = {f"agent.{field}": value for field, value in agent.items()}
    for source, layer in (*COMMON, FAMILIES[family], *layers, (paper, own)):
        settings |= layer
        sources |= dict.fromkeys(layer, source)
    return Recipe(name, summary, paper, family, settings, sources)


_ALL_THREE = (0.5, 1.0, 1.0)

_IMPALA: dict[str, Any] = {
    "head": "actor-critic",
    "targets": "vtrace",
    "weights": (0.5, 0.0, 1.0),
    "entropy_cost": 0.01,
    "rho_bar": 1.0,
    "c_bar": 1.0,
}
"""The objective of IMPALA as published."""

_ROWS = (
    _row("ppo", "PPO", "Tables 2, 5", "PPO", head="actor-critic", weights=(0.5, 0.0, 1.0)),
    _row("ppo-v1", "PPO with V the mean of Q", "Table 5", "PPO", head="q-critic", weights=(0.5, 0.0, 1.0)),
    _row("ppo-v2", "ppo-v1 that trains Q too", "Table 5", "PPO", head="q-critic", weights=_ALL_THREE),
    _row("ppo-casa", "PPO on the CASA head", "Tables 2, 3, 5", "PPO", head="casa", weights=_ALL_THREE),
    _row("ppo-type1", "ppo-casa without sg(π)", "Table 3", "PPO", head="type1", weights=_ALL_THREE),
    _row("ppo-type2", "ppo-casa without sg(V)", "Table 3", "PPO", head="type2", weights=_ALL_THREE),
    _row("ppo-type3", "dueling Q with sg(V)", "Table 3", "PPO", head="type3", weights=_ALL_THREE),
    _row("ppo-type4", "dueling Q", "Table 3", "PPO", head="type4", weights=_ALL_THREE),
    _row("ppo-type5", "a head of its own for Q", "Table 3", "PPO", head="type5", weights=_ALL_THREE),
    # The other cure for conflicting gradients: the same agent as ppo, its gradients projected.
    _row(
        "ppo-pcgrad",
        "PPO, conflicts projected away",
        "published PCGrad",
        "PPO",
        head="actor-critic",
        weights=(0.5, 0.0, 1.0),
        gradients="pcgrad",
    ),
    # What the field trains on continuous actions.
    _row("ppo-gaussian", "PPO, continuous actions", "published PPO", "PPO", head="gaussian", weights=(0.5, 0.0, 1.0)),
    _row("r2d2", "R2D2; π is a surrogate", "Tables 2, 6", "R2D2", head="dueling", weights=(0.0, 1.0, 0.0)),
    _row("r2d2-v1", "r2d2 that trains V too", "Table 6", "R2D2", head="dueling", weights=(0.5, 1.0, 0.0)),
    _row(
        "r2d2-casa",
        "R2D2 on the CASA head",
        "Tables 2, 6",
        "R2D2",
        head="casa",
        weights=_ALL_THREE,
        policy_loss="score",
    ),
    # Each row above has the paper's data and network; this one has its own publication's, the score tables' Rainbow.
    _row(
        "rainbow",
        "distributional Q-learning",
        "published Rainbow",
        "R2D2",
        layers=(
            (
                "published Rainbow",
                {
                    "data.priority_exponent": 0.5,
                    "data.importance_exponent": 0.4,
                    "data.importance_anneal": True,
                    "data.replay_frames": 1_000_000,
                    "data.min_fill": 20_000,
                    "data.reuse": 8,  # 32 transitions are learned from for each 4 new ones
                    "net.images": "nature-conv",
                    "net.hidden": 512,
                    "net.noise": 0.5,
                    "learner.lr": 6.25e-5,
                    "learner.warmup": 0,
                    "learner.betas": (0.9, 0.999),
                    "learner.adam_eps": 1.5e-4,
                    "learner.weight_decay": 0.0,
                    "learner.target_period": 2_000,  # 8,000 agent steps
                },
            ),
            # 32 transitions are 8 sequences of 4; the publication draws single transitions and acts in one environment.
            (
                "choice",
                {
                    "data.seq_len": 4,
                    "data.batch": 8,
                    "learner.clip_norm": 10.0,
                    "learner.publish_every": 4,
                    "learner.pull_every": 1,
                },
            ),
        ),
        head="categorical",
        targets="n-step-categorical",
        weights=(0.0, 1.0, 0.0),
        behaviour="greedy",
        atoms=51,
        support=(-10.0, 10.0),
        discount=0.99,
        reward="clip",
        value_rescale=False,
        n_step=3,
    ),
    _row("casa", "CASA with DR-Trace", "Table 1, Section 4.4", "DR-Trace"),
    _row(
        "casa-no-dr",
        "casa with V-Trace and ReTrace",
        "Table 1, Figure 5",
        "DR-Trace",
        targets="vtrace+retrace",
    ),
    # The paper trains without entropy regularisation but quotes IMPALA's published scores. This row combines the
    # published objective, entropy included, with the data, network and rewards of `casa`.
    _row(
        "impala",
        "what casa is a variant of",
        "published IMPALA",
        "DR-Trace",
        **_IMPALA,
    ),
    # The data of the publication's single agent, with IMPALA's objective, which it takes over. Optimizer, network and
    # rewards are those of `impala` above.
    _row(
        "laser",
        "impala with replay",
        "published LASER",
        "DR-Trace",
        layers=(
            (
                "published LASER",
                {
                    "data.kind": "mixed",
                    "data.reuse": 8,
                    "data.seq_len": 19,
                    "data.batch": 128,
                    "data.replay_frames": 15_000_000,
                },
            ),
            ("choice", {"agent.trust_region": 0.3}),
        ),
        **_IMPALA,
        discount=0.99,
    ),
    # Ours: the objective of `casa` on the data of `laser`, with more and smaller updates (docs/training.md).
    _row(
        "casa-plus",
        "casa with replay, more updates",
        "choice",
        "DR-Trace",
        layers=(("choice", {"data.kind": "mixed", "data.reuse": 8, "agent.trust_region": 0.3}),),
    ),
)

for _recipe in _ROWS:
    RECIPES.add(_recipe.name, _recipe, __name__)


def source_of(preset: str) -> str:
    """What `Recipe.sources` says of a value that the preset sets."""
    return f"{preset} preset"


def get(name: str, preset: str = "paper") -> Recipe:
    """RECIPES[name] with PRESETS[preset][family] and then PRESETS[preset][name] applied; "paper" changes nothing.

    A derived recipe takes the presets of its base first, then its own overrides.
    """
    recipe: Recipe = RECIPES[name]
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    if recipe.base:
        base = get(recipe.base, preset)
        return replace(
            recipe,
            settings={**base.settings, **recipe.own},
            sources={**base.sources, **dict.fromkeys(recipe.own, recipe.paper)},
        )
    changes = {**PRESETS[preset].get(recipe.family, {}), **PRESETS[preset].get(name, {})}
    sources = {**recipe.sources, **dict.fromkeys(changes, source_of(preset))}
    return replace(recipe, settings={**recipe.settings, **changes}, sources=sources)


def derive(name: str, base: str, summary: str, origin: str, settings: Mapping[str, Any]) -> Recipe:
    """A recipe that differs from `base` in `settings` (dotted field -> value), defined in the module `origin`."""
    parent = get(base)
    return Recipe(
        name,
        summary,
        paper=origin,
        family=parent.family,
        settings={**parent.settings, **settings},
        sources={**parent.sources, **dict.fromkeys(settings, origin)},
        base=base,
        own=dict(settings),
    )
