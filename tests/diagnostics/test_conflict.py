"""Conflict between the losses against plain autograd, one gradient at a time."""

import math

import pytest
import torch
from torch import nn

from casa.diagnostics import effective_rank, gradient_angles, measure_conflict
from casa.nn import Network

STEPS, BATCH, ACTIONS = 5, 4, 3


def make(head="type4", lstm=0, backbone="mlp", tau=0.5):
    torch.manual_seed(3)
    shape = (2, 6, 6) if backbone == "grid" else (7,)
    net = Network(shape, ACTIONS, backbone=backbone, head=head, lstm=lstm, hidden=9, tau=tau).double()
    net.to(memory_format=torch.channels_last)
    with torch.no_grad():
        for output in net.outputs.values():
            output.linear2.weight.mul_(20)
    obs = torch.randn(STEPS + 1, BATCH, *shape, dtype=torch.float64)
    actions = torch.randint(ACTIONS, (STEPS, BATCH))
    v, q = torch.randn(2, STEPS, BATCH, dtype=torch.float64)
    mask = torch.rand(STEPS, BATCH) < 0.8
    state = torch.zeros(BATCH, net.state_size, dtype=torch.float64)
    return net, lambda: net(obs, state)[0], actions, v, q, mask


def measured(net, forward, actions, v, q, mask, tau=0.5, recurrent=False):
    features = next(m for m in net.outputs.modules() if isinstance(m, nn.Linear))
    return measure_conflict(
        net, forward, actions, lambda out: (v, q), mask, tau=tau, recurrent=recurrent, features=features
    )


def flat(net, scalar, parameters=None):
    parameters = list(net.parameters()) if parameters is None else list(parameters)
    found = torch.autograd.grad(scalar, parameters, retain_graph=True, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found, strict=True)]
    )


def losses(forward, actions, v, q, mask):
    """Σ error · f / number of valid states, per sequence [B], with the error held fixed."""
    out = forward().map(lambda x: x[:-1])
    taken_q, log_pi = out.q_of(actions), out.log_prob(actions)
    terms = {
        "v": (v - out.v).detach() * out.v,
        "q": (q - taken_q).detach() * taken_q,
        "pi": (q - out.v).detach() * log_pi,
    }
    return {name: (term * mask).sum(0) / mask.sum() for name, term in terms.items()}


def cos(x, y):
    return float(x @ y / (x.norm() * y.norm()))


@pytest.mark.parametrize(("lstm", "backbone"), [(0, "mlp"), (0, "grid"), (6, "mlp")])
@pytest.mark.parametrize("head", ["type4", "type5", "casa", "q-critic"])
def test_equals_autograd(head, lstm, backbone):
    net, forward, *data = make(head, lstm, backbone)
    found = {name: float(x) for name, x in measured(net, forward, *data, recurrent=lstm > 0).scalars.items()}
    terms = losses(forward, *data)
    whole = {name: flat(net, term.sum()) for name, term in terms.items()}
    pairs = {"cos_beta": ("q", "pi"), "cos_v_pi": ("v", "pi"), "cos_v_q": ("v", "q")}
    for column, (f, g) in pairs.items():
        assert found[column] == pytest.approx(cos(whole[f], whole[g]), abs=1e-9)
        assert found[f"conflict_{f}_{g}"] == (found[column] < 0)
        assert found[f"norm_ratio_{f}_{g}"] == pytest.approx(float(whole[f].norm() / whole[g].norm()))
        for name, module in net.named_modules():
            if not isinstance(module, (nn.Linear, nn.Conv2d)):
                continue
            x, y = (flat(net, terms[z].sum(), module.parameters()) for z in (f, g))
            if x.any() and y.any():
                assert found[f"{column}/{name}"] == pytest.approx(cos(x, y), abs=1e-9)
            else:
                assert f"{column}/{name}" not in found
    for name, term in terms.items():
        each = torch.stack([BATCH * flat(net, term[b]) for b in range(BATCH)])
        variance = float(((each - each.mean(0)) ** 2).sum() / (BATCH - 1))
        assert found[f"grad_norm_{name}"] == pytest.approx(float(whole[name].norm()))
        assert found[f"grad_variance_{name}"] == pytest.approx(variance)
        assert found[f"grad_square_{name}"] == pytest.approx(float(whole[name] @ whole[name]) - variance / BATCH)


@pytest.mark.parametrize("lstm", [0, 6])
def test_angles_are_those_of_gradient_angles(lstm):
    net, forward, actions, v, q, mask = make("type4", lstm)
    found = measured(net, forward, actions, v, q, mask, recurrent=lstm > 0).scalars

    def without_last():
        return forward().map(lambda x: x[:-1])

    every = STEPS // 2 if lstm else 1
    expected = gradient_angles(net, without_last, actions, q, v, mask, recurrent=lstm > 0, every=every)
    for name, value in expected._asdict().items():
        assert float(found[name]) == pytest.approx(value, abs=1e-9)
    assert 0.05 < abs(expected.chi) < 0.95
    assert float(found["chi_states"]) == (mask[every - 1 :: every].sum() if lstm else mask.sum())


