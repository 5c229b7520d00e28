"""Which preset fits an environment on this machine."""

from __future__ import annotations

from casa.config.load import default_preset
from casa.envs.names import resolve
from casa.envs.source import gym_maker, module_maker
from casa.envs.spaces import encoder


def suggest_preset(env_id: str) -> str:
    """classic for vector observations; otherwise gpu where there is a CUDA device, else laptop.

    One environment is made to look at its observations. An environment that cannot be made without arguments gets the
    machine's preset; what is wrong with it is said when the run makes it.
    """
    try:
        found = resolve(env_id)
        if found.kind == "atari":
            return default_preset()
        maker = module_maker(found.name) if found.kind == "module" else gym_maker(found.name)
        env = maker()
        space = getattr(env, "single_observation_space", env.observation_space)
        kind = encoder(space, env_id).kind
        env.close()
    except Exception:
        return default_preset()
    return "classic" if kind == "vector" else default_preset()
