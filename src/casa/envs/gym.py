"""Gymnasium's vector environments, in every autoreset mode, behind the `VecEnv` interface."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from casa.envs.guard import Guard, check_batch, check_finite, close_quietly
from casa.envs.pool import Pool
from casa.envs.spaces import action_spec, encoder_of, observation_spec
from casa.envs.stacks import push
from casa.envs.types import Abandoned, Array, EnvError, EnvSpec, Flags, StepBatch, env_seeds
from casa.envs.workers import Processes
from casa.errors import describe

_IN_PROCESSES = (AsyncVectorEnv, Pool)


class GymVec:
    """Wrap a Gymnasium `VectorEnv`: check its steps and encode its observations for the network.

    NEXT_STEP: the environment resets in the step after an episode's end, which is a dummy step. SAME_STEP: it resets
    in the same step and returns the last observation in `info["final_obs"]`. DISABLED: it does not reset itself, so
    `recv` does. The last two modes fill `StepBatch.final`.
    """

    ids: Array | None = None

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        name: str,
        frame_stack: int,
        seed: int,
        vectorization: str,
        action_bound: float = 0.0,
    ) -> None:
        self._envs, self._seed = envs, seed
        self._mode = _autoreset_mode(envs, name)
        self._space = envs.single_observation_space
        self._shape = tuple(self._space.shape or ())
        observation = observation_spec(self._space, name)
        self._encoder = encoder_of(observation, name)
        stack = frame_stack if self._encoder.kind == "image" else 1
        channels, *rest = self._encoder.shape
        self.spec = EnvSpec(
            id=name,
            num_envs=envs.num_envs,
            obs_shape=(stack * channels, *rest),
            obs_dtype=self._encoder.dtype,
            actions=action_spec(envs.single_action_space, name, action_bound),
            frame_stack=stack if channels == 1 else 1,
            kind=self._encoder.kind,
            atari_game=None,
            frames_per_step=1,
            vectorization=vectorization,
            observation=observation if stack == 1 else None,
        )
        self._stacks = np.zeros((envs.num_envs, stack, *self._encoder.shape), self._encoder.dtype)
        self._ended = np.zeros(envs.num_envs, np.bool_)
        self._actions: Any = None
        self._steps = 0
        self._since: float | None = None  # when the call that is under way began
        self.abandoned = False

    def reset(self, seed: int | None = None) -> Array:
        """Abort all episodes and start new ones; their seeds come from `env_seeds`."""
        if self._actions is not None:
            self.recv()
        self._steps = 0
        self._ended = np.zeros(self.spec.num_envs, np.bool_)
        seeds = env_seeds(self._seed if seed is None else seed, self.spec.num_envs)
        # Gymnasium's vector envs take one seed per environment; others take a single seed.
        each = isinstance(self._envs.unwrapped, (SyncVectorEnv, *_IN_PROCESSES))
        obs, _ = self._ask("reset", lambda: self._envs.reset(seed=seeds if each else seeds[0]))  # type: ignore[arg-type]
        return self._observe(self._encoded(obs), np.ones(self.spec.num_envs, np.bool_))

    def send(self, actions: Array) -> None:
        """Start a step. Async environments run from here on; all others run inside `recv`."""
        self.spec.actions.check(actions, self.spec.num_envs)
        actions = self.spec.actions.to_env(actions)
        if isinstance(self._envs, _IN_PROCESSES):
            self._ask("step", partial(self._envs.step_async, actions))
        self._actions = actions

    def recv(self) -> StepBatch:
        """Finish the step, check it, and reset ended environments that do not reset themselves."""
        if self._actions is None:
            raise RuntimeError("recv() waits for a step that send() has not started")
        actions, self._actions = self._actions, None
        self._steps += 1
        wait = self._envs.step_wait if isinstance(self._envs, _IN_PROCESSES) else partial(self._envs.step, actions)
        raw, rewards, terminated, truncated, info = self._ask("step", wait)
        with np.errstate(over="ignore"):
            rewards32 = self._per_env(rewards, "rewards").astype(np.float32)
        check_finite(rewards32, "reward", self._steps)
        terminated = self._per_env(terminated, "terminated").astype(np.bool_)
        truncated = self._per_env(truncated, "truncated").astype(np.bool_)
        frames = self._encoded(raw)
        dummy = np.zeros(self.spec.num_envs, np.bool_)
        final: dict[int, Array] = {}
        if self._mode is AutoresetMode.NEXT_STEP:
            starts = dummy = self._ended
            rewards32[dummy], terminated[dummy], truncated[dummy] = 0, False, False
            self._ended = terminated | truncated
        else:
            starts = terminated | truncated
            if starts.any():
                final, frames = self._final(frames, starts, info)
        return StepBatch(self._observe(frames, starts), rewards32, terminated, truncated, dummy, final)

    def render(self) -> Any:
        """The first environment's rendering, in its render_mode."""
        frames = self._envs.render()
        return frames[0] if frames else None

    def close(self) -> None:
        """Close the environments; kill processes that do not respond."""
        if not self._envs.closed and (not self.abandoned or isinstance(self._envs, _IN_PROCESSES)):
            close_quietly(self._envs, self.spec.id)

    @property
    def inside_env(self) -> bool:
        """Whether a thread of this process is inside the code of an environment."""
        if isinstance(self._envs, Pool):
            return self._envs.running_env is not None
        return not isinstance(self._envs, _IN_PROCESSES) and self.silent()[0] > 0

    def silent(self) -> tuple[float, list[int]]:
        """(seconds since the call that is under way began, the environments that have not answered it yet)."""
        now, began = time.monotonic(), self._since
        if began is None:
            return 0.0, []
        if isinstance(self._envs, Processes):
            return now - began, self._envs.silent()
        if isinstance(self._envs, SyncVectorEnv):
            for env in self._envs.envs:
                if isinstance(env, Guard) and (since := env.since) is not None:
                    return now - since, [env.index]
            return 0.0, []
        return now - began, []

    def abandon(self) -> None:
        """Wait no longer: `reset` and `recv` raise `Abandoned`, at once if processes run the environments."""
        self.abandoned = True
        if isinstance(self._envs, Processes):
            self._envs.abandoned = True

    def _final(self, frames: Array, ended: Flags, info: dict[str, Any]) -> tuple[dict[int, Array], Array]:
        """({env index: last observation of its ended episode}, frames with those environments reset)."""
        rows = np.flatnonzero(ended)
        if self._mode is AutoresetMode.SAME_STEP:
            if "final_obs" not in info:
                raise EnvError(
                    f"{self.spec.id}, step {self._steps}: an episode ended, but the environment says SAME_STEP "
                    "and gave no info['final_obs']"
                )
            try:
                last = np.stack([np.asarray(info["final_obs"][row]) for row in rows])
            except ValueError as error:
                raise EnvError(f"{self.spec.id}, step {self._steps}: final_obs: {error}") from error
            last = self._encoded(last, rows)
        else:
            last = frames[rows]
            # Copy: the reset may reuse the step's buffer, and only the rows that it resets are valid.
            frames = frames.copy()
            obs, _ = self._ask("reset", lambda: self._envs.reset(options={"reset_mask": ended.copy()}))
            frames[rows] = self._encoded(np.asarray(obs)[rows], rows)
        whole = self._stacked(last, rows)
        return {int(row): whole[i] for i, row in enumerate(rows)}, frames

    def _encoded(self, obs: Any, rows: Array | None = None) -> Array:
        """Check and encode observations of all environments, or of `rows`: [n, *space.shape] -> [n, *encoder.shape]."""
        space = self._space
        shape = (self.spec.num_envs if rows is None else len(rows), *self._shape)
        obs = check_batch(obs, shape, np.dtype(space.dtype), self.spec.id, self._steps)
        check_finite(obs, "observation", self._steps, rows)
        if isinstance(space, Discrete):
            outside = (obs < space.start) | (obs >= space.start + space.n)
            if outside.any():
                row = int(outside.argmax())
                env = row if rows is None else int(rows[row])
                raise EnvError(f"environment {env}, step {self._steps}: observation {obs[row]} is not in {space}")
        encoded = self._encoder.encode(obs)
        if obs.dtype == np.float64:
            check_finite(encoded, "observation, as float32,", self._steps, rows)
        return encoded

    def _observe(self, frames: Array, starts: Flags) -> Array:
        """Push frames [N, C, ...] onto the frame stacks; returns observations [N, S C, ...]."""
        if self._stacks.shape[1] == 1:
            return frames
        self._stacks = push(self._stacks, frames, starts)
        return self._stacks.reshape(self.spec.num_envs, *self.spec.obs_shape)

    def _stacked(self, frames: Array, rows: Array) -> Array:
        """Observations [n, S C, ...] of environments `rows` with newest `frames` [n, C, ...]; stacks stay unchanged."""
        if self._stacks.shape[1] == 1:
            return frames
        none = np.zeros(len(rows), np.bool_)
        return push(self._stacks[rows], frames, none).reshape(len(rows), *self.spec.obs_shape)

    def _per_env(self, values: Any, what: str) -> Array:
        array = np.asarray(values)
        if array.shape != (self.spec.num_envs,) or array.dtype.kind not in "biuf":
            raise EnvError(
                f"{self.spec.id}, step {self._steps}: {what} must be {self.spec.num_envs} numbers, "
                f"got shape {array.shape}, dtype {array.dtype}"
            )
        return array

    def _ask(self, call: str, function: Callable[[], Any]) -> Any:
        """Return function(); an exception in the environments becomes an EnvError."""
        self._since = time.monotonic()
        try:
            found = function()
        except EnvError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failed(call, error) from error
        finally:
            self._since = None
        if self.abandoned:  # its answer comes too late: the run has been saved without it
            raise Abandoned
        return found

    def _failed(self, call: str, error: BaseException) -> EnvError:
        if isinstance(self._envs, _IN_PROCESSES) and isinstance(error, (EOFError, OSError)):
            for index, process in enumerate(self._envs.processes):
                process.join(timeout=0.1)
                if not process.is_alive():
                    env = self._envs.environment_of(index) if isinstance(self._envs, Processes) else index
                    return EnvError(f"environment {env}, step {self._steps}: its process {_end(process.exitcode)}")
        return EnvError(f"{self.spec.id}, step {self._steps}: {call} raised {describe(error)}")


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"was killed by {name}" + ("; out of memory?" if -code == signal.SIGKILL else "")
    return f"died with exit code {code}"


def _autoreset_mode(envs: VectorEnv[Any, Any, Any], name: str) -> AutoresetMode:
    mode = envs.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise EnvError(
            f"{name}: the vector environment's metadata['autoreset_mode'] is {mode!r}; "
            "set it to one of gymnasium.vector.AutoresetMode"
        ) from None