def test_chi_of_some_states_is_the_mean_over_them():
    net, forward, actions, v, q, mask = make("type4")
    out = forward().map(lambda x: x[:-1])
    q_of, log_pi = out.q_of(actions).flatten(), out.log_prob(actions).flatten()
    expected = [cos(flat(net, q_of[s]), flat(net, log_pi[s])) for s in range(0, 20, 3) if mask.flatten()[s]]
    found = measure_conflict(
        net, forward, actions, lambda out: (v, q), mask, tau=0.5, recurrent=False, chi_states=6
    ).scalars
    assert float(found["chi_states"]) == len(expected) < 7
    assert float(found["chi"]) == pytest.approx(sum(expected) / len(expected), abs=1e-9)


def test_chi_is_one_for_casa_alone():
    assert float(measured(*make("casa")).scalars["chi"]) == pytest.approx(1, abs=1e-9)
    assert float(measured(*make("type2")).scalars["chi"]) < 0.95


def test_without_q_only_v_and_pi_are_compared():
    net, forward, *data = make("actor-critic")
    found = measured(net, forward, *data).scalars
    assert "cos_v_pi" in found and "noise" not in found
    assert not {"chi", "cos_beta", "cos_v_q", "entropy_q", "grad_norm_q"} & set(found)


def test_entropies_of_pi_and_of_q_agree_for_casa_and_differ_for_a_separate_q():
    for head, equal in (("casa", True), ("type5", False)):
        net, forward, actions, v, q, mask = make(head)
        found = float(measured(net, forward, actions, v, q, mask).scalars["entropy_q"])
        out = forward().map(lambda x: x[:-1])
        pi = float((out.entropy() * mask).sum() / mask.sum())
        boltzmann = torch.distributions.Categorical(logits=out.q / 0.5).entropy()
        assert found == pytest.approx(float((boltzmann * mask).sum() / mask.sum()))
        assert (found == pytest.approx(pi)) is equal


class Scaled(nn.Module):
    """A backbone with a parameter outside of linear layers."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(7, 9), nn.LayerNorm(9)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x)))


@pytest.mark.parametrize("lstm", [0, 6])
def test_other_parameters_are_counted_and_their_chi_is_sampled(lstm):
    net, forward, actions, v, q, mask = make("type4", lstm)
    net.backbone = Scaled().double()
    mask = torch.ones_like(mask)
    found = measured(net, forward, actions, v, q, mask, recurrent=lstm > 0).scalars
    whole = {name: flat(net, term.sum()) for name, term in losses(forward, actions, v, q, mask).items()}
    assert float(found["cos_beta"]) == pytest.approx(cos(whole["q"], whole["pi"]), abs=1e-9)
    assert "grad_variance_q" not in found
    out = forward().map(lambda x: x[:-1])
    if not lstm:
        states = range(0, STEPS * BATCH, STEPS * BATCH // 4)
        q_of, log_pi = out.q_of(actions).flatten(), out.log_prob(actions).flatten()
        expected = [cos(flat(net, q_of[s]), flat(net, log_pi[s])) for s in states]
        assert float(found["chi"]) == pytest.approx(sum(expected) / 4, abs=1e-9)


def test_dormant_units_are_counted():
    net, forward, *data = make("casa")
    before = float(measured(net, forward, *data).scalars["dormant_units"])
    with torch.no_grad():
        net.outputs["value"].linear1.weight[:5] = 0
        net.outputs["value"].linear1.bias[:5] = -1
    after = float(measured(net, forward, *data).scalars["dormant_units"])
    # The units are the inputs of linear layers but the first: the hidden layer, the features and both heads' layers.
    assert after - before == pytest.approx(5 / 36, abs=2 / 36) and after > before


@pytest.mark.parametrize("own", [False, True])
def test_what_a_backbone_observes_is_no_dormant_unit(own):
    """49 of 50 entries of the observation are always 0; all hidden units are alive."""
    torch.manual_seed(0)
    net = Network((50,), 3, backbone="mlp-tanh", hidden=16, head_layers=1, value_backbone=own).double()
    obs = torch.zeros(STEPS + 1, BATCH, 50, dtype=torch.float64)
    obs[..., 0] = torch.randn(STEPS + 1, BATCH)
    data = torch.randint(3, (STEPS, BATCH)), *torch.randn(2, STEPS, BATCH).double(), torch.ones(STEPS, BATCH).bool()
    assert float(measured(net, lambda: net(obs)[0], *data).scalars["dormant_units"]) < 0.2


def test_effective_rank():
    torch.manual_seed(0)
    x = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))[0]
    assert effective_rank(x @ x.T) == pytest.approx(12)
    one = torch.randn(12, 1, dtype=torch.float64)
    assert effective_rank(one @ one.T) == pytest.approx(1, abs=1e-3)
    s = torch.tensor([3.0, 1.0], dtype=torch.float64)
    p = s / s.sum()
    two = x[:, :2] * s
    assert effective_rank(two @ two.T) == pytest.approx(math.exp(-float((p * p.log()).sum())), abs=1e-3)
    assert effective_rank(torch.zeros(3, 3)) == 0
    assert math.isnan(effective_rank(torch.full((3, 3), torch.nan)))
    net, forward, *data = make("casa")
    gram = measured(net, forward, *data).feature_gram
    assert gram.shape == ((STEPS + 1) * BATCH,) * 2
