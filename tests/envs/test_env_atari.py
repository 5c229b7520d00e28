import hashlib
from functools import cache

import numpy as np
import pytest
from ale_py import ALEInterface, LoggerMode
from ale_py.roms import get_rom_path

from casa.actions import ActionSpec
from casa.engines.resolve import pick_group_size
from casa.envs import EnvConfig, make_env
from casa.envs.stacks import rebuild
from casa.envs.types import env_seeds
from casa.errors import UserError


@cache
def atari(game="Breakout", num_envs=4, **fields):
    """One environment per configuration for all tests: making and seeding one takes a tenth of a second each."""
    return make_env(EnvConfig(id=game, threads=2, **fields), num_envs)


def play(env, steps, seed=0, action_seed=0):
    """Every array of `steps` random steps after a reset, stacked over time."""
    rng = np.random.default_rng(action_seed)
    first = env.reset(seed)
    batches = []
    for _ in range(steps):
        env.send(env.spec.actions.random(rng, env.spec.num_envs))
        batches.append(env.recv())
    obs = np.stack([first, *(batch.obs for batch in batches)])
    facts = ("rewards", "terminated", "truncated", "dummy")
    return obs, *(np.stack([getattr(batch, fact) for batch in batches]) for fact in facts)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_spec():
    spec = atari(num_envs=3).spec
    assert (spec.id, spec.atari_game, spec.kind, spec.num_envs) == ("ALE/Breakout-v5", "Breakout", "image", 3)
    assert (spec.obs_shape, spec.obs_dtype, spec.actions) == ((4, 84, 84), np.uint8, ActionSpec.discrete(18))
    assert (spec.frame_stack, spec.frames_per_step) == (4, 4)
    assert atari("Tetris", 1).spec.atari_game is None
    assert atari("Breakout", 1, full_action_space=False).spec.actions == ActionSpec.discrete(4)


@pytest.mark.parametrize(("game", "max_frames"), [("Breakout", 108_000), ("Breakout", 101), ("Boxing", 202)])
def test_stacks_can_be_rebuilt_to_the_bit_from_single_frames(game, max_frames):
    obs, _, terminated, truncated, dummy = play(atari(game, 6, max_frames=max_frames), 500)
    assert (dummy[1:] == (terminated | truncated)[:-1]).all()
    assert dummy.sum() >= 10
    starts = np.concatenate([np.ones((1, 6), bool), dummy])
    for env in range(6):
        slots = np.arange(len(starts))
        ages = slots - np.maximum.accumulate(np.where(starts[:, env], slots, 0))
        np.testing.assert_array_equal(rebuild(obs[:, env, -1], ages, 4), obs[:, env])
    assert not obs[starts][:, :3].any()  # planes before the first frame are zero
    assert obs[starts][:, 3].any(axis=(1, 2)).all()


def test_the_step_after_an_end_is_a_dummy():
    _, rewards, terminated, truncated, dummy = play(atari("Breakout", 6, max_frames=108_000), 400)
    assert terminated.any() and not truncated.any()
    assert (rewards[dummy] == 0).all() and not terminated[dummy].any()


def test_the_cap_counts_frames_and_truncates():
    _, _, terminated, truncated, dummy = play(atari("Pong", 2, max_frames=40), 40)
    ends = np.flatnonzero(truncated[:, 0])
    np.testing.assert_array_equal(ends, [9, 20, 31])  # 10 steps of 4 frames, then a dummy
    np.testing.assert_array_equal(np.flatnonzero(dummy[:, 0]), ends + 1)
    assert not terminated.any()


def test_no_ops_are_uniform_from_none_to_noop_max():
    env = atari("Breakout", 4)
    env.reset(0)
    draws = np.concatenate([env._envs.reset()[1]["episode_frame_number"] for _ in range(80)])
    assert set(draws) == set(range(31)) and abs(draws.mean() - 15) < 2
    env = atari("Breakout", 1, noop_max=0)
    env.reset(0)
    assert not any(env._envs.reset()[1]["episode_frame_number"] for _ in range(5))


def test_rewards_are_raw():
    rewards = play(atari("MsPacman", 4), 150)[1]
    assert rewards.dtype == np.float32 and rewards.max() >= 10


def test_an_episode_ends_with_a_life_only_when_asked():
    lives = play(atari("Breakout", 4), 250)[2].sum()
    each = play(atari("Breakout", 4, episodic_life=True), 250)[2].sum()
    assert each >= 3 * lives > 0


