"""What a suite is: recipes x environments x seeds of one length under one protocol, kept in DIR/suite.yaml."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from casa import atari57
from casa.envs.names import display_name, resolve
from casa.errors import UserError, unknown
from casa.experiments.studies import ENV_SETS, Planned, Settings, Study, plan
from casa.run import durable

FILE = "suite.yaml"
ROWS = 500
"""Rows of metrics.jsonl in a run: the points of its learning curve."""
_NO_HELP: Settings = {"env.full_action_space": True, "env.terminal_lives": False}
PROTOCOLS: dict[str, Settings] = {
    "preset": {},
    "paper": _NO_HELP,
    "sticky": {**_NO_HELP, "env.sticky": 0.25, "env.noop_max": 0},
}
"""Protocol -> settings; docs/evaluation.md describes them."""


@dataclass(frozen=True)
class Evaluation:
    """How every finished run is evaluated."""

    episodes: int = 30
    policy: Literal["sampled", "greedy"] = "sampled"
    checkpoint: Literal["latest", "best"] = "latest"


@dataclass(frozen=True)
class Suite:
    """All runs of a table."""

    name: str
    """Of the set of environments."""
    envs: tuple[str, ...]
    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    """Agent steps of each run."""
    settings: Settings = field(default_factory=dict)
    """Fields that all runs share."""
    evaluation: Evaluation = Evaluation()

    def planned(self, directory: Path) -> list[Planned]:
        """All runs, seed by seed; UserError if a setting is wrong."""
        more = {"log.diagnostics_every": 0, "log.every_steps": max(self.steps // ROWS, 1000)}
        versions = {name: {"recipe": name} for name in self.recipes}
        settings = {**more, **self.settings}
        study = Study(self.name, versions, self.envs, max(self.seeds) + 1, self.steps, "curves", settings)
        return [run for run in plan(study, directory) if run.seed in self.seeds]


def environments(wanted: str, games: str = "") -> tuple[str, tuple[str, ...], Settings]:
    """(name, ids, settings that fit them) of a set's name or of ids separated by commas; `games`: some of them."""
    named = wanted.casefold()
    settings: Settings = {}
    if named in atari57.SETS:
        found = atari57.SETS[named]
    elif named in ENV_SETS:
        found, settings = ENV_SETS[named].envs, ENV_SETS[named].settings
    elif "," in wanted or _known(wanted):
        named, found = "environments", tuple(part.strip() for part in wanted.split(","))
    else:
        raise unknown("suite", wanted, [*atari57.SETS, *ENV_SETS, "merge", "report", "ids separated by commas"])
    ids = tuple(dict.fromkeys(map(_id, found)))
    if games:
        chosen = tuple(dict.fromkeys(_id(part) for part in games.split(",")))
        for env in chosen:
            if env not in ids:
                raise UserError(f"--games names {env}, which is not in {wanted}; leave it out, or name ids for a set")
        ids = chosen
    return named, ids, settings


def _known(name: str) -> bool:
    try:
        resolve(name)
    except UserError:
        return False
    return True


def _id(name: str) -> str:
    """One spelling of each environment, so that it has one directory."""
    found = resolve(name)
    return f"ALE/{display_name(found.name)}-v5" if found.kind == "atari" else found.name


def save(suite: Suite, directory: Path) -> None:
    """Write DIR/suite.yaml."""
    directory.mkdir(parents=True, exist_ok=True)
    plain = dataclasses.asdict(suite)
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
    durable.replace(directory / FILE, yaml.safe_dump(plain, sort_keys=False).encode())


def load(directory: Path) -> Suite:
    """Read DIR/suite.yaml; UserError if it is not there or damaged."""
    try:
        found: dict[str, Any] = yaml.safe_load((directory / FILE).read_text(encoding="utf-8"))
        lists = {name: tuple(found[name]) for name in ("envs", "recipes", "seeds")}
        return Suite(**{**found, **lists, "evaluation": Evaluation(**found["evaluation"])})
    except FileNotFoundError:
        raise UserError(f"{directory} holds no suite: it has no {FILE}; see casa suite --help") from None
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise UserError(f"{directory / FILE} cannot be read: {' '.join(str(error).split())}") from None


def joined(here: Suite, other: Suite, place: str, source: str) -> Suite:
    """Both suites' recipes, environments and seeds; UserError that names the first setting in which they differ.

    `place`: the directory of `here`; `source`: who wants `other`, for the message.
    """
    for name, before, now in _differences(here, other):
        raise UserError(
            f"{place} holds a suite with {name} {before!r}, but {source} has {now!r}; ask for the same, or use another "
            "directory"
        )
    return replace(
        here,
        name="+".join(dict.fromkeys([*here.name.split("+"), *other.name.split("+")])),
        envs=tuple(dict.fromkeys([*here.envs, *other.envs])),
        recipes=tuple(dict.fromkeys([*here.recipes, *other.recipes])),
        seeds=tuple(sorted({*here.seeds, *other.seeds})),
    )


def _differences(a: Suite, b: Suite) -> list[tuple[str, Any, Any]]:
    one, two = (_flat(suite) for suite in (a, b))
    names = dict.fromkeys([*one, *two])
    return [(name, one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)]


def _flat(suite: Suite) -> Mapping[str, Any]:
    evaluation = {f"evaluation.{name}": value for name, value in dataclasses.asdict(suite.evaluation).items()}
    return {"steps": suite.steps, **evaluation, **suite.settings}
