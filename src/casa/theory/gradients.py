"""Statements about the gradients of Q and log π: ∇Q = τ ∇log π for the CASA head, and χ for every head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from casa.heads import HEADS, HeadOutput
from casa.theory.check import Check, Statement, identity
from casa.theory.mdp import seeded
from casa.theory.network import SmallNet, chi, jacobian, observations, relative_error

TAUS = (0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Setting:
    """One network on a few states: its parameters θ, its outputs, and the temperature."""

    parameters: list[Tensor]
    outputs: dict[str, Tensor]
    tau: float
    generator: torch.Generator

    def head(self, name: str) -> HeadOutput:
        """(V, Q, log π) of one of the library's heads on this network."""
        return HEADS[name](self.outputs, self.tau)


def settings(seeds: Sequence[int], taus: Sequence[float] = TAUS) -> list[Setting]:
    """One setting for every seed and temperature."""
    result = []
    for seed in seeds:
        for tau in taus:
            generator = seeded(seed, purpose=1)
            net = SmallNet(generator)
            result.append(Setting(list(net.parameters()), net(observations(generator)), tau, generator))
    return result


def action_gradients(setting: Setting, head: HeadOutput) -> tuple[Tensor, Tensor]:
    """(∇Q, ∇ log π) for every state and action: [N, A, |θ|] each."""
    if head.q is None:
        raise ValueError("this head has no Q")
    return jacobian(head.q, setting.parameters), jacobian(head.log_pi, setting.parameters)


def gradient_checks(seeds: Sequence[int]) -> list[Check]:
    """∇Q = τ ∇ log π (eq. 10), and the two readings of lemma E.1."""
    equal, literal, vector = [], [], []
    for setting in settings(seeds):
        head = setting.head("casa")
        grad_q, grad_log_pi = action_gradients(setting, head)
        equal.append(relative_error(grad_q, setting.tau * grad_log_pi))
        grad_a = jacobian(setting.outputs["advantage"], setting.parameters)
        pi = head.log_pi.exp().detach().unsqueeze(-1)
        literal.append(relative_error((1 - pi) * grad_a / setting.tau, grad_log_pi))
        mean = (pi * grad_a).sum(-2, keepdim=True)
        vector.append(relative_error((grad_a - mean) / setting.tau, grad_log_pi))
    measure = "largest relative error over states, actions, τ in {0.1, 1, 10} and seeds"
    return [
        identity(
            Statement(
                "casa-gradient",
                "For the CASA head, the gradient of Q is τ times the gradient of log π",
                "∇Q = τ ∇log π",
                "eq. 10, lemma E.1",
            ),
            measure,
            equal,
        ),
        identity(
            Statement(
                "lemma-own-action",
                "Lemma E.1 (i) with 1 - π read as a number: one minus the probability of the action itself",
                "∇log π(a) = (1 - π(a)) ∇A(a) / τ",
                "lemma E.1, as printed",
            ),
            measure,
            literal,
            note="The terms of the other actions are missing; nothing later in the paper depends on them.",
        ),
        identity(
            Statement(
                "lemma-all-actions",
                "Lemma E.1 (i) with 1 - π read as an operator: subtract the mean over actions",
                "∇log π(a) = (∇A(a) - Σ_b π(b) ∇A(b)) / τ",
                "lemma E.1, as meant",
            ),
            measure,
            vector,
        ),
    ]


def chi_checks(seeds: Sequence[int]) -> list[Check]:
    """χ = 1 for the CASA head, and χ = 1 iff the gradients are positively proportional (theorem 3)."""
    table: dict[str, list[float]] = {}
    disagreements = 0
    for setting in settings(seeds):
        for name, head in _chi_heads(setting).items():
            grad_q, grad_log_pi = action_gradients(setting, head)
            value = chi(grad_q, grad_log_pi, head.log_pi.exp().detach())
            table.setdefault(name, []).append(value)
            disagreements += (1 - value < 1e-10) != (misfit(grad_q, grad_log_pi) < 1e-5)
    means = {name: sum(values) / len(values) for name, values in table.items()}
    collapsed = [_collapsed_chi(setting) for setting in settings(seeds, (1.0,))]
    return [
        identity(
            Statement("chi-casa", "The CASA head has χ = 1", "χ = E_π[cos<∇Q, ∇log π>] = 1", "sec. 3.3"),
            "largest 1 - χ",
            [1 - value for value in table["casa"]],
            details={"mean_chi": means},
            note="Mean χ of the others: "
            + ", ".join(f"{name} {means[name]:.2f}" for name in means if name in HEADS and name != "casa")
            + ".",
        ),
        identity(
            Statement(
                "chi-iff",
                "χ = 1 if and only if ∇Q is a positive multiple of ∇log π in every state",
                "χ = 1 <=> ∇Q = k ∇log π, k > 0",
                "theorem 3",
            ),
            f"heads and networks where the two sides disagree, of {sum(map(len, table.values()))}",
            [float(disagreements)],
            note="The proof prints cos = 0 where it means an angle of 0.",
        ),
        identity(
            Statement(
                "chi-any-factor",
                "χ = 1 if ∇Q is any multiple of ∇log π, as ∝ is written",
                "∇Q = k ∇log π => χ = 1",
                "theorem 3 (i), as printed",
            ),
            "largest 1 - χ where k < 0",
            [1 - value for value in table["negated"]],
            note="A negative factor gives χ = -1: the theorem needs k > 0.",
        ),
        identity(
            Statement(
                "chi-collapsed",
                "χ as it is measured (norms of at least 1e-8) is 1 for the CASA head when π has collapsed",
                "χ = x·y / (max(|x|, 1e-8) max(|y|, 1e-8)) = 1",
                "sec. 4.1 with sec. 3.3",
            ),
            "largest 1 - χ where one action has π = 1 - 1e-9",
            [1 - value for value in collapsed],
            note="Both gradients vanish with the other actions' probability, so the floor takes over.",
        ),
    ]


def _chi_heads(setting: Setting) -> dict[str, HeadOutput]:
    fitting = [name for name, head in HEADS.items() if head.has_q and setting.outputs.keys() >= set(head.outputs)]
    heads = {name: setting.head(name) for name in fitting if name != "dueling"}
    v, q, log_pi = heads["casa"]
    assert q is not None
    factors = 0.5 + torch.rand(q.shape, generator=setting.generator, dtype=q.dtype)
    return heads | {"rescaled": HeadOutput(v, factors * q, log_pi), "negated": HeadOutput(v, -q, log_pi)}


def misfit(grad_q: Tensor, grad_log_pi: Tensor) -> float:
    """max over (s, a) of min_{k >= 0} |∇Q - k ∇log π| / |∇Q|: 0 where positively proportional."""
    factor = (grad_q * grad_log_pi).sum(-1) / grad_log_pi.square().sum(-1)
    rest = grad_q - factor.clamp(min=0.0).unsqueeze(-1) * grad_log_pi
    return float((rest.norm(dim=-1) / grad_q.norm(dim=-1)).max())


def _collapsed_chi(setting: Setting) -> float:
    advantage = setting.outputs["advantage"].clone()
    # 21 nats above the next best action: π(0) is about 1 - 1e-9.
    advantage[:, 0] = advantage[:, 0] - advantage[:, 0].detach() + advantage[:, 1:].detach().amax(-1) + 21.0
    head = HEADS["casa"]({**setting.outputs, "advantage": advantage}, setting.tau)
    grad_q, grad_log_pi = action_gradients(setting, head)
    return chi(grad_q, grad_log_pi, head.log_pi.exp().detach())
