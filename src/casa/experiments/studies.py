"""Studies as data: versions x environments x seeds. The paper's three, and those of a user's YAML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from casa.config.fields import RunConfig
from casa.config.load import make_config
from casa.envs.names import resolve
from casa.envs.suggest import suggest_preset
from casa.errors import UserError, unknown

Settings = Mapping[str, Any]
"""Dotted field of a run -> value."""


@dataclass(frozen=True)
class Study:
    """Runs of every version in every environment, with seeds 0, 1, ...; `figure` names their arrangement."""

    name: str
    versions: Mapping[str, Settings]
    """Label -> what distinguishes this version; at least its recipe."""
    envs: tuple[str, ...]
    seeds: int
    steps: int
    figure: str = "curves"
    settings: Settings = field(default_factory=dict)
    """Fields that all runs share."""


def _recipes(*names: str) -> dict[str, Settings]:
    return {name: {"recipe": name} for name in names}


STUDIES: dict[str, Study] = {
    "motivation": Study(
        "motivation",
        _recipes("ppo", "ppo-v1", "ppo-v2", "ppo-casa", "r2d2", "r2d2-v1", "r2d2-casa"),
        ("ALE/Breakout-v5",),
        seeds=3,
        steps=1_000_000,
        figure="motivation",
    ),
    "ablation": Study(
        "ablation",
        _recipes("ppo-casa", *(f"ppo-type{i}" for i in range(1, 6))),
        ("ALE/Breakout-v5", "ALE/Qbert-v5"),
        seeds=3,
        steps=1_000_000,
        figure="ablation",
    ),
    "drtrace": Study(
        "drtrace",
        _recipes("casa", "casa-no-dr"),
        ("ALE/Breakout-v5", "ALE/ChopperCommand-v5", "ALE/Krull-v5"),
        seeds=3,
        steps=1_000_000,
        figure="curves",
    ),
}
"""The paper's figures 3, 4 and 5."""

MEASURE_EVERY = 100
"""Learner steps between two measurements, as in the paper's scatter plots."""
FIGURES = ("motivation", "ablation", "curves")


@dataclass(frozen=True)
class EnvSet:
    """Environments by one name, and settings that fit them."""

    envs: tuple[str, ...]
    settings: Settings


