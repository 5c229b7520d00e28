"""Whether a checkpoint and a configuration belong together, before anything is built from them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from casa.config.fields import RunConfig
from casa.config.load import differences, read_run
from casa.engines.build import build_network
from casa.engines.resolve import pick_backbone
from casa.envs.types import EnvSpec
from casa.errors import UserError, describe
from casa.run.checkpoint import Checkpoint
from casa.run.rundir import RunDir

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError)
"""What a checkpoint can raise whose files are as they were written, but which no version of casa wrote."""


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


def configured(directory: RunDir, saved: Checkpoint, trust: bool) -> RunConfig:
    """The configuration of the run to resume: its config.yaml, completed and compared with that in the checkpoint."""
    path = directory.config
    try:
        before = str(saved.meta["config"])
        text = directory.read_config() if os.path.lexists(path) else ""
        config = replace(read_run(text, str(path), trust, before), run_dir=str(directory.path))
        lacking, changed = differences(before, text)
        if lacking:
            known = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")
            directory.notes.append(f"{path} lacks {len(lacking)} fields ({known}): they are taken from {saved.path}")
        if changed:
            directory.notes.append(f"{path} differs from {saved.path}: {', '.join(changed)}")
        if different := misfit(config, EnvSpec.from_json(saved.meta["spec"]), saved.state["model"]):
            raise UserError(does_not_fit(saved, changed, different))
    except MALFORMED as error:
        raise UserError(f"the checkpoint {saved.path} is malformed: {describe(error)}") from error
    return config


def does_not_fit(saved: Checkpoint, changed: Sequence[str], reason: str) -> str:
    """The sentence about a checkpoint that was not made with this configuration, or not by this version."""
    if changed:
        return f"the checkpoint {saved.path} does not fit config.yaml, in which was changed: {', '.join(changed)}"
    return (
        f"the checkpoint {saved.path} holds another network than this version of casa builds for its configuration "
        f"({reason}); train anew"
    )
