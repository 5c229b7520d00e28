"""Parameters that are not used through recorded layers: found, and exact all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.support.brute_force import brute_force
from torch import Tensor, nn
from torch.nn import functional as F

from casa.diagnostics import gradient_angles
from casa.diagnostics.capture import by_sample, recording, split
from casa.heads import HeadOutput, separate_q_head
from casa.nn import Network

ACTIONS = 3


class Functional(nn.Module):
    """Uses the weight of a convolution without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.conv.weight.flip(-1), self.conv.bias).flatten(1)


class UsedTwice(nn.Module):
    """Calls a layer and uses its weight once more outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) @ self.linear.weight


class Doubled(nn.Linear):
    """A subclass whose output is not W a + b, and which does not claim so."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x) ** 2


class Tied(nn.Module):
    """Two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Hyper(nn.Module):
    """A layer that is called on a constant, not on the states."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.linear(x.new_ones(3)) + self.linear(x.new_full((2, 3), 0.5)).sum(0)


# name -> (body, shape of a state, features, parameters that need the fallback)
BODIES: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...], int, int]]] = {
    "layer norm": lambda: (nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)), (4,), 6, 2),
    "prelu": lambda: (nn.Sequential(nn.Linear(4, 6), nn.PReLU()), (4,), 6, 1),
    "conv1d": lambda: (nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten()), (2, 4), 9, 2),
    "functional": lambda: (Functional(), (2, 4, 4), 12, 2),
    "used twice": lambda: (UsedTwice(), (4,), 4, 2),
    "subclass": lambda: (Doubled(4, 5), (4,), 5, 2),
    "tied": lambda: (Tied(), (4,), 4, 3),
    "hyper": lambda: (Hyper(), (4,), 4, 2),
    "weight norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), (4,), 5, 3),
}


class Outputs(nn.Module):
    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body = body
        self.outputs = nn.Linear(features, 2 * ACTIONS + 1)

    def forward(self, x: Tensor) -> HeadOutput:
        y = self.outputs(self.body(x))
        return separate_q_head(y[..., :ACTIONS], y[..., -1], y[..., ACTIONS:-1], tau=0.5)


@pytest.mark.parametrize("name", BODIES)
def test_other_parameters_are_exact(name: str) -> None:
    torch.manual_seed(1)
    body, shape, features, others = BODIES[name]()
    net = Outputs(body, features).double()
    x = torch.randn(7, *shape, dtype=torch.float64)
    with recording(net) as layers:
        out = net(x)
    whole, rest = split(net, layers, [out.v, out.log_pi], torch.Size([7]), False)
    assert net.outputs in [layer.module for layer in whole]
    assert len(rest) == others
    actions, mask = torch.randint(ACTIONS, (7,)), torch.arange(7) != 3
    q, v = torch.randn(2, 7, dtype=torch.float64)
    given = (net, lambda: net(x), actions, q, v, mask)
    assert gradient_angles(*given) == pytest.approx(brute_force(*given), abs=1e-10)


def test_other_parameters_in_a_recurrent_net() -> None:
    torch.manual_seed(2)
    net = nn.ModuleDict({"rnn": nn.GRU(3, 4), "outputs": nn.Linear(4, 2 * ACTIONS + 1)}).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64)

    def forward() -> HeadOutput:
        y = net["outputs"](net["rnn"](x)[0])
        return separate_q_head(y[..., :ACTIONS], y[..., -1], y[..., ACTIONS:-1], tau=0.5)

    q, v = torch.randn(2, 5, 2, dtype=torch.float64)
    given = (net, forward, torch.randint(ACTIONS, (5, 2)), q, v)
    assert gradient_angles(*given, recurrent=True) == pytest.approx(brute_force(*given), abs=1e-10)