ENV_SETS: dict[str, EnvSet] = {
    # The published MinAtar network is a 3x3 convolution with 16 channels and a layer of 128. A run of it fits one core.
    "minatar": EnvSet(
        tuple(f"MinAtar/{game}-v1" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
        {"preset": "laptop", "device": "cpu", "mode": "sync", "net.hidden": 128},
    ),
}


@dataclass(frozen=True)
class Planned:
    """One run of a study: its place in it, its directory, its settings and its resolved configuration."""

    version: str
    env: str
    seed: int
    path: Path
    settings: Settings
    config: RunConfig

    @property
    def name(self) -> str:
        """`ppo-casa MinAtar/Breakout-v1 seed 0`."""
        return f"{self.version} {self.env} seed {self.seed}"


def plan(study: Study, directory: Path) -> list[Planned]:
    """All runs of a study, seed by seed, so that an interrupted study has complete seeds; UserError if one is wrong."""
    for env in study.envs:
        resolve(env)  # fail on a misspelt name before anything runs
    found, configs = [], dict[tuple[str, str], RunConfig]()
    for seed, env, (label, version) in _product(study):
        given = {**study.settings, **version, "env.id": env, "steps": study.steps}
        if (label, env) not in configs:
            configs[label, env] = _checked(given, f"{study.name}, {label} in {env}")
        config = configs[label, env]
        path = directory / "runs" / _file_name(label) / _file_name(env) / f"seed-{seed}"
        settings = {
            # One measurement of a whole batch per row: each row is one point of a scatter plot.
            "log.diagnostics_every": MEASURE_EVERY,
            "log.diagnostics_sequences": config.data.batch,
            "log.every_steps": MEASURE_EVERY * config.data.batch * config.data.seq_len // config.data.reuse,
            "log.tensorboard": "no",
            # Hundreds of runs share a disk; a resumed run fills its replay again.
            "checkpoint.keep": 1,
            "checkpoint.replay": "no",
            "preset": config.preset,
            **given,
            "seed": seed,
        }
        found.append(Planned(label, env, seed, path, settings, config))
    return found


def _product(study: Study) -> Iterator[tuple[int, str, tuple[str, Settings]]]:
    for seed in range(study.seeds):
        for env in study.envs:
            for version in study.versions.items():
                yield seed, env, version


def _checked(settings: Settings, what: str) -> RunConfig:
    try:
        return make_config(settings, suggest_preset)
    except UserError as error:
        raise UserError(f"{what}: {error}") from None


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip("-")


def choose(
    name: str,
    *,
    envs: str = "",
    steps: int = 0,
    seeds: int = 0,
    recipes: str = "",
    settings: Settings | None = None,
) -> Study:
    """A built-in study or a YAML file, with its environments, steps, seeds and versions replaced where given."""
    if name.endswith((".yaml", ".yml")):
        study = read_study(Path(name))
    elif name in STUDIES:
        study = STUDIES[name]
    else:
        raise unknown("experiment", name, [*STUDIES, "FILE.yaml"])
    more: dict[str, Any] = {}
    if envs:
        found = ENV_SETS.get(envs.casefold())
        study = replace(study, envs=found.envs if found else tuple(part.strip() for part in envs.split(",")))
        more = dict(found.settings) if found else {}
    if recipes:
        wanted = [part.strip() for part in recipes.split(",")]
        for version in wanted:
            if version not in study.versions:
                raise unknown("recipes", version, study.versions)
        study = replace(study, versions={version: study.versions[version] for version in wanted})
    for field_name, value in (("steps", steps), ("seeds", seeds)):
        if value < 0:
            raise UserError(f"{field_name} must be >= 1, got {value}")
    study = replace(study, steps=steps or study.steps, seeds=seeds or study.seeds)
    return replace(study, settings={**more, **study.settings, **(settings or {})})


_KEYS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "recipes": (list, dict),
    "envs": (list, str),
    "steps": int,
    "seeds": int,
    "figure": str,
    "settings": dict,
}


def read_study(file: Path) -> Study:
    """A study of the user's own; UserError that names the key if it is wrong.

    recipes: a list of recipes, or label -> settings with `recipe`; envs: ids, or the name of a set such as minatar.
    """
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise UserError(f"cannot read the study {file}: {reason}") from None
    if not isinstance(found, dict):
        raise UserError(f"{file} must hold recipes, envs, steps and seeds")
    for key, value in found.items():
        if key not in _KEYS:
            raise UserError(f"{file}: {unknown('key', str(key), _KEYS)}")
        if not isinstance(value, _KEYS[key]) or isinstance(value, bool):
            raise UserError(f"{file}: {key} has the wrong type, got {value!r}")
    for key in ("recipes", "envs", "steps"):
        if not found.get(key):
            raise UserError(f"{file}: {key} is missing")
    figure = found.get("figure", "curves")
    if figure not in FIGURES:
        raise UserError(f"{file}: {unknown('figure', figure, FIGURES)}")
    envs, settings = found["envs"], dict(found.get("settings", {}))
    if isinstance(envs, str):
        if envs not in ENV_SETS:
            raise UserError(f"{file}: {unknown('envs', envs, ENV_SETS)}")
        settings = {**ENV_SETS[envs].settings, **settings}
        envs = ENV_SETS[envs].envs
    for name, least in (("steps", 1), ("seeds", 1)):
        if found.get(name, least) < least:
            raise UserError(f"{file}: {name} must be >= {least}, got {found[name]}")
    return Study(
        found.get("name", file.stem),
        _versions(found["recipes"], file),
        tuple(str(env) for env in envs),
        found.get("seeds", 3),
        found["steps"],
        figure,
        settings,
    )


def _versions(given: Sequence[str] | Mapping[str, Any], file: Path) -> dict[str, Settings]:
    if not isinstance(given, Mapping):
        return _recipes(*map(str, given))
    found: dict[str, Settings] = {}
    for label, settings in given.items():
        if not isinstance(settings, Mapping):
            raise UserError(f"{file}: recipes.{label} must be settings such as {{recipe: casa, agent.tau: 0.5}}")
        found[str(label)] = {"recipe": str(label), **settings}
    return found

