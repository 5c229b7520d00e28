"""Conflict between L_V, L_Q and J, measured while training: cheap enough for every hundredth learner step.

One forward pass gives the targets and the outputs, one backward pass per objective the gradients at every layer's
output; all inner products follow from these. Nothing here waits for the device or depends on data in its shapes, so
the whole measurement can be a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from casa.diagnostics.angles import cosines
from casa.diagnostics.capture import Layer, recording, split
from casa.diagnostics.gradients import Deltas, add_layer, add_rest, batch_products, output_gradients
from casa.diagnostics.products import Products
from casa.heads import HeadOutput

PAIRS = {"cos_beta": ("q", "pi"), "cos_v_pi": ("v", "pi"), "cos_v_q": ("v", "q")}
"""Column -> the two gradients whose cosine it is."""
DORMANT = 0.025
"""A unit is dormant if its mean |activation| is at most this fraction of its layer's mean."""
CHI_TIMES = 2
"""Time steps of a sequence at which χ of a recurrent network is measured: each takes two backward passes."""
FEW_STATES = 4
"""States at which χ is measured if a parameter is outside linear and convolution layers: two backward passes each."""
RANK_STATES = 64
"""States whose features enter the effective rank, at most."""


class Conflict(NamedTuple):
    """Scalars by column, and the Gram matrix of the features of n states [n, n] for `effective_rank`, or None."""

    scalars: dict[str, Tensor]
    feature_gram: Tensor | None


def measure_conflict(
    net: nn.Module,
    forward: Callable[[], HeadOutput],
    actions: Tensor,
    targets: Callable[[HeadOutput], tuple[Tensor, Tensor]],
    mask: Tensor,
    *,
    tau: float | Tensor,
    recurrent: bool,
    features: nn.Module | None = None,
    chi_states: int = 0,
) -> Conflict:
    """χ, cosines, norms and noise of ∇L_V = E[(V^ - V) ∇V], ∇L_Q = E[(Q^ - Q) ∇Q] and ∇J = E[(Q^ - V) ∇log π].

    `forward()` runs `net` at T + 1 observations of B independent sequences; `targets(out)` returns (V^, Q^) [T, B] from
    its detached output. Means are over the transitions where `mask` [T, B] is true. Columns:

        chi, cos_beta, cos_v_pi, cos_v_q      as in `gradient_angles`
        chi_states                            the number of states that chi is a mean over
        COSINE/LAYER                          the same cosine over the parameters of one layer
        conflict_q_pi, _v_pi, _v_q            1 where that cosine is negative
        grad_norm_v, _q, _pi                  |∇L_V|, |∇L_Q|, |∇J|
        norm_ratio_q_pi, _v_pi, _v_q          |∇L_Q| / |∇J|, ...
        grad_square_x, grad_variance_x        unbiased |∇|² and the variance of one sequence's gradient
        entropy_q                             entropy of softmax(Q / τ)
        dormant_units                         share of dormant units in fully connected layers

    Without Q the columns of Q are missing. χ is measured at about `chi_states` evenly spaced states (0: all), in a
    recurrent network at `CHI_TIMES` time steps of each sequence. `features` is the layer whose input is the features.
    """
    with torch.inference_mode(False), torch.enable_grad():
        with recording(net) as layers:
            out = forward()
        with torch.autocast(out.v.device.type, enabled=False):  # inner products need full precision
            now = out.map(lambda x: x[:-1])
            v_target, q_target = targets(out.detach())
            objectives = {"v": now.v, "pi": now.log_prob(actions)}
            errors = {"v": v_target - now.v, "pi": q_target - now.v}
            if now.q is not None:
                objectives["q"] = now.q_of(actions)
                errors["q"] = q_target - objectives["q"]
            kept = mask.sum().clamp(min=1)
            weights = {name: error.detach().where(mask, 0.0) / kept for name, error in errors.items()}
            layouts = (True,) if recurrent else (True, False)
            whole, rest = split(net, layers, objectives.values(), out.v.shape, *layouts)
            found = _Batch(objectives, weights, whole, rest, out.v.shape, recurrent)
            scalars = found.scalars()
            if now.q is not None:
                scalars |= found.chi(mask, chi_states or mask.numel())
                scalars["entropy_q"] = now.boltzmann_entropy(tau).where(mask, 0.0).sum() / kept
            scalars |= _dormant(layers)
            return Conflict(scalars, _feature_gram(layers, features))


