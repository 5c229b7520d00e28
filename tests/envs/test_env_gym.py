import json
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from tests.support.env_cases import Count, Screen, act, canonical, idle

from casa.actions import ActionSpec
from casa.envs import EnvConfig, make_env
from casa.envs.stacks import rebuild
from casa.envs.types import EnvSpec, env_seeds
from casa.errors import UserError

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


def vector(make, mode, num_envs=4, kind=SyncVectorEnv):
    return kind([make] * num_envs, autoreset_mode=mode)


@pytest.mark.parametrize("make", [Count, Screen, partial(Screen, (24, 30, 3))])
def test_every_autoreset_mode_gives_the_same_stream(make):
    streams = {mode: canonical(make_env(vector(make, mode)), 60) for mode in MODES}
    ends = [slot for stream in streams[MODES[0]] for slot in stream if slot[2] or slot[3]]
    assert sum(slot[2] for slot in ends) > 10 and sum(slot[3] for slot in ends) > 10
    for mode in MODES[1:]:
        for a, b in zip(streams[MODES[0]], streams[mode], strict=True):
            # `dummy` marks the step that a reset took: only the next-step mode has one.
            assert [slot[:5] for slot in a] == [slot[:5] for slot in b]


@pytest.mark.parametrize("mode", MODES)
def test_processes_give_the_same_stream_in_every_mode(mode):
    here = make_env(vector(Count, mode))
    there = make_env(vector(Count, mode, kind=AsyncVectorEnv))
    assert canonical(here, 30) == canonical(there, 30)
    there.close()
    there.close()


def test_terminated_and_truncated_are_kept_apart_and_the_final_observation_is_the_episodes_own():
    env = make_env(Count, 3, config=EnvConfig(vectorization="sync"))
    obs = env.reset(0)
    ended = np.zeros(3, bool)
    for _ in range(40):
        env.send(act(obs))
        batch = env.recv()
        np.testing.assert_array_equal(batch.dummy, ended)
        even = obs[:, 1] % 2 == 0
        assert (even[batch.terminated]).all() and not even[batch.truncated].any()
        for i in range(3):
            if batch.dummy[i]:
                assert batch.obs[i, 2] == 0 and batch.obs[i, 1] == obs[i, 1] + 1 and batch.rewards[i] == 0
            else:
                assert batch.obs[i, 2] == obs[i, 2] + 1 and batch.obs[i, 0] == obs[i, 0]
        ended = batch.terminated | batch.truncated
        obs = batch.obs.copy()
    assert batch.final == {}


@pytest.mark.parametrize("mode", MODES)
def test_stacks_follow_the_rule_of_atari(mode):
    env = make_env(vector(Screen, mode), config=EnvConfig(frame_stack=3))
    assert env.spec.obs_shape == (3, 24, 30) and env.spec.frame_stack == 3 and env.spec.kind == "image"
    for slots in canonical(env, 50):
        obs = np.stack([np.frombuffer(slot[0], np.uint8).reshape(3, 24, 30) for slot in slots])
        starts = np.array([slot[4] for slot in slots])
        index = np.arange(len(slots))
        ages = index - np.maximum.accumulate(np.where(starts, index, 0))
        np.testing.assert_array_equal(rebuild(obs[:, -1], ages, 3), obs)
        assert starts.sum() > 5


def test_colour_images_are_stacked_and_kept_whole():
    env = make_env(partial(Screen, (24, 30, 3)), 2, config=EnvConfig(frame_stack=2))
    assert env.spec.obs_shape == (6, 24, 30) and env.spec.frame_stack == 1
    first = env.reset(0)
    assert not first[:, :3].any() and first[:, 3:].all()
    env.send(np.zeros(2, np.int64))
    np.testing.assert_array_equal(env.recv().obs[:, :3], first[:, 3:])


def test_vectors_are_not_stacked():
    spec = make_env("CartPole-v1", 2, config=EnvConfig(frame_stack=4)).spec
    assert (spec.obs_shape, spec.obs_dtype, spec.kind) == ((4,), np.float32, "vector")
    assert spec.actions == ActionSpec.discrete(2)
    assert (spec.frame_stack, spec.frames_per_step, spec.atari_game) == (1, 1, None)


def test_a_spec_survives_json_and_that_of_an_earlier_version_is_read():
    for env in (make_env("CartPole-v1", 2), make_env("FrozenLake-v1", 3), make_env(Screen, 2)):
        assert EnvSpec.from_json(json.loads(json.dumps(env.spec.to_json()))) == env.spec
    spec = make_env("CartPole-v1", 2).spec
    earlier = {**spec.to_json(), "num_actions": 2, "batch": 0}
    for name in ("actions", "group_size", "observation"):
        del earlier[name]
    assert EnvSpec.from_json(earlier) == replace(spec, observation=None)


@pytest.mark.parametrize("vectorization", ["sync", "async", "pool"])
def test_a_seed_determines_the_stream_and_a_second_reset_cuts_the_episodes(vectorization):
    env = make_env(Count, 3, config=EnvConfig(vectorization=vectorization))
    assert env.spec.vectorization == vectorization
    first = canonical(env, 25, seed=1)
    assert canonical(env, 25, seed=1) == first
    env.send(np.zeros(3, np.int64))
    assert canonical(env, 25, seed=1) == first
    assert canonical(env, 25, seed=2) != first
    assert canonical(make_env(Count, 3, seed=1), 25, seed=None) == first
    env.close()


