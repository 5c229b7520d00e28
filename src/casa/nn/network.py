"""The whole network: backbone, optional recurrent core, and two fully connected layers per output.

The outputs read the core and, through a skip connection, the backbone. Without the skip connection the agents do not
learn from images: Adam's first steps raise V from 0 to its mean by growing the constant component of the features,
until every LSTM gate is saturated and the differences between states are lost (docs/training.md).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from casa import piecewise
from casa.actions import ActionSpec, Knots, Sizes, alike, blockwise
from casa.heads import HEADS, HeadOutput
from casa.nn.backbones import BACKBONES, as_input
from casa.nn.core import LSTMCore
from casa.nn.noisy import NoisyLinear, factor_noise
from casa.nn.normalize import ObsNorm


class OutputHead(nn.Module):
    """y = W₂ relu(W₁ x + b₁) + b₂, or W x + b with one layer; small at first: the first policy is nearly uniform.

    With `noise` = σ₀ > 0 the layers are `NoisyLinear`.
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: int = 256, layers: int = 2, gain: float = 0.01, noise: float = 0.0
    ) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear | NoisyLinear:
            return NoisyLinear(inputs, outputs, noise) if noise else nn.Linear(inputs, outputs)

        self.linear1 = linear(inputs, hidden) if layers == 2 else None
        self.linear2 = linear(hidden if layers == 2 else inputs, outputs)
        with torch.no_grad():
            if layers == 2:
                self.last.weight.mul_(0.1)
            else:
                nn.init.orthogonal_(self.last.weight, gain)
            self.last.bias.zero_()

    @property
    def last(self) -> nn.Linear:
        """The last layer, without its noise."""
        return self.linear2.mean if isinstance(self.linear2, NoisyLinear) else self.linear2

    @property
    def noise_size(self) -> int:
        """Random numbers of one noise; 0 without noisy layers."""
        return sum(layer.noise_size for layer in self.children() if isinstance(layer, NoisyLinear))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """[..., inputs] to [..., outputs]. The last layer is fp32, whatever the rest computes in.

        bf16 has three digits: at V = 10 its spacing is 0.06, as much as advantages differ. `noise` [1 or rows,
        noise_size] is f(ε) of the layers; None: without noise.
        """
        first, last = self._of_layers(noise)
        if self.linear1 is not None:
            x = torch.relu(self.linear1(x, *first))
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = self.linear2(x.to(self.last.weight.dtype), *last)
        return out

    def _of_layers(self, noise: Tensor | None) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What the two layers take besides x."""
        if noise is None or not isinstance(self.linear2, NoisyLinear):
            return (), ()
        count = noise.shape[-1] - self.linear2.noise_size
        return (noise[..., :count],), (noise[..., count:],)


class Constant(nn.Module):
    """y = w in every state: the standard deviation of a Gaussian policy. A linear layer, for `casa.diagnostics`."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(1, outputs, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """[N, inputs] to [N, outputs]; there is no noise in it."""
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = self.linear(torch.ones_like(x[:, :1], dtype=self.linear.weight.dtype))
        return out


class Kernel(nn.Module):
    """A(u) = Σ_i K_i(u) c_i for continuous parts, with the network's outputs c and fixed functions K.

    "gaussian": the paper's kernel (appendix C), c_i = A(b_i) at basis actions b, K_i(u) = K(u, b_i) / Σ_j K(u, b_j).
    "polynomial": Legendre's polynomials, K_i = `POLYNOMIAL_UNIT` · 2/(i(i + 1)) P_i.
    The integrals of both have no closed form. A is evaluated on a grid, and is linear in between: then they have one.
    """

    FINENESS = 8
    """Grid points per basis action."""
    POLYNOMIAL_GRID = 21
    POLYNOMIAL_UNIT = 10.0
    """log π of a density of standard deviation σ is of the size 1/σ²: Adam's steps of the outputs are scaled to it."""
    matrix: Tensor

    def __init__(self, actions: ActionSpec, outputs: int, name: str) -> None:
        super().__init__()
        self.name, self.sizes = name, actions.sizes(outputs)
        if name == "gaussian":
            self.grid = self.FINENESS * (outputs - 1) + 1
            matrix = piecewise.smoothing(outputs, self.grid, 2 / (outputs - 1))
        else:
            self.grid = self.POLYNOMIAL_GRID
            matrix = piecewise.polynomials(outputs, self.grid, self.POLYNOMIAL_UNIT)
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of continuous parts, and of options, [N, width] to values at grid points, and of options."""
        if self.sizes and alike(self.sizes):
            # States last in memory: a compiler then vectorises over them, not over 21 points.
            return (self.matrix @ x.mT.unflatten(0, (len(self.sizes), -1))).flatten(0, 1).mT
        return blockwise(lambda part, y: y @ self.matrix.mT if isinstance(part, Knots) else y, self.sizes, x)


def _add_return_scale(network: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Weights that were saved before returns had a scale are in the rewards' own units."""
    state.setdefault(f"{prefix}return_scale", torch.ones(()))


