"""The table of agents, and one agent in full, as `casa recipes` prints them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from casa.config.env import EnvConfig
from casa.config.fields import AgentConfig, DataConfig, NetConfig
from casa.config.recipes import Recipe, get
from casa.tables import HEADS, RECIPES, REWARDS, TARGETS


def gradient(recipe: Recipe) -> str:
    """α1 L_V + α2 L_Q + α3 J in plain text, without terms of weight 0; how they are combined, if they are not added."""
    terms = zip(recipe["agent.weights"], ("L_V", "L_Q", "J"), strict=True)
    text = " + ".join(f"{'' if w == 1 else f'{w:g} '}{name}" for w, name in terms if w)
    text += f" + {cost:g} H" if (cost := recipe["agent.entropy_cost"]) else ""
    combined = recipe.settings.get("agent.gradients", "sum")
    return text if combined == "sum" else f"{text}, {combined}"


WIDE = 116
"""Terminal width, in columns, from which the table shows the formula of every head."""


def print_recipes(console: Console, preset: str = "paper") -> None:
    """One row per agent: head x targets x gradient x behaviour x data."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    wide = console.width >= WIDE
    for column in ("recipe", "function approximation" if wide else "head", "gradient", "targets", "acts", "data"):
        table.add_column(column, no_wrap=column == "recipe")
    for recipe in (get(name, preset) for name in RECIPES):
        table.add_row(
            recipe.name,
            HEADS[recipe["agent.head"]].formula if wide else recipe["agent.head"],
            gradient(recipe),
            TARGETS[recipe["agent.targets"]].label,
            recipe["agent.behaviour"].replace("epsilon", "ε"),
            recipe["data.kind"] + (f" ×{reuse}" if (reuse := recipe["data.reuse"]) > 1 else ""),
        )
    console.print(table)
    console.print(
        "\nsg: stop-gradient; H: entropy; ×2: a sample is used twice. One agent in full: casa recipes NAME",
        highlight=False,
    )


@dataclass(frozen=True)
class _Line:
    """One line of a recipe's page: a label, the fields it shows, and the recipes it applies to."""

    label: str
    fields: tuple[str, ...]
    text: Callable[[Recipe], str]
    when: Callable[[Recipe], bool] = lambda recipe: True


