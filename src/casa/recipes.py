"""An agent is a row: head x targets x gradient weights x behaviour x data, with the paper's hyperparameters.

A row is built from layers, each a table of the paper (or a choice where the paper is silent): it shows only
what differs from its family, and every value knows where it comes from (`Recipe.sources`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from casa.errors import unknown

Family = Literal["PPO", "R2D2", "DR-Trace"]
Preset = Literal["paper", "gpu", "laptop"]
HeadName = Literal["actor-critic", "q-critic", "casa", "type1", "type2", "type3", "type4", "type5", "dueling"]
TargetsName = Literal["gae", "n-step-q", "dr-trace", "vtrace+retrace", "vtrace"]
PolicyLoss = Literal["none", "score", "clip"]
Behaviour = Literal["sample", "epsilon-greedy"]
DataKind = Literal["on-policy", "fifo", "prioritized"]
RewardShape = Literal["clip01", "raw", "log"]
ImageBackbone = Literal["impala-shallow", "impala-deep"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One agent of the paper with all its hyperparameters; steps are agent steps, one step is four frames."""

    name: str
    summary: str
    paper: str
    """The tables and sections that define this row."""
    family: Family

    head: HeadName
    """Key of `casa.heads.HEADS`."""
    targets: TargetsName
    weights: tuple[float, float, float]
    """(α1, α2, α3) of L_V, L_Q and J (eq. 9)."""
    policy_loss: PolicyLoss
    entropy_cost: float
    behaviour: Behaviour
    tau: float
    discount: float
    reward: RewardShape
    """clip01: clip(r, 0, 1); log: log(|r| + 1) x (2 if r >= 0 else -1)."""
    value_rescale: bool
    """Targets through h(x) = sign(x)(√(|x| + 1) - 1) + 1e-3 x."""
    lam: float
    clip: float
    rho_bar: float
    c_bar: float
    n_step: int
    epsilon_base: float
    epsilon_range: tuple[float, float]
    """ε of each environment is base^u with u uniform on this range."""

    data: DataKind
    reuse: int
    """How often a sample is used, on average."""
    burn_in: int
    """Steps before the sequence, unrolled from the stored state without gradient or loss."""
    seq_len: int
    batch: int
    """Sequences a learner step."""
    replay_frames: int
    min_fill: int
    """Steps in the buffer before learning starts."""
    priority_exponent: float
    importance_exponent: float
    eta: float
    """Priority of a sequence is eta max|δ| + (1 - eta) mean|δ|."""

    backbone: ImageBackbone
    """For images; vector and grid observations have networks of their own."""
    lstm: int
    """Units, 0 = none."""
    hidden: int
    """Width of the backbone's features and of each head's first fully connected layer."""

    steps: int
    num_envs: int
    lr: float
    warmup: int
    betas: tuple[float, float]
    adam_eps: float
    weight_decay: float
    clip_norm: float
    target_period: int
    publish_every: int
    pull_every: int

    sources: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Field -> the paper's table, or the choice, that its value comes from."""

    @property
    def frames(self) -> int:
        """frames = 4 x steps: the paper repeats every action four times."""
        return 4 * self.steps


Layer = tuple[str, dict[str, Any]]
"""(where the values come from, field -> value)."""

COMMON: tuple[Layer, ...] = (
    (
        "Table 8",
        {
            "num_envs": 160,
            "lr": 5e-4,
            "warmup": 4000,
            "betas": (0.9, 0.98),
            "adam_eps": 1e-6,
            "weight_decay": 0.01,
            "clip_norm": 50.0,
            "publish_every": 25,
            "pull_every": 64,
        },
    ),
    # The paper prints one value of each; only the family that uses it reads it.
    ("Table 9", {"clip": 0.2, "lam": 0.8}),
    (
        "Table 10",
        {
            "n_step": 5,
            "epsilon_base": 0.4,
            "epsilon_range": (1.0, 8.0),
            "priority_exponent": 0.9,
            "replay_frames": 400_000,
        },
    ),
    ("Table 11", {"rho_bar": 1.05, "c_bar": 1.05}),
    ("Section 4.1", {"entropy_cost": 0.0}),
    ("published R2D2", {"importance_exponent": 0.6, "eta": 0.9, "target_period": 2500}),
    # 50M steps are 200M frames, the benchmark of the score tables; 5% of the buffer is DQN's rule.
    ("choice", {"hidden": 256, "min_fill": 20_000, "steps": 50_000_000, "value_rescale": False}),
)

