"""A trained agent, to be used anywhere: `casa.load(run).predict(obs)`. No environment is made, no user code runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from casa.config import from_yaml
from casa.envs.types import Array, EnvSpec, Flags
from casa.errors import UserError
from casa.heads import HEADS, HeadOutput
from casa.nn import Network
from casa.rollout.behaviour import BEHAVIOURS, greedy
from casa.schema import RANGES, RunConfig
from casa.train import checkpoint
from casa.train.resources import pick_device
from casa.train.system import build_network

EPSILON = 0.001
"""ε of an agent that was trained ε-greedily and is used without `deterministic`: the field's usual value for
evaluation. Training has one ε per environment, from 0.4 to 0.4⁸ = 0.0007 in the paper."""


def load(
    run_or_checkpoint: str | Path,
    which: str | int = "latest",
    device: str = "cpu",
    seed: int | None = None,
    tau: float | None = None,
) -> Agent:
    """The agent of a run directory ("latest", "best" or the checkpoint of a step), or of one checkpoint folder.

    Only the model's weights and the metadata are read. `device`: cpu, cuda or auto. `seed` determines the actions
    that are drawn; None: different each time. `tau`: π = softmax(A/τ) with another τ than in training; one near 0
    plays almost greedily.
    """
    source = Path(run_or_checkpoint)
    saved = checkpoint.load(source, which, groups=("model",))
    if saved.path == source and str(which) not in ("latest", str(saved.step)):
        raise UserError(f"{source} is one checkpoint, of step {saved.step}; to have {which!r}, name the run directory")
    try:
        config, facts = from_yaml(saved.meta["config"]), saved.meta["spec"]
        spec = EnvSpec(**{**facts, "obs_shape": tuple(facts["obs_shape"]), "obs_dtype": np.dtype(facts["obs_dtype"])})
    except (KeyError, TypeError) as error:
        raise UserError(f"checkpoint {saved.path} does not say what its agent observes: {error!r}") from error
    with torch.random.fork_rng(devices=[]):  # new weights are drawn only to be replaced
        network = build_network(config, spec)
    try:
        network.load_state_dict(saved.state["model"])
    except (RuntimeError, TypeError):
        raise UserError(
            f"the weights in {saved.path} are of another network than this version of casa builds for its configuration"
        ) from None
    if tau is not None:
        network.tau = _check_tau(tau, config)
    return Agent(config, spec, network.to(pick_device(device)), saved.step, saved.path, seed)


def _check_tau(tau: float, config: RunConfig) -> float:
    text, in_range = RANGES["agent.tau"]
    if not in_range(tau):
        raise UserError(f"tau must be {text}, got {tau:g}; in training it was {config.agent.tau:g}")
    if not _acts_by_softmax(config):
        how = f"the {config.agent.head} head and {config.agent.behaviour!r} behaviour"
        raise UserError(f"tau {tau:g} has no meaning for {how}, which do not act by softmax(A / tau); leave it out")
    return tau


def _acts_by_softmax(config: RunConfig) -> bool:
    return HEADS[config.agent.head].tempered and config.agent.behaviour == "sample"


class Agent:
    """A network and the way it acts; `predict` for the user's own loop, `act` for tensors on the agent's device.

    `config` is the run's configuration, `spec` what its environments look like, `step` and `path` say which
    checkpoint this is.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvSpec,
        network: Network,
        step: int = 0,
        path: Path | None = None,
        seed: int | None = None,
    ) -> None:
        self.config, self.spec, self.step, self.path = config, spec, step, path
        self.network = network.requires_grad_(False).eval()
        self.device = next(network.parameters()).device
        self.generator = torch.Generator(self.device)
        self.seed(seed)

    def seed(self, seed: int | None) -> None:
        """Determine the actions that are drawn from here on."""
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    @property
    def tempered(self) -> bool:
        """Whether the agent draws from softmax(A/τ), so that `network.tau` says how boldly it acts."""
        return _acts_by_softmax(self.config)

    @property
    def recurrent(self) -> bool:
        """Whether the agent has a memory that the caller must carry from step to step."""
        return self.network.state_size > 0

    def predict(
        self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, npt.NDArray[np.float32] | None]:
        """a ~ π(·|o, state) or, where deterministic, argmax_a; and the state for the next call.

        `obs`: one observation [*obs_shape] or a batch [N, *obs_shape], as `casa.envs.make_env` gives them (stack
        included, images uint8 with channels first). `state`: what the call before returned, None at the start;
        always None for agents without a memory. `episode_start`: whether obs is the first of its episode, one
        bool or N; the state is then not read. An action is in 0 .. num_actions - 1, a NumPy integer for one
        observation, int64 [N] for a batch.

        deterministic: argmax π; argmax Q for agents that were trained ε-greedily. Otherwise those take a uniform
        action with probability ε = 0.001, and all others draw from π.
        """
        rows, single = self._observations(obs)
        before = self._state(state, len(rows), single)
        starts = self._starts(episode_start, len(rows), single)
        observed, memory, first = (torch.as_tensor(x).to(self.device) for x in (rows, before, starts))
        actions, after, _ = self.act(observed, memory, first, deterministic)
        pick = 0 if single else slice(None)
        return actions.cpu().numpy()[pick], after.cpu().numpy()[pick] if self.recurrent else None

    @torch.inference_mode()
    def act(
        self, obs: Tensor, state: Tensor, starts: Tensor | None = None, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, HeadOutput]:
        """(actions [N], next state [N, S], (V, Q, log π)) from obs [N, ...], state [N, S] and starts [N]."""
        sequence, after = self.network(obs.unsqueeze(0), state, None if starts is None else starts.unsqueeze(0))
        out: HeadOutput = sequence.map(lambda x: x[0])
        behaviour = self.config.agent.behaviour
        if not deterministic:
            epsilons = torch.full((len(obs),), EPSILON, device=self.device)
            actions, _ = BEHAVIOURS[behaviour](out, epsilons, self.generator)
        elif behaviour == "epsilon-greedy" and out.q is not None:
            actions = out.q.argmax(-1)
        else:
            actions = greedy(out)
        return actions, after, out

    def _observations(self, obs: Any) -> tuple[Array, bool]:
        """(obs as a batch of its own [N, *obs_shape], whether it was a single one), checked."""
        shape, dtype = self.spec.obs_shape, self.spec.obs_dtype
        array = np.asarray(obs.detach().cpu() if isinstance(obs, Tensor) else obs)
        if array.shape[-len(shape) :] != shape or array.ndim not in (len(shape), len(shape) + 1):
            expected = ", ".join(map(str, shape))
            raise ValueError(
                f"obs has shape {array.shape}, but this agent of {self.spec.id} reads one observation ({expected}"
                f"{',' if len(shape) == 1 else ''}) or a batch (N, {expected})"
            )
        # A float image would be read as if its 0..1 were bytes.
        if array.dtype != dtype and (dtype == np.uint8 or array.dtype.kind not in "biuf"):
            raise ValueError(f"obs has dtype {array.dtype}, but this agent of {self.spec.id} reads {dtype}")
        single = array.ndim == len(shape)
        rows = np.array(array[None] if single else array, dtype)
        if not np.isfinite(rows).all():
            raise ValueError("obs holds NaN or infinity")
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
