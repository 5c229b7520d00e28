"""Typed run configuration: defaults < recipe and preset < file < command line."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import yaml

from casa import recipes
from casa.arguments import flag, leaves, parse, parse_known
from casa.envs.config import EnvConfig
from casa.errors import UserError, unknown
from casa.recipes import Preset, Recipe
from casa.schema import (
    AgentConfig,
    CheckpointConfig,
    Choice,
    DataConfig,
    LearnerConfig,
    LogConfig,
    NetConfig,
    RunConfig,
)

__all__ = [
    "AgentConfig",
    "CheckpointConfig",
    "DataConfig",
    "EnvConfig",
    "LearnerConfig",
    "LogConfig",
    "NetConfig",
    "RunConfig",
    "backbone_for",
    "from_recipe",
    "from_yaml",
    "load_config",
    "make_config",
    "to_yaml",
]

ObsKind = Literal["vector", "image", "grid"]

G = TypeVar("G", AgentConfig, NetConfig, DataConfig, LearnerConfig)


def _group(group: type[G], recipe: Recipe, **changed: Any) -> G:
    """A field takes the recipe's value of the same name, unless `changed` names it."""
    names = {f.name for f in dataclasses.fields(group)} & {f.name for f in dataclasses.fields(Recipe)}
    return group(**{name: getattr(recipe, name) for name in names} | changed)


def from_recipe(name: str, preset: str | None = None) -> RunConfig:
    """defaults < recipe and preset; without a preset: gpu where there is a CUDA device, else laptop."""
    preset = preset or _default_preset()
    recipe = recipes.get(name, preset)
    return RunConfig(
        recipe=name,
        preset=cast(Preset, preset),
        env=EnvConfig(num_envs=recipe.num_envs),
        steps=recipe.steps,
        agent=_group(AgentConfig, recipe),
        # The recipe's backbone is for images only: see `backbone_for`.
        net=_group(NetConfig, recipe, backbone="auto"),
        data=_group(DataConfig, recipe, kind=recipe.data),
        learner=_group(LearnerConfig, recipe),
    )


def _default_preset() -> Preset:
    import torch

    return "gpu" if torch.cuda.is_available() else "laptop"


def backbone_for(config: RunConfig, kind: ObsKind) -> str:
    """The backbone for observations of this kind: net.backbone, or what its "auto" stands for."""
    images = ("impala-shallow", "impala-deep", "nature", "mlp")
    fitting = {"vector": ("mlp",), "grid": ("grid", "mlp"), "image": images}
    backbone = config.net.backbone
    if backbone == "auto":
        return recipes.get(config.recipe, config.preset).backbone if kind == "image" else fitting[kind][0]
    if backbone not in fitting[kind]:
        raise UserError(
            f"net.backbone {backbone!r} cannot read the {kind} observations of {config.env.id}; "
            f"use {fitting[kind][0]!r}"
        )
    return backbone


@dataclass(frozen=True)
class _First:
    """What must be known before the rest can be read."""

    recipe: str = ""
    preset: str = ""
    config: str = ""


def load_config(argv: Sequence[str] = (), file: str | Path | None = None) -> RunConfig:
    """defaults < recipe and preset < file (`file` or --config FILE) < command line, validated."""
    first, rest = parse_known(_First, argv, prog="casa train", add_help=False)
    file = first.config or file
    chosen = {name: value for name in ("recipe", "preset") if (value := getattr(first, name))}
    config = _from_settings({**(_read(Path(file)) if file else {}), **chosen}, source=str(file) if file else "")
    args = [re.sub(r"^--env(?==|$)", "--env.id", arg) for arg in rest]
    return _finish(parse(RunConfig, args, prog="casa train", default=config, description=_DESCRIPTION))


_DESCRIPTION = """Train an agent. A flag beats the file (--config FILE), and the file beats the recipe.
--env ID is short for --env.id ID."""


def make_config(settings: Mapping[str, Any]) -> RunConfig:
    """A validated configuration from nested or dotted settings: {"recipe": "ppo", "learner.lr": 1e-4}."""
    return _finish(_from_settings(settings))


def from_yaml(text: str) -> RunConfig:
    """The configuration that `to_yaml` wrote, or any part of one over its recipe."""
    return make_config(_mapping(text, "the configuration"))


def to_yaml(config: RunConfig) -> str:
    """Every field, nested as in `RunConfig`."""
    return yaml.safe_dump(_plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


def differences(before: str, after: str) -> list[str]:
    """The fields in which two configurations that `to_yaml` wrote differ, where training then differs too."""
    old, new = dict(_flat(_mapping(before, "before"))), dict(_flat(_mapping(after, "after")))
    return [name for name in new if old.get(name, new[name]) != new[name] and name not in ("steps", "run_dir")]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _finish(config: RunConfig) -> RunConfig:
    if not config.run_dir:
        environment = re.sub(r"[^A-Za-z0-9.]+", "-", config.env.id).strip("-")
        config = dataclasses.replace(config, run_dir=f"runs/{config.recipe}-{environment}-{config.seed}")
    config.validate()
    return config


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"cannot read the configuration {file}: {reason}") from None
    return _mapping(text, str(file))


def _mapping(text: str, source: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UserError(f"{source} must hold fields like 'steps: 1000000', got {type(found).__name__}")
    return found


def _from_settings(settings: Mapping[str, Any], source: str = "") -> RunConfig:
    """The recipe's configuration, changed by settings as if they stood on the command line."""
    flat = dict(_flat(settings))
    recipe, preset = (str(flat.pop(name, "") or "") for name in ("recipe", "preset"))
    config = from_recipe(recipe or "casa", preset or None)
    try:
        return parse(RunConfig, [*_flags(flat)], prog="casa train", default=config)
    except UserError as error:
        raise UserError(f"{source}: {error}" if source else str(error)) from None


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if name == "env.kwargs" and isinstance(value, Mapping):
            yield name, json.dumps(value)
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield ("env.id" if name == "env" else name), value


def _flags(flat: Mapping[str, Any]) -> Iterator[str]:
    """Each setting as command-line arguments, so that files and flags are read by one parser."""
    types = leaves(RunConfig)
    for name, value in flat.items():
        if name not in types:
            raise unknown("field", name, types)
        if types[name] is bool:
            if not isinstance(value, bool):
                raise UserError(f"{name} must be true or false, got {value!r}")
            group, _, last = name.rpartition(".")
            yield flag(".".join(filter(None, (group, last if value else f"no-{last}"))))
        elif isinstance(value, bool) and types[name] == Choice:
            yield f"{flag(name)}={'yes' if value else 'no'}"  # YAML takes a bare yes for true
        elif isinstance(value, (list, tuple)):
            yield from (flag(name), *map(str, value))
        else:
            yield f"{flag(name)}={value}"