FAMILIES: dict[Family, Layer] = {
    "PPO": (
        "Table 9",
        {
            "targets": "gae",
            "policy_loss": "clip",
            "behaviour": "sample",
            "tau": 0.1,
            "discount": 0.995,
            "reward": "clip01",
            "data": "on-policy",
            "reuse": 1,
            "burn_in": 0,
            "seq_len": 40,
            "batch": 8,
            "backbone": "impala-shallow",
            "lstm": 0,
        },
    ),
    "R2D2": (
        "Table 10",
        {
            "targets": "n-step-q",
            "policy_loss": "none",
            "behaviour": "epsilon-greedy",
            "tau": 0.1,
            "discount": 0.997,
            "reward": "raw",
            "value_rescale": True,
            "data": "prioritized",
            "reuse": 2,
            "burn_in": 0,
            "seq_len": 40,
            "batch": 8,
            "backbone": "impala-shallow",
            "lstm": 0,
        },
    ),
    "DR-Trace": (
        "Table 11",
        {
            "head": "casa",
            "targets": "dr-trace",
            "weights": (1.0, 10.0, 10.0),
            "policy_loss": "score",
            "behaviour": "sample",
            "tau": 1.0,
            "discount": 0.997,
            "reward": "log",
            "data": "fifo",
            "reuse": 2,
            "burn_in": 40,
            "seq_len": 80,
            "batch": 64,
            "backbone": "impala-deep",
            "lstm": 256,
        },
    ),
}


def _row(name: str, summary: str, paper: str, family: Family, **own: Any) -> Recipe:
    """values = COMMON < the family's table < the row's own; the last one that names a field is its source."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in (*COMMON, FAMILIES[family], (paper, own)):
        values |= layer
        sources |= dict.fromkeys(layer, source)
    return Recipe(name=name, summary=summary, paper=paper, family=family, sources=sources, **values)


_ALL_THREE = (0.5, 1.0, 1.0)

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
    _row("casa", "CASA with DR-Trace", "Table 1, Section 4.4", "DR-Trace"),
    _row(
        "casa-no-dr",
        "casa with V-Trace and ReTrace",
        "Table 1, Figure 5",
        "DR-Trace",
        targets="vtrace+retrace",
    ),
    # The paper trains without entropy regularisation, but quotes IMPALA's published scores: this row has the
    # published objective, entropy included, on the data, network and rewards that `casa` uses.
    _row(
        "impala",
        "what casa is a variant of",
        "published IMPALA",
        "DR-Trace",
        head="actor-critic",
        targets="vtrace",
        weights=(0.5, 0.0, 1.0),
        entropy_cost=0.01,
        rho_bar=1.0,
        c_bar=1.0,
    ),
)

RECIPES: dict[str, Recipe] = {row.name: row for row in _ROWS}

_TWO_CORES: dict[str, Any] = {
    "backbone": "impala-shallow",
    "lstm": 0,
    "burn_in": 0,
    "num_envs": 32,  # the data is num_envs · reuse / batch learner steps old, at least: more would make it stale
    "seq_len": 20,
    # A run of minutes sees a hundredth of the paper's data: it needs more and smaller updates, and larger ones.
    "batch": 8,
    "reuse": 4,
    "lr": 1e-3,
    "warmup": 100,
    "publish_every": 5,
    "pull_every": 10,
    "steps": 1_000_000,
}

LAPTOP: dict[str, dict[str, Any]] = {
    "PPO": _TWO_CORES,
    "R2D2": {**_TWO_CORES, "replay_frames": 100_000, "min_fill": 5_000, "target_period": 250},
    # With tau = 1 softmax(A / tau) of the small advantages of a short run is flat; shorter traces and a shorter
    # horizon estimate those advantages with less noise.
    "DR-Trace": {**_TWO_CORES, "tau": 0.1, "c_bar": 0.8, "discount": 0.99},
    # Nothing but their size holds logits back: without a price on entropy it collapses within 200,000 steps.
    **{name: {"lr": 5e-4, "entropy_cost": 0.01} for name in ("ppo", "ppo-v1", "ppo-v2")},
}

GPU: dict[str, dict[str, Any]] = {
    # softmax(2 A / tau) is flat for tens of millions of frames with tau = 1; and a learner step for every 2,560 agent
    # steps, of which the first 4,000 are warm-up, is little for a run of minutes.
    "DR-Trace": {
        "tau": 0.1,
        "c_bar": 0.8,
        "discount": 0.99,
        "burn_in": 20,
        "seq_len": 20,
        "batch": 32,
        "lr": 1e-3,
        "warmup": 400,
        "publish_every": 5,
        "pull_every": 10,
        "steps": 10_000_000,
    },
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"paper": {}, "gpu": GPU, "laptop": LAPTOP}
"""Preset -> family or recipe name -> what it changes; a recipe's own entry comes after its family's."""


def get(name: str, preset: str = "paper") -> Recipe:
    """RECIPES[name] as printed ("paper"), or changed by PRESETS[preset][family] and then PRESETS[preset][name]."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    recipe = RECIPES[name]
    changes = {**PRESETS[preset].get(recipe.family, {}), **PRESETS[preset].get(name, {})}
    sources = {**recipe.sources, **dict.fromkeys(changes, f"{preset} preset")}
    return replace(recipe, **changes, sources=sources)
