"""The table of agents, and one agent in full, as `casa recipes` prints them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from casa.recipes import RECIPES, Recipe, get

FORMULAS: dict[str, str] = {
    "actor-critic": "(V,logit); π = softmax(logit)",
    "q-critic": "(Q,logit); π = softmax(logit); V = sg(π)·Q",
    "casa": "(V,A); π = softmax(A/τ); Q = A - sg(π)·A + sg(V)",
    "type1": "(V,A); π = softmax(A/τ); Q = A - π·A + sg(V)",
    "type2": "(V,A); π = softmax(A/τ); Q = A - sg(π)·A + V",
    "type3": "(V,A); π = softmax(A/τ); Q = A + sg(V)",
    "type4": "(V,A); π = softmax(A/τ); Q = A + V",
    "type5": "(V,A,Q); π = softmax(A/τ)",
    "dueling": "(V,A); π = softmax(A/τ); Q = A + V",
}
"""Head -> its function approximation; sg is stop-gradient."""

TARGETS: dict[str, str] = {
    "gae": "GAE",
    "n-step-q": "n-step Q",
    "dr-trace": "DR-Trace",
    "vtrace+retrace": "V/ReTrace",
    "vtrace": "V-Trace",
}

REWARDS: dict[str, str] = {"clip01": "clip(r, 0, 1)", "raw": "raw", "log": "log(|r|+1)·(2 if r ≥ 0 else -1)"}


def gradient(recipe: Recipe) -> str:
    """α1 L_V + α2 L_Q + α3 J in plain text, terms of weight 0 left out."""
    terms = zip(recipe.weights, ("L_V", "L_Q", "J"), strict=True)
    text = " + ".join(f"{'' if w == 1 else f'{w:g} '}{name}" for w, name in terms if w)
    return text + (f" + {recipe.entropy_cost:g} H" if recipe.entropy_cost else "")


def print_recipes(console: Console, preset: str = "paper") -> None:
    """One row per agent: head x targets x gradient x behaviour x data."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("recipe", "function approximation", "gradient", "targets", "acts", "data"):
        table.add_column(column, no_wrap=column == "recipe")
    family = ""
    for recipe in (get(name, preset) for name in RECIPES):
        if family not in ("", recipe.family):
            table.add_section()
        family = recipe.family
        table.add_row(
            recipe.name,
            FORMULAS[recipe.head],
            gradient(recipe),
            TARGETS[recipe.targets],
            recipe.behaviour.replace("epsilon", "ε"),
            recipe.data if recipe.reuse == 1 else f"{recipe.data} ×{recipe.reuse}",
        )
    console.print(table)
    console.print(
        "\nsg: stop-gradient; H: entropy; ×2: a sample is used twice. One agent in full: casa recipes NAME",
        highlight=False,
    )


@dataclass(frozen=True)
class _Line:
    """One line of a recipe's page: a label, the fields it shows, and for which recipes it says anything."""

    label: str
    fields: tuple[str, ...]
    text: Callable[[Recipe], str]
    when: Callable[[Recipe], bool] = lambda recipe: True


def _plain(label: str, name: str, when: Callable[[Recipe], bool] = lambda recipe: True) -> _Line:
    return _Line(label, (name,), lambda recipe: _value(getattr(recipe, name)), when)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(_value(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _traces(recipe: Recipe) -> bool:
    return recipe.targets in ("dr-trace", "vtrace+retrace", "vtrace")


def _prioritized(recipe: Recipe) -> bool:
    return recipe.data == "prioritized"


def _n_step(recipe: Recipe) -> bool:
    return recipe.targets == "n-step-q"


PAGE: dict[str, tuple[_Line, ...]] = {
    "agent": (
        _Line("function approximation", ("head",), lambda r: FORMULAS[r.head]),
        _Line("gradient", ("weights",), gradient),
        _plain("policy loss", "policy_loss"),
        _plain("entropy cost", "entropy_cost"),
        _Line("targets", ("targets",), lambda r: TARGETS[r.targets]),
        _plain("temperature τ", "tau", lambda r: "τ" in FORMULAS[r.head]),
        _plain("discount γ", "discount"),
        _Line("reward", ("reward",), lambda r: REWARDS[r.reward]),
        _plain("targets through h", "value_rescale", _n_step),
        _plain("GAE λ", "lam", lambda r: r.targets == "gae"),
        _plain("clip ε", "clip", lambda r: r.policy_loss == "clip"),
        _plain("ρ-bar", "rho_bar", _traces),
        _plain("c-bar", "c_bar", _traces),
        _plain("steps n", "n_step", _n_step),
    ),
    "behaviour": (
        _plain("in the environment", "behaviour"),
        _Line(
            "ε",
            ("epsilon_base", "epsilon_range"),
            lambda r: f"{r.epsilon_base:g}^uniform({_value(r.epsilon_range)})",
            lambda r: r.behaviour == "epsilon-greedy",
        ),
        _plain("environments", "num_envs"),
        _plain("pulls weights every (steps)", "pull_every"),
    ),
    "data": (
        _plain("kind", "data"),
        _plain("uses of a sample", "reuse"),
        _plain("burn-in", "burn_in"),
        _plain("sequence length", "seq_len"),
        _plain("sequences a batch", "batch"),
        _plain("buffer (frames)", "replay_frames", _prioritized),
        _plain("filled before learning", "min_fill", _prioritized),
        _plain("priority exponent", "priority_exponent", _prioritized),
        _plain("importance exponent", "importance_exponent", _prioritized),
        _plain("max/mean mix η", "eta", _prioritized),
    ),
    "network": (
        _plain("backbone for images", "backbone"),
        _plain("LSTM units", "lstm"),
        _plain("hidden units", "hidden"),
    ),
    "learner": (
        _Line("length", ("steps",), lambda r: f"{r.steps:,} steps = {r.frames:,} frames"),
        _plain("learning rate, linear to 0", "lr"),
        _plain("warm-up (learner steps)", "warmup"),
        _plain("AdamW β", "betas"),
        _plain("AdamW ε", "adam_eps"),
        _plain("weight decay, linear to 0", "weight_decay"),
        _plain("gradient norm clipped at", "clip_norm"),
        _plain("target network every (learner steps)", "target_period", _n_step),
        _plain("publishes weights every (learner steps)", "publish_every"),
    ),
}
"""Topic -> lines. A line is left out for recipes that never read its fields."""


def print_recipe(console: Console, name: str, preset: str = "paper") -> None:
    """Every value that the recipe uses, by topic, with the paper's table that it comes from."""
    recipe = get(name, preset)
    console.print(f"[bold]{recipe.name}[/bold]: {recipe.summary} ({recipe.paper}; {preset} preset)", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("", "", "value", "from"):
        table.add_column(column, overflow="fold")
    for topic, lines in PAGE.items():
        shown = [line for line in lines if line.when(recipe)]
        for index, line in enumerate(shown):
            sources = dict.fromkeys(recipe.sources[name] for name in line.fields)
            table.add_row(topic if index == 0 else "", line.label, line.text(recipe), ", ".join(sources))
        table.add_section()
    console.print(table)
