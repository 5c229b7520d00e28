from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from casa.heads import casa_head
from casa.losses import Loss, categorical_loss, entropy, policy_loss, ppo_loss, q_loss, taken, value_loss


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(loss: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(loss, at, retain_graph=True)[0]


@pytest.mark.parametrize("loss_of", [value_loss, q_loss])
def test_squared_losses_follow_the_papers_gradient(loss_of: Callable[..., Loss]) -> None:
    # V = x·w, so ∇V = x: the descent direction is E[(V^ - V) x], with no factor 2 and no factor ½.
    x, w, targets = normal(6, 3, 4), normal(4, seed=1).requires_grad_(), normal(6, 3, seed=2)
    predictions = x @ w
    loss = loss_of(predictions, targets)
    errors = (targets - predictions).detach()
    torch.testing.assert_close(-gradient(loss.value, w), (errors[..., None] * x).mean((0, 1)))
    torch.testing.assert_close(loss.errors, errors)
    torch.testing.assert_close(loss.value.detach(), 0.5 * errors.square().mean())


def test_the_categorical_loss_is_the_divergence_with_the_gradient_of_the_cross_entropy() -> None:
    logits, targets = normal(6, 3, 7).requires_grad_(), normal(6, 3, 7, seed=1).softmax(-1).requires_grad_()
    weights, mask = normal(6, 3, seed=2).exp(), normal(6, 3, seed=3) > -0.5
    loss = categorical_loss(logits.log_softmax(-1), targets, mask, weights)
    p, z = logits.detach().softmax(-1), targets.detach()
    divergence = (z * (z / p).log()).sum(-1)
    torch.testing.assert_close(loss.errors, divergence * mask)
    torch.testing.assert_close(loss.value.detach(), (divergence * weights)[mask].sum() / mask.sum())
    expected = (weights * mask / mask.sum())[..., None] * (p - z)  # ∂/∂logits of -Σ z log p
    torch.testing.assert_close(gradient(loss.value, logits), expected)
    assert torch.autograd.grad(loss.value, targets, allow_unused=True) == (None,)
    assert categorical_loss(targets.log(), targets).errors.abs().max() < 1e-12


def test_the_categorical_loss_without_mass_and_where_it_is_masked() -> None:
    log_p = torch.tensor([[0.0, -1e30], [-0.7, -0.7]]).requires_grad_()
    targets = torch.tensor([[1.0, 0.0], [math.nan, math.nan]])
    loss = categorical_loss(log_p, targets, torch.tensor([True, False]))
    loss.value.backward()
    assert loss.value == 0 and loss.errors.tolist() == [0, 0]
    assert log_p.grad is not None and log_p.grad.tolist() == [[-1, 0], [0, 0]]
    with pytest.raises(ValueError, match="targets has shape"):
        categorical_loss(log_p, targets[:1])


@pytest.mark.parametrize("tau", [1.0, 0.1])
@pytest.mark.parametrize("with_rhos", [False, True])
def test_policy_loss_is_the_score_function(tau: float, with_rhos: bool) -> None:
    logits, advantages = normal(6, 3, 4).requires_grad_(), normal(6, 3, seed=1)
    actions = torch.arange(18).reshape(6, 3) % 4
    rhos = normal(6, 3, seed=2).exp() if with_rhos else None
    loss = policy_loss(taken(logits.log_softmax(-1), actions), advantages, tau=tau, rhos=rhos)
    # ∇ log π(a) = onehot(a) - π for logits; the gradient that is followed is the mean of τ ρ A ∇ log π.
    score = torch.nn.functional.one_hot(actions, 4) - logits.detach().softmax(-1)
    scale = tau * advantages * (1.0 if rhos is None else rhos)
    torch.testing.assert_close(-gradient(loss.value, logits), scale[..., None] * score / 18)
    torch.testing.assert_close(loss.errors.mean(), loss.value.detach())


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_casa_gradients_differ_by_the_entropys(tau: float) -> None:
    # ∇L_Q = ∇J + τ² ∇H for the CASA head: E_π exactly, by weighing every action of a state with π.
    # Row a of `advantage` is the state with action a taken, so the state's gradient is the sum of the rows.
    advantage = (tau * normal(1, 5)).repeat(5, 1).requires_grad_()
    v, q, log_pi = casa_head(advantage, torch.full((5,), 0.7, dtype=torch.float64), tau)
    assert q is not None
    actions, targets, pi = torch.arange(5), normal(5, seed=3), log_pi.detach()[0].exp()
    followed_q = -gradient(q_loss(taken(q, actions), targets, weights=pi).value, advantage)
    followed_j = -gradient(policy_loss(taken(log_pi, actions), targets - v, tau, weights=pi).value, advantage)
    entropy_gradient = gradient(entropy(log_pi)[0], advantage)
    difference = 5 * (followed_q - followed_j).sum(0)
    torch.testing.assert_close(difference, tau**2 * entropy_gradient.sum(0))
    assert entropy_gradient.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),  # on policy: the plain policy gradient, A ∇ log π
        (1.1, 2.0, 2.2, 2.2),  # inside the clip
        (1.5, 2.0, 2.4, 0.0),  # better and already further than the clip: no more pull
        (0.5, 2.0, 1.0, 1.0),  # better but less likely: pulled back
        (0.5, -2.0, -1.6, 0.0),  # worse and already less likely than the clip
        (1.5, -2.0, -3.0, -3.0),  # worse but more likely: pushed back
    ],
)
@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_ppo_case_by_case(ratio: float, advantage: float, objective: float, slope: float, tau: float) -> None:
    log_pi = torch.tensor([[math.log(ratio) - 1.0]], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([[-1.0]], dtype=torch.float64)
    loss = ppo_loss(log_pi, behaviour, torch.tensor([[advantage]], dtype=torch.float64), clip=0.2, tau=tau)
    torch.testing.assert_close(loss.value.item(), -tau * objective)
    torch.testing.assert_close(-gradient(loss.value, log_pi).item(), tau * slope)
    assert loss.errors.item() == loss.value.item()


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_ppo_on_policy_equals_the_score_function(tau: float) -> None:
    log_pi, advantages = (-normal(6, 3).abs()).requires_grad_(), normal(6, 3, seed=1)
    clipped = ppo_loss(log_pi, log_pi.detach(), advantages, tau=tau).value
    plain = policy_loss(log_pi, advantages, tau=tau).value
    torch.testing.assert_close(gradient(clipped, log_pi), gradient(plain, log_pi))


def all_losses(x: Tensor, y: Tensor, z: Tensor, **kwargs: Any) -> dict[str, Loss]:
    """Every loss of x, the approximation, with y and z as everything that must be detached."""
    return {
        "value": value_loss(x, y, **kwargs),
        "q": q_loss(x, y, **kwargs),
        "policy": policy_loss(x, y, rhos=z, **kwargs),
        "ppo": ppo_loss(x, z, y, **kwargs),
    }


NAMES = ("value", "q", "policy", "ppo")


@pytest.mark.parametrize("name", NAMES)
def test_gradients_flow_into_the_approximation_alone(name: str) -> None:
    x, y, z, w = (normal(4, 2, seed=i).requires_grad_() for i in range(4))
    value, errors = all_losses(x, y, z, weights=w)[name]
    grads = torch.autograd.grad(value, (x, y, z, w), allow_unused=True)
    assert (grads[0] != 0).any()
    assert all(grad is None for grad in grads[1:])
    assert not errors.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_takes_elements_out_of_the_mean(name: str) -> None:
    x, y, z, w = (normal(6, 3, seed=i) for i in range(4))
    mask = normal(6, 3, seed=9) > 0
    masked = all_losses(x, y, z, mask=mask, weights=w)[name]
    chosen = all_losses(x[mask], y[mask], z[mask], weights=w[mask])[name]
    torch.testing.assert_close(masked.value, chosen.value)
    torch.testing.assert_close(masked.errors[mask], chosen.errors)
    assert (masked.errors[~mask] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_weights_multiply_the_terms_and_not_the_count(name: str) -> None:
    x, y, z, w = (normal(6, 3, seed=i) for i in range(4))
    weighted = all_losses(x, y, z, weights=w)[name]
    plain = all_losses(x, y, z)[name]
    one = torch.zeros_like(w)
    one[2, 1] = 1.0
    single = all_losses(x[2:3, 1:2], y[2:3, 1:2], z[2:3, 1:2])[name]
    alone = all_losses(x, y, z, weights=one)[name]
    torch.testing.assert_close(18 * alone.value, single.value)
    assert torch.equal(weighted.errors, plain.errors)
    assert weighted.value != plain.value


@pytest.mark.parametrize("name", NAMES)
def test_masked_garbage_reaches_neither_value_nor_gradient(name: str) -> None:
    x, y, z, w = (normal(4, 2, seed=i) for i in range(4))
    mask = torch.ones(4, 2, dtype=torch.bool)
    mask[1] = False
    for tensor, garbage in ((x, -math.inf), (y, math.nan), (z, math.inf), (w, math.nan)):
        tensor[1] = garbage
    x.requires_grad_()
    value, errors = all_losses(x, y, z, mask=mask, weights=w)[name]
    assert value.isfinite()
    assert errors.isfinite().all()
    grad = gradient(value, x)
    assert grad.isfinite().all()
    assert (grad[1] == 0).all()
    assert (grad[mask] != 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_kept_is_zero(name: str) -> None:
    x, y, z = normal(4, 2).requires_grad_(), normal(4, 2, seed=1), normal(4, 2, seed=2)
    value, _ = all_losses(x, y, z, mask=torch.zeros(4, 2, dtype=torch.bool))[name]
    assert value == 0
    assert (gradient(value, x) == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_that_would_broadcast_is_refused(name: str) -> None:
    x, y = normal(4, 2), normal(4, 1)
    with pytest.raises(ValueError, match="has shape"):
        all_losses(x, y, y)[name]
    with pytest.raises(ValueError, match="mask has shape"):
        all_losses(x, x, x, mask=torch.ones(4, 1, dtype=torch.bool))[name]


@pytest.mark.parametrize("name", NAMES)
def test_bf16_inputs_are_summed_in_fp32(name: str) -> None:
    x, y, z = (normal(64, 32, seed=i).bfloat16() for i in range(3))
    value, errors = all_losses(x, y, z)[name]
    exact = all_losses(x.double(), y.double(), z.double())[name]
    assert value.dtype == errors.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact.value, rtol=1e-5, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    log_ratio=st.sampled_from([-1e3, -200.0, -50.0, 0.0, 50.0, 200.0, 1e3]),
    advantage=st.sampled_from([-1e4, -1.0, 0.0, 1.0, 1e4]),
    tau=st.sampled_from([1e-3, 1.0]),
)
def test_ppo_is_finite_at_extreme_ratios(log_ratio: float, advantage: float, tau: float) -> None:
    log_pi = torch.full((2, 2), log_ratio, requires_grad=True)
    loss = ppo_loss(log_pi, torch.zeros(2, 2), torch.full((2, 2), advantage), tau=tau)
    assert loss.value.isfinite()
    assert gradient(loss.value, log_pi).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_compiles_into_one_graph(name: str) -> None:
    def function(x: Tensor, y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
        return all_losses(x, y, z, mask=mask)[name].value

    arguments = (normal(4, 2), normal(4, 2, seed=1), normal(4, 2, seed=2), normal(4, 2, seed=3) > 0)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=0, atol=0)


def test_taken_selects_and_carries_gradients() -> None:
    x = torch.arange(12.0).reshape(2, 2, 3).requires_grad_()
    actions = torch.tensor([[2, 0], [1, 1]], dtype=torch.uint8)
    chosen = taken(x, actions)
    assert chosen.tolist() == [[2.0, 3.0], [7.0, 10.0]]
    assert gradient(chosen.sum(), x).nonzero().tolist() == [[0, 0, 2], [0, 1, 0], [1, 0, 1], [1, 1, 1]]


def test_entropy() -> None:
    logits = normal(3, 5).requires_grad_()
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(entropy(logits.log_softmax(-1)), expected)
    torch.testing.assert_close(
        entropy(torch.zeros(2, 4).log_softmax(-1)), torch.full((2,), math.log(4)), rtol=1e-6, atol=0
    )


def test_entropy_of_impossible_actions() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf], [0.0, -math.inf, -math.inf]], requires_grad=True)
    result = entropy(logits.log_softmax(-1))
    torch.testing.assert_close(result, torch.tensor([math.log(2), 0.0]))
    assert gradient(result.sum(), logits).isfinite().all()
