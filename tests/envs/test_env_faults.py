"""Environments that go wrong: the error names the environment, the step and the fault."""

import functools
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.support.env_cases import Broken, Count, Screen, idle

from casa.envs import EnvConfig, EnvError, make_env
from casa.envs.guard import check_finite
from casa.envs.gym import GymVec
from casa.envs.pool import Pool
from casa.envs.source import _Slot
from casa.envs.types import Abandoned
from casa.envs.workers import Workers
from casa.errors import UserError


def run(how, vectorization="sync", at=3, steps=6, which=None):
    config = EnvConfig(vectorization=vectorization)
    env = make_env(functools.partial(Broken, how, at, which), 3, config=config)
    env.reset(0)
    try:
        idle(env, steps)
    finally:
        env.close()


FAULTS = [
    ("obs nan", r"environment 1, step 3: observation is nan at index \(1,\)$"),
    ("obs inf", r"environment 1, step 3: observation is inf at index \(2,\)$"),
    ("reward nan", r"environment 1, step 3: reward is nan$"),
    ("reward inf", r"environment 1, step 3: reward is -inf$"),
    ("reward none", r"environment 1, step 3: reward must be a number, got None"),
    ("raises", r"environment 1, step 3: step raised ValueError: the bridge is out \(env_cases.py, line \d+\)"),
    ("exits", r"environment 1, step 3: step raised SystemExit: 0 \(env_cases.py, line \d+\)"),
    ("shape", r"environment 1, step 3: observation has shape \(2,\), its space says \(3,\)"),
    ("dtype", r"environment 1, step 3: observation has dtype <U32, its space says float32"),
    ("four", r"environment 1, step 3: step must return \(obs, reward, .*\), got 4 values"),
]


@pytest.fixture(scope="module")
def drawn():
    """What environment 1 of 3 draws at its first reset with seed 0: how `Broken` knows which one it is."""
    return int(make_env(Count, 3).reset(0)[1, 0])


@pytest.mark.parametrize(("how", "text"), FAULTS, ids=[how for how, _ in FAULTS])
def test_a_fault_is_named_with_environment_and_step(how, text, drawn):
    with pytest.raises(EnvError, match=text):
        run(how, which=drawn)


@pytest.mark.parametrize("vectorization", ["async", "pool"])
@pytest.mark.parametrize("how", ["obs nan", "raises", "exits", "shape"])
def test_a_fault_in_a_process_is_named_in_the_same_words(how, vectorization, drawn, capfd):
    with pytest.raises(EnvError, match=dict(FAULTS)[how]):
        run(how, vectorization, which=drawn)
    assert capfd.readouterr() == ("", "")  # no traceback of the worker or of Gymnasium


@pytest.mark.parametrize(
    ("how", "end"), [("dies", "died with exit code 7"), ("is killed", "was killed by SIGKILL; out of memory")]
)
@pytest.mark.parametrize("vectorization", ["async", "pool"])
def test_a_process_that_dies_is_named(how, end, vectorization, drawn, capfd):
    with pytest.raises(EnvError, match=f"environment 1, step 3: its process {end}"):
        run(how, vectorization, which=drawn)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("pool", [False, True])
def test_a_process_ignores_signals_to_the_group_and_can_be_ended(pool):
    class Stubborn(Count):
        def step(self, action):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), number)
            return self.observe(), 11, False, False, {}

        def close(self):
            time.sleep(60 if multiprocessing.parent_process() else 0)

    before = signal.getsignal(signal.SIGINT)
    env = workers(Stubborn, 2, pool)
    env.send(np.zeros(2, np.int64))
    assert (env.recv().rewards == 11).all()
    began = time.monotonic()
    processes = env._envs.processes
    env.close()
    assert time.monotonic() - began < 10 and not any(process.is_alive() for process in processes)
    assert signal.getsignal(signal.SIGINT) == before


