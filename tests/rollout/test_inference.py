"""Acting with a compiled graph: the same random numbers give the same actions."""

import numpy as np
import pytest
import torch
from tests.support.small import small_config

from casa.engines.build import build_system
from casa.envs import make_env
from casa.heads import HeadOutput

ENVS = {
    "ppo-casa": {"env": "Pendulum-v1", "agent.kernel": "polynomial", "agent.knots": 4},
    "ppo-gaussian": {"env": "Pendulum-v1"},
    "casa": {"env": "CartPole-v1"},
}


def system_of(recipe, compiled):
    config = small_config(recipe, compile=compiled, **{"env.vectorization": "sync", "env.num_envs": 8}, **ENVS[recipe])
    system = build_system(config, env_factory=make_env)
    system.begin()
    return system


@pytest.mark.parametrize("recipe", ENVS)
def test_a_compiled_actor_acts_as_the_eager_one(recipe, monkeypatch):
    compiled, original = [], torch.compile

    def compile_eagerly(function, **options):
        compiled.append(function.__name__)
        return original(function, backend="aot_eager", **options)

    monkeypatch.setattr("casa.runtime.compiled.torch.compile", compile_eagerly, raising=True)
    actors = [system_of(recipe, wanted).actors[0] for wanted in ("no", "yes")]
    for _ in range(3):
        for actor in actors:
            actor.act()
            actor.absorb()
        for name in ("actions", "log_mu", "_chosen"):
            torch.testing.assert_close(getattr(actors[1], name), getattr(actors[0], name), rtol=1e-5, atol=1e-6)
        assert torch.equal(actors[0].generator.get_state(), actors[1].generator.get_state())
    assert compiled[-1] == "_infer_from_drawn"


def test_a_head_that_draws_in_its_own_way_is_not_compiled(monkeypatch):
    class Own(HeadOutput):
        def sample(self, generator):
            return torch.full(self.v.shape, 1)

    actor = system_of("casa", "yes").actors[0]
    forward = actor.network.forward
    monkeypatch.setattr(
        actor.network, "forward", lambda *inputs: (Own(*(out := forward(*inputs))[0]), out[1]), raising=True
    )
    for _ in range(2):
        actor.act()
        np.testing.assert_array_equal(actor._chosen, 1)
        actor.absorb()
