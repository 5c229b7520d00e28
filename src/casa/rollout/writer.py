"""Writes an actor's transitions to the ring, one call per vector-env step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from casa.envs.types import Array, Flags, StepBatch
from casa.rollout.ring import Ring, Transitions
from casa.rollout.stacks import FrameStacks
from casa.runtime.streams import Graphed, Staging


class StepWriter:
    """Closes the environments' open slots with their transitions, and opens the next ones.

    `columns` are the actor's columns of the ring; `env_ids` are indices into them. `actions`, `log_mu`, `state` and
    `policy` are the actor's tensors [count, ...]: inference fills them in place, and this class only reads them. On
    CUDA a step is one upload and one graph; the same call updates the host counters.
    """

    def __init__(
        self,
        ring: Ring,
        columns: Array,
        group_size: int,
        actions: Tensor,
        log_mu: Tensor,
        state: Tensor,
        policy: Tensor | None = None,
    ) -> None:
        shape, device = ring.shape, ring.device
        self.ring, self.columns = ring, columns
        self.actions, self.log_mu, self.state, self.policy = actions, log_mu, state, policy
        self.stacks = FrameStacks(len(columns), shape.stack, shape.frame_shape, shape.frame_dtype, device)
        self._columns = torch.as_tensor(columns, device=device)
        flags = ("terminated", "truncated", "starts", "closes")
        self._staging = Staging(
            device,
            {
                "frames": ((group_size, *shape.frame_shape), shape.frame_dtype),
                "env_ids": ((group_size,), torch.int64),
                "rewards": ((group_size,), torch.float32),
                "versions": ((group_size,), torch.int32),
                **dict.fromkeys(flags, ((group_size,), torch.bool)),
            },
        )
        self._step = Graphed(self._step_on_device, device)

    @property
    def env_ids(self) -> Tensor:
        """Indices of the last call's environments, on the device."""
        return self._staging.device["env_ids"]

    @property
    def starts(self) -> Tensor:
        """Whether the last call's observations start an episode, on the device."""
        return self._staging.device["starts"]

    def observations(self) -> Tensor:
        """The last call's observations as frame stacks [n, ...]."""
        return self.stacks.observations(self.env_ids)

    def reset(self, env_ids: Array, obs: Array) -> None:
        """Open a slot in each of these environments with the first observation of its episode."""
        self._staging.wait()
        with self.ring.writing():
            self._stage(env_ids, obs, np.ones(len(env_ids), np.bool_))
            self._open_on_device()
            self._count_opened(env_ids)

    def step(self, env_ids: Array, step: StepBatch, starts: Flags, closes: Flags, versions: Array) -> None:
        """Close the slots of `env_ids` where `closes`, and open the next ones with `step.obs`.

        `versions` [n]: versions of the policy that chose the actions. If an environment has already started its next
        episode (`step.final`), the final observation gets an extra slot in between.
        """
        self._staging.wait()
        host = self._staging.host
        host["rewards"][:], host["terminated"][:], host["truncated"][:] = step.rewards, step.terminal, step.truncated
        host["versions"][:], host["closes"][:] = versions, closes
        with self.ring.writing():
            self._stage(env_ids, step.obs, starts)
            if step.final:
                self._close_on_device()
                self._count_closed(env_ids, closes)
                self._write_final(step.final, int(versions.max()))
                self._open_on_device()
            else:
                self._step()
                self._count_closed(env_ids, closes)
            self._count_opened(env_ids)

    def _stage(self, env_ids: Array, obs: Array, starts: Flags) -> None:
        host = self._staging.host
        host["frames"][:] = self._newest(obs)
        host["env_ids"][:], host["starts"][:] = env_ids, starts
        self._staging.upload()

    def _newest(self, obs: Array) -> Array:
        return obs[:, -1] if self.stacks.stack > 1 else obs

    def _step_on_device(self) -> None:
        self._close_on_device()
        self._open_on_device()

    def _close_on_device(self) -> None:
        x = self._staging.device
        ids = x["env_ids"]
        transitions = Transitions(
            self.actions[ids],
            self.log_mu[ids],
            x["rewards"],
            x["terminated"],
            x["truncated"],
            x["versions"],
            None if self.policy is None else self.policy[ids],
        )
        self.ring.close_on_device(self._columns[ids], transitions, x["closes"])

    def _open_on_device(self) -> None:
        x = self._staging.device
        ids = x["env_ids"]
        self.stacks.push(ids, x["frames"], x["starts"])
        self.ring.open_on_device(self._columns[ids], x["frames"], x["starts"], self.state[ids])

    def _write_final(self, final: dict[int, Array], version: int) -> None:
        rows = np.array(list(final))
        envs = self.columns[rows]
        frames = torch.as_tensor(self._newest(np.stack(list(final.values()))), device=self.ring.device)
        no = torch.zeros(len(rows), dtype=torch.bool, device=self.ring.device)
        self.ring.open(envs, frames, no, self.state[torch.as_tensor(rows, device=self.ring.device)])
        self.ring.close_without_transition(envs, version)

    def _count_closed(self, env_ids: Array, closes: Flags) -> None:
        self.ring.written[self.columns[env_ids[closes]]] += 1

    def _count_opened(self, env_ids: Array) -> None:
        envs = self.columns[env_ids]
        self.ring.opened[envs] = self.ring.written[envs] + 1
