"""A Gymnasium environment whose rewards are multiplied by a factor: `casa train --env scaled_env:make`."""

import gymnasium as gym

from casa.envs.names import register_installed


def make(id, scale=1.0):
    """The environment `id` with rewards times `scale`; of MiniGrid's observations the grid alone."""
    if id.startswith("MiniGrid-"):
        from minigrid.wrappers import ImgObsWrapper  # this import registers the ids, too

        env = ImgObsWrapper(gym.make(id))
    else:
        register_installed()
        env = gym.make(id)
    return gym.wrappers.TransformReward(env, lambda reward: scale * reward)