@pytest.mark.parametrize("group_size", [0, 2])
def test_a_lost_life_is_told_to_the_learner_and_the_game_goes_on(group_size):
    """Breakout has five lives: four are lost on the way, and the fifth ends the episode."""
    config = EnvConfig(id="Breakout", threads=1, noop_max=0, terminal_lives=True)
    env = make_env(config, 4, group_size=group_size)
    rng, lost, episodes = np.random.default_rng(0), np.zeros(4, int), []
    env.reset(0)
    for _ in range(900 if group_size else 500):
        env.send(env.spec.actions.random(rng, group_size or 4))
        step = env.recv()
        ids = np.arange(4) if env.ids is None else env.ids
        ended = step.terminated | step.truncated
        assert not (step.life_lost & (ended | step.dummy)).any()
        assert (step.terminal == (step.terminated | step.life_lost)).all()
        lost[ids] += step.life_lost
        episodes += lost[ids[ended]].tolist()
        lost[ids[ended]] = 0
    assert len(episodes) >= 4 and set(episodes) == {4}
    env.close()


def test_terminal_lives_do_not_change_the_game():
    assert same(play(atari("Breakout", 4), 250), play(atari("Breakout", 4, terminal_lives=True), 250))


def test_fire_reset_presses_fire():
    env = atari("Breakout", 1, noop_max=0, fire_reset=True)
    env.reset(0)
    assert env._envs.reset()[1]["episode_frame_number"] == 1


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_a_seed_determines_the_stream(sticky):
    env = atari("Breakout", 6, sticky=sticky, max_frames=400)
    first = play(env, 150, seed=3)
    assert same(first, play(env, 150, seed=3))  # cut in the middle of episodes
    env.send(np.zeros(6, np.int64))
    assert same(first, play(env, 150, seed=3))  # and in the middle of a step
    alone = make_env(EnvConfig(id="Breakout", threads=1, sticky=sticky, max_frames=400), 6, seed=3)
    assert same(first, play(alone, 150, seed=None))  # the seed of make_env, another number of threads
    assert not same(first, play(env, 150, seed=4))


def test_sticky_actions_change_the_game():
    sticky, plain = (atari("Breakout", 6, sticky=sticky, max_frames=400) for sticky in (0.25, 0.0))
    assert not same(play(sticky, 100), play(plain, 100))


def test_environments_do_not_share_seeds():
    assert len({frame.tobytes() for frame in atari("Boxing", 6, max_frames=202).reset(0)}) > 2
    few, many, other = env_seeds(3, 10), env_seeds(3, 1000), env_seeds(4, 1000)
    assert many[:10] == few and len(set(many)) == 1000 and 0 <= min(many) <= max(many) < 2**31
    assert not set(many) & set(other)
    with pytest.raises(UserError, match="seed must be >= 0, got -1"):
        env_seeds(-1, 2)


def test_actions_out_of_range_are_refused():
    env = make_env("Breakout", 2)
    env.reset(0)
    for actions in ([0, 18], [-1, 0]):
        with pytest.raises(ValueError, match=r"in 0 \.\. 17"):
            env.send(np.array(actions))
    for actions in (np.zeros(3, np.int64), np.zeros(2)):
        with pytest.raises(ValueError, match="2 integers"):
            env.send(actions)
    with pytest.raises(RuntimeError, match=r"send\(\)"):
        env.recv()
    env.close()
    env.close()


def area_weights(size, out):
    """[out, size]: the share of each input pixel in an output pixel that covers size/out of them."""
    edges = np.arange(out + 1) * size / out
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(overlap, 0) * out / size


def area_mean(screen):
    return area_weights(210, 84) @ screen.astype(float) @ area_weights(160, 84).T


def emulator(rom):
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(get_rom_path(rom))
    ale.reset_game()
    return ale


@pytest.mark.parametrize(("game", "rom"), [("Breakout", "breakout"), ("MsPacman", "ms_pacman")])
def test_frames_are_the_pooled_and_averaged_screens_of_the_emulator(game, rom):
    """Against the emulator itself: four frames an action, maximum of the last two screens, area mean."""
    env = atari(game, 1, noop_max=0)
    obs, rewards, terminated, _, _ = play(env, 120)
    actions = np.random.default_rng(0).integers(0, 18, 120)
    ale = emulator(rom)
    assert not terminated.any()
    for t, action in enumerate(actions):
        screens, reward = [], 0
        for _ in range(4):
            reward += ale.act(int(action))
            screens.append(ale.getScreenGrayscale())
        assert np.abs(obs[t + 1, 0, -1] - area_mean(np.maximum(*screens[-2:]))).max() <= 1.0
        assert rewards[t, 0] == reward


