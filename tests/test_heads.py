"""Heads against the paper's formulas, where their gradients must and must not flow, and extreme inputs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import casa
from casa.heads import HEADS, HeadOutput
from tests.support.small import GAUSSIAN

DISCRETE = [name for name in HEADS if name not in GAUSSIAN]
SIZES = {"value": (), "advantage": (5,), "logits": (5,), "q": (5,), "advantage_atoms": (5, 51), "value_atoms": (51,)}


def raw(head, lead=(7,), scale=1.0, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return {
        name: (scale * torch.randn((*lead, *SIZES[name]), generator=g, dtype=dtype)).requires_grad_()
        for name in HEADS[head].outputs
    }


def written_out(head, x, tau):
    """(V, Q, π) as the papers' tables state them, in values."""
    if head == "categorical":
        a = x["advantage_atoms"]
        p = torch.softmax(x["value_atoms"][..., None, :] + a - a.mean(-2, keepdim=True), -1)
        q = sum(p[..., i] * (-10 + 0.4 * i) for i in range(51))
        pi = torch.softmax(q / tau, -1)
        return (pi * q).sum(-1), q, pi
    pi = torch.softmax(x["logits"] if "logits" in x else x["advantage"] / tau, -1)
    if head == "actor-critic":
        return x["value"], None, pi
    if head == "q-critic":
        return (pi * x["q"]).sum(-1), x["q"], pi
    v, a = x["value"][..., None], x["advantage"]
    q = {
        "casa": a - (pi * a).sum(-1, keepdim=True) + v,
        "type1": a - (pi * a).sum(-1, keepdim=True) + v,
        "type2": a - (pi * a).sum(-1, keepdim=True) + v,
        "type3": a + v,
        "type4": a + v,
        "dueling": a + v,
        "type5": x.get("q"),
    }[head]
    return x["value"], q, pi


@pytest.mark.parametrize("head", DISCRETE)
@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_values_are_the_papers(head, tau):
    x = raw(head)
    out = HEADS[head](x, tau)
    v, q, pi = written_out(head, x, tau)
    torch.testing.assert_close(out.v, v)
    torch.testing.assert_close(out.log_pi.exp(), pi)
    if q is None:
        assert out.q is None
    else:
        torch.testing.assert_close(out.q, q)


def flows(y, x):
    """Which network outputs the sum of y has a gradient for."""
    weights = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(9))
    grads = torch.autograd.grad((y * weights).sum(), list(x.values()), allow_unused=True, retain_graph=True)
    return {name for name, g in zip(x, grads, strict=True) if g is not None and g.abs().max() > 1e-12}


GRADIENTS = {  # head: (what V trains, what Q trains, what π trains)
    "actor-critic": ({"value"}, None, {"logits"}),
    "q-critic": ({"q"}, {"q"}, {"logits"}),
    "casa": ({"value"}, {"advantage"}, {"advantage"}),
    "type1": ({"value"}, {"advantage"}, {"advantage"}),
    "type2": ({"value"}, {"advantage", "value"}, {"advantage"}),
    "type3": ({"value"}, {"advantage"}, {"advantage"}),
    "type4": ({"value"}, {"advantage", "value"}, {"advantage"}),
    "type5": ({"value"}, {"q"}, {"advantage"}),
    "dueling": ({"value"}, {"advantage", "value"}, {"advantage"}),
    "categorical": ({"advantage_atoms", "value_atoms"},) * 3,
}


@pytest.mark.parametrize("head", DISCRETE)
def test_gradients_flow_only_where_the_paper_lets_them(head):
    x = raw(head)
    out = HEADS[head](x, 0.5)
    v, q, pi = GRADIENTS[head]
    assert flows(out.v, x) == v
    assert flows(out.log_pi, x) == pi
    assert out.q is None if q is None else flows(out.q, x) == q


def q_jacobian(head, tau=0.5):
    x = raw(head, lead=())
    (a,) = (t for name, t in x.items() if name == "advantage")
    jacobian = [torch.autograd.grad(q, a, retain_graph=True)[0] for q in HEADS[head](x, tau).q]
    return torch.stack(jacobian), torch.softmax(a / tau, -1).detach(), a.detach()