class _Batch:
    """The gradients of a batch: one backward pass for each objective."""

    def __init__(
        self,
        objectives: dict[str, Tensor],
        weights: dict[str, Tensor],
        layers: list[Layer],
        rest: list[nn.Parameter],
        states: torch.Size,
        recurrent: bool,
    ) -> None:
        self.objectives, self.layers, self.rest, self.states = objectives, layers, rest, states
        self.recurrent = recurrent
        # In a feed-forward net the gradient at an output belongs to one state, so that states can be weighted later.
        begun = {f: w if recurrent else torch.ones_like(w) for f, w in weights.items()}
        self.deltas = {f: output_gradients(layers, objectives[f], begun[f]) for f in objectives}
        self.names = list(objectives)
        batch = states[1]
        ones = torch.ones(len(objectives), batch, device=weights["v"].device)
        self.by_layer: dict[str, tuple[list[str], Tensor]] = {}
        self.by_sequence = Products(batch, None, ones.device, len(objectives)).per_sample
        for i, layer in enumerate(layers):
            deltas = {f: self.deltas[f][i] for f in objectives}
            if not recurrent:
                deltas = {f: _weighted(deltas[f], weights[f], states) for f in objectives}
            total = Products(batch, ones, ones.device, len(objectives))
            add_layer(total, layer, list(deltas.values()), states, recurrent=True)
            reached = [f for f in objectives if any(delta is not None for delta in deltas[f])]
            self.by_layer[layer.name] = reached, total.batch
            self.by_sequence = self.by_sequence + total.per_sample
        if rest:
            gram = batch_products(list(objectives.values()), torch.stack(list(weights.values())), rest)
            self.by_layer["other"] = self.names, gram

    def scalars(self) -> dict[str, Tensor]:
        """Cosines, conflicts, norms and noise."""
        grams = torch.stack([gram for _, gram in self.by_layer.values()])
        gram = grams.sum(0)
        at = {name: i for i, name in enumerate(self.names)}
        norms = gram.diagonal().clamp_min(0).sqrt()
        found: dict[str, Tensor] = {}
        angles, by_layer = cosines(gram), cosines(grams)
        for column, (f, g) in PAIRS.items():
            if f not in at or g not in at:
                continue
            i, j = at[f], at[g]
            found[column] = angles[i, j]
            found[f"conflict_{f}_{g}"] = (angles[i, j] < 0).double()
            found[f"norm_ratio_{f}_{g}"] = norms[i] / norms[j].clamp_min(1e-8)
            for (layer, (reached, _)), cosine in zip(self.by_layer.items(), by_layer, strict=True):
                if f in reached and g in reached:
                    found[f"{column}/{layer}"] = cosine[i, j]
        for name, i in at.items():
            found[f"grad_norm_{name}"] = norms[i]
        batch = len(self.by_sequence)
        if not self.rest and batch > 1:
            # Sequence b contributes c_b to the mean ḡ = Σ c_b, so that its own gradient is B c_b.
            mean_square = batch * self.by_sequence.diagonal(dim1=1, dim2=2).sum(0)
            variance = (mean_square - gram.diagonal()) * batch / (batch - 1)
            for name, i in at.items():
                found[f"grad_variance_{name}"] = variance[i]
                found[f"grad_square_{name}"] = gram[i, i] - variance[i] / batch
        return found

    def chi(self, mask: Tensor, count: int) -> dict[str, Tensor]:
        """χ over `count` states of the batch, or the sampled time steps of a recurrent net, where they are valid."""
        q, log_pi = self.objectives["q"], self.objectives["pi"]
        steps, states = len(q), q.numel()
        if self.recurrent:
            every = max(steps // CHI_TIMES, 1)
            times = range(every - 1, steps, every)
            found = torch.stack([self._products([q[t], log_pi[t]]) for t in times])
            mask = mask[every - 1 :: every]
        else:
            every = max(states // (FEW_STATES if self.rest else count), 1)
            chosen = slice(0, states, every)
            mask = mask.flatten()[chosen]
            total = Products(len(mask), None, mask.device)
            for i, layer in enumerate(self.layers):
                deltas = [self.deltas["q"][i], self.deltas["pi"][i]]
                add_layer(total, layer, deltas, self.states, recurrent=False, chosen=chosen)
            if self.rest:
                add_rest(total, self.rest, [f.flatten()[chosen] for f in (q, log_pi)], range(len(mask)))
            found = total.per_sample
        number = mask.sum()
        return {
            "chi": cosines(found)[..., 0, 1].where(mask, 0.0).sum() / number,
            "chi_states": number.double(),
        }

    def _products(self, objectives: list[Tensor]) -> Tensor:
        """⟨∇f(s), ∇g(s)⟩ [B, 2, 2] of two objectives [B] at one time step of a recurrent net."""
        batch = self.states[1]
        total = Products(batch, None, objectives[0].device)
        deltas = [output_gradients(self.layers, f, torch.ones_like(f)) for f in objectives]
        for i, layer in enumerate(self.layers):
            add_layer(total, layer, [deltas[0][i], deltas[1][i]], self.states, recurrent=True)
        if self.rest:
            add_rest(total, self.rest, objectives, range(batch))
        return total.per_sample


def _weighted(deltas: Deltas, weights: Tensor, states: torch.Size) -> Deltas:
    """w(s) δ(s) for the gradients of a feed-forward layer, whose leading axes hold the T + 1 times B states."""
    padded = torch.cat((weights, torch.zeros_like(weights[:1]))).flatten()
    found: Deltas = []
    for delta in deltas:
        if delta is not None:
            by_state = delta.reshape(states.numel(), -1) * padded.to(delta.dtype).unsqueeze(1)
            delta = by_state.view(delta.shape)
        found.append(delta)
    return found


def _dormant(layers: list[Layer]) -> dict[str, Tensor]:
    """The share of units with E|h| <= DORMANT · (mean E|h| of their layer), over the inputs of linear layers.

    The first linear layer of every backbone is left out, since it reads observations or a flattened map, and so are
    layers that are called at every time step. Layers that share an input count once.
    """
    inputs, entered = {}, set[str]()
    for layer in [layer for layer in layers if isinstance(layer.module, nn.Linear)]:
        part = layer.name.split(".")[0]
        first = not entered or (part == "value_backbone" and part not in entered)
        entered.add(part)
        if not first and len(layer.calls) == 1:
            x = layer.calls[0].input
            inputs[x.data_ptr()] = x.float().flatten(0, -2).abs().mean(0)
    if not inputs:
        return {}
    dormant = torch.cat([(score <= DORMANT * score.mean()).double() for score in inputs.values()])
    return {"dormant_units": dormant.mean()}


def _feature_gram(layers: list[Layer], features: nn.Module | None) -> Tensor | None:
    for layer in layers:
        if layer.module is features and layer.calls:
            x = layer.calls[0].input.double().flatten(0, -2)
            x = x[:: -(-len(x) // RANK_STATES)]
            return x @ x.mT
    return None


def effective_rank(gram: Tensor) -> float:
    """exp(H(p)) with p = σ / Σσ of the singular values σ of the features: 1 to n (Roy and Vetterli, 2007).

    0 if all features are 0, NaN if one is not finite.
    """
    if not gram.isfinite().all():
        return math.nan
    values = torch.linalg.eigvalsh(gram.double()).clamp_min(0).sqrt()
    if not values.sum() > 0:
        return 0.0
    return float(torch.special.entr(values / values.sum()).sum().exp())
