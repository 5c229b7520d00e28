"""Add your own heads, targets, policy losses, behaviours, backbones, rewards, recipes, diagnostics and callbacks.

    import casa

    @casa.register.head("my-head", outputs=("advantage", "value"), formula="Q = A - max A + sg(V)")
    def my_head(advantage, value, tau): ...

    casa.register.recipe("mine", base="casa", settings={"agent.head": "my-head"})

A module with such lines is a plug-in: `casa train --plugin my_module --recipe mine`. The run's config.yaml records it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from casa import tables
from casa.config.fields import AgentConfig
from casa.config.load import check_settings
from casa.config.recipes import Recipe, derive
from casa.errors import UserError
from casa.heads import Head, HeadOutput
from casa.learn.diagnostics import Diagnostic
from casa.learn.estimators import Estimate, Estimator, Steps
from casa.learn.gradients import Combination
from casa.learn.policy_losses import PolicyLoss, PolicyTerms
from casa.learn.rewards import Reward
from casa.nn.backbones import Backbone
from casa.rollout.behaviour import Behaviour
from casa.run.callbacks import Callback

__all__ = [
    "AgentConfig",
    "Estimate",
    "HeadOutput",
    "PolicyTerms",
    "Steps",
    "backbone",
    "behaviour",
    "callback",
    "diagnostic",
    "gradients",
    "head",
    "policy_loss",
    "recipe",
    "reward",
    "target",
]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type[Callback])
M = TypeVar("M", bound=type[nn.Module])


def head(
    name: str, *, outputs: tuple[str, ...], tempered: bool = True, has_q: bool = True, formula: str = ""
) -> Callable[[F], F]:
    """(V, Q, log π) = f(*outputs, τ): a function approximation.

    `outputs` names the network outputs in the order of f's arguments: "value" is [...], any other [..., A]. A
    `tempered` head takes τ last, a float, or a tensor of one number if `agent.tau_decay` < 1, and J carries the factor
    τ. An f that also takes `sizes` supports actions of several parts (`casa.actions`). One that takes `support` has a
    distribution on atoms, from "value_atoms" [..., N] and "advantage_atoms" [..., A, N], and returns a
    `casa.heads.CategoricalOutput`.
    """
    return _entry(tables.HEADS, name, lambda f: Head(tuple(outputs), f, tempered, formula or _first_line(f), has_q))


def target(
    name: str,
    *,
    label: str = "",
    needs_q: bool = False,
    needs_target_network: bool = False,
    has_traces: bool = False,
    needs_atoms: bool = False,
) -> Callable[[F], F]:
    """`Estimate(v, q, advantage, rhos)` = f(steps: `Steps`, agent: `AgentConfig`), all [T, B] and detached.

    `has_traces`: a ratio of 0 (`steps.log_rhos` = -inf) ends the returns of earlier steps there, which
    agent.trust_region needs. `needs_atoms`: for heads with a distribution; the estimate then has its target `z`, too.
    """
    needs = (needs_q, needs_target_network, has_traces, needs_atoms)
    return _entry(tables.TARGETS, name, lambda f: Estimator(f, label or name, *needs))


def policy_loss(name: str) -> Callable[[PolicyLoss], PolicyLoss]:
    """-J = f(terms: `PolicyTerms`, agent: `AgentConfig`), a `casa.losses.Loss`."""
    return _entry(tables.POLICY_LOSSES, name, lambda f: f)


def gradients(name: str) -> Callable[[Combination], Combination]:
    """The gradient to follow, one tensor (or None) per parameter = f([the same of each weighted loss]).

    The losses are those of L_V, L_Q and J whose weight is not 0, in this order. The entropy bonus is part of J, or a
    loss of its own if J has no weight.
    """
    return _entry(tables.GRADIENTS, name, lambda f: f)


def behaviour(
    name: str, *, greedy: Callable[[HeadOutput], Tensor] | None = None, needs_q: bool = False
) -> Callable[[F], F]:
    """(actions [N, ...], log μ(a|s) [N]) = f(out: HeadOutput, epsilons [N], generator): a behaviour policy μ.

    `greedy`: the deterministic version for evaluation; None: `HeadOutput.mode`.
    """
    return _entry(tables.BEHAVIOURS, name, lambda f: Behaviour(f, greedy or (lambda out: out.mode()), needs_q))


def backbone(name: str, *, reads: tuple[str, ...], deep: bool = False) -> Callable[[M], M]:
    """features [N, F] = module(obs_shape, F)(obs [N, *obs_shape]); `reads` names the supported kinds of obs."""
    return _entry(tables.BACKBONES, name, lambda module: Backbone(module, tuple(reads), deep))


def reward(name: str, *, formula: str = "") -> Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]:
    """Transformed rewards [T, B] = f(rewards [T, B])."""
    return _entry(tables.REWARDS, name, lambda f: Reward(f, formula or name))


def diagnostic(name: str) -> Callable[[Diagnostic], Diagnostic]:
    """Scalars to log = f(learner, batch), called every log.diagnostics_every learner steps."""
    return _entry(tables.DIAGNOSTICS, name, lambda f: f)


def callback(name: str) -> Callable[[C], C]:
    """A `casa.Callback` class without arguments, for `--callbacks NAME`."""
    return _entry(tables.CALLBACKS, name, lambda cls: cls)


def recipe(name: str, *, base: str, summary: str = "", settings: Mapping[str, Any]) -> Recipe:
    """An agent that differs from `base` in `settings`: dotted field of a run -> value.

    The presets of `base` apply first, then `settings`.
    """
    made = derive(name, base, summary or f"a variant of {base}", _caller(), check_settings(settings))
    tables.RECIPES.add(name, made, _caller())
    return made


def _entry(table: tables.Table[Any], name: str, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    origin = _caller()

    def add(thing: Any) -> Any:
        if not callable(thing):
            raise UserError(f"{table.kind} {name!r} must be a function or class, got {thing!r}")
        table.add(name, make(thing), origin)
        return thing

    return add


def _first_line(f: Callable[..., Any]) -> str:
    return (inspect.getdoc(f) or "").split("\n")[0]


def _caller() -> str:
    """Name of the module that called into this one."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return "?" if frame is None else str(frame.f_globals.get("__name__", "?"))