def test_dq_da_of_each_stop_gradient():
    """dQ(a)/dA(b) = [a=b] - π(b) with sg(π); without it the derivative of π adds -(A(b) - π·A) π(b)/τ."""
    eye = torch.eye(5, dtype=torch.float64)
    for head in ("casa", "type2"):
        jacobian, pi, _ = q_jacobian(head)
        torch.testing.assert_close(jacobian, eye - pi)
    jacobian, pi, a = q_jacobian("type1")
    torch.testing.assert_close(jacobian, eye - pi - pi * (a - (pi * a).sum()) / 0.5)
    for head in ("type3", "type4", "dueling"):
        torch.testing.assert_close(q_jacobian(head)[0], eye)


@pytest.mark.parametrize("tau", [1e-3, 0.1, 1.0])
def test_casa_gradient_of_q_is_tau_times_that_of_log_pi(tau):
    x = raw("casa", scale=10 * tau)
    out = casa.casa_head(**x, tau=tau)
    weights = torch.randn(7, 5, dtype=torch.float64)
    (dq,) = torch.autograd.grad((out.q * weights).sum(), x["advantage"], retain_graph=True)
    (dpi,) = torch.autograd.grad((out.log_pi * weights).sum(), x["advantage"])
    torch.testing.assert_close(dq, tau * dpi)


def test_casa_q_is_centred_and_tau_to_zero_is_greedy():
    x = raw("casa")
    for tau in (1e-3, 0.3, 2.0):
        out = casa.casa_head(**x, tau=tau)
        torch.testing.assert_close((out.log_pi.exp() * out.q).sum(-1), out.v)
    greedy = casa.casa_head(**x, tau=1e-6)
    torch.testing.assert_close(greedy.q.amax(-1), greedy.v)
    assert (greedy.log_pi.argmax(-1) == x["advantage"].argmax(-1)).all()


@pytest.mark.parametrize("head", DISCRETE)
@given(
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
    tau=st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    seed=st.integers(0, 1000),
    lead=st.sampled_from([(), (3,), (2, 3)]),
)
@settings(max_examples=25, deadline=None)
def test_extremes_stay_finite(head, scale, tau, seed, lead):
    x = raw(head, lead, scale, seed, dtype=torch.float32)
    out = HEADS[head](x, tau)
    pi = out.log_pi.exp()
    torch.testing.assert_close(pi.sum(-1), torch.ones(lead))
    parts = [out.v.sum(), (out.log_pi * pi.detach()).sum(), *([out.q.sum()] if out.q is not None else [])]
    assert all(torch.isfinite(part) for part in parts)
    sum(parts).backward()
    assert all(t.grad is None or torch.isfinite(t.grad).all() for t in x.values())


def test_large_common_offset_costs_no_digits():
    """Advantages of 1e4 + small differences: Q and π depend on the differences only, in fp32."""
    small = torch.tensor([[0.0, 0.5, -1.0]])
    shifted = casa.casa_head(1e4 + small, torch.zeros(1), tau=0.5)
    plain = casa.casa_head(small, torch.zeros(1), tau=0.5)
    torch.testing.assert_close(shifted.q, plain.q, atol=2e-3, rtol=0)
    torch.testing.assert_close(shifted.log_pi, plain.log_pi, atol=2e-3, rtol=0)


def test_heads_compute_in_fp32_under_bf16():
    out = casa.casa_head(torch.randn(3, 4).bfloat16(), torch.randn(3).bfloat16(), tau=0.1)
    assert out.v.dtype == out.q.dtype == out.log_pi.dtype == torch.float32


def test_tau_must_be_positive():
    with pytest.raises(ValueError, match="tau must be positive"):
        casa.casa_head(torch.zeros(2, 3), torch.zeros(2), tau=0.0)


def test_divergence_is_the_kullback_leibler_sum():
    one, other = (HEADS["actor-critic"](raw("actor-critic", seed=seed)) for seed in (1, 2))
    found = one.divergence(other.log_pi)
    for i in range(7):
        p, q = one.log_pi[i].exp().tolist(), other.log_pi[i].exp().tolist()
        assert found[i].item() == pytest.approx(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    assert one.divergence(one.log_pi).abs().max() == 0 and (found > 0).all()


def test_divergence_of_actions_without_probability():
    never = torch.tensor([0.0, -math.inf])
    sure, even = (
        HeadOutput(torch.zeros(()), None, never),
        HeadOutput(torch.zeros(()), None, torch.tensor([0.5] * 2).log()),
    )
    assert sure.divergence(never) == 0
    assert sure.divergence(even.log_pi).item() == pytest.approx(math.log(2))
    assert even.divergence(never) > 1e30
