"""Gradient angles against the definitions, and what the definitions imply."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.support.brute_force import brute_force
from tests.support.small import GAUSSIAN
from torch import Tensor, nn

from casa.diagnostics import GradientAngles, gradient_angles
from casa.heads import HEADS, HeadOutput, actor_critic_head, casa_head, dueling_head
from casa.nn import Network

ACTIONS = 4
Problem = tuple[nn.Module, Callable[[], HeadOutput], Tensor, Tensor, Tensor]


class Outputs(nn.Module):
    """V, A and Q = A + V on top of any body: all three gradients differ, and none are orthogonal."""

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body = body
        self.outputs = nn.Linear(features, ACTIONS + 1)
        self.outputs.weight.data.mul_(3)  # the body's share of the gradient must be seen

    def forward(self, x: Tensor) -> HeadOutput:
        y = self.outputs(self.body(x))
        return dueling_head(y[..., 1:], y[..., 0], tau=0.5)


def problem(net: nn.Module, x: Tensor, shape: tuple[int, ...] | None = None) -> Problem:
    net = net.to(x.dtype)
    shape = shape or x.shape[:1]
    actions = torch.randint(ACTIONS, shape)
    return net, lambda: net(x), actions, torch.randn(shape, dtype=x.dtype), torch.randn(shape, dtype=x.dtype)


def assert_angles(found: GradientAngles, expected: GradientAngles, tolerance: float = 1e-5) -> None:
    assert found == pytest.approx(expected, abs=tolerance, nan_ok=True)
    assert all(isinstance(value, float) for value in found)


class Residual(nn.Module):
    """x + conv(relu(conv(x))) with one convolution used twice, then once more after pooling, on another size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.conv(torch.relu(self.conv(x)))
        return torch.relu(self.conv(nn.functional.max_pool2d(x, 2))).flatten(1)


