"""Affine maps x -> L x + b on finite spaces: their matrices, rates and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from casa.theory.operators import OffPolicy, Update


@dataclass(frozen=True)
class Affine:
    """x -> L x + b with L [n, n] and b [n]."""

    matrix: Tensor
    offset: Tensor

    @property
    def radius(self) -> float:
        """max |λ(L)|: the iteration converges from every start if it is below 1."""
        return float(torch.linalg.eigvals(self.matrix).abs().max())

    @property
    def abscissa(self) -> float:
        """max Re λ(L - I): small steps along L x + b - x converge if it is below 0."""
        return float(torch.linalg.eigvals(self.matrix).real.max()) - 1.0

    @property
    def lipschitz(self) -> float:
        """max_i Σ_j |L_ij|: the Lipschitz constant in the sup norm; a contraction if it is below 1."""
        return float(self.matrix.abs().sum(-1).max())

    def fixed_point(self) -> Tensor:
        """x* = (I - L)⁻¹ b: [n]."""
        identity = torch.eye(len(self.offset), dtype=self.offset.dtype)
        return torch.linalg.solve(identity - self.matrix, self.offset)

    def iterated(self, start: Tensor, doublings: int) -> Tensor:
        """x after 2^doublings iterations from `start`, by composing the map with itself: [n].

        Not finite if the iteration has diverged.
        """
        matrix, offset = self.matrix, self.offset
        for _ in range(doublings):
            matrix, offset = matrix @ matrix, matrix @ offset + offset
        return matrix @ start + offset


def affine(function: Callable[[Tensor], Tensor], size: int) -> Affine:
    """L and b of an affine `function` [n] -> [n], from its values at 0 and at the unit vectors."""
    offset = function(torch.zeros(size, dtype=torch.float64))
    columns = [function(unit) - offset for unit in torch.eye(size, dtype=torch.float64)]
    return Affine(torch.stack(columns, dim=-1), offset)


def pair_map(update: Update, problem: OffPolicy) -> Affine:
    """`update` on the stacked vector (Q, V), of size |S| |A| + |S|."""
    states, actions = problem.pi.shape
    count = states * actions

    def function(x: Tensor) -> Tensor:
        return join(*update(problem, x[:count].view(states, actions), x[count:]))

    return affine(function, count + states)


def centred_map(update: Update, problem: OffPolicy) -> Affine:
    """`update` on Q alone, with V = E_π[Q]: on centred pairs, the sup norm of (Q, V) is that of Q."""
    shape = problem.pi.shape

    def function(x: Tensor) -> Tensor:
        q = x.view(shape)
        return update(problem, q, problem.mean(q))[0].flatten()

    return affine(function, problem.pi.numel())


def value_map(operator: Callable[[OffPolicy, Tensor], Tensor], problem: OffPolicy) -> Affine:
    """An operator on V alone, [S] -> [S]."""
    return affine(lambda v: operator(problem, v), problem.pi.shape[0])


def action_map(operator: Callable[[OffPolicy, Tensor], Tensor], problem: OffPolicy) -> Affine:
    """An operator on Q alone, [S, A] -> [S, A], flattened."""
    return affine(lambda q: operator(problem, q.view(problem.pi.shape)).flatten(), problem.pi.numel())


def join(q: Tensor, v: Tensor) -> Tensor:
    """(Q [S, A], V [S]) as one vector."""
    return torch.cat([q.flatten(), v])


def split(x: Tensor, problem: OffPolicy) -> tuple[Tensor, Tensor]:
    """The inverse of `join`."""
    count = problem.pi.numel()
    return x[:count].view(problem.pi.shape), x[count:]
