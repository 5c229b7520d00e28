"""Backbones equal their literal definitions; the core resets where episodes start; heads are two layers."""

import copy

import numpy as np
import pytest
import torch
from tests.support.small import GAUSSIAN
from torch.nn import functional as F

from casa.actions import ActionSpec
from casa.heads import HEADS
from casa.nn import LSTMCore, Network
from casa.nn.backbones import (
    BACKBONES,
    GridNet,
    ImpalaDeep,
    ImpalaShallow,
    Nature,
    NormMLP,
    pixel_blocks,
    space_to_depth,
)


def literal_weight(weight, block, channels, pixels=False):
    """The k·block x k·block kernel that a k x k kernel over space-to-depth input stands for."""
    out, _, k, _ = weight.shape
    if pixels:
        w = weight.reshape(out, channels, block, block, k, k)  # [O, C, dy, dx, ky, kx]
        w = w.permute(0, 1, 4, 2, 5, 3)
    else:
        w = weight.reshape(out, block, block, channels, k, k).permute(0, 3, 4, 1, 5, 2)
    return w.reshape(out, channels, k * block, k * block)


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_normalised_features_are_bounded_for_any_observation(size):
    """Each layer's output has mean 0 and variance 1 before ReLU, so that |features|² is at most their number."""
    torch.manual_seed(0)
    net, seen = NormMLP((3,), 16), {}
    net.linear2.register_forward_hook(lambda m, i, o: seen.update(inner=i[0]))
    features = net(size * torch.randn(5, 3))
    for x in (seen["inner"], features):
        squares = x.square().sum(-1)
        assert (x >= 0).all() and (squares <= 16 * 1.001).all() and (squares > 1).all()


@pytest.mark.parametrize("size", [(84, 84), (86, 91), (20, 20)])
def test_shallow_equals_the_published_convolutions(size):
    torch.manual_seed(0)
    net = ImpalaShallow((4, *size)).double()
    obs = torch.randint(0, 256, (3, 4, *size), dtype=torch.uint8)
    seen = {}
    net.conv2.register_forward_hook(lambda m, i, o: seen.update(conv2=o))
    x = (obs.double() / 255)
    x = F.relu(F.conv2d(x, literal_weight(net.conv1.weight, 4, 4, pixels=True), net.conv1.bias, stride=4))
    x = F.conv2d(x, literal_weight(net.conv2.weight, 2, 16), net.conv2.bias, stride=2)
    y = F.relu(net.conv1(pixel_blocks(obs).double()))
    y = net.conv2(space_to_depth(y, 2))
    torch.testing.assert_close(x, y)
    assert net.float()(obs).shape == (3, 256)


@pytest.mark.parametrize("size", [(84, 84), (86, 91), (36, 36)])
def test_nature_equals_the_published_network(size):
    torch.manual_seed(0)
    net = Nature((4, *size)).double()
    obs = torch.randint(0, 256, (3, 4, *size), dtype=torch.uint8)
    first = literal_weight(net.conv1.weight, 4, 4, pixels=True)
    x = F.relu(F.conv2d(obs.double() / 255, first, net.conv1.bias, stride=4))
    x = F.relu(F.conv2d(x, literal_weight(net.conv2.weight, 2, 32), net.conv2.bias, stride=2))
    x = F.relu(F.conv2d(x, net.conv3.weight, net.conv3.bias))
    assert x.shape[1] == 64
    x = F.relu(net.linear(x.permute(0, 2, 3, 1).flatten(1)))
    torch.testing.assert_close(net(obs), x)
    assert x.shape == (3, 512)
    if size == (84, 84):
        assert sum(p.numel() for p in net.parameters()) == 1_684_128  # the published network's


def test_deep_shapes_and_gradients():
    net = ImpalaDeep((4, 84, 84))
    out = net(torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8))
    assert out.shape == (2, 256)
    out.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    assert sum(isinstance(m, torch.nn.Conv2d) for m in net.modules()) == 15


def test_pixels_are_scaled_once():
    """The features of a byte image equal those of the network with explicitly divided input."""
    net = ImpalaDeep((4, 84, 84))
    obs = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    conv = net.sections[0].conv
    expected = F.conv2d(obs.float() / 255, conv.weight, conv.bias, padding=1)
    torch.testing.assert_close(conv(obs.float()), expected, rtol=1e-4, atol=1e-5)


def test_small_images_are_refused():
    with pytest.raises(ValueError, match="at least 20x20"):
        ImpalaShallow((4, 16, 16))
    with pytest.raises(ValueError, match="at least 36x36"):
        Nature((4, 35, 84))
    with pytest.raises(ValueError, match="at least 3x3"):
        GridNet((4, 2, 2))


