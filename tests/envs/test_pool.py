"""Several environments in each of a few processes: the data of one process, to the bit."""

import functools
import gc
import multiprocessing
import os
import signal
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from tests.support.env_cases import Broken, Count, Screen, canonical, idle

from casa.envs import EnvConfig, EnvError, make_env
from casa.envs import source as source_module
from casa.envs.types import Abandoned


class Option(Count):
    """One of seven numbers."""

    def __init__(self):
        super().__init__()
        self.observation_space = Discrete(7)

    def observe(self):
        return self.age % 7


def vec(make, count, vectorization, here=False):
    return make_env(make, count, config=EnvConfig(vectorization=vectorization), here=here)


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(source_module, "cores", lambda: 2)


@pytest.mark.parametrize("make", [Count, Screen, Option])
@pytest.mark.parametrize(("processes", "here"), [(1, False), (2, False), (3, False), (1, True), (2, True), (3, True)])
def test_a_pool_gives_the_stream_of_one_process(make, processes, here, monkeypatch):
    monkeypatch.setattr(source_module, "cores", lambda: processes)
    one, pool = vec(make, 5, "sync"), vec(make, 5, "pool", here)
    assert len(pool._envs.processes) == processes - here
    stream = canonical(one, 30)
    assert canonical(pool, 30) == stream and canonical(pool, 30) == stream
    assert sum(slot[2] or slot[3] for slots in stream for slot in slots) > 5  # episodes ended on the way
    pool.close()
    assert not any(process.is_alive() for process in pool._envs.processes)


def test_this_process_runs_the_first_share_and_closes_it(two_cores):

    class Where(Count):
        closed = 0

        def step(self, action):
            return self.observe(), os.getpid(), False, False, {}

        def close(self):
            Where.closed += 1

    env = vec(Where, 4, "pool", here=True)
    trial = Where.closed
    env.reset(0)
    env.send(np.zeros(4, np.int64))
    assert (env.recv().rewards == os.getpid()).tolist() == [True, True, False, False]
    env.close()
    assert Where.closed - trial == 2


def test_a_share_that_cannot_be_made_ends_the_other_processes(two_cores):
    before = set(multiprocessing.active_children())

    class Once(Count):
        made = 0

        def __init__(self):
            Once.made += 1
            if Once.made > 1 and multiprocessing.parent_process() is None:  # the first is a trial
                raise OSError("port 6000 is in use")
            super().__init__()

    with pytest.raises(EnvError, match="could not be made: OSError: port 6000 is in use"):
        vec(Once, 4, "pool", here=True)
    gc.collect()
    assert set(multiprocessing.active_children()) <= before


class Ragged(Broken):
    """At a step `terminated` is two flags, which no check foresees."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, np.zeros(2) if self.broken() else terminated, truncated, info


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize(
    ("make", "how", "said"),
    [(Broken, "raises", ", step 2: step raised ValueError: the bridge"), (Ragged, "", ": ValueError: The truth value")],
)
def test_a_fault_is_named_in_the_same_words_in_either_share(make, how, said, which, two_cores):
    drawn = int(vec(Count, 4, "sync").reset(0)[which, 0])
    env = vec(functools.partial(make, how, 2, drawn), 4, "pool", here=True)
    env.reset(0)
    with pytest.raises(EnvError, match=f"^environment {which}{said}"):
        idle(env, 2)
    env.close()


@pytest.mark.parametrize("how", ["raises", "terminated"])
def test_a_fault_in_the_first_share_leaves_no_answer_behind(how, two_cores):
    drawn = int(vec(Count, 4, "sync").reset(0)[0, 0])
    make = Broken if how == "raises" else Ragged
    env, one = vec(functools.partial(make, how, 2, drawn), 4, "pool", here=True), vec(Count, 4, "sync")
    env.reset(0)
    with pytest.raises(EnvError):
        idle(env, 2)
    env._actions = None
    np.testing.assert_array_equal(env.reset(0), one.reset(0))
    env.close()


def test_environments_that_do_not_close_end_the_wait_and_the_processes(two_cores):
    class Stubborn(Count):
        closing = False

        def close(self):
            time.sleep(60 * Stubborn.closing)

    env = vec(Stubborn, 4, "pool", here=True)
    env.reset(0)
    Stubborn.closing = True
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < 10 and not any(process.is_alive() for process in env._envs.processes)


def made_in_a_process(found):
    before = signal.getsignal(signal.SIGINT)
    env = vec(Count, 4, "pool", here=True)
    env.reset(0)
    idle(env, 1)
    env.close()
    found.put(signal.getsignal(signal.SIGINT) == before)


def test_a_run_in_a_process_of_the_user_is_not_taken_for_a_worker(two_cores):
    found = multiprocessing.Queue()
    process = multiprocessing.Process(target=made_in_a_process, args=(found,))
    process.start()
    assert found.get(timeout=30)
    process.join(10)
    assert process.exitcode == 0


@pytest.mark.parametrize("slow", [1, 2])
def test_an_environment_that_hangs_in_either_share_is_named_and_can_be_abandoned(slow, two_cores):

    class Hangs(Count):
        closed = False

        def step(self, action):
            time.sleep(1.0 if action == 2 and slow == 1 else 30 * (action == 2))
            return super().step(action)

        def close(self):
            Hangs.closed = True

    env = vec(Hangs, 4, "pool", here=True)
    env.reset(0)
    Hangs.closed = False
    actions = np.zeros(4, np.int64)
    actions[slow] = 2
    seen = []
    threading.Timer(0.3, lambda: (seen.append((env.silent()[1], env.inside_env)), env.abandon())).start()
    env.send(actions)
    with pytest.raises(Abandoned):
        env.recv()
    assert seen == [([slow], slow == 1)]  # only code in this process is something to be thrown out of
    env.close()
    assert not Hangs.closed and not any(process.is_alive() for process in env._envs.processes)


@pytest.mark.parametrize("here", [False, True])
def test_actions_of_several_spaces_reach_the_pool(here):
    class Parts(gym.Env):
        observation_space = Box(-9, 9, (2,))
        action_space = Dict({"push": Box(-2, 2, (1,)), "turn": Discrete(3)})

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.array([action["push"][0], action["turn"]], np.float32), 0.0, False, False, {}

    actions = np.array([[0.5, 1], [-1.0, 2], [0.25, 0]], np.float32)
    env = vec(Parts, 3, "pool", here)
    env.reset(0)
    env.send(actions)
    np.testing.assert_array_equal(env.recv().obs, actions * [2, 1])
    env.close()


def test_observations_stay_while_the_pool_steps_on():
    env = vec(Count, 4, "pool")
    env.reset(0)
    idle(env, 1)
    env.send(np.zeros(4, np.int64))
    obs = env.recv().obs
    kept = obs.copy()
    env.send(np.zeros(4, np.int64))
    env.recv()
    np.testing.assert_array_equal(obs, kept)
    env.close()


def test_the_environment_that_hangs_is_named_and_ends_with_the_pool():
    class Hangs(Count):
        def step(self, action):
            time.sleep(30 * (action == 2))
            return super().step(action)

    env = vec(Hangs, 4, "pool")
    env.reset(0)
    env.send(np.array([2, 0, 0, 0]))
    time.sleep(0.3)
    found, processes = env._envs.silent(), env._envs.processes
    del env
    gc.collect()
    assert found == [0] and not any(process.is_alive() for process in processes)
