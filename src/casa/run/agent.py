"""A trained agent, for use in any program: `casa.load(run).predict(obs)`. Loading creates no environment."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from casa.config.fields import RunConfig
from casa.config.load import read_run
from casa.config.ranges import TEMPERATURE
from casa.engines.build import build_network
from casa.engines.resolve import pick_backbone
from casa.envs.names import require_trust
from casa.envs.single import single_env
from casa.envs.spaces import encoder_of
from casa.envs.types import Array, EnvSpec, Flags
from casa.errors import UserError
from casa.heads import HEADS, HeadOutput
from casa.learn.learner import fault_of
from casa.nn import Network
from casa.rollout.behaviour import BEHAVIOURS
from casa.run import checkpoint
from casa.run.fit import misfit
from casa.runtime.resources import pick_device

EPSILON = 0.001
"""ε of agents that were trained ε-greedily, unless `deterministic`: the usual value for evaluation.
Training uses one ε per environment, from 0.4 to 0.4⁸ = 0.0007 in the paper."""


def load(
    run_or_checkpoint: str | PathLike[str],
    which: str | int = "latest",
    device: str = "cpu",
    seed: int | None = None,
    tau: float | None = None,
    trust: bool = False,
) -> Agent:
    """Load the agent of a run directory (checkpoint "latest", "best", "good" or a step), or of one checkpoint folder.

    Reads only the model's weights and the metadata. `device`: cpu, cuda or auto. `seed`: seed of the sampled actions;
    None: different each time. `tau`: use π = softmax(A/τ) with another τ than in training; near 0 it is almost greedy.
    `trust`: allow importing the plug-ins that the run names.
    """
    source = Path(run_or_checkpoint)
    saved = checkpoint.load(source, which, groups=("model",))
    if saved.path == source and str(which) not in ("latest", str(saved.step)):
        raise UserError(f"{source} is one checkpoint, of step {saved.step}; to have {which!r}, name the run directory")
    try:
        config, spec = read_run(saved.meta["config"], str(saved.path), trust), EnvSpec.from_json(saved.meta["spec"])
        config = replace(config, net=replace(config.net, backbone=pick_backbone(config, spec.kind)))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"checkpoint {saved.path} does not say what its agent observes: {error!r}") from error
    different = UserError(
        f"the weights in {saved.path} are of another network than this version of casa builds for its configuration"
    )
    if misfit(config, spec, saved.state["model"]):
        raise different
    with torch.random.fork_rng(devices=[]):  # these weights are overwritten: do not advance the caller's RNG
        network = build_network(config, spec)
    try:
        network.load_state_dict(saved.state["model"])
    except (RuntimeError, TypeError):
        raise different from None
    if fault := fault_of(saved.state["model"]):
        warnings.warn(f"the weights in {saved.path} are broken: {fault}", RuntimeWarning, stacklevel=2)
    agent = Agent(config, spec, network.to(pick_device(device)), saved.step, saved.path, seed, trust)
    if tau is not None:
        agent.network.tau = _check_tau(tau, config, agent.trained_tau)
    return agent


def _check_tau(tau: float, config: RunConfig, trained: float) -> float:
    if not TEMPERATURE.holds(tau):
        raise UserError(f"tau must be {TEMPERATURE.text}, got {tau:g}; in training it was {trained:g}")
    if not _acts_by_softmax(config):
        how = f"the {config.agent.head} head and {config.agent.behaviour!r} behaviour"
        raise UserError(f"tau {tau:g} has no meaning for {how}, which do not act by softmax(A / tau); leave it out")
    return tau


def _acts_by_softmax(config: RunConfig) -> bool:
    head = HEADS[config.agent.head]
    return head.tempered and "log_std" not in head.outputs and config.agent.behaviour == "sample"


def _index(actions: Any, pick: Any) -> Any:
    """actions[pick]; of every entry, if they are a dict or tuple."""
    if isinstance(actions, dict):
        return {name: _index(entry, pick) for name, entry in actions.items()}
    return tuple(_index(entry, pick) for entry in actions) if isinstance(actions, tuple) else actions[pick]


class Agent:
    """A trained network and its policy: `predict` for the user's own loop, `act` for tensors on the agent's device.

    `config` is the run's configuration, `spec` describes its environments, `step` and `path` identify the checkpoint.
    `trained_tau` is the temperature at that step.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvSpec,
        network: Network,
        step: int = 0,
        path: Path | None = None,
        seed: int | None = None,
        trusted: bool = False,
    ) -> None:
        self.config, self.spec, self.step, self.path, self.trusted = config, spec, step, path, trusted
        self._encoder = None if spec.observation is None else encoder_of(spec.observation, spec.id)
        if network.tau_left is not None or network.epsilon_left is not None:
            network = copy.deepcopy(network)  # this one belongs to the caller, who may go on training it
            network.end_annealing()
        self.network, self.trained_tau = network.requires_grad_(False).eval(), network.tau
        self.device = next(network.parameters()).device
        self.generator = torch.Generator(self.device)
        self.seed(seed)

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.network.parameters())
        memory = f", LSTM {self.config.net.lstm}" if self.recurrent else ""
        return (
            f"<casa.Agent {self.config.recipe} on {self.spec.id} after {self.step:,} steps: "
            f"{self.config.agent.head} head, {self.config.net.backbone}{memory}, {parameters:,} parameters, "
            f"{self.spec.actions}, on {self.device.type}>"
        )

    def seed(self, seed: int | None) -> None:
        """Seed the sampling of actions from now on; None: a random seed."""
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    @property
    def tempered(self) -> bool:
        """Whether the agent samples from softmax(A/τ), so that `network.tau` controls how random its actions are."""
        return _acts_by_softmax(self.config)

    @property
    def recurrent(self) -> bool:
        """Whether the agent has a recurrent state, which the caller must pass from step to step."""
        return self.network.state_size > 0

    def predict(
        self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, npt.NDArray[np.float32] | None]:
        """a ~ π(·|o, state), or the greedy action if `deterministic`; and the state for the next call.

        `obs`: one observation as the environment's `reset` and `step` return it, or a batch [N, ...] of them. Pass it
        raw: it is encoded and scaled here as in training. For agents with stacked frames (Atari, image environments
        with env.frame_stack > 1), pass the stacks that `make_env` returns: uint8, channels first.
        `state`: the state that the previous call returned; None at the start and for agents without recurrence.
        `episode_start`: whether obs is the first of its episode, one bool or [N]; the state is then ignored.
        The action can be passed to the environment's `step`; for a batch it is [N, ...].

        `deterministic`: argmax π (the mean, if the density of a continuous action is smooth), or argmax Q for agents
        that were trained greedily or ε-greedily. Otherwise those act ε-greedily with ε = 0.001 (with argmax Q of the
        noisy network, if that is how they explored), and all others sample from π.
        """
        action, after, _ = self.consider(obs, state, episode_start, deterministic)
        return action, after

    def consider(
        self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, npt.NDArray[np.float32] | None, HeadOutput]:
        """As `predict`, and the (V, Q, log π) that the action was chosen by, on the CPU."""
        rows, single = self._observations(obs)
        before = self._state(state, len(rows), single)
        starts = self._starts(episode_start, len(rows), single)
        observed, memory, first = (torch.as_tensor(x).to(self.device) for x in (rows, before, starts))
        actions, after, out = self.act(observed, memory, first, deterministic)
        pick = 0 if single else slice(None)
        chosen = self.spec.actions.to_env(actions.cpu().numpy())
        next_state = after.cpu().numpy()[pick] if self.recurrent else None
        return _index(chosen, pick), next_state, out.map(lambda x: x[pick].cpu())

    def make_env(self, **kwargs: Any) -> gym.Env[Any, Any]:
        """One Gymnasium environment, preprocessed as in training: `predict` accepts its observations.

        Atari and stacked images are returned as stacks, uint8 [S, H, W]; any other environment is unchanged. `kwargs`
        are passed to the environment's constructor, in addition to env.kwargs (for example render_mode="human").
        """
        require_trust(self.config.env.id, self.trusted, str(self.path))
        return single_env(self.config.env, **kwargs)

    def to_onnx(self, path: str | Path) -> Path:
        """Write the network as an ONNX model; needs `pip install 'casa-rl[onnx]'`. See `casa.run.onnx`."""
        from casa.run.onnx import export

        return export(self, Path(path))

    @torch.inference_mode()
    def act(
        self, obs: Tensor, state: Tensor, starts: Tensor | None = None, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, HeadOutput]:
        """(actions [N], next state [N, S], (V, Q, log π)) from obs [N, ...], state [N, S] and starts [N].

        V and Q are in units of the shaped rewards, whatever the scale in training was.
        """
        noisy = self.network.noise_size > 0 and not deterministic
        noise = self.network.draw_noise(len(obs), self.generator) if noisy else None
        first = None if starts is None else starts.unsqueeze(0)
        sequence, after = self.network(obs.unsqueeze(0), state, first, noise)
        out: HeadOutput = sequence.map(lambda x: x[0]).scaled(self.network.return_scale)
        behaviour = BEHAVIOURS[self.config.agent.behaviour]
        if deterministic:
            return behaviour.greedy(out), after, out
        epsilons = torch.full((len(obs),), EPSILON, device=self.device)
        actions, _ = behaviour(out, epsilons, self.generator)
        return actions, after, out

    def _observations(self, obs: Any) -> tuple[Array, bool]:
        """Check `obs`; returns (a copy encoded as in training [N, *obs_shape], whether it was a single observation)."""
        spec = self.spec.observation
        shape = self.spec.obs_shape if spec is None else spec.shape
        dtype = self.spec.obs_dtype if spec is None else np.dtype(spec.dtype)
        array = np.asarray(obs.detach().cpu() if isinstance(obs, Tensor) else obs)
        if array.shape[array.ndim - len(shape) :] != shape or array.ndim not in (len(shape), len(shape) + 1):
            expected = ", ".join(map(str, shape))
            one = f"({expected}{',' if len(shape) == 1 else ''})"
            batch = f"(N, {expected})" if shape else "(N,)"
            hint = "" if spec is not None else ", as its make_env() gives them"
            raise ValueError(
                f"obs has shape {array.shape}, but this agent of {self.spec.id} reads one observation {one} "
                f"or a batch {batch}{hint}"
            )
        # Reject floats where the environment has integers: values scaled to 0..1 would be taken for raw integers.
        integers = dtype.kind in "iu"
        if array.dtype != dtype and (array.dtype.kind not in "biu" if integers else array.dtype.kind not in "biuf"):
            raise ValueError(f"obs has dtype {array.dtype}, but {self.spec.id} gives {dtype}; pass it unscaled")
        if integers and array.size and not (np.iinfo(dtype).min <= array.min() <= array.max() <= np.iinfo(dtype).max):
            raise ValueError(f"obs must be from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}, as {dtype} is")
        single = array.ndim == len(shape)
        rows = np.array(array[None] if single else array, dtype)
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise ValueError("obs holds NaN or infinity")
        if spec is not None and spec.space == "discrete" and ((rows < spec.low) | (rows > spec.high)).any():
            raise ValueError(f"obs must be from {spec.low[0]:g} to {spec.high[0]:g}, got {rows.tolist()}")
        if self._encoder is not None:
            rows = np.ascontiguousarray(self._encoder.encode(rows), self.spec.obs_dtype)
        return rows, single

    def _state(self, state: Any, count: int, single: bool) -> npt.NDArray[np.float32]:
        size = self.network.state_size
        if state is None:
            return np.zeros((count, size), np.float32)
        if not self.recurrent:
            raise ValueError(f"state must be None: the {self.config.recipe} agent of this run has no memory")
        array = np.array(state.detach().cpu() if isinstance(state, Tensor) else state, np.float32)
        expected = (size,) if single else (count, size)
        if array.shape != expected:
            raise ValueError(f"state has shape {array.shape}, but for these observations it must be {expected}")
        return array.reshape(count, size)

    def _starts(self, episode_start: Any, count: int, single: bool) -> Flags:
        array = np.asarray(False if episode_start is None else episode_start)
        if array.dtype != np.bool_ or array.shape not in ((), (count,)):
            wanted = "one bool" if single else f"one bool or {count} of them"
            raise ValueError(f"episode_start must be {wanted}, got shape {array.shape}, dtype {array.dtype}")
        return np.array(np.broadcast_to(array, (count,)))