def _plain(label: str, name: str, when: Callable[[Recipe], bool] = lambda recipe: True) -> _Line:
    return _Line(label, (name,), lambda recipe: _value(recipe[name]), when)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(_value(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _traces(recipe: Recipe) -> bool:
    return recipe["agent.targets"] in ("dr-trace", "vtrace+retrace", "vtrace")


def _replays(recipe: Recipe) -> bool:
    return recipe["data.kind"] in ("mixed", "prioritized")


def _prioritized(recipe: Recipe) -> bool:
    return recipe["data.kind"] == "prioritized"


def _n_step(recipe: Recipe) -> bool:
    return recipe["agent.targets"].startswith("n-step-")


def _atoms(recipe: Recipe) -> bool:
    return HEADS[recipe["agent.head"]].takes_support


PAGE: dict[str, tuple[_Line, ...]] = {
    "agent": (
        _Line("function approximation", ("agent.head",), lambda r: HEADS[r["agent.head"]].formula),
        _Line("gradient", ("agent.weights",), gradient),
        _plain("policy loss", "agent.policy_loss"),
        _plain("gradients of the losses", "agent.gradients", lambda r: "agent.gradients" in r.settings),
        _plain("entropy cost", "agent.entropy_cost"),
        _Line("targets", ("agent.targets",), lambda r: TARGETS[r["agent.targets"]].label),
        _plain("temperature τ", "agent.tau", lambda r: HEADS[r["agent.head"]].tempered),
        _plain(
            "share of τ left at the end",
            "agent.tau_decay",
            lambda r: HEADS[r["agent.head"]].tempered and "agent.tau_decay" in r.settings,
        ),
        _plain("atoms", "agent.atoms", _atoms),
        _plain("lowest and highest atom", "agent.support", _atoms),
        _plain("discount γ", "agent.discount"),
        _Line("reward", ("agent.reward",), lambda r: REWARDS[r["agent.reward"]].formula),
        _plain("rewards divided by", "agent.reward_scale", lambda r: "agent.reward_scale" in r.settings),
        _plain("unit of the advantage output", "agent.advantage_unit", lambda r: "agent.advantage_unit" in r.settings),
        _plain("normalised advantages", "agent.advantage_norm", lambda r: "agent.advantage_norm" in r.settings),
        _plain("centred advantages", "agent.advantage_centre", lambda r: "agent.advantage_centre" in r.settings),
        _plain("targets through h", "agent.value_rescale", _n_step),
        _plain("GAE λ", "agent.lam", lambda r: r["agent.targets"] == "gae"),
        _plain("clip ε", "agent.clip", lambda r: r["agent.policy_loss"] == "clip"),
        _plain("ρ-bar", "agent.rho_bar", _traces),
        _plain("c-bar", "agent.c_bar", _traces),
        _plain("trust region KL(π‖μ) <", "agent.trust_region", lambda r: bool(r.settings.get("agent.trust_region"))),
        _plain("steps n", "agent.n_step", _n_step),
    ),
    "behaviour": (
        _plain("in the environment", "agent.behaviour"),
        _Line(
            "ε",
            ("agent.epsilon_base", "agent.epsilon_range"),
            lambda r: f"{_value(r['agent.epsilon_base'])}^uniform({_value(r['agent.epsilon_range'])})",
            lambda r: r["agent.behaviour"] == "epsilon-greedy",
        ),
        _plain(
            "share of ε left at the end",
            "agent.epsilon_decay",
            lambda r: r["agent.behaviour"] == "epsilon-greedy" and "agent.epsilon_decay" in r.settings,
        ),
        _plain("environments", "env.num_envs"),
        _plain("Atari: all 18 actions", "env.full_action_space", lambda r: "env.full_action_space" in r.settings),
        _plain("Atari: a lost life is terminal", "env.terminal_lives", lambda r: "env.terminal_lives" in r.settings),
        _plain("pulls weights every (steps)", "learner.pull_every"),
    ),
    "data": (
        _plain("kind", "data.kind"),
        _plain("uses of a sample", "data.reuse"),
        _plain("burn-in", "data.burn_in"),
        _plain("sequence length", "data.seq_len"),
        _plain("sequences a batch", "data.batch"),
        _plain("sequences a rollout", "data.rollout", lambda r: "data.rollout" in r.settings),
        _plain("buffer (frames)", "data.replay_frames", _replays),
        _plain("filled before learning", "data.min_fill", _replays),
        _plain("priority exponent", "data.priority_exponent", _prioritized),
        _plain("importance exponent", "data.importance_exponent", _prioritized),
        _plain("it rises to 1", "data.importance_anneal", lambda r: "data.importance_anneal" in r.settings),
        _plain("max/mean mix η", "data.eta", _prioritized),
    ),
    "network": (
        _plain("backbone for images", "net.images"),
        _plain("backbone", "net.backbone", lambda r: "net.backbone" in r.settings),
        _plain("a second backbone for V", "net.value_backbone", lambda r: "net.value_backbone" in r.settings),
        _plain("layers of an output", "net.head_layers", lambda r: "net.head_layers" in r.settings),
        _plain("noise of the outputs σ₀", "net.noise", lambda r: "net.noise" in r.settings),
        _plain("observations normalised", "net.obs_norm", lambda r: "net.obs_norm" in r.settings),
        _plain("kernel over actions", "agent.kernel", lambda r: "agent.kernel" in r.settings),
        _plain("outputs a dimension", "agent.knots", lambda r: "agent.knots" in r.settings),
        _plain("std of the first policy", "net.initial_std", lambda r: "net.initial_std" in r.settings),
        _plain("LSTM units", "net.lstm"),
        _plain("hidden units", "net.hidden"),
    ),
    "learner": (
        _Line("length", ("steps",), lambda r: f"{r['steps']:,} steps = {4 * r['steps']:,} frames"),
        _plain("learning rate, linear to 0", "learner.lr"),
        _plain("warm-up (learner steps)", "learner.warmup"),
        _plain("AdamW β", "learner.betas"),
        _plain("AdamW ε", "learner.adam_eps"),
        _plain("weight decay, linear to 0", "learner.weight_decay"),
        _plain("gradient norm clipped at", "learner.clip_norm"),
        _plain("target network every (learner steps)", "learner.target_period", _n_step),
        _plain("publishes weights every (learner steps)", "learner.publish_every"),
    ),
}
"""Topic -> lines. A line is omitted for recipes that do not use its fields."""


def _defaults() -> dict[str, Any]:
    """Dotted field -> its default: the value of recipes that do not set it."""
    groups = {"agent": AgentConfig, "net": NetConfig, "data": DataConfig, "env": EnvConfig}
    found = ((f"{group}.{f.name}", f.default) for group, config in groups.items() for f in fields(config))
    return {name: default for name, default in found if default is not MISSING}


def print_recipe(console: Console, name: str, preset: str = "paper") -> None:
    """Print every value of a recipe by topic, with the paper's value where it differs, and the value's source."""
    recipe, paper = get(name, preset), get(name)
    paper = replace(paper, settings={**_defaults(), **paper.settings})
    title = Text.assemble((recipe.name, "bold"), f": {recipe.summary} ({recipe.paper}; {preset} preset)")
    console.print(title, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("", "", "value", "paper", "from"):
        table.add_column(column, overflow="fold")
    for topic, lines in PAGE.items():
        shown = [line for line in lines if line.when(recipe)]
        for index, line in enumerate(shown):
            sources = ", ".join(dict.fromkeys(recipe.sources[name] for name in line.fields))
            now, printed = line.text(recipe), line.text(paper)
            table.add_row(
                topic if index == 0 else "", line.label, Text(now), Text("" if now == printed else printed), sources
            )
        table.add_section()
    console.print(table)