class Network(nn.Module):
    """x = backbone(o), (V, Q, log π) = head(outputs([x, core(x)])) over a sequence [T, B]; outputs(x) without a core.

    The recurrent state is one tensor [B, state_size]; state_size is 0 without a core. With `obs_norm` observations are
    normalised by running moments. `advantage_unit` "tau": the output layer is A/τ, so that a step of the optimizer
    changes the policy by the same amount at every temperature. V, Q and A are in units of `return_scale`. With
    `tau_anneals` the temperature is τ times the buffer `tau_left`, which the learner lowers. With `epsilon_anneals` the
    buffer `epsilon_left` scales every ε; actors receive it with the weights.
    Continuous parts of an action have `knots` outputs: values at the knots of piecewise linear functions (`kernel`
    "hat"), at the basis actions of a Gaussian kernel ("gaussian"), or coefficients of polynomials ("polynomial"). The
    first density is a Gaussian of standard deviation `initial_std` around the middle, within the bounds; 0: uniform.
    With `value_backbone`, which needs `lstm` 0, V is read from a second backbone. A head with a distribution has
    `atoms` logits for each action and for V; the atoms are evenly spaced over `support`. With `noise` = σ₀ > 0 the
    output layers are noisy; each call is given its noise (`draw_noise`), and has none otherwise.
    """

    return_scale: Tensor
    tau_left: Tensor | None
    epsilon_left: Tensor | None

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        actions: ActionSpec | int,
        *,
        backbone: str = "impala-shallow",
        lstm: int = 0,
        head: str = "casa",
        tau: float = 1.0,
        tau_anneals: bool = False,
        epsilon_anneals: bool = False,
        hidden: int = 256,
        obs_norm: bool = False,
        advantage_unit: str = "return",
        head_layers: int = 2,
        knots: int = 11,
        kernel: str = "hat",
        initial_std: float = 0.0,
        value_backbone: bool = False,
        atoms: int = 51,
        support: tuple[float, float] = (-10.0, 10.0),
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.actions = ActionSpec.discrete(actions) if isinstance(actions, int) else actions
        self.head = HEADS[head]
        self.sizes: Sizes = self.actions.sizes(knots)
        if self.sizes is not None and not self.head.takes_sizes:
            other = "'dueling' with targets 'n-step-expected-q'" if self.head.takes_support else "'casa'"
            raise ValueError(f"head {head!r} is for a single discrete action, not for {self.actions}; use {other}")
        if "log_std" in self.head.outputs and self.actions.kind != "box":
            other = "casa" if self.head.has_q else "actor-critic"
            raise ValueError(f"head {head!r} is for continuous actions, not for {self.actions}; use {other!r}")
        self.kernel = Kernel(self.actions, knots, kernel) if kernel != "hat" and self.actions.continuous else None
        if self.kernel is not None:
            self.sizes = self.actions.sizes(self.kernel.grid, smooth=True)
        self.tau = tau
        self.advantage_unit = tau if advantage_unit == "tau" and self.head.tempered else None
        self.normalizer = ObsNorm(obs_shape) if obs_norm else None
        self.register_buffer("return_scale", torch.ones(()))
        self.register_buffer("tau_left", torch.ones(()) if tau_anneals and self.head.tempered else None)
        self.register_buffer("epsilon_left", torch.ones(()) if epsilon_anneals else None)
        self.register_load_state_dict_pre_hook(_add_return_scale)  # type: ignore[no-untyped-call]
        self.backbone = BACKBONES[backbone](obs_shape, hidden)
        self.value_backbone = BACKBONES[backbone](obs_shape, hidden) if value_backbone else None
        width: int = getattr(self.backbone, "features", hidden)
        width = width if isinstance(width, int) else hidden  # a plug-in may call another thing so
        self.core = LSTMCore(width, lstm) if lstm else None
        self.support = support if self.head.takes_support else None
        self.outputs = nn.ModuleDict()
        for name in self.head.outputs:
            each = name in ("mean", "log_std")  # of a Gaussian: one number per continuous part
            count = 1 if name == "value" else len(self.actions.choices) if each else self.actions.width(knots)
            count = atoms if name == "value_atoms" else atoms * count if name == "advantage_atoms" else count
            gain = 1.0 if name == "value" else 0.01
            self.outputs[name] = (
                Constant(count)
                if name == "log_std"
                else OutputHead(width + lstm, count, hidden, head_layers, gain, noise)
            )
        sizes = {name: output.noise_size for name, output in self.outputs.items() if isinstance(output, OutputHead)}
        self._noise_sizes = [sizes.get(name, 0) for name in self.outputs]
        self.noise_size = sum(self._noise_sizes)
        self.atoms = atoms
        if initial_std and self.actions.continuous and not next(self.parameters()).is_meta:
            self._start_near_the_middle(initial_std, knots)
        self.state_size = 2 * lstm

    @torch.no_grad()
    def _start_near_the_middle(self, std: float, knots: int) -> None:
        """log π(u) = -u² / 2 std² + a constant, by the biases of the last layer."""
        if "log_std" in self.outputs:
            self.outputs["log_std"].get_submodule("linear").get_parameter("weight").fill_(math.log(std))
            return
        unit = self.tau if self.head.tempered and self.advantage_unit is None else 1.0
        density = -unit * torch.linspace(-1, 1, knots).square() / (2 * std**2)
        if self.kernel is not None and self.kernel.name == "polynomial":  # u² = 2/3 P₂ + 1/3, and K₂ = unit/3 P₂
            density = torch.zeros(knots)
            density[1] = -unit / (Kernel.POLYNOMIAL_UNIT * std**2)
        bias = [torch.zeros(part) if isinstance(part, int) else density for part in self.actions.sizes(knots) or ()]
        name = "advantage" if self.head.tempered else "logits"
        output = self.outputs[name]
        assert isinstance(output, OutputHead)
        output.last.bias.copy_(torch.cat(bias))

    @property
    def policy_size(self) -> int:
        """Width of `HeadOutput.log_pi`."""
        if "log_std" in self.head.outputs:
            return 2 * len(self.actions.choices)
        knots = [part.count for part in self.sizes or () if isinstance(part, Knots)]
        return self.actions.width(knots[0] if knots else 0)

    def compile_backbones(self) -> None:
        """Compile the backbones when they are first used."""
        for backbone in (self.backbone, self.value_backbone):
            if backbone is not None:
                backbone.compile(dynamic=False)

    def to_bf16(self) -> Network:
        """Convert all weights to bf16 except the last layer of each output; returns self."""
        self.bfloat16()
        for output in self.outputs.values():
            (output if isinstance(output, Constant) else output.get_submodule("linear2")).float()
        if self.normalizer is not None:
            self.normalizer.float()
        self.return_scale = self.return_scale.float()
        self.tau_left = None if self.tau_left is None else self.tau_left.float()
        self.epsilon_left = None if self.epsilon_left is None else self.epsilon_left.float()
        return self

    def end_annealing(self) -> None:
        """Multiply τ by `tau_left`, and drop both annealing buffers."""
        self.epsilon_left = None
        if self.tau_left is not None:
            left, self.tau_left = self.tau_left.item(), None
            self.tau *= left
            self.advantage_unit = None if self.advantage_unit is None else self.advantage_unit * left

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Zeros [B, state_size]."""
        return torch.zeros(batch, self.state_size, device=device)

    def draw_noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """New noise f(ε) [rows, noise_size] for `forward`: of all observations if `rows` is 1, else of each."""
        return factor_noise(rows, self.noise_size, generator)

    def forward(
        self,
        obs: Tensor,
        state: Tensor | None = None,
        starts: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[HeadOutput, Tensor]:
        """((V, Q, log π) [T, B, ...], next state) from obs [T, B, *obs_shape], state [B, S], starts [T, B].

        `noise` [1 or T·B, noise_size] is that of the output layers; None: without noise.
        """
        steps, batch = obs.shape[:2]
        if state is None:
            state = self.initial_state(batch, obs.device)
        x = obs.flatten(0, 1)
        x = x if self.normalizer is None else self.normalizer(x)
        of_value = None if self.value_backbone is None else self.value_backbone(x)
        x = self.backbone(x)
        if self.core is not None:
            if starts is None:
                starts = torch.zeros(steps, batch, dtype=torch.bool, device=obs.device)
            y, state = self.core(x.unflatten(0, (steps, batch)), state, starts)
            x = torch.cat((x, as_input(y.flatten(0, 1), self.core.from_input)), -1)
        noises = [None] * len(self.outputs) if noise is None else noise.split(self._noise_sizes, -1)
        raw = {
            name: module(of_value if name == "value" and of_value is not None else x, part)
            for (name, module), part in zip(self.outputs.items(), noises, strict=True)
        }
        tau: float | Tensor = self.tau if self.tau_left is None else self.tau * self.tau_left
        if "advantage" in raw and self.advantage_unit is not None:
            raw["advantage"] = raw["advantage"] * (self.advantage_unit if self.tau_left is None else tau)
        if "mean" in raw and self.head.tempered:
            # The output is the slope of A/τ at u = 0, mean / std²: a step of the optimizer moves a narrow density less
            # far than a wide one.
            raw["mean"] = Kernel.POLYNOMIAL_UNIT * raw["mean"] * (2 * raw["log_std"]).exp()
        if self.kernel is not None:
            raw = {k: self.kernel(v) if k in ("advantage", "logits", "q") else v for k, v in raw.items()}
        if "advantage_atoms" in raw:
            raw["advantage_atoms"] = raw["advantage_atoms"].unflatten(-1, (-1, self.atoms))
        raw = {k: v.squeeze(-1) if k == "value" else v for k, v in raw.items()}
        out = self.head(raw, tau, self.sizes, self.support)
        return out.map(lambda y: y.unflatten(0, (steps, batch))), state
