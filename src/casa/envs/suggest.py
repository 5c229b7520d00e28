"""Which preset fits an environment on this machine."""

from __future__ import annotations

from casa.config.load import default_preset
from casa.envs.names import resolve
from casa.envs.source import maker_of, parse_kwargs
from casa.envs.spaces import encoder


def suggest_preset(env_id: str, kwargs: str = "") -> str:
    """classic for vector observations; otherwise gpu where there is a CUDA device, else laptop.

    One environment is made to look at its observations. `kwargs` are its arguments, as in `env.kwargs`.
    """
    try:
        found = resolve(env_id)
        if found.kind == "atari":
            return default_preset()
        maker = maker_of(found)
        env = maker(**parse_kwargs(kwargs))
        try:
            space = getattr(env, "single_observation_space", env.observation_space)
            kind = encoder(space, env_id).kind
        finally:
            env.close()
    except Exception:  # whatever is wrong with it, the run says when it makes it
        return default_preset()
    return "classic" if kind == "vector" else default_preset()
