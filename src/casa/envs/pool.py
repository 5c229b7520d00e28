"""A few processes with several environments each, and shared memory for what goes to and fro.

A process per environment (`casa.envs.workers`) costs two messages and two context switches for each step, which is
much of a step of 100 µs. Here one process per core steps its environments one after the other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space, iterate

from casa.envs.guard import Guard
from casa.envs.types import Array, EnvError
from casa.envs.workers import CLOSING, Processes, become_worker
from casa.errors import describe


class Pool(Processes, VectorEnv[Any, Any, Any]):
    """N environments in P processes: the same data as in one process, in the same order.

    With `here` this process is one of the P: it steps the first share of the environments in `step_wait`, while the
    others step theirs. An environment resets in the step after its episode's end. `makers` return `Guard`s, whose
    spaces are those given.
    """

    _local: _Share | None = None

    def __init__(
        self,
        makers: Sequence[Callable[[], Guard]],
        processes: int,
        observation: Space[Any],
        action: Space[Any],
        here: bool = False,
    ) -> None:
        count = len(makers)
        self.num_envs = count
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space, self.action_space = batch_space(observation, count), batch_space(action, count)
        context = multiprocessing.get_context()
        self._shared = _Shared(context, count, processes, observation, self.action_space)
        self._arrays = self._shared.arrays()
        ends = np.linspace(0, count, processes + 1).round().astype(int).tolist()
        shares = [range(a, b) for a, b in pairwise(ends)]
        self._first_remote = int(here)  # the share of the first other process
        self._remote = shares[self._first_remote :]
        self.parent_pipes, self.processes = [], []
        for index, share in enumerate(self._remote, self._first_remote):
            parent, child = context.Pipe()
            made = CloudpickleWrapper([makers[i] for i in share])  # type: ignore[arg-type]  # it takes anything
            process = context.Process(
                target=_work, args=(made, share, index, self._shared, child, parent), daemon=True
            )
            process.start()
            child.close()
            self.parent_pipes.append(parent)
            self.processes.append(process)
        self._started()
        # After the others, which would inherit these environments otherwise, and while they make theirs.
        if here:
            try:
                self._local = _Share(makers[: ends[1]], shares[0], 0, self._arrays)
            except BaseException:
                self.close(terminate=True)
                raise

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start new episodes; `seed` is a list with a seed for each environment."""
        seeds = [None] * self.num_envs if seed is None else list(seed)
        for pipe, share in zip(self.parent_pipes, self._remote, strict=True):
            pipe.send(("reset", seeds[share.start : share.stop]))
        self._receive(lambda share: share.reset(seeds[: len(share.numbers)]))
        return self._arrays.obs.copy(), {}

    def step_async(self, actions: Any) -> None:
        """Start a step."""
        shared = self._arrays.actions
        self._sent = list(iterate(self.action_space, actions)) if shared is None else None
        if shared is not None:
            shared[...] = actions
        for pipe, share in zip(self.parent_pipes, self._remote, strict=True):
            pipe.send(_STEP if self._sent is None else ("step", self._sent[share.start : share.stop]))

    def step_wait(self) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Finish it: (observations, rewards, terminated, truncated, {})."""
        sent = self._sent
        self._receive(lambda share: share.step(None if sent is None else sent[: len(share.numbers)]))
        x = self._arrays
        return x.obs.copy(), x.rewards.copy(), x.terminated.copy(), x.truncated.copy(), {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """One step of all environments."""
        self.step_async(actions)
        return self.step_wait()

    def render(self) -> tuple[Any, ...]:
        """The first environment's rendering."""
        if self._local is not None:
            return (self._local.envs[0].render(),)
        self.parent_pipes[0].send(("render", None))
        return (self.parent_pipes[0].recv(),)

    def environment_of(self, process: int) -> int:
        """The environment that a process runs, or was running when it died."""
        return int(self._arrays.at[self._first_remote + process])

    def silent(self) -> list[int]:
        """The environments that have not answered yet, of which this process runs one at the most."""
        running = self.running_env
        return [*([] if running is None else [running]), *super().silent()]

    @property
    def running_env(self) -> int | None:
        """The environment whose code this process is running; None: it runs none."""
        return None if self._local is None else self._local.running_env

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the other processes, and close the environments of this one, which get as long; none if abandoned."""
        closing = None
        if self._local is not None and not self.abandoned:
            closing = threading.Thread(target=self._local.close, daemon=True)
            closing.start()
        super().close_extras(timeout, terminate)
        if closing is not None:
            closing.join(0 if terminate else CLOSING)

    def __del__(self) -> None:
        """End the processes with the object: nobody else could, and at exit Python would wait for them."""
        if not self.closed:
            self.close(terminate=True)

    def _receive(self, do: Callable[[_Share], None]) -> None:
        """Call `do` for the share of this process, then wait for the others; the first error is raised."""
        errors: list[EnvError] = []
        if self._local is not None:
            try:
                do(self._local)
            except Exception as error:
                errors.append(self._local.as_env_error(error))
        self._wait()
        answers = [pipe.recv_bytes() for pipe in self.parent_pipes]
        errors += [EnvError(answer.decode()) for answer in answers if answer != _DONE]
        if errors:
            raise errors[0]


_STEP, _DONE = ("step", None), b""


@dataclass(frozen=True)
class _Arrays:
    """Views of the shared memory: a row for each environment; `at` [P]: the environment that each process runs."""

    obs: Array
    rewards: Array
    terminated: Array
    truncated: Array
    at: Array
    actions: Array | None = None
    """None: they are sent, since they are a dict or a tuple."""


class _Shared:
    def __init__(self, context: Any, count: int, processes: int, observation: Space[Any], actions: Space[Any]) -> None:
        self._fields = {
            "obs": ((count, *(observation.shape or ())), np.dtype(observation.dtype)),
            "rewards": ((count,), np.dtype(np.float64)),
            "terminated": ((count,), np.dtype(np.bool_)),
            "truncated": ((count,), np.dtype(np.bool_)),
            "at": ((processes,), np.dtype(np.int64)),
        }
        if not isinstance(actions, (Dict, Tuple)):
            self._fields["actions"] = (tuple(actions.shape or ()), np.dtype(actions.dtype))
        self._memory = {
            name: context.RawArray("b", max(int(np.prod(shape)) * dtype.itemsize, 1))
            for name, (shape, dtype) in self._fields.items()
        }

    def arrays(self) -> _Arrays:
        found = {
            name: np.frombuffer(self._memory[name], dtype, int(np.prod(shape))).reshape(shape)
            for name, (shape, dtype) in self._fields.items()
        }
        return _Arrays(**found)


def _work(
    makers: CloudpickleWrapper, share: range, index: int, shared: _Shared, pipe: Connection, parent: Connection
) -> None:
    """A process: steps the environments `share` in their order, until it is told to close or this program has died."""
    become_worker()
    parent.close()
    with contextlib.suppress(OSError, EOFError, BrokenPipeError):
        _serve(_Share(cast("list[Callable[[], Guard]]", makers.fn), share, index, shared.arrays()), pipe)


def _serve(share: _Share, pipe: Connection) -> None:
    """Answer each message with nothing, or with the sentence of an error."""
    while True:
        command, content = pipe.recv()
        if command == "close":
            share.close()
            return
        if command == "render":
            pipe.send(share.envs[0].render())
            continue
        try:
            share.reset(content) if command == "reset" else share.step(content)
        except Exception as error:
            pipe.send_bytes(str(share.as_env_error(error)).encode())
        else:
            pipe.send_bytes(_DONE)


class _Share:
    """The environments that one process runs; their results go to `arrays`."""

    def __init__(self, makers: Sequence[Callable[[], Guard]], numbers: range, index: int, arrays: _Arrays) -> None:
        self.numbers, self.index, self.arrays = numbers, index, arrays
        self.ended = [False] * len(numbers)
        self.envs: list[Guard] = []
        for number, make in zip(numbers, makers, strict=True):
            arrays.at[index] = number
            self.envs.append(make())
        self.batched = batch_space(self.envs[0].action_space, len(numbers)) if numbers else None

    def as_env_error(self, error: Exception) -> EnvError:
        """`error`, which names the environment that was called last if it does not yet."""
        if isinstance(error, EnvError):
            return error
        return EnvError(f"environment {self.arrays.at[self.index]}: {describe(error)}")

    @property
    def running_env(self) -> int | None:
        """The environment whose code is running; None: none."""
        return next((env.index for env in self.envs if env.since is not None), None)

    def reset(self, seeds: list[int | None]) -> None:
        for i, (number, env) in enumerate(zip(self.numbers, self.envs, strict=True)):
            self.arrays.at[self.index] = number
            self.arrays.obs[number], _ = env.reset(seed=seeds[i])
            self.ended[i] = False

    def step(self, actions: Any) -> None:
        """One step; without `actions` those in `arrays`."""
        x = self.arrays
        if actions is None:
            assert x.actions is not None and self.batched is not None
            actions = iterate(self.batched, x.actions[self.numbers.start : self.numbers.stop].copy())
        for i, (number, env, action) in enumerate(zip(self.numbers, self.envs, actions, strict=True)):
            x.at[self.index] = number
            if self.ended[i]:
                x.obs[number], _ = env.reset()
                reward, terminated, truncated = 0.0, False, False
            else:
                x.obs[number], reward, terminated, truncated, _ = env.step(action)
            x.rewards[number], x.terminated[number], x.truncated[number] = reward, terminated, truncated
            self.ended[i] = terminated or truncated

    def close(self) -> None:
        for env in self.envs:
            env.close()