@pytest.mark.parametrize("vectorization", ["sync", "async", "pool"])
def test_environment_i_gets_seed_i(vectorization):
    env = make_env(Count, 3, config=EnvConfig(vectorization=vectorization))
    expected = [Count().reset(seed=seed)[0] for seed in env_seeds(6, 3)]
    np.testing.assert_array_equal(env.reset(6), expected)
    env.close()


def test_discrete_observations_become_one_hot_and_actions_count_from_start():
    class Corridor(gym.Env):
        observation_space = Discrete(4, start=1)
        action_space = Discrete(2, start=5)

        def reset(self, *, seed=None, options=None):
            return 1, {}

        def step(self, action):
            assert action in (5, 6)
            return int(action) - 3, float(action), False, False, {}

    env = make_env(Corridor, 2)
    np.testing.assert_array_equal(env.reset(0), [[1, 0, 0, 0]] * 2)
    env.send(np.array([0, 1]))
    batch = env.recv()
    np.testing.assert_array_equal(batch.obs, [[0, 1, 0, 0], [0, 0, 1, 0]])
    np.testing.assert_array_equal(batch.rewards, [5, 6])


@pytest.mark.parametrize(
    ("space", "sent", "arrived"),
    [
        (MultiDiscrete([3, 2], start=[1, 5]), [[0, 0], [2, 1]], [[1, 5], [3, 6]]),
        (MultiDiscrete([[2, 3], [4, 2]]), [[1, 2, 3, 1], [0, 0, 1, 0]], [[[1, 2], [3, 1]], [[0, 0], [1, 0]]]),
        (MultiBinary((1, 3)), [[1, 0, 1], [0, 0, 1]], [[[1, 0, 1]], [[0, 0, 1]]]),
    ],
)
@pytest.mark.parametrize("vectorization", ["sync", "async", "pool"])
def test_actions_of_several_parts_arrive_as_the_environment_counts_and_shapes_them(
    space, sent, arrived, vectorization
):
    class Parts(gym.Env):
        observation_space = Box(-9, 9, (int(np.prod(space.shape)),))
        action_space = space

        def reset(self, *, seed=None, options=None):
            return np.zeros(self.observation_space.shape, np.float32), {}

        def step(self, action):
            assert self.action_space.contains(action), (action, action.dtype)
            return action.ravel().astype(np.float32), 0.0, False, False, {}

    env = make_env(Parts, 2, config=EnvConfig(vectorization=vectorization))
    env.reset(0)
    env.send(np.array(sent))
    np.testing.assert_array_equal(env.recv().obs, np.array(arrived).reshape(2, -1))
    with pytest.raises(ValueError, match=rf"actions must be 2 x {len(sent[0])} integers, got shape \(2,\)"):
        env.send(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=r"actions must be in 0 \.\. "):
        env.send(np.array(sent) + 9)
    env.close()


class Reusing(VectorEnv):
    """Fills one buffer again and again; its episodes last 3 and 4 steps, and it waits to be reset."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    num_envs = 2
    single_observation_space = Box(-9, 9, (1,))
    single_action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        if options is None:
            self.seed = seed
            self.buffer, self.ages = np.zeros((2, 1), np.float32), np.zeros(2)
        mask = np.ones(2, bool) if options is None else options["reset_mask"]
        self.ages[mask] = 0
        self.buffer[:] = 9  # nobody may read the rows that were not reset
        self.buffer[mask] = 0
        return self.buffer, {}

    def step(self, actions):
        self.ages += 1
        self.buffer[:, 0] = self.ages
        return self.buffer, np.ones(2), self.ages >= [3, 4], np.zeros(2, bool), {}


def test_a_vector_environment_that_reuses_its_buffer():
    envs = Reusing()
    env = make_env(envs)
    env.reset(0)
    assert envs.seed == env_seeds(0, 1)[0]  # one number for all, as its signature says
    for t in range(1, 25):
        env.send(np.zeros(2, np.int64))
        batch = env.recv()
        np.testing.assert_array_equal(batch.obs[:, 0], [t % 3, t % 4])
        assert {i: float(obs[0]) for i, obs in batch.final.items()} == {
            i: length for i, length in enumerate([3, 4]) if t % length == 0
        }


def test_what_a_vector_environment_must_say():
    silent = Reusing()
    silent.metadata = {}
    with pytest.raises(UserError, match=r"metadata\['autoreset_mode'\] is None"):
        make_env(silent)
    with pytest.raises(UserError, match=r"env\.num_envs is 3, but Reusing made 2 environments"):
        make_env(Reusing(), 3)

    class Forgets(Reusing):
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    env = make_env(Forgets())
    env.reset(0)
    with pytest.raises(UserError, match=r"step 3: .* no info\['final_obs'\]"):
        idle(env, 3)


def test_recv_needs_send():
    env = make_env(Count, 1)
    env.reset(0)
    with pytest.raises(RuntimeError, match=r"send\(\)"):
        env.recv()
    with pytest.raises(ValueError, match=r"in 0 \.\. 2"):
        env.send(np.array([3]))
