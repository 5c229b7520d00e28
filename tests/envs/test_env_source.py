import os
import subprocess
import sys
import textwrap
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.support.env_cases import Count

from casa.config.load import make_config
from casa.engines.build import make_envs
from casa.envs import EnvConfig, make_env
from casa.envs import source as source_module
from casa.envs.source import parse_kwargs
from casa.errors import UserError
from casa.runtime.machine import cores

MINE = """
    import gymnasium as gym
    import numpy as np
    from gymnasium.spaces import Box, Discrete
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    class MyEnv(gym.Env):
        def __init__(self, size=2, actions=None):
            self.observation_space = Box(-1, 1, (size,))
            self.action_space = actions or Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample() * 0, {}

        def step(self, action):
            return np.zeros(self.observation_space.shape, np.float32), 1.0, False, False, {}

    def make_env(size=3):
        return MyEnv(size)

    def make_many(num_envs):
        return SyncVectorEnv([MyEnv] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    def make_unbounded():
        return MyEnv(actions=Box(-np.inf, np.inf, (2,)))

    def make_nothing():
        return {}

    def make_trouble():
        raise RuntimeError("no license")

    number = 3
    gym.register("MyEnv-v0", entry_point=MyEnv)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module `my_module` in the current directory, which is not on the path of imports."""
    (tmp_path / "my_module.py").write_text(textwrap.dedent(MINE))
    (tmp_path / "needs_more.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "wrong.py").write_text("\n\nx = 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    gym.registry.pop("MyEnv-v0", None)
    for name in ("my_module", "needs_more", "wrong"):
        sys.modules.pop(name, None)


def made(name, **fields):
    return make_env(EnvConfig(id=name, num_envs=2, **fields))


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "size", "vectorization"),
    [
        ("my_module:MyEnv-v0", 2, "sync"),
        ("my_module:MyEnv", 2, "sync"),
        ("my_module:make_env", 3, "sync"),
        ("my_module:make_many", 2, "native"),
    ],
)
def test_a_users_own_environment(name, size, vectorization):
    env = made(name, vectorization="sync")
    assert (env.spec.id, env.spec.num_envs, env.spec.vectorization) == (name, 2, vectorization)
    assert env.reset(0).shape == (2, size)
    env.send(np.zeros(2, np.int64))
    assert (env.recv().rewards == 1).all()
    env.close()


@pytest.mark.usefixtures("module")
def test_a_users_own_environment_in_processes_and_with_arguments():
    env = made("my_module:make_env", vectorization="async", kwargs="{size: 5}")
    assert env.reset(0).shape == (2, 5)
    env.close()


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my_modul:MyEnv-v0", "env.id 'my_modul:MyEnv-v0': no module 'my_modul' in "),
        ("my_module:MyEvn-v0", "has no attribute 'MyEvn-v0'; did you mean 'my_module:MyEnv-v0'?"),
        ("my_module:make_evn", "has no attribute 'make_evn'; did you mean 'my_module:make_env'?"),
        ("my_module:number", "number is a int, not something that makes an environment"),
        ("my_module:make_nothing", "made a dict; it must make a gymnasium.Env"),
        ("my_module:make_trouble", "could not be made: RuntimeError: no license \\(my_module.py, line \\d+\\)"),
        ("my_module:make_unbounded", "action space Box\\(.*\\) has no bounds, .* limit it with --env.action-bound"),
        ("needs_more:X", "importing 'needs_more' failed: ModuleNotFoundError: .*nowhere_to_be_found.*line 1"),
        ("wrong:X", "importing 'wrong' failed: ZeroDivisionError: division by zero \\(wrong.py, line 3\\)"),
    ],
)
def test_mistakes_in_a_users_module_are_named(name, text):
    with pytest.raises(UserError, match=text):
        made(name)


