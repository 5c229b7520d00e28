"""Whether the weights in a checkpoint are those of the network that a configuration describes, before it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from casa.config.fields import RunConfig
from casa.engines.build import build_network
from casa.engines.resolve import pick_backbone
from casa.envs.types import EnvSpec


def misfit(config: RunConfig, spec: EnvSpec, weights: Mapping[str, Any]) -> str:
    """What does not fit, "" if everything does.

    The network is built without memory, on the meta device: a file may ask for any size, but its tensors are there.
    """
    try:
        config = replace(config, net=replace(config.net, backbone=pick_backbone(config, spec.kind)))
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            wanted = {name: tuple(x.shape) for name, x in build_network(config, spec).state_dict().items()}
    except (RuntimeError, OverflowError, ValueError) as error:  # a size beyond 2^63
        # A plug-in's backbone may need real memory, and its code is trusted anyway.
        return "" if config.plugins else " ".join(str(error).split())
    found = {name: tuple(x.shape) for name, x in weights.items() if isinstance(x, torch.Tensor)}
    for name in wanted.keys() ^ found.keys():
        return f"{name} is only in {'the checkpoint' if name in found else 'the configuration'}"
    for name, shape in wanted.items():
        if shape != found[name]:
            there, here = (" x ".join(map(str, each)) or "1" for each in (found[name], shape))
            return f"{name} is {there} in the checkpoint and {here} in the configuration"
    return ""
