"""A Gymnasium environment whose rewards are multiplied by a factor: `casa train --env scaled_env:make`."""

import gymnasium as gym


def make(id, scale):
    """The environment `id` with rewards times `scale`."""
    return gym.wrappers.TransformReward(gym.make(id), lambda reward: scale * reward)