def test_a_callable_a_class_and_a_vector_environment():
    assert make_env(Count, 2).spec.id == "Count"
    assert make_env(lambda: Count(), 2).spec.num_envs == 2
    envs = SyncVectorEnv([Count] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    spec = make_env(envs).spec
    assert (spec.num_envs, spec.vectorization) == (3, "native")


def test_arguments_from_the_command_line():
    assert parse_kwargs("") == {}
    assert parse_kwargs('{"a": 1, "b": [1, 2]}') == {"a": 1, "b": [1, 2]}
    assert parse_kwargs("{map_name: 8x8, is_slippery: false}") == {"map_name": "8x8", "is_slippery": False}
    assert made("FrozenLake-v1", kwargs="{map_name: 8x8}").spec.obs_shape == (64,)
    for text in ("3", "[1]", "{1: 2}", "{a: "):
        with pytest.raises(UserError, match=r"env\.kwargs must be a mapping"):
            parse_kwargs(text)
    with pytest.raises(UserError, match=r"could not be made: TypeError: .*sise"):
        made("CartPole-v1", kwargs="{sise: 8}")
    with pytest.raises(UserError, match="no effect on Atari"):
        made("Breakout", kwargs="{mode: 1}")


def test_known_ids_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="Blackjack-v1: observation space Tuple"):
        made("Blackjack-v1")
    with pytest.raises(UserError, match="did you mean 'CartPole-v1'"):
        made("CartPoole-v1")


def test_a_costly_environment_gets_processes_and_a_cheap_one_does_not(monkeypatch):
    monkeypatch.setattr(source_module, "cores", lambda: 2)
    monkeypatch.setattr(source_module, "allowed_cores", lambda: 2)
    monkeypatch.setattr(source_module, "WORTH_A_POOL", 10.0)
    assert make_env(Count, 2).spec.vectorization == "sync"
    monkeypatch.setattr(source_module, "WORTH_A_POOL", 0.0)
    env = make_env(Count, 2)
    assert env.spec.vectorization == "pool"
    env.close()
    assert make_env(Count, 1).spec.vectorization == "sync"  # nothing to run beside
    monkeypatch.setattr(source_module, "WORTH_SHARING", 10.0)
    assert make_env(Count, 2, here=True).spec.vectorization == "sync"
    monkeypatch.setattr(source_module, "allowed_cores", lambda: 1)  # as runs side by side have it
    assert make_env(Count, 2).spec.vectorization == "sync"
    env = make_env(Count, 2, config=EnvConfig(vectorization="pool"))  # what is asked for is done
    assert len(env._envs.processes) == 2
    env.close()


def test_a_limit_of_threads_is_a_limit_of_cores():
    code = "from casa.runtime.threads import allowed_cores; print(allowed_cores())"
    for limit, wanted in (("1", 1), (None, cores())):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment |= {} if limit is None else {"OMP_NUM_THREADS": limit}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert int(done.stdout) == wanted


def test_the_main_process_of_a_sync_run_takes_a_share_of_a_pool(monkeypatch):
    monkeypatch.setattr(source_module, "cores", lambda: 2)
    config = make_config({"recipe": "ppo", "env": "CartPole-v1", "env.vectorization": "pool", "env.num_envs": 4})
    for groups, processes in ((1, [1]), (2, [2, 2])):  # in the async loop, with two groups, it learns meanwhile
        found = make_envs(config, groups, make_env)
        assert [len(env._envs.processes) for env in found] == processes
        for env in found:
            env.close()


def test_an_environment_that_waits_gets_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(source_module, "cores", lambda: 2)

    class Waits(Count):
        def step(self, action):
            time.sleep(0.005)
            return super().step(action)

    env = make_env(Waits, 2)
    assert env.spec.vectorization == "async"
    env.close()


def test_a_few_slow_steps_do_not_start_processes(monkeypatch):
    """Other programs slow some steps down: five of the eight that are measured, here."""
    monkeypatch.setattr(source_module, "cores", lambda: 2)

    class Sometimes(Count):
        calls = 0

        def step(self, action):
            Sometimes.calls += 1
            if Sometimes.calls <= 5:
                time.sleep(0.01)
            return super().step(action)

    env = make_env(Sometimes, 2, config=EnvConfig(vectorization="auto"))
    assert env.spec.vectorization == "sync" and Sometimes.calls >= 8
    env.close()