def test_the_final_frame_at_the_cap_pools_the_screens_before_the_last():
    """What ALE does, so that a change is noticed: the last screen is missing, the frame before shines through."""
    obs, _, _, truncated, _ = play(atari("Boxing", 1, noop_max=0, max_frames=8), 2)
    assert truncated[1, 0]
    ale = emulator("boxing")
    screens = []
    for action in np.repeat(np.random.default_rng(0).integers(0, 18, 2), 4):
        ale.act(int(action))
        screens.append(ale.getScreenGrayscale())
    before = np.maximum(screens[2], screens[3])
    assert np.abs(obs[1, 0, -1] - area_mean(before)).max() <= 1.0
    assert np.abs(obs[2, 0, -1] - area_mean(np.maximum(before, screens[6]))).max() <= 1.0
    assert np.abs(obs[2, 0, -1] - area_mean(np.maximum(screens[6], screens[7]))).max() > 1.0


def test_max_pool_and_frame_skip_are_what_they_say():
    pooled = play(atari("Breakout", 1, noop_max=0), 60)
    assert not np.array_equal(pooled[0], play(atari("Breakout", 1, noop_max=0, max_pool=False), 60)[0])
    env = atari("Breakout", 1, frame_skip=2)
    assert env.spec.frames_per_step == 2
    env.reset(0)
    env.send(np.zeros(1, np.int64))
    env._envs.ale.recv()
    env._envs.send(np.zeros(1, np.int64))
    before = env._envs.recv()[4]["frame_number"][0]
    env._envs.send(np.zeros(1, np.int64))
    assert env._envs.recv()[4]["frame_number"][0] - before == 2


def test_colour_and_size():
    env = atari("Breakout", 2, grayscale=False, frame_size=60, frame_stack=3)
    assert env.spec.obs_shape == (9, 60, 60) and env.spec.frame_stack == 1
    obs = env.reset(0)
    assert obs.shape == (2, 9, 60, 60) and obs.dtype == np.uint8
    assert not obs[:, :6].any()
    raw, _ = env._envs.reset(seed=np.arange(2))
    np.testing.assert_array_equal(env._channels_first(raw)[1, 7], raw[1, 2, :, :, 1])


def test_preprocessing_is_unchanged():
    """The hash of 200 fixed steps: it may change with ALE or the protocol, but never unnoticed."""
    env = atari("Breakout", 6, sticky=0.0, max_frames=400)
    digest = hashlib.sha256(env.reset(7).tobytes())
    for t in range(200):
        env.send((7 * t + 3 * np.arange(6)) % 18)
        batch = env.recv()
        for array in batch[:5]:
            digest.update(array.tobytes())
    assert digest.hexdigest() == "81ac9db1f816738bf604bd7cf6a281ceffd36e3ea5b92c5e0f49321b73d59f67"


def test_batches_of_the_first_that_are_ready_are_the_same_games():
    """Served in batches, in whatever order, each environment plays as it plays among all, to the bit."""
    steps, envs = 60, 6

    def action(env, step):
        return (7 * env + 3 * step) % 18

    whole = atari(num_envs=envs)
    expected = [[(0.0, False, False)] for _ in range(envs)]
    frames = [[obs.copy()] for obs in whole.reset(3)]
    for step in range(steps):
        whole.send(np.array([action(env, step) for env in range(envs)]))
        batch = whole.recv()
        for env in range(envs):
            frames[env].append(batch.obs[env].copy())
            expected[env].append((batch.rewards[env], batch.terminated[env], batch.dummy[env]))

    parts = make_env(EnvConfig(id="Breakout", threads=2), envs, group_size=2)
    assert parts.spec.group_size == 2
    for _ in range(2):  # a reset waits for those that run
        seen = [[] for _ in range(envs)]
        obs = parts.reset(3)
        facts = [(0.0, False, False)] * 2
        while True:
            assert len(obs) == len(parts.ids) == 2
            for env, o, fact in zip(parts.ids, obs, facts, strict=True):
                at = len(seen[env])
                if at <= steps:
                    assert np.array_equal(o, frames[env][at]) and fact == expected[env][at]
                seen[env].append(fact)
            if min(map(len, seen)) > steps:
                break
            parts.send(np.array([action(env, len(seen[env]) - 1) for env in parts.ids]))
            batch = parts.recv()
            assert np.array_equal(batch.first, [not seen[env] for env in parts.ids])
            obs, facts = batch.obs, list(zip(batch.rewards, batch.terminated, batch.dummy, strict=True))


def test_a_group_that_does_not_divide_the_environments_is_refused():
    assert pick_group_size(EnvConfig(num_envs=160), 2) == 80
    assert pick_group_size(EnvConfig(num_envs=7), 2) == 7
    assert pick_group_size(EnvConfig(num_envs=160, group_size=40), 2) == 40
    with pytest.raises(UserError, match=r"env\.group_size must divide env\.num_envs 160, got 77; the nearest is 80"):
        pick_group_size(EnvConfig(num_envs=160, group_size=77), 2)