def workers(maker, count, pool=False):
    """`count` environments in processes, after a reset, without the trial that `make_env` makes in this process."""
    makers, like = [_Slot(maker, "mine", {}, i, Count()) for i in range(count)], Count()
    envs = Pool(makers, 2, like.observation_space, like.action_space) if pool else Workers(makers)
    env = GymVec(envs, "mine", 1, 0, "pool" if pool else "async")
    env.reset(0)
    return env


@pytest.mark.parametrize("pool", [False, True])
def test_processes_that_do_not_answer_are_named_and_can_be_abandoned(pool):
    class Hangs(Count):
        def step(self, action):
            time.sleep(600 * self.age)  # at the second step
            return super().step(action)

    env = workers(Hangs, 2, pool)
    idle(env, 1)
    assert env.silent() == (0.0, [])
    env.send(np.zeros(2, np.int64))
    seen = []
    threading.Timer(0.2, lambda: (seen.append(env.silent()), env.abandon())).start()
    with pytest.raises(Abandoned):
        env.recv()
    assert seen[0][1] == [0, 1] and 0.1 < seen[0][0] < 5
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < 2


def test_an_environment_of_this_process_that_does_not_answer_is_named():
    class Looks(Count):
        def step(self, action):
            if self.first == 1:
                time.sleep(0.05)
                seen.append(env.silent())
            return super().step(action)

    seen = []
    env = make_env(Looks, 3, config=EnvConfig(vectorization="sync"))
    env.reset(0)
    for index, guard in enumerate(env._envs.envs):
        guard.env.first = index
    idle(env, 1)
    assert env.silent() == (0.0, [])
    assert seen[0][1] == [1] and 0.04 < seen[0][0] < 5
    env.abandon()
    with pytest.raises(Abandoned):  # a late answer is refused: the run was saved without it
        idle(env, 1)


@pytest.mark.parametrize("pool", [False, True])
def test_an_environment_that_cannot_be_made_in_its_process_is_named(pool):
    class Port(Count):
        def __init__(self):
            super().__init__()
            if multiprocessing.parent_process() is not None:
                raise OSError("port 6000 is in use")

    with pytest.raises(EnvError, match=r"environment 0: env.id 'mine' could not be made: OSError: port 6000 is in use"):
        workers(Port, 2, pool)


@pytest.mark.parametrize("vectorization", ["sync", "async", "pool"])
def test_an_environment_that_cannot_be_closed_is_a_warning(vectorization, capfd):
    class Falls(Count):
        def close(self):
            raise ValueError("it sticks")

    with pytest.warns(RuntimeWarning, match="Falls: close raised ValueError: it sticks"):
        env = make_env(Falls, 2, config=EnvConfig(vectorization=vectorization))
    env.reset(0)
    idle(env, 2)
    env.close()
    assert capfd.readouterr() == ("", "")


def test_an_environment_without_spaces_is_named():
    class Bare(Count):
        def __init__(self):
            super().__init__()
            del self.observation_space

    with pytest.raises(EnvError, match="Bare: the environment has no observation_space"):
        make_env(Bare, 2)


def test_a_vector_environment_that_raises_is_named():
    class Falls(SyncVectorEnv):
        def step(self, actions):
            raise KeyError("lost")

    env = make_env(Falls([Count] * 2, autoreset_mode=AutoresetMode.NEXT_STEP))
    env.reset(0)
    with pytest.raises(EnvError, match=r"Falls, step 1: step raised KeyError: 'lost' \(test_env_faults.py, line \d+\)"):
        idle(env, 1)


