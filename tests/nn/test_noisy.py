"""Noisy layers against the published formula: factorised noise of mean zero, drawn where it is asked for."""

import math

import pytest
import torch

from casa.nn import Network, NoisyLinear
from casa.nn.noisy import factor_noise


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_layer_is_the_published_formula():
    """(μ_w + σ_w ∘ f(ε') f(ε)ᵀ) x + μ_b + σ_b ∘ f(ε'), row by row of the batch."""
    torch.manual_seed(0)
    layer, x = NoisyLinear(3, 5), torch.randn(4, 3)
    for rows in (1, 4):
        noise = factor_noise(rows, layer.noise_size, generator())
        found = layer(x, noise)
        for i in range(4):
            into, out = noise[i % rows].split([3, 5])
            weight = layer.mean.weight + layer.deviation.weight * torch.outer(out, into)
            bias = layer.mean.bias + layer.deviation.bias * out
            torch.testing.assert_close(found[i], weight @ x[i] + bias)
    torch.testing.assert_close(layer(x), x @ layer.mean.weight.T + layer.mean.bias)


def test_the_published_first_weights():
    torch.manual_seed(0)
    layer = NoisyLinear(64, 200, 0.5)
    assert (layer.deviation.weight == 0.5 / 8).all() and (layer.deviation.bias == 0.5 / 8).all()
    for x in layer.mean.parameters():
        assert x.abs().max() <= 1 / 8 and x.detach().std() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.15)


def test_noise_has_mean_zero_and_the_factors_are_independent():
    noise = factor_noise(200_000, 2, generator(1)).double()
    a, b = noise.unbind(-1)
    for x, expected in ((a, 0), (a**2, math.sqrt(2 / math.pi)), (a * b, 0), ((a * b) ** 2, 2 / math.pi)):
        assert abs(x.mean() - expected) < 5 * x.std() / math.sqrt(200_000)
    drawn = torch.randn(3, 7, generator=generator(2))
    torch.testing.assert_close(factor_noise(3, 7, generator(2)), drawn.sign() * drawn.abs().sqrt())


def noisy_network(head="categorical", **settings):
    torch.manual_seed(0)
    net = Network((5,), 3, backbone="mlp", head=head, hidden=16, noise=0.5, **settings)
    with torch.no_grad():
        for output in net.outputs.values():
            output.linear2.deviation.weight.mul_(5)
    return net


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("head", ["categorical", "dueling", "casa"])
def test_a_network_has_the_noise_that_it_is_given(head, layers):
    net, obs = noisy_network(head, head_layers=layers), torch.randn(1, 6, 5)
    noise = net.draw_noise(6, generator())
    assert noise.shape == (6, net.noise_size) and net.noise_size == sum(x.noise_size for x in net.outputs.values())
    plain, one, again = net(obs)[0].q, net(obs, noise=noise)[0].q, net(obs, noise=noise)[0].q
    other = net(obs, noise=net.draw_noise(6, generator(1)))[0].q
    assert torch.equal(one, again) and torch.equal(plain, net(obs)[0].q)
    for x in (one, other):
        assert (x - plain).abs().amax(-1).min() > 1e-4  # in every row
    assert not torch.equal(one, other)
    # One noise for the whole batch is the same as that noise for each row.
    whole = net(obs, noise=noise[:1])[0].q
    torch.testing.assert_close(whole, net(obs, noise=noise[:1].expand(6, -1))[0].q)
    torch.testing.assert_close(whole[0, :1], one[0, :1])


def test_each_output_has_noise_of_its_own():
    net, obs = noisy_network(), torch.randn(1, 2, 5)
    sizes = [net.outputs[name].noise_size for name in net.outputs]
    noise, plain = net.draw_noise(1, generator()), net(obs)[0]
    for part, name in zip(torch.split(torch.arange(sum(sizes)), sizes), net.outputs, strict=True):
        only = torch.zeros_like(noise)
        only[:, part] = noise[:, part]
        out = net(obs, noise=only)[0]
        assert not torch.equal(out.q, plain.q)
        # Without its normaliser log p is V + A(a) - mean A: V's noise is the same for every action.
        logits = (x.log_p - x.log_p.mean(-1, keepdim=True) for x in (plain, out))
        before, after = (x[..., 0, :] - x[..., 1, :] for x in logits)
        assert torch.allclose(before, after, atol=1e-5) == (name == "value_atoms")


def test_the_gradient_of_the_noise_weights_is_that_of_the_mean_times_the_noise():
    torch.manual_seed(0)
    layer, x = NoisyLinear(3, 5), torch.randn(1, 3)
    noise = factor_noise(1, 8, generator())
    layer(x, noise).square().sum().backward()
    into, out = noise[0].split([3, 5])
    torch.testing.assert_close(layer.deviation.weight.grad, layer.mean.weight.grad * torch.outer(out, into))
    torch.testing.assert_close(layer.deviation.bias.grad, layer.mean.bias.grad * out)


def test_without_sigma_there_is_no_noise():
    net = Network((5,), 3, backbone="mlp", hidden=16)
    assert net.noise_size == 0 and not any("deviation" in name for name in net.state_dict())
    assert not any(isinstance(module, NoisyLinear) for module in net.modules())


@pytest.mark.parametrize("actor", [False, True])
def test_noise_in_bf16_is_that_in_fp32(actor):
    torch.manual_seed(0)
    net = Network((4, 84, 84), 6, backbone="nature-conv", head="categorical", hidden=32, noise=0.5)
    obs = torch.randint(0, 256, (1, 3, 4, 84, 84), dtype=torch.uint8)
    noise = net.draw_noise(3, generator())
    exact = net(obs, noise=noise)[0]
    with torch.autocast("cpu", torch.bfloat16, enabled=not actor):
        found = (net.to_bf16() if actor else net)(obs, noise=noise)[0]
    assert found.q.dtype == torch.float32
    torch.testing.assert_close(found.q, exact.q, atol=0.1, rtol=0)


def test_the_convolutions_alone_have_their_own_number_of_features():
    net = Network((4, 84, 84), 6, backbone="nature-conv", head="categorical", hidden=32, noise=0.5, lstm=8)
    assert net.backbone.features == 3136 and net.backbone.linear is None
    assert net.outputs["value_atoms"].linear1.mean.weight.shape == (32, 3136 + 8)
    out, _ = net(torch.zeros(2, 3, 4, 84, 84, dtype=torch.uint8))
    assert out.q.shape == (2, 3, 6) and out.log_p.shape == (2, 3, 6, 51)