def test_core_equals_torch_lstm_without_resets():
    torch.manual_seed(1)
    core, lstm = LSTMCore(5, 7), torch.nn.LSTM(5, 7)
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(core.from_input.weight)
        lstm.weight_hh_l0.copy_(core.from_hidden.weight)
        lstm.bias_ih_l0.copy_(core.from_input.bias)
        lstm.bias_hh_l0.zero_()
    x, state = torch.randn(6, 3, 5), torch.randn(3, 14)
    expected, (h, c) = lstm(x, (state[None, :, :7].contiguous(), state[None, :, 7:].contiguous()))
    out, after = core(x, state, torch.zeros(6, 3, dtype=torch.bool))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(after, torch.cat((h[0], c[0]), -1))


def test_core_resets_inside_a_sequence():
    """From a start on, the outputs equal those of a fresh sequence, and no gradient crosses it."""
    core = LSTMCore(4, 6)
    x, state = torch.randn(8, 2, 4, requires_grad=True), torch.randn(2, 12)
    starts = torch.zeros(8, 2, dtype=torch.bool)
    starts[3, 0] = True
    out, _ = core(x, state, starts)
    fresh, _ = core(x[3:, :1], torch.zeros(1, 12), torch.zeros(5, 1, dtype=torch.bool))
    torch.testing.assert_close(out[3:, :1], fresh)
    (grad,) = torch.autograd.grad(out[-1].sum(), x)
    assert grad[:3, 0].abs().max() == 0
    assert grad[:3, 1].abs().max() > 0


@pytest.mark.parametrize("bf16", [False, True])
def test_the_cell_compiles_into_few_graphs_for_any_number_of_steps(bf16):
    """One without gradients, one for the first step, whose state has none, and one for all others."""
    torch.manual_seed(1)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def run(core):
        core.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            with torch.no_grad():
                _, state = core(x[:3], torch.zeros(3, 14), starts[:3])
            out, after = core(x[3:], state, starts[3:])
        (out.float().square().sum() + after.sum()).backward()
        return out, after, *(p.grad for p in core.parameters())

    core = LSTMCore(5, 7)
    x, starts = torch.randn(12, 3, 5), torch.rand(12, 3) < 0.2
    expected = run(copy.deepcopy(core))
    torch._dynamo.reset()
    core.cell.compile(dynamic=False, fullgraph=True, backend=backend)
    for a, b in zip(run(core), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert len(graphs) == 3


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("lstm", [0, 8])
def test_network_steps_equal_its_sequence(head, lstm):
    """Acting one step at a time gives what the learner sees when it unrolls the stored sequence."""
    torch.manual_seed(2)
    actions, width = (ActionSpec.box([-1] * 2, [2] * 2), 4) if head in GAUSSIAN else (3, 3)
    net = Network((5,), actions, backbone="mlp", lstm=lstm, head=head, tau=0.5, hidden=16)
    obs, starts = torch.randn(7, 4, 5), torch.rand(7, 4) < 0.3
    whole, last = net(obs, None, starts)
    state = net.initial_state(4)
    for t in range(7):
        out, state = net(obs[t : t + 1], state, starts[t : t + 1])
        for a, b in zip(out, whole, strict=True):
            if a is not None:
                torch.testing.assert_close(a[0], b[t])
    torch.testing.assert_close(state, last)
    assert whole.v.shape == (7, 4)
    assert whole.log_pi.shape == (7, 4, width)
    assert net.policy_size == width
    for name, module in net.outputs.items():
        assert len(list(module.children())) == (1 if name == "log_std" else 2)


def test_a_value_backbone_separates_the_gradients_of_v_and_the_policy():
    """∇V does not reach what the policy reads, nor ∇A what V reads; with one backbone both do."""

    def reached(own):
        torch.manual_seed(0)
        net = Network((4,), 3, backbone="mlp-tanh", hidden=8, head_layers=1, value_backbone=own)
        out, _ = net(torch.randn(5, 2, 4))
        found = []
        for y in (out.v, out.log_pi[..., 0]):
            grads = torch.autograd.grad(y.sum(), list(net.parameters()), retain_graph=True, allow_unused=True)
            names = [name for name, _ in net.named_parameters()]
            found.append({name.split(".")[0] for name, grad in zip(names, grads, strict=True) if grad is not None})
        return found

    assert reached(True) == [{"value_backbone", "outputs"}, {"backbone", "outputs"}]
    assert reached(False) == [{"backbone", "outputs"}] * 2


def test_first_policy_is_nearly_uniform():
    net = Network((4, 84, 84), 18, tau=1.0)
    obs = torch.randint(0, 256, (1, 4, 4, 84, 84), dtype=torch.uint8)
    out, _ = net(obs)
    assert out.log_pi.exp().max() < 0.08


@pytest.mark.parametrize("backbone", ["impala-shallow", "impala-deep", "impala-norm", "nature"])
def test_the_first_features_are_not_small(backbone):
    """torch's default initialisation gives less than 0.1, in which a ball of a few pixels is lost."""
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8)
    features = BACKBONES[backbone]((4, 84, 84), 256)(pixels)
    assert 0.2 < features.square().mean().sqrt() < 20


