"""Atari through ALE's C++ vector environment, with the protocol of `EnvConfig`.

Behaviour of ALE's `AtariVectorEnv` (0.12), as measured and covered by tests:

- frame stack: planes before an episode's first frame are zero; no-op frames are not pushed. See `stacks`.
- autoreset: the step after an episode's end ignores its action and returns the next episode's first observation
  with reward 0.
- no-ops: `noop_max=n` draws 0 .. n-1, so `n + 1` is passed here.
- frame cap: counts frames after the no-ops, can stop in the middle of an action, and reports `truncated`, not
  `terminated`. The last screen of an episode is not captured: at the cap, the newest plane of the final observation
  is the maximum of the plane before it and the second-to-last screen. At the paper's cap this affects one slot in
  27,000.
- rewards: clipped by default, raw here (int32, exact in float32).
- frames: bit-identical to Gymnasium's `AtariPreprocessing` (gray palette, maximum of the last two screens,
  OpenCV's area interpolation).
- `episodic_life`: starts a new game after a lost life; the usual wrapper continues with the next life. For that there
  is `terminal_lives`: game, episode and frame stack go on, and only the learner is told.
- lives: most games end with the step in which the last life is lost. BankHeist plays its last life at 0 lives, and
  WizardOfWor goes on for a few steps.
- seeds: one per environment, for no-op counts and sticky actions. A seeded reset reloads the game, so what follows
  depends neither on earlier play nor on the number of threads. Loading takes about 0.1 s of CPU per environment
  (ALE builds a palette that is not used), at construction and at each seeded reset. A reset at the end of an episode
  takes a few milliseconds.
- errors: an action out of range kills a worker thread, and `recv` would wait forever, so `send` checks the actions.
  A reset during a step crashes, so `reset` first waits for the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from casa.actions import ActionSpec
from casa.atari57 import is_game
from casa.config.env import EnvConfig
from casa.envs.names import display_name
from casa.envs.types import Array, EnvSpec, Flags, StepBatch, env_seeds
from casa.runtime.machine import cores


class AtariVec:
    """N copies of one game in ALE's thread pool; gray observations are ALE's own arrays, not copies.

    With 0 < `group_size` < N, `recv` returns the first `group_size` environments that are ready instead of waiting for
    the slowest. `send` then takes actions for exactly the environments that ALE returned last.
    """

    ids: Array | None

    def __init__(self, rom: str, config: EnvConfig, num_envs: int, seed: int, group_size: int = 0) -> None:
        self._seed = seed
        self._gray, self._terminal_lives = config.grayscale, config.terminal_lives
        observed = (config.frame_size, config.frame_size)
        self._envs = _emulator(rom, config, num_envs, observed, config.grayscale, config.frame_stack, group_size)
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
        self._lives = np.zeros(num_envs, np.int64)
        self._running = 0

    def reset(self, seed: int | None = None) -> Array:
        """Abort all episodes and start new ones; `seed` determines their no-op counts, 0 .. noop_max."""
        while self._running:
            self.recv()
        count = self.spec.num_envs
        self._ended = np.zeros(count, np.bool_)
        seeds = env_seeds(self._seed if seed is None else seed, count)
        obs, info = self._envs.reset(seed=np.array(seeds))
        self._running = count - len(obs)
        self._unseen = np.ones(count, np.bool_)
        which, _ = self._arrived(info)
        self._lives = np.zeros(count, np.int64)
        self._lives[which] = info["lives"]
        return self._channels_first(obs)

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """Hand the actions to the thread pool and return without waiting."""
        self.spec.actions.check(actions, self.spec.group_size or self.spec.num_envs)
        self._envs.send(actions)
        self._running += len(actions)

    def recv(self) -> StepBatch:
        """Wait for all environments, or for one group of them, with the GIL released."""
        if not self._running:
            raise RuntimeError("recv() waits for a step that send() has not started")
        obs, rewards, terminated, truncated, info = self._envs.recv()
        self._running -= len(obs)
        which, first = self._arrived(info)
        dummy = self._ended[which]
        self._ended[which] = terminated | truncated
        life_lost = None
        if self._terminal_lives:
            lives = info["lives"]
            life_lost = (lives < self._lives[which]) & ~dummy & ~self._ended[which]
            self._lives[which] = lives
        rewards = rewards.astype(np.float32)
        return StepBatch(self._channels_first(obs), rewards, terminated, truncated, dummy, {}, first, life_lost)

    def _arrived(self, info: dict[str, Array]) -> tuple[Array, Flags | None]:
        """(indices of the environments received, whether each is received for the first time since the reset)."""
        if self.ids is None:
            return np.arange(self.spec.num_envs), None
        self.ids = info["env_id"].astype(np.int64)
        first = self._unseen[self.ids]
        self._unseen[self.ids] = False
        return self.ids, first

    @property
    def action_names(self) -> list[str]:
        """ALE's names of the actions: NOOP, FIRE, UP, ..."""
        return [action.name for action in self._envs.ale.get_action_set()]

    def close(self) -> None:
        """Stop the thread pool."""
        if hasattr(self._envs, "ale"):
            del self._envs.ale

    def _channels_first(self, obs: Array) -> Array:
        if self._gray:
            return obs
        # [N, S, H, W, 3] -> [N, 3 S, H, W]; the three colours of a frame stay adjacent
        return np.ascontiguousarray(obs.transpose(0, 1, 4, 2, 3)).reshape(len(obs), *self.spec.obs_shape)


class ColourScreen:
    """The screen of an `AtariVec` of one environment, in the console's own resolution and colours.

    A second emulator with the same protocol plays along: given the same seed and actions it shows the same game, with
    sticky actions too, because both draw from generators seeded alike.
    """

    def __init__(self, rom: str, config: EnvConfig) -> None:
        self._envs = _emulator(rom, config, 1, _screen_size(rom), grayscale=False, stack=1)
        self.frame: Array

    def reset(self, seed: int) -> None:
        """Follow `AtariVec.reset(seed)`."""
        self.frame = self._envs.reset(seed=np.array(env_seeds(seed, 1)))[0][0, 0].copy()

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[float, bool]:
        """Follow a step with actions [1]; returns (reward, whether the episode is over), to compare."""
        obs, rewards, terminated, truncated, _ = self._envs.step(actions)
        self.frame = obs[0, 0].copy()
        return float(rewards[0]), bool(terminated[0] or truncated[0])

    def close(self) -> None:
        """Stop the emulator."""
        if hasattr(self._envs, "ale"):
            del self._envs.ale


def _emulator(
    rom: str, config: EnvConfig, num_envs: int, size: tuple[int, int], grayscale: bool, stack: int, group_size: int = 0
) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        rom,
        num_envs,
        batch_size=group_size,
        num_threads=config.threads or min(num_envs, cores()),
        max_num_frames_per_episode=config.max_frames,
        repeat_action_probability=config.sticky,
        full_action_space=config.full_action_space,
        img_height=size[0],
        img_width=size[1],
        grayscale=grayscale,
        stack_num=stack,
        frameskip=config.frame_skip,
        maxpool=config.max_pool,
        noop_max=config.noop_max + 1,
        episodic_life=config.episodic_life,
        reward_clipping=False,
        use_fire_reset=config.fire_reset,
    )


def _screen_size(rom: str) -> tuple[int, int]:
    """Height and width of the game's screen: 210 x 160, in a few games 250 x 160."""
    from ale_py import ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.loadROM(str(roms.get_rom_path(rom)))
    height, width = ale.getScreenDims()
    return height, width
