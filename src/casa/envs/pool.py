"""A few processes with several environments each, and shared memory for what goes to and fro.

A process per environment (`casa.envs.workers`) costs two messages and two context switches for each step, which is
much of a step of 100 µs. Here one process per core steps its environments one after the other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
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
from casa.envs.workers import Processes, ignore_signals
from casa.errors import describe


class Pool(Processes, VectorEnv[Any, Any, Any]):
    """N environments in P processes: the same data as in one process, in the same order.

    An environment resets in the step after its episode's end. `makers` return `Guard`s, whose spaces are those given.
    """

    def __init__(
        self, makers: Sequence[Callable[[], Guard]], processes: int, observation: Space[Any], action: Space[Any]
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
        self._shares = [range(a, b) for a, b in pairwise(ends)]
        self.parent_pipes, self.processes = [], []
        for index, share in enumerate(self._shares):
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

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start new episodes; `seed` is a list with a seed for each environment."""
        for pipe, share in zip(self.parent_pipes, self._shares, strict=True):
            pipe.send(("reset", [None if seed is None else seed[i] for i in share]))
        self._receive()
        return self._arrays.obs.copy(), {}

    def step_async(self, actions: Any) -> None:
        """Start a step."""
        if self._arrays.actions is None:  # of several spaces
            each = list(iterate(self.action_space, actions))
            for pipe, share in zip(self.parent_pipes, self._shares, strict=True):
                pipe.send(("step", [each[i] for i in share]))
            return
        self._arrays.actions[...] = actions
        for pipe in self.parent_pipes:
            pipe.send(_STEP)

    def step_wait(self) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Finish it: (observations, rewards, terminated, truncated, {})."""
        self._receive()
        x = self._arrays
        return x.obs.copy(), x.rewards.copy(), x.terminated.copy(), x.truncated.copy(), {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """One step of all environments."""
        self.step_async(actions)
        return self.step_wait()

    def render(self) -> tuple[Any, ...]:
        """The first environment's rendering."""
        self.parent_pipes[0].send(("render", None))
        return (self.parent_pipes[0].recv(),)

    def environment_of(self, process: int) -> int:
        """The environment that a process runs, or was running when it died."""
        return int(self._arrays.at[process])

    def __del__(self) -> None:
        """End the processes with the object: nobody else could, and at exit Python would wait for them."""
        if not self.closed:
            self.close(terminate=True)

    def _receive(self) -> None:
        self._wait()
        answers = [pipe.recv_bytes() for pipe in self.parent_pipes]
        for answer in answers:
            if answer != _DONE:
                raise EnvError(answer.decode())


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
    ignore_signals()
    parent.close()
    with contextlib.suppress(OSError, EOFError, BrokenPipeError):
        _Process(cast("list[Callable[[], Guard]]", makers.fn), share, index, shared.arrays(), pipe).serve()


class _Process:
    def __init__(
        self, makers: Sequence[Callable[[], Guard]], share: range, index: int, arrays: _Arrays, pipe: Connection
    ) -> None:
        self.share, self.index, self.arrays, self.pipe = share, index, arrays, pipe
        self.ended = [False] * len(share)
        self.envs: list[Guard] = []
        for number, make in zip(share, makers, strict=True):
            arrays.at[index] = number
            self.envs.append(make())
        self.batched = batch_space(self.envs[0].action_space, len(share)) if share else None

    def serve(self) -> None:
        """Answer each message with nothing, or with the sentence of an error."""
        while True:
            command, content = self.pipe.recv()
            if command == "close":
                for env in self.envs:
                    env.close()
                return
            if command == "render":
                self.pipe.send(self.envs[0].render())
                continue
            try:
                self.reset(content) if command == "reset" else self.step(content)
            except EnvError as error:
                self.pipe.send_bytes(str(error).encode())
            except Exception as error:
                self.pipe.send_bytes(f"environment {self.arrays.at[self.index]}: {describe(error)}".encode())
            else:
                self.pipe.send_bytes(_DONE)

    def reset(self, seeds: list[int | None]) -> None:
        for i, (number, env) in enumerate(zip(self.share, self.envs, strict=True)):
            self.arrays.at[self.index] = number
            self.arrays.obs[number], _ = env.reset(seed=seeds[i])
            self.ended[i] = False

    def step(self, actions: Any) -> None:
        x = self.arrays
        if actions is None:
            assert x.actions is not None and self.batched is not None
            actions = iterate(self.batched, x.actions[self.share.start : self.share.stop].copy())
        for i, (number, env, action) in enumerate(zip(self.share, self.envs, actions, strict=True)):
            x.at[self.index] = number
            if self.ended[i]:
                x.obs[number], _ = env.reset()
                reward, terminated, truncated = 0.0, False, False
            else:
                x.obs[number], reward, terminated, truncated, _ = env.step(action)
            x.rewards[number], x.terminated[number], x.truncated[number] = reward, terminated, truncated
            self.ended[i] = terminated or truncated