def test_a_vector_environment_with_batches_of_the_wrong_form_is_named():
    class Short(SyncVectorEnv):
        def step(self, actions):
            obs, rewards, *rest = super().step(actions)
            return (obs[:1], rewards, *rest) if self.wrong == "obs" else (obs, rewards[:1], *rest)

    for wrong, text in (
        ("obs", r"observations have shape \(1, 3\), the space says \(2, 3\)"),
        ("rewards", "2 numbers"),
    ):
        envs = Short([Count] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
        envs.wrong = wrong
        env = make_env(envs)
        env.reset(0)
        with pytest.raises(EnvError, match=rf"Short, step 1: .*{text}"):
            idle(env, 1)


def test_no_fault_no_error():
    run("")
    run("raises", at=7)


def test_automatic_resets_are_counted_as_steps():
    class Later(Count):
        def step(self, action):
            assert self.episode < 1, "second episode"
            return super().step(action)

    env = make_env(Later, 2, config=EnvConfig(vectorization="sync"))
    lengths = 2 + env.reset(0)[:, 0].astype(int) % 5
    first, step = lengths.argmin(), lengths.min() + 2
    with pytest.raises(EnvError, match=rf"environment {first}, step {step}: step raised AssertionError: second"):
        idle(env, 9)


def test_all_environments_at_once_are_counted():
    with pytest.raises(EnvError, match=r"environment 0, step 3: reward is nan \(and in 2 other environments\)"):
        run("reward nan")


def test_a_fault_in_a_reset_is_named():
    class Falls(Count):
        def reset(self, *, seed=None, options=None):
            if seed is None:
                raise OSError("no more levels")
            return super().reset(seed=seed)

    class Mute(Count):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0]

    env = make_env(Falls, 2, config=EnvConfig(vectorization="sync"))
    env.reset(0)
    idle(env, 1)
    lengths = 2 + env.reset(0)[:, 0].astype(int) % 5
    first, step = lengths.argmin(), lengths.min() + 1
    with pytest.raises(EnvError, match=rf"environment {first}, step {step}: reset raised OSError: no more levels"):
        idle(env, 8)
    with pytest.raises(EnvError, match=r"environment 0, step 0: reset must return \(obs, info\)"):
        make_env(Mute, 2, config=EnvConfig(vectorization="sync")).reset(0)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_a_bad_final_or_first_observation_is_named(mode):
    class Ends(Count):
        def observe(self):
            obs = super().observe()
            if self.age == 0 and self.episode == 1 and mode is AutoresetMode.DISABLED:
                obs[0] = np.nan
            if self.age == 2 + self.drawn % 5 and mode is AutoresetMode.SAME_STEP:
                obs[0] = np.nan
            return obs

    env = make_env(SyncVectorEnv([Ends] * 3, autoreset_mode=mode))
    obs = env.reset(0)
    shortest = int(np.argmin(obs[:, 0] % 5))
    with pytest.raises(EnvError, match=rf"environment {shortest}, step \d: observation is nan at index \(0,\)"):
        idle(env, 8)


def test_a_discrete_observation_out_of_range_is_named():
    class Outside(Count):
        def __init__(self):
            super().__init__(Discrete(3))

        def observe(self):
            return self.age + (1 if self.age else 0)

    env = make_env(Outside, 2, config=EnvConfig(vectorization="sync"))
    env.reset(0)
    with pytest.raises(EnvError, match=r"environment \d, step 2: observation 3 is not in Discrete\(3\)"):
        idle(env, 3)


def test_floats_for_a_byte_space_are_refused_and_doubles_for_a_float_space_are_not():
    class Doubles(Count):
        def observe(self):
            return super().observe().astype(np.float64)

    env = make_env(Doubles, 2)
    assert env.reset(0).dtype == np.float32

    class Scaled(Screen):
        def observe(self):
            return super().observe() / 255.0

    with pytest.raises(EnvError, match="observation has dtype float64, its space says uint8"):
        make_env(Scaled, 2, config=EnvConfig(vectorization="sync")).reset(0)


def test_large_numbers_are_finite():
    check_finite(np.full((2, 3), 3e38, np.float32), "observation", 1)
    with pytest.raises(UserError, match="environment 7, step 1"):
        check_finite(np.array([1.0, np.nan]), "reward", 1, rows=np.array([4, 7]))
