"""Which preset fits an environment on this machine."""

from __future__ import annotations

from casa.config.load import default_preset
from casa.envs.names import resolve
from casa.envs.source import maker_of, parse_kwargs
from casa.envs.spaces import action_spec, encoder


def suggest_preset(env_id: str, kwargs: str = "") -> str:
    """classic for vector observations, continuous if actions are; grid for grids; otherwise gpu or laptop.

    gpu needs a CUDA device. Grids with continuous actions get what images get.

    One environment is made to look at its spaces. `kwargs` are its arguments, as in `env.kwargs`.
    """
    try:
        found = resolve(env_id)
        if found.kind == "atari":
            return default_preset()
        maker = maker_of(found)
        env = maker(**parse_kwargs(kwargs))
        try:
            kind = encoder(getattr(env, "single_observation_space", env.observation_space), env_id).kind
            actions = action_spec(getattr(env, "single_action_space", env.action_space), env_id, bound=1.0)
        finally:
            env.close()
    except Exception:  # whatever is wrong with it, the run says when it makes it
        return default_preset()
    if kind == "vector":
        return "continuous" if actions.continuous else "classic"
    return "grid" if kind == "grid" and not actions.continuous else default_preset()