def test_normalised_features_never_vanish():
    """However large the trunk's weights become, half of the features are above 0."""
    net = BACKBONES["impala-norm"]((4, 84, 84), 64)
    with torch.no_grad():
        net.linear.bias.fill_(-100.0)
        net.linear.weight.mul_(100.0)
    features = net(torch.randint(0, 256, (4, 4, 84, 84), dtype=torch.uint8))
    assert ((features > 0).float().mean(1) > 0.2).all() and features.max() < 64**0.5 + 1e-3


@pytest.mark.parametrize("backbone", ["impala-shallow", "impala-deep", "impala-norm", "nature"])
def test_bf16_weights_act_like_fp32_ones(backbone):
    net = Network((4, 84, 84), 6, backbone=backbone, lstm=16)
    obs = torch.randint(0, 256, (2, 3, 4, 84, 84), dtype=torch.uint8)
    exact, _ = net(obs)
    with torch.autocast("cpu", torch.bfloat16):
        mixed, _ = net(obs)
    half, _ = net.bfloat16()(obs)
    for out in (mixed, half):
        assert out.v.dtype == torch.float32
        torch.testing.assert_close(out.log_pi, exact.log_pi, atol=0.02, rtol=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_v_sees_the_state_while_it_finds_its_mean(seed):
    """V* = 1 + row of a dot on a constant picture, with all three losses: after 100 steps V is ordered as V* is.

    With the core alone between backbone and outputs the correlation was 0.1: V's mean is learned first, through
    every layer, and saturates the gates.
    """
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(0)
    network = Network((1, 48, 48), 6, backbone="impala-shallow", lstm=64, hidden=128)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
    background = torch.zeros(48, 48, dtype=torch.uint8)
    background[4:16], background[:, :2], background[:, -2:] = 180, 140, 140

    def pictures():
        rows = torch.randint(0, 40, (10, 16), generator=rng)
        obs = background.repeat(10, 16, 1, 1, 1)
        for (t, b), row in np.ndenumerate(rows.numpy()):
            obs[t, b, 0, row : row + 3, 20:23] = 200
        return obs, rows / 40

    for _ in range(100):
        obs, row = pictures()
        out, _ = network(obs)
        target = 1 + row + 0.3 * torch.randn(row.shape, generator=rng)
        action = torch.randint(0, 6, (*row.shape, 1), generator=rng)
        q, log_pi = (x.gather(-1, action).squeeze(-1) for x in (out.q, out.log_pi))
        value, advantage = 0.5 * (target - out.v) ** 2 + 5 * (target - q) ** 2, (target - out.v).detach()
        optimizer.zero_grad()
        (value - 10 * advantage * log_pi).mean().backward()
        optimizer.step()
    obs, row = pictures()
    with torch.no_grad():
        v = network(obs)[0].v
    assert torch.corrcoef(torch.stack((v.flatten(), row.flatten())))[0, 1] > 0.7


def test_outputs_read_the_features_and_the_core():
    """(V, A) = outputs([x, core(x)]): each half of the first layer's weights is of one of them."""
    torch.manual_seed(0)
    network = Network((5,), 3, backbone="mlp", lstm=8, hidden=16)
    obs, starts = torch.randn(4, 2, 5), torch.zeros(4, 2, dtype=torch.bool)
    x = network.backbone(obs.flatten(0, 1))
    y, _ = network.core(x.unflatten(0, (4, 2)), network.initial_state(2), starts)
    expected = network.outputs["value"](torch.cat((x, y.flatten(0, 1)), -1)).view(4, 2)
    torch.testing.assert_close(network(obs, None, starts)[0].v, expected)


def test_a_deep_backbone_shows_the_ball_from_the_start():
    """Features are about 1, and a 2x2 dot that moves changes them; with torch's first weights they are 0.05."""
    torch.manual_seed(0)
    network = ImpalaDeep((1, 84, 84))
    background = torch.zeros(16, 1, 84, 84, dtype=torch.uint8)
    background[..., 20:30, :], background[..., :, :4], background[..., :, -4:] = 180, 140, 140
    for i in range(16):
        background[i, 0, 34 + 3 * i : 36 + 3 * i, 40:42] = 200
    with torch.no_grad():
        x = network(background)
    assert 0.5 < x.square().mean().sqrt() < 5
    assert x.std(0).square().mean().sqrt() > 0.05
