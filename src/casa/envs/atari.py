"""Atari through ALE's C++ vector environment, with the protocol of `EnvConfig` and nothing else.

What ALE's `AtariVectorEnv` (0.12) does, as measured and as the tests hold it to:

- stack: planes before an episode's first frame are zero; frames of the no-op start are not pushed. See `stacks`.
- autoreset: the step after an end ignores its action, returns the next episode's first observation, reward 0.
- no-ops: its `noop_max=n` draws 0 .. n-1, so `n + 1` is passed here.
- cap: counts frames after the no-ops, stops within an action, reports `truncated` and not `terminated`. The screen
  at which an episode ends is not captured: at the cap the newest plane of the final observation is the maximum of
  the plane before it and the last screen but one. One slot in 27,000 at the paper's cap.
- rewards: clipped by default, raw here (int32, exact in float32).
- frames: equal to the bit to Gymnasium's `AtariPreprocessing` (gray palette, maximum of the last two screens,
  OpenCV's area interpolation).
- `episodic_life`: starts a new game, unlike the usual wrapper, which plays on with the next life.
- seeds: one per environment, for no-op counts and sticky actions; a seeded reset reloads the game, so the stream
  that follows does not depend on what was played before, nor on the number of threads. Loading takes about 0.1 s of
  CPU an environment (ALE builds a palette that is not used), once when it is made and once a seeded reset; a reset
  at the end of an episode takes a few milliseconds.
- an action that is out of range stops a worker thread and `recv` would wait forever: checked in `send`. A reset
  while a step is under way crashes: `reset` waits for the step first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from casa.actions import ActionSpec
from casa.atari57 import is_game
from casa.config.env import EnvConfig
from casa.envs.names import display_name
from casa.envs.types import Array, EnvSpec, Flags, StepBatch, env_seeds
from casa.runtime.machine import cores


class AtariVec:
    """N copies of one game in ALE's thread pool; observations are the arrays that ALE filled.

    With a group below N, the pool never waits for its slowest game: the first that are ready are given out, and those
    that are not wait for a later call. ALE then sends actions to those that it gave last, and to no others.
    """

    ids: Array | None

    def __init__(self, rom: str, config: EnvConfig, num_envs: int, seed: int, group_size: int = 0) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self._seed = seed
        self._gray = config.grayscale
        self._envs = AtariVectorEnv(
            rom,
            num_envs,
            batch_size=group_size,
            num_threads=config.threads or min(num_envs, cores()),
            max_num_frames_per_episode=config.max_frames,
            repeat_action_probability=config.sticky,
            full_action_space=config.full_action_space,
            img_height=config.frame_size,
            img_width=config.frame_size,
            grayscale=config.grayscale,
            stack_num=config.frame_stack,
            frameskip=config.frame_skip,
            maxpool=config.max_pool,
            noop_max=config.noop_max + 1,
            episodic_life=config.episodic_life,
            reward_clipping=False,
            use_fire_reset=config.fire_reset,
        )
        size, game = config.frame_size, display_name(rom)
        self.spec = EnvSpec(
            id=f"ALE/{game}-v5",
            num_envs=num_envs,
            obs_shape=(config.frame_stack * (1 if self._gray else 3), size, size),
            obs_dtype=np.dtype(np.uint8),
            actions=ActionSpec.discrete(len(self._envs.ale.get_action_set())),
            frame_stack=config.frame_stack if self._gray else 1,
            kind="image",
            atari_game=game if is_game(game) else None,
            frames_per_step=config.frame_skip,
            vectorization="native",
            group_size=group_size if group_size < num_envs else 0,
        )
        self.ids = np.arange(group_size) if self.spec.group_size else None
        self._ended = np.zeros(num_envs, np.bool_)
        self._unseen = np.zeros(num_envs, np.bool_)
        self._running = 0

    def reset(self, seed: int | None = None) -> Array:
        """Cut all episodes and start new ones with 0 .. noop_max no-ops, as the seed says."""
        while self._running:
            self.recv()
        count = self.spec.num_envs
        self._ended = np.zeros(count, np.bool_)
        seeds = env_seeds(self._seed if seed is None else seed, count)
        obs, info = self._envs.reset(seed=np.array(seeds))
        self._running = count - len(obs)
        self._unseen = np.ones(count, np.bool_)
        self._arrived(info)
        return self._channels_first(obs)

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """Hand the actions to the thread pool and return at once."""
        self.spec.actions.check(actions, self.spec.group_size or self.spec.num_envs)
        self._envs.send(actions)
        self._running += len(actions)

    def recv(self) -> StepBatch:
        """Wait for the environments, or for a batch of them; the interpreter is free meanwhile."""
        if not self._running:
            raise RuntimeError("recv() waits for a step that send() has not started")
        obs, rewards, terminated, truncated, info = self._envs.recv()
        self._running -= len(obs)
        which, first = self._arrived(info)
        dummy = self._ended[which]
        self._ended[which] = terminated | truncated
        rewards = rewards.astype(np.float32)
        return StepBatch(self._channels_first(obs), rewards, terminated, truncated, dummy, {}, first)

    def _arrived(self, info: dict[str, Array]) -> tuple[Array, Flags | None]:
        """(Which environments came, which of them for the first time since the reset)."""
        if self.ids is None:
            return np.arange(self.spec.num_envs), None
        self.ids = info["env_id"].astype(np.int64)
        first = self._unseen[self.ids]
        self._unseen[self.ids] = False
        return self.ids, first

    def close(self) -> None:
        """Stop the thread pool."""
        if hasattr(self._envs, "ale"):
            del self._envs.ale

    def _channels_first(self, obs: Array) -> Array:
        if self._gray:
            return obs
        # [N, S, H, W, 3] -> [N, 3 S, H, W], the three colours of a frame together
        return np.ascontiguousarray(obs.transpose(0, 1, 4, 2, 3)).reshape(len(obs), *self.spec.obs_shape)