class Tokens(nn.Module):
    """One linear layer over many rows of each state."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, out)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)).mean(1)


BODIES: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "mlp": lambda: (nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 6), nn.Tanh()), (7,)),
    "no bias": lambda: (nn.Sequential(nn.Linear(7, 6, bias=False), nn.ReLU()), (7,)),
    "in-place": lambda: (nn.Sequential(nn.Linear(7, 6), nn.ReLU(inplace=True)), (7,)),
    "few tokens": lambda: (Tokens(7, 6), (2, 7)),
    "many tokens": lambda: (Tokens(3, 6), (11, 3)),
    "stride": lambda: (nn.Sequential(nn.Conv2d(3, 5, 3, stride=2), nn.ReLU(), nn.Flatten()), (3, 8, 7)),
    "padding": lambda: (nn.Sequential(nn.Conv2d(3, 4, (3, 2), (2, 1), (1, 2)), nn.Flatten()), (3, 6, 5)),
    "same": lambda: (nn.Sequential(nn.Conv2d(2, 4, 4, padding="same"), nn.Flatten()), (2, 5, 6)),
    "circular": lambda: (
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.ReLU(), nn.Flatten()),
        (2, 5, 6),
    ),
    "dilation": lambda: (nn.Sequential(nn.Conv2d(2, 4, 3, dilation=(2, 1)), nn.ReLU(), nn.Flatten()), (2, 7, 6)),
    "groups": lambda: (
        nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False), nn.ReLU(), nn.Flatten()),
        (4, 5, 5),
    ),
    "one pixel": lambda: (nn.Sequential(nn.Conv2d(4, 6, 5), nn.Flatten()), (4, 5, 5)),
    "residual": lambda: (Residual(), (3, 6, 6)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", BODIES)
def test_equals_brute_force(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    body, shape = BODIES[name]()
    x = torch.randn(13, *shape, dtype=dtype)
    with torch.no_grad():
        features = body.to(dtype)(x).shape[1]
    given = problem(Outputs(body, features), x)
    expected = brute_force(*given)
    assert 0.02 < abs(expected.chi) < 0.98  # else the comparison would show little
    assert_angles(gradient_angles(*given), expected, 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_many_chunks_and_both_memory_formats(
    memory_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casa.diagnostics.products._CACHE_CHUNK", 1000)
    monkeypatch.setattr("casa.diagnostics.products._LARGE_CHUNK", 1000)
    torch.manual_seed(2)
    net = Outputs(nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 4, 2), nn.Flatten()), 36)
    x = torch.randn(11, 3, 9, 9, dtype=torch.float64).contiguous(memory_format=memory_format)
    given = problem(net.to(memory_format=memory_format), x)
    assert_angles(gradient_angles(*given), brute_force(*given), 1e-10)


@pytest.mark.parametrize("backbone", ["impala-shallow", "impala-deep", "impala-norm", "grid", "mlp"])
def test_backbones_over_time_and_batch(backbone: str) -> None:
    torch.manual_seed(3)
    size = 10 if backbone == "grid" else 24
    net = Network((2, size, size), ACTIONS, backbone=backbone, head="type5", hidden=16)
    obs = torch.randint(256, (3, 4, 2, size, size), dtype=torch.uint8)
    actions, q, v = torch.randint(ACTIONS, (3, 4)), torch.randn(3, 4), torch.randn(3, 4)
    given = (net, lambda: net(obs)[0], actions, q, v)
    assert_angles(gradient_angles(*given), brute_force(*given))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu() -> None:
    torch.manual_seed(3)
    net = Outputs(nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 16)), 16)
    x = torch.randn(11, 3, 9, 9, dtype=torch.float64)
    net, forward, *rest = problem(net, x)
    expected = gradient_angles(net, forward, *rest)
    net, x = net.cuda(), x.cuda()
    assert_angles(gradient_angles(net, lambda: net(x), *(y.cuda() for y in rest)), expected, 1e-8)


def lstm_problem(head: str = "type5") -> Problem:
    torch.manual_seed(4)
    net = Network((5,), ACTIONS, backbone="mlp", lstm=6, head=head, hidden=8)
    steps, batch = 7, 3
    obs, state = torch.randn(steps, batch, 5), torch.randn(batch, 12)
    starts = torch.zeros(steps, batch, dtype=torch.bool)
    starts[2, 0] = starts[5, 1] = starts[3, 1] = True
    actions, q, v = torch.randint(ACTIONS, (steps, batch)), torch.randn(steps, batch), torch.randn(steps, batch)
    return net, lambda: net(obs, state, starts)[0], actions, q, v


@pytest.mark.parametrize("every", [1, 3])
def test_lstm_with_resets(every: int) -> None:
    given = lstm_problem()
    mask = torch.rand(7, 3) < 0.7
    chosen = torch.zeros(7, 3, dtype=torch.bool)
    chosen[every - 1 :: every] = True
    expected = brute_force(*given, mask=mask, chi_mask=chosen)
    assert_angles(gradient_angles(*given, mask=mask, recurrent=True, every=every), expected)


def test_convolution_called_once_per_time_step() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 3, padding=1)
            self.outputs = nn.Linear(18, ACTIONS + 1)

        def forward(self, x: Tensor) -> HeadOutput:
            h, hs = x.new_zeros(x.shape[1], 2, 3, 3), []
            for frame in x:
                h = torch.tanh(self.conv(torch.cat((h, frame), 1)))
                hs.append(h.flatten(1))
            y = self.outputs(torch.stack(hs))
            return dueling_head(y[..., 1:], y[..., 0], tau=0.5)

    torch.manual_seed(5)
    given = problem(Recurrent(), torch.randn(4, 5, 1, 3, 3, dtype=torch.float64), (4, 5))
    assert_angles(gradient_angles(*given, recurrent=True), brute_force(*given), 1e-10)


def test_chi_is_one_for_the_casa_head_and_less_for_every_other() -> None:
    for name in HEADS.keys() - set(GAUSSIAN):
        torch.manual_seed(6)
        net = Network((4,), ACTIONS, backbone="mlp", head=name, tau=0.1, hidden=32)
        for p in net.parameters():
            p.data.mul_(2)  # away from a uniform policy, where some heads are alike
        obs, shape = torch.randn(8, 4, 4), (8, 4)
        actions, targets = torch.randint(ACTIONS, shape), torch.randn(2, *shape)
        found = gradient_angles(net, lambda net=net, obs=obs: net(obs)[0], actions, *targets)
        if name == "actor-critic":
            assert math.isnan(found.chi)
        elif name == "casa":
            assert found.chi == pytest.approx(1, abs=1e-5)
        else:
            assert found.chi < 0.999, name


def test_chi_is_one_with_a_backbone_of_its_own_for_v() -> None:
    torch.manual_seed(0)
    net = Network((6,), 4, backbone="mlp", hidden=16, head="casa", tau=0.3, value_backbone=True)
    obs, actions, targets = torch.randn(1, 9, 6), torch.randint(4, (1, 9)), torch.randn(2, 1, 9)
    found = gradient_angles(net, lambda: net(obs)[0], actions, *targets)
    assert found.chi == pytest.approx(1, abs=1e-5)
    assert found.cos_v_pi == pytest.approx(0, abs=1e-6)  # they share no parameter


def test_chi_is_one_for_the_casa_head_through_an_lstm() -> None:
    assert gradient_angles(*lstm_problem("casa"), recurrent=True).chi == pytest.approx(1, abs=1e-5)


def test_without_q_only_the_angle_of_v_and_pi_is_known() -> None:
    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, ACTIONS + 1)

        def forward(self, x: Tensor) -> HeadOutput:
            y = self.linear(x)
            return actor_critic_head(y[..., :-1], y[..., -1])

    torch.manual_seed(7)
    given = problem(ActorCritic(), torch.randn(9, 5, dtype=torch.float64))
    found = gradient_angles(*given)
    assert math.isnan(found.chi)
    assert math.isnan(found.cos_beta)
    assert math.isnan(found.cos_v_q)
    assert_angles(found, brute_force(*given), 1e-10)


def mlp_problem(seed: int = 8) -> Problem:
    torch.manual_seed(seed)
    return problem(Outputs(nn.Sequential(nn.Linear(5, 6), nn.Tanh()), 6), torch.randn(9, 5, dtype=torch.float64))


def test_masked_states_do_not_count_whatever_their_targets() -> None:
    net, forward, actions, q, v = mlp_problem()
    mask = torch.arange(9) % 3 != 0
    expected = brute_force(net, forward, actions, q, v, mask)
    assert expected.chi != pytest.approx(brute_force(net, forward, actions, q, v).chi, abs=1e-4)
    q[~mask], v[~mask] = math.nan, math.inf
    assert_angles(gradient_angles(net, forward, actions, q, v, mask), expected, 1e-10)


def test_no_valid_state_is_nan() -> None:
    given = mlp_problem()
    assert all(math.isnan(x) for x in gradient_angles(*given, mask=torch.zeros(9, dtype=torch.bool)))


def test_zero_gradients_give_zero_not_nan() -> None:
    net, forward, actions, _, _ = mlp_problem()
    out = forward()
    assert out.q is not None
    q_target = out.q.gather(-1, actions[:, None]).squeeze(-1).detach()  # Q^ = Q: the gradient of L_Q vanishes
    found = gradient_angles(net, forward, actions, q_target, torch.randn(9, dtype=torch.float64))
    assert found.cos_beta == 0
    assert found.cos_v_q == 0
    assert found.cos_v_pi != 0


def test_norms_below_the_floor_count_as_the_floor() -> None:
    net, forward, actions, q, v = mlp_problem()

    def tiny() -> HeadOutput:
        out = forward()
        assert out.q is not None
        return replace(out, q=out.q * 1e-9)

    expected = brute_force(net, tiny, actions, q, v)
    assert abs(expected.chi) < 0.5 * abs(brute_force(net, forward, actions, q, v).chi)
    assert_angles(gradient_angles(net, tiny, actions, q, v), expected, 1e-10)


@pytest.mark.parametrize("frozen", ["body.0.weight", "body.0.bias"])
def test_frozen_and_detached_parameters_contribute_nothing(frozen: str) -> None:
    net, forward, actions, q, v = mlp_problem()
    net.get_parameter(frozen).requires_grad_(False)

    def detached() -> HeadOutput:
        out = forward()
        return replace(out, v=out.v.detach())

    expected = brute_force(net, forward, actions, q, v)
    assert_angles(gradient_angles(net, forward, actions, q, v), expected, 1e-10)
    found = gradient_angles(net, detached, actions, q, v)
    assert found.chi == pytest.approx(expected.chi)
    assert found.cos_v_pi == found.cos_v_q == 0


def test_leaves_nothing_behind() -> None:
    net, forward, actions, q, v = mlp_problem()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    marks = {name: torch.full_like(p, 7.0) for name, p in net.named_parameters()}
    for name, p in net.named_parameters():
        p.grad = marks[name]
    net.body.eval()  # type: ignore[union-attr, operator]
    outputs: list[weakref.ref[Tensor]] = []

    def watched() -> HeadOutput:
        out = forward()
        outputs.append(weakref.ref(out.v))
        return out

    with torch.no_grad():
        gradient_angles(net, watched, actions, q, v)
        assert not torch.is_grad_enabled()
    gc.collect()
    assert outputs[0]() is None  # the graph is gone
    assert torch.is_autocast_cache_enabled()
    assert net.training
    assert not net.body.training  # type: ignore[union-attr]
    for name, p in net.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is marks[name]
        assert torch.equal(p.grad, torch.full_like(p, 7.0))
    assert not any(module._forward_hooks for module in net.modules())


def test_hooks_go_when_the_forward_pass_fails() -> None:
    net, _, actions, q, v = mlp_problem()

    def fails() -> HeadOutput:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        gradient_angles(net, fails, actions, q, v)
    assert not any(module._forward_hooks for module in net.modules())


def test_a_training_step_after_the_call_is_not_disturbed() -> None:
    net, forward, actions, q, v = mlp_problem()
    gradient_angles(net, forward, actions, q, v)
    forward().v.sum().backward()
    assert all(p.grad is not None for p in net.body.parameters())  # type: ignore[union-attr, operator]


def test_inference_mode_around_the_call() -> None:
    given = mlp_problem()
    expected = gradient_angles(*given)
    with torch.inference_mode():
        assert gradient_angles(*given) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_target": torch.zeros(3)}, r"q_target must have the shape of v_target \(9,\), got \(3,\)"),
        ({"v_target": torch.zeros(3)}, r"actions must have the shape of v_target \(3,\), got \(9,\)"),
        ({"mask": torch.ones(9, 1)}, r"mask must have the shape"),
        ({"actions": torch.zeros(8).long(), "q_target": torch.zeros(8), "v_target": torch.zeros(8)}, "V must have"),
        ({"recurrent": True}, r"states are \[T, B\]"),
        ({"every": 2}, "every must be 1"),
    ],
)
def test_wrong_shapes_are_named(change: dict[str, Tensor], message: str) -> None:
    net, forward, actions, q, v = mlp_problem()
    arguments = {"actions": actions, "q_target": q, "v_target": v, **change}
    with pytest.raises(ValueError, match=message):
        gradient_angles(net, forward, **arguments)  # type: ignore[arg-type]


def test_casa_head_needs_only_the_function() -> None:
    """The README's way: `casa_head` on a plain module."""
    torch.manual_seed(9)
    net = nn.Linear(5, ACTIONS + 1)
    x = torch.randn(6, 5)

    def forward() -> HeadOutput:
        y = net(x)
        return casa_head(y[:, 1:], y[:, 0], 0.1)

    found = gradient_angles(net, forward, torch.randint(ACTIONS, (6,)), torch.randn(6), torch.randn(6))
    assert found.chi == pytest.approx(1, abs=1e-6)
