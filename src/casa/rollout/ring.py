"""The trajectory ring: a ring buffer of the steps of N environments, allocated once on the learner's device.

Slot t of an environment holds o_t (its newest frame only), a_t, log μ(a_t|o_t), r_t, terminated_t, truncated_t,
whether o_t starts an episode, the version of the policy that acted and, with `policy_size`, μ(·|o_t). A slot is opened
when its observation arrives and closed when its transition is known. If an episode ends at slot t, slot t+1 holds its
final observation and no transition (`valid` is False there), and slot t+2 starts the next episode. So V(s_{t+1}) is
always the value at slot t+1, also for the bootstrap at a truncation. A lost life that is terminal to the learner sets
terminated_t, and the episode goes on at slot t+1.

Each environment has its own write cursor: an environment that resets within its step writes two slots at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from casa.runtime.streams import Fence

FIELDS = ("actions", "log_mu", "rewards", "terminated", "truncated", "starts", "ages", "versions", "policy")


@dataclass(frozen=True)
class RingShape:
    """Sizes of a ring: `capacity` slots for each of `num_envs` environments.

    Recurrent states [num_envs, state_size] are kept at slots that are multiples of `state_every`. `policy_size` is the
    width of `HeadOutput.log_pi` if that is stored for every slot, else 0.
    """

    capacity: int
    num_envs: int
    frame_shape: tuple[int, ...]
    frame_dtype: torch.dtype
    stack: int
    state_size: int
    state_every: int
    action_shape: tuple[int, ...] = ()
    action_dtype: torch.dtype = torch.int16
    policy_size: int = 0

    @property
    def bytes(self) -> int:
        """Size of the ring in bytes: frames, the other fields of a slot, recurrent states."""
        slots = self.capacity * self.num_envs
        frame = int(np.prod(self.frame_shape)) * self.frame_dtype.itemsize
        states = self.state_blocks * self.num_envs * self.state_size * 4
        action = int(np.prod(self.action_shape)) * self.action_dtype.itemsize
        return slots * (_SLOT_BYTES + action + 4 * self.policy_size) + (slots + 1) * frame + states

    @property
    def state_blocks(self) -> int:
        """Number of recurrent states stored per environment."""
        return -(-self.capacity // self.state_every)


_SLOT_BYTES = 4 + 4 + 1 + 1 + 1 + 4 + 4  # without the action: log μ, reward, three flags, age, version


class Transitions(NamedTuple):
    """n transitions: action, log μ(a|o), reward, terminated, truncated, and policy version ([n] or one for all).

    `policy` [n, policy_size]: `log_pi` of the network that acted, if it is stored; None: zeros.
    """

    actions: Tensor
    log_mu: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    versions: Tensor | int
    policy: Tensor | None = None


class Batch(NamedTuple):
    """B sequences of L transitions and the observation after the last, time-major.

    obs [L+1, B, ...] (frame stacks); starts [L+1, B]; policy [L, B, policy_size] (`log_pi` of the network that acted);
    state [B, S] (the recurrent state at obs[0]); all others [L, B].
    `valid` is False where a slot holds a final observation and no transition.
    """

    obs: Tensor
    starts: Tensor
    actions: Tensor
    log_mu: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    versions: Tensor
    policy: Tensor
    state: Tensor


class Slots(NamedTuple):
    """Slots `first[i]` to `opened[i]` - 1 of each environment i, of which the last is open if `opened` > `written`.

    `arrays`: every field of the slots in a row, environment after environment; "states" at its slots alone.
    """

    first: np.ndarray
    written: np.ndarray
    opened: np.ndarray
    arrays: dict[str, np.ndarray]


class _SlotIndex:
    """Where the slots `first` .. `opened` - 1 of the columns `envs` lie in a ring of this shape."""

    def __init__(self, shape: RingShape, envs: np.ndarray, first: np.ndarray, opened: np.ndarray) -> None:
        counts = opened - first
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        absolute = np.repeat(first, counts) + offsets
        self.columns, self.rows = np.repeat(envs, counts), absolute % shape.capacity
        self.has_state = absolute % shape.state_every == 0
        self.blocks = absolute[self.has_state] // shape.state_every % shape.state_blocks

    def on(self, device: torch.device) -> Tensor:
        """(columns, rows) [2, n] on the device."""
        return torch.as_tensor(np.stack((self.columns, self.rows)), device=device)


class Ring:
    """Slots of N environments on one device. The actor writes, the learner gathers."""

    def __init__(self, shape: RingShape, device: torch.device | str = "cpu") -> None:
        self.shape = shape
        self.device = torch.device(device)
        size = (shape.capacity, shape.num_envs)

        def zeros(dtype: torch.dtype, *more: int) -> Tensor:
            return torch.zeros(*size, *more, dtype=dtype, device=self.device)

        # One extra row stays zero: it stands for the frames before an episode's start.
        rows = shape.capacity * shape.num_envs + 1
        self.frames = torch.zeros(rows, *shape.frame_shape, dtype=shape.frame_dtype, device=self.device)
        self.actions = zeros(shape.action_dtype, *shape.action_shape)
        self.log_mu = zeros(torch.float32)
        self.rewards = zeros(torch.float32)
        self.terminated = zeros(torch.bool)
        self.truncated = zeros(torch.bool)
        self.starts = zeros(torch.bool)
        self.ages = zeros(torch.int32)
        self.versions = zeros(torch.int32)
        self.policy = zeros(torch.float32, shape.policy_size)
        self.states = torch.zeros(
            shape.state_blocks, shape.num_envs, shape.state_size, dtype=torch.float32, device=self.device
        )
        # Closed slots per environment since the run began. On the host for the samplers; on the device (`_cursor`) to
        # compute write positions without a copy.
        self.written = np.zeros(shape.num_envs, dtype=np.int64)
        self.opened = np.zeros(shape.num_envs, dtype=np.int64)  # closed slots plus the open one
        self._cursor = torch.zeros(shape.num_envs, dtype=torch.int64, device=self.device)
        self._filled, self._gathered = Fence(self.device), Fence(self.device)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Order writes in the current stream after earlier gathers, and before later gathers, of other streams."""
        self._gathered.wait()
        yield
        self._filled.mark()

    def open(self, envs: np.ndarray, frames: Tensor, starts: Tensor, state: Tensor | None) -> None:
        """Open a slot with o_t (its newest frame [n, ...]), its start flag and the recurrent state before o_t."""
        self.open_on_device(torch.as_tensor(envs, device=self.device), frames, starts, state)
        self.opened[envs] = self.written[envs] + 1

    def close(self, envs: np.ndarray, transitions: Transitions, closes: np.ndarray | None = None) -> None:
        """Close the open slot of each environment with its transition.

        Where `closes` [n] is False the slot stays open, and its transition is undefined.
        """
        columns = torch.as_tensor(envs, device=self.device)
        self.close_on_device(columns, transitions, 1 if closes is None else torch.as_tensor(closes, device=self.device))
        self.written[envs if closes is None else envs[closes]] += 1

    def close_without_transition(self, envs: np.ndarray, version: int) -> None:
        """Close the open slot of each environment as one that holds only a final observation."""
        n = len(envs)
        zero = torch.zeros(n, device=self.device)
        no = torch.zeros(n, dtype=torch.bool, device=self.device)
        actions = torch.zeros(n, *self.shape.action_shape, dtype=self.shape.action_dtype, device=self.device)
        self.close(envs, Transitions(actions, zero, zero, no, no, version))

    def open_on_device(self, columns: Tensor, frames: Tensor, starts: Tensor, state: Tensor | None) -> None:
        """Device part of `open`, static for CUDA graphs; `StepWriter` calls it and updates the host counters."""
        now = self._cursor[columns]
        rows, before = now % self.shape.capacity, (now - 1) % self.shape.capacity
        self.frames[rows * self.shape.num_envs + columns] = frames
        self.starts[rows, columns] = starts
        age = torch.where(starts, 0, self.ages[before, columns] + 1)
        self.ages[rows, columns] = age.to(torch.int32)
        if state is not None and self.shape.state_size:
            every, blocks = self.shape.state_every, self.shape.state_blocks
            block = now // every % blocks
            keep = (now % every == 0).unsqueeze(-1)
            self.states[block, columns] = torch.where(keep, state.float(), self.states[block, columns])

    def close_on_device(self, columns: Tensor, transitions: Transitions, closes: Tensor | int) -> None:
        """Device part of `close`, static for CUDA graphs; `StepWriter` calls it and updates the host counters."""
        rows = self._cursor[columns] % self.shape.capacity
        self.actions[rows, columns] = transitions.actions.to(self.actions.dtype)
        self.log_mu[rows, columns] = transitions.log_mu
        self.rewards[rows, columns] = transitions.rewards
        self.terminated[rows, columns] = transitions.terminated
        self.truncated[rows, columns] = transitions.truncated
        self.versions[rows, columns] = transitions.versions
        if self.shape.policy_size:
            self.policy[rows, columns] = 0.0 if transitions.policy is None else transitions.policy
        self._cursor[columns] += closes

    def cut(self, version: int, envs: np.ndarray | None = None) -> None:
        """Truncate the running episodes (of `envs`); the observation in the open slot becomes the final observation.

        Environments without an open slot, whose reset has not returned yet, are skipped.
        """
        envs = np.flatnonzero(self.opened > self.written) if envs is None else envs[(self.opened > self.written)[envs]]
        columns = torch.as_tensor(envs, device=self.device)
        cursor = self._cursor[columns]
        last, open_ = (cursor - 1) % self.shape.capacity, cursor % self.shape.capacity
        running = ~self.starts[open_, columns] & ~self.terminated[last, columns]
        self.truncated[last, columns] |= running
        self.close_without_transition(envs, version)

    def rewind(self, written: np.ndarray) -> None:
        """Set the number of closed slots of each environment; no slot is open."""
        self.written[:] = self.opened[:] = written
        self._cursor.copy_(torch.as_tensor(self.written))

    def take_since(self, first: np.ndarray) -> Slots:
        """Copies of the slots of each environment from absolute slot `first` [num_envs] to the open one."""
        index = _SlotIndex(self.shape, np.arange(self.shape.num_envs), first, self.opened)
        self._filled.wait()
        columns, rows = index.on(self.device)
        fields = {name: getattr(self, name)[rows, columns] for name in FIELDS}
        fields["frames"] = self.frames[rows * self.shape.num_envs + columns]
        fields["states"] = self.states[index.blocks, index.columns[index.has_state]]
        arrays = {name: x.cpu().numpy() for name, x in fields.items()}
        self._gathered.mark()
        return Slots(first.copy(), self.written.copy(), self.opened.copy(), arrays)

    def put(self, envs: np.ndarray, slots: Slots) -> None:
        """Write the slots that `take_since` of another ring gave into the columns `envs` of this one."""
        if not (slots.first == self.written[envs]).all():
            raise ValueError("the slots do not follow those that are stored")
        index = _SlotIndex(self.shape, envs, slots.first, slots.opened)
        columns, rows = index.on(self.device)
        values = {name: torch.tensor(x, device=self.device) for name, x in slots.arrays.items()}
        with self.writing():
            for name in FIELDS:
                getattr(self, name)[rows, columns] = values[name]
            self.frames[rows * self.shape.num_envs + columns] = values["frames"]
            self.states[index.blocks, index.columns[index.has_state]] = values["states"]
            self.written[envs], self.opened[envs] = slots.written, slots.opened
            self._cursor.copy_(torch.as_tensor(self.written))

    def gather(self, envs: np.ndarray, slots: np.ndarray, length: int) -> Batch:
        """B sequences of `length` transitions, starting at absolute slots `slots` [B] of environments `envs` [B]."""
        shape, device = self.shape, self.device
        self._filled.wait()
        columns, first = torch.as_tensor(np.stack((envs, slots)), device=device)
        absolute = first + torch.arange(length + 1, device=device)[:, None]
        rows = absolute % shape.capacity
        steps = rows[:-1]
        starts = self.starts[rows, columns]
        blocks = first // shape.state_every % shape.state_blocks
        batch = Batch(
            obs=self._observations(absolute, columns, self.ages[rows, columns]),
            starts=starts,
            actions=self._actions(steps, columns),
            log_mu=self.log_mu[steps, columns],
            rewards=self.rewards[steps, columns],
            terminated=self.terminated[steps, columns],
            truncated=self.truncated[steps, columns],
            valid=~starts[1:],  # a slot before an episode's start holds a final observation
            versions=self.versions[steps, columns],
            policy=self.policy[steps, columns],
            state=self.states[blocks, columns],
        )
        self._gathered.mark()
        return batch

    def _actions(self, rows: Tensor, columns: Tensor) -> Tensor:
        actions = self.actions[rows, columns]
        return actions if actions.is_floating_point() else actions.long()

    def _observations(self, absolute: Tensor, columns: Tensor, ages: Tensor) -> Tensor:
        """obs[..., k] = the frame `stack - 1 - k` slots back, oldest first; 0 if that is before the episode's start.

        Bitwise equal to ALE's own stacks. absolute, ages [..., B] -> [..., B, stack, *frame], with one copy.
        """
        shape = self.shape
        if shape.stack == 1:
            index = absolute % shape.capacity * shape.num_envs + columns
        else:
            back = torch.arange(shape.stack - 1, -1, -1, device=self.device)
            rows = (absolute.unsqueeze(-1) - back) % shape.capacity * shape.num_envs + columns.unsqueeze(-1)
            index = torch.where(ages.unsqueeze(-1) < back, len(self.frames) - 1, rows)
        flat = self.frames.flatten(1).index_select(0, index.flatten())
        return flat.view(*index.shape, *shape.frame_shape)

    def oldest(self, ahead: np.ndarray | int = 0) -> np.ndarray:
        """First absolute slot of each environment whose whole frame stack is still stored.

        `ahead`: the same after `ahead` more slots have been written.
        """
        overwritten = self.written + 1 + ahead - self.shape.capacity  # + 1: the open slot already holds its frame
        return np.maximum(overwritten + self.shape.stack - 1, 0)

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor of the ring, and the write cursors."""
        tensors = {name: getattr(self, name) for name in (*FIELDS, "frames", "states")}
        return {**tensors, **{name: torch.from_numpy(getattr(self, name)) for name in ("written", "opened")}}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the result of `state_dict`."""
        if not self.shape.policy_size:  # earlier versions did not save it
            tensors = {"policy": self.policy, **tensors}
        for name in (*FIELDS, "frames", "states"):
            getattr(self, name).copy_(tensors[name])
        self.rewind(tensors["written"].cpu().numpy())
        opened = tensors.get("opened", tensors.get("begun", tensors["written"]))  # earlier versions: begun, or none
        self.opened[:] = opened.cpu().numpy()