def test_a_subclass_that_declares_its_scale_is_a_layer() -> None:
    class Scaled(nn.Conv2d):
        input_scale = 0.25

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, self.weight / 4, self.bias)

    torch.manual_seed(3)
    net = Outputs(nn.Sequential(Scaled(2, 3, 3), nn.ReLU(), nn.Flatten()), 12).double()
    x = torch.randn(7, 2, 4, 4, dtype=torch.float64) * 9
    with recording(net) as layers:
        out = net(x)
    assert split(net, layers, [out.v], torch.Size([7]), False)[1] == []
    q, v = torch.randn(2, 7, dtype=torch.float64)
    given = (net, lambda: net(x), torch.randint(ACTIONS, (7,)), q, v)
    assert gradient_angles(*given) == pytest.approx(brute_force(*given), abs=1e-10)


def test_a_call_whose_output_is_discarded_does_not_count() -> None:
    class Discards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.linear(2 * x)
            return torch.tanh(self.linear(x))

    torch.manual_seed(5)
    net = Outputs(Discards(), 4).double()
    x = torch.randn(7, 4, dtype=torch.float64)
    with recording(net) as layers:
        out = net(x)
    whole, rest = split(net, layers, [out.v], torch.Size([7]), False)
    assert [len(layer.calls) for layer in whole] == [1, 1]
    assert rest == []


@pytest.mark.parametrize("head", ["casa", "type5"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("backbone", ["impala-shallow", "impala-deep"])
def test_our_networks_need_no_fallback(backbone: str, autocast: bool, head: str) -> None:
    net = Network((1, 24, 24), ACTIONS, backbone=backbone, lstm=8, head=head, hidden=16)
    obs = torch.randint(256, (3, 2, 1, 24, 24), dtype=torch.uint8)
    with recording(net) as layers, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = net(obs)[0]
    assert out.q is not None
    whole, rest = split(net, layers, [out.v, out.q, out.log_pi], torch.Size([3, 2]), True)
    assert rest == []
    assert {layer.module for layer in whole} == {m for m in net.modules() if list(m.parameters(recurse=False))}


def test_bfloat16_autocast_is_near_full_precision() -> None:
    torch.manual_seed(4)
    net = Network((1, 24, 24), ACTIONS, head="type5", hidden=32)
    obs = torch.randint(256, (5, 2, 1, 24, 24), dtype=torch.uint8)
    actions, targets = torch.randint(ACTIONS, (5, 2)), torch.randn(2, 5, 2)
    full = gradient_angles(net, lambda: net(obs)[0], actions, *targets)

    def in_half_precision() -> HeadOutput:
        with torch.autocast("cpu", torch.bfloat16):
            return net(obs)[0]

    half = gradient_angles(net, in_half_precision, actions, *targets)
    with torch.autocast("cpu", torch.bfloat16):  # the products keep full precision here too
        within = gradient_angles(net, lambda: net(obs)[0], actions, *targets)
    assert half == pytest.approx(full, abs=0.03)
    assert half != full
    assert within == half


@pytest.mark.parametrize(
    ("lead", "row"),  # row: for state column b, the flat rows (over `lead`) that are its own, as a function of b
    [
        ((4, 3), lambda b: [b, 3 + b, 6 + b, 9 + b]),  # [T, B]
        ((12,), lambda b: [b, 3 + b, 6 + b, 9 + b]),  # [T·B]
        ((3,), lambda b: [b]),  # [B]
        ((6, 3), lambda b: [b, 3 + b, 6 + b, 9 + b, 12 + b, 15 + b]),  # [T', B], T' a multiple of B
        ((3, 2), lambda b: [2 * b, 2 * b + 1]),  # [B, k]
    ],
)
def test_rows_of_each_column(lead: tuple[int, ...], row: Callable[[int], list[int]]) -> None:
    size = torch.Size(lead).numel()
    x = torch.arange(size).reshape(*lead, 1)
    rows = by_sample(x, nn.Linear(1, 1), torch.Size([4, 3]), True)
    assert rows is not None
    assert [r.flatten().tolist() for r in rows] == [row(b) for b in range(3)]


@pytest.mark.parametrize("lead", [(), (5,), (3, 3), (12, 3)])
def test_rows_that_cannot_be_told_are_left_to_the_fallback(lead: tuple[int, ...]) -> None:
    assert by_sample(torch.zeros(*lead, 1), nn.Linear(1, 1), torch.Size([4, 3]), True) is None
