"""Build a typed run configuration: defaults < recipe and preset < file < command line (later ones win)."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from casa.config import plugins, recipes
from casa.config.arguments import flag, leaves, parse, parse_known
from casa.config.fields import Choice, RunConfig, trust_conflicts
from casa.config.presets import RECOMMENDED
from casa.config.ranges import bare
from casa.config.safe_yaml import load_plain
from casa.errors import UserError, unknown

C = TypeVar("C")

RENAMED = {"log.angles_every": "log.diagnostics_every", "env.batch": "env.group_size"}
"""Field name in an earlier version -> current name."""


Suggest = Callable[[str, str], str]
"""(env.id, env.kwargs) -> the preset for that environment on this machine."""


def from_recipe(name: str, preset: str | None = None) -> RunConfig:
    """defaults < recipe and preset; the default preset is gpu if there is a CUDA device, else laptop."""
    preset = preset or default_preset()
    return _build(RunConfig, {"recipe": name, "preset": preset, **recipes.get(name, preset).settings})


def default_recipe(preset: str) -> str:
    """The recipe that we recommend for the preset (docs/training.md#which-recipe), if none is named."""
    return RECOMMENDED.get(preset, "casa")


def default_preset() -> str:
    """The preset that fits this machine."""
    import torch

    return "gpu" if torch.cuda.is_available() else "laptop"


@dataclass(frozen=True)
class _First:
    """The flags that are parsed first, since they determine the defaults of all others."""

    recipe: str = ""
    preset: str = ""
    config: str = ""


def load_config(
    argv: Sequence[str] = (), file: str | Path | None = None, suggest: Suggest | None = None
) -> RunConfig:
    """defaults < recipe and preset < file (`file` or --config FILE) < command line, validated."""
    modules, argv = _take_plugins(argv)
    first, rest = parse_known(_First, argv, prog="casa train", add_help=False)
    file = first.config or file
    settings = _read(Path(file)) if file else {}
    chosen = {name: value for name in ("recipe", "preset") if (value := getattr(first, name))}
    if modules:
        chosen["plugins"] = [*_names(settings.get("plugins")), *modules]
    args = _spelled_out(rest)
    settings = {**settings, **chosen}
    settings |= _suggested({**dict(_flat(settings)), **_env_flags(args)}, suggest)
    config = _from_settings(settings, source=str(file) if file else "")
    config = parse(RunConfig, args, prog="casa train", default=config, description=_DESCRIPTION)
    return _finish(config, {*_given(settings), *_named(args)})


_SHORT = {"env": "--env.id", **{name: f"--cluster.{name}" for name in ("actors", "learners", "address")}}
_DESCRIPTION = """Train an agent. A flag beats the file (--config FILE), and the file beats the recipe.
--env ID is short for --env.id ID, --actors N for --cluster.actors N; so are --learners and --address.
--plugin MODULE adds to --plugins."""


def _spelled_out(args: Sequence[str]) -> list[str]:
    return [re.sub(r"^--(env|actors|learners|address)(?==|$)", lambda m: _SHORT[m[1]], arg) for arg in args]


def settings_of(argv: Sequence[str]) -> dict[str, Any]:
    """What flags of `casa train` set, as dotted settings: ["--learner.lr", "1e-4"] -> {"learner.lr": 1e-4}."""
    modules, argv = _take_plugins(argv)
    first, rest = parse_known(_First, argv, prog="casa experiment", add_help=False)
    rest, base = _spelled_out(rest), from_recipe("casa")
    given = parse(RunConfig, rest, prog="casa experiment", default=base)
    before, after = (dict(_flat(_plain(dataclasses.asdict(x)))) for x in (base, given))
    named = _named(rest)
    found = {name: value for name, value in after.items() if before[name] != value or name in named}
    for name in (*filter(None, (first.recipe and "recipe", first.config and "config")), *found):
        if name in ("recipe", "config", "env.id", "seed", "run_dir"):
            raise UserError(f"--{name} is not for all runs of a study; use --recipes, --envs, --seeds or --dir")
    found |= {"preset": first.preset} if first.preset else {}
    return {**found, "plugins": modules} if modules else found


def _named(args: Sequence[str]) -> set[str]:
    """The fields that flags name, dotted."""
    return {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in args if word.startswith("--")}


def _given(settings: Mapping[str, Any]) -> set[str]:
    """The fields that `settings` sets, dotted; None sets nothing."""
    return {name for name, value in _flat(settings) if value is not None}


def make_config(settings: Mapping[str, Any], suggest: Suggest | None = None) -> RunConfig:
    """A validated configuration from nested or dotted settings: {"recipe": "ppo", "learner.lr": 1e-4}."""
    config = _from_settings({**settings, **_suggested(dict(_flat(settings)), suggest)})
    return _finish(config, _given(settings))


def from_yaml(text: str) -> RunConfig:
    """A validated configuration from YAML; missing fields come from its recipe."""
    return make_config(_mapping(text, "the configuration"))


def read_run(text: str, source: str, trust: bool = False, saved: str = "") -> RunConfig:
    """The configuration that `to_yaml` wrote for a run. It is complete, so no recipe is looked up.

    `source` is the file's name, for errors. `trust` allows importing the plug-ins that it names. Fields that `text`
    lacks are taken from `saved`, the copy in the run's checkpoint.
    """
    flat = {**_fields(saved, "the checkpoint"), **_fields(text, source)}
    known = leaves(RunConfig)
    for name in flat:
        if name not in known:
            raise UserError(f"{source}: {unknown('field', name, known)}")
    plugins.load(_names(flat.get("plugins")), trust, source)
    values = {name: _typed(name, value, known[name], source) for name, value in flat.items()}
    try:
        config = _build(RunConfig, values)
        config.validate()
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return config


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted field -> value, converted to the field's type; UserError for an unknown field."""
    known = leaves(RunConfig)
    for name in settings:
        if name not in known:
            raise unknown("field", name, known)
        if name in ("recipe", "preset", "plugins", "run_dir"):
            raise UserError(f"a recipe cannot set {name}; it sets what is learned and how")
    return {name: _typed(name, value, known[name], "the recipe") for name, value in settings.items()}


def to_yaml(config: RunConfig) -> str:
    """Every field, nested as in `RunConfig`."""
    return yaml.safe_dump(_plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


def differences(before: str, after: str) -> tuple[list[str], list[str]]:
    """(fields that only `before` has, `NAME VALUE (was VALUE)` for fields that differ) of two texts of `to_yaml`.

    `steps` and `run_dir` may differ.
    """
    old, new = _fields(before, "before"), _fields(after, "after")
    changed = [name for name in new if old.get(name, new[name]) != new[name] and name not in ("steps", "run_dir")]
    return [name for name in old if name not in new], [f"{name} {new[name]} (was {old[name]})" for name in changed]


def _fields(text: str, source: str) -> dict[str, Any]:
    """Dotted field -> value, under the current names."""
    return {RENAMED.get(name, name): value for name, value in _flat(_mapping(text, source))}


def _build(target: type[C], flat: Mapping[str, Any], prefix: str = "") -> C:
    """A dataclass from dotted values; a field with neither a value nor a default is a UserError."""
    found: dict[str, Any] = {}
    hints = typing.get_type_hints(target)
    for field in dataclasses.fields(target):  # type: ignore[arg-type]
        name, hint = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(hint):
            found[field.name] = _build(typing.cast(Any, hint), flat, f"{name}.")
        elif name in flat:
            found[field.name] = flat[name]
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"the configuration lacks {name}")
    return target(**found)


def _typed(name: str, value: Any, hint: Any, source: str) -> Any:
    """A YAML value converted to its field's type: lists become tuples, integers become floats for float fields."""
    kind = bare(hint)
    if typing.get_origin(kind) is tuple and isinstance(value, list):
        each = typing.get_args(kind)[0]
        return tuple(float(x) if each is float and type(x) is int else x for x in value)
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{source}: {name} is too large: a number of {len(str(value))} digits") from None
    if value is None:
        raise UserError(f"{source}: {name} has no value")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _finish(config: RunConfig, given: Collection[str]) -> RunConfig:
    """Validate. A trust region that only the preset asks for is left out if targets or behaviour have no use for it."""
    origin = recipes.get(config.recipe, config.preset).sources.get("agent.trust_region", "")
    of_preset = origin == recipes.source_of(config.preset) and "agent.trust_region" not in given
    if of_preset and any(trust_conflicts(config.agent)):
        config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, trust_region=0.0))
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
    return _mapping(text, str(file), aliases=True)


def _mapping(text: str, source: str, aliases: bool = False) -> dict[str, Any]:
    try:
        found = load_plain(text, aliases)
    except ValueError as error:
        raise UserError(f"{source} is not plain YAML: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UserError(f"{source} must hold fields like 'steps: 1000000', got {type(found).__name__}")
    return found


def _suggested(given: Mapping[str, Any], suggest: Suggest | None) -> dict[str, Any]:
    """{"preset": the one that fits the environment}, or nothing if a preset or no environment is given.

    Plug-ins are loaded first, since they may register the environment.
    """
    if suggest is None or given.get("preset") or not given.get("env.id"):
        return {}
    plugins.load(_names(given.get("plugins")), trust=True)
    return {"preset": suggest(str(given["env.id"]), str(given.get("env.kwargs") or ""))}


def _env_flags(args: Sequence[str]) -> dict[str, str]:
    """What --env.id and --env.kwargs say, the last one where they are repeated."""
    found = {}
    for i, word in enumerate(args):
        name, separator, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in ("env.id", "env.kwargs"):
            found[name] = value if separator else args[i + 1] if i + 1 < len(args) else ""
    return found


def _take_plugins(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(modules named by --plugin MODULE or --plugin=MODULE, the other arguments)."""
    modules, rest, words = [], [], iter(argv)
    for word in words:
        if word == "--plugin":
            module = next(words, "")
            if not module or module.startswith("-"):
                raise UserError("--plugin needs the name of a module, such as --plugin my_module")
            modules.append(module)
        elif word.startswith("--plugin="):
            modules.append(word.partition("=")[2])
        else:
            rest.append(word)
    return modules, rest


def _names(value: Any) -> list[str]:
    """A list of module names from YAML: one name or several."""
    items = [value] if isinstance(value, str) else list(value or [])
    if not all(isinstance(item, str) for item in items):
        raise UserError(f"plugins must be names of modules, got {value!r}")
    return items


def _from_settings(settings: Mapping[str, Any], source: str = "") -> RunConfig:
    """The recipe's configuration with `settings` applied like command-line flags."""
    flat = {RENAMED.get(name, name): value for name, value in _flat(settings) if value is not None}
    try:
        modules = _names(flat.pop("plugins", None))
        plugins.load(modules, trust=True)
        recipe, preset = (str(flat.pop(name, "") or "") for name in ("recipe", "preset"))
        preset = preset or default_preset()
        config = from_recipe(recipe or default_recipe(preset), preset)
        config = parse(RunConfig, list(_flags(flat)), prog="casa train", default=config) if flat else config
        return dataclasses.replace(config, plugins=tuple(modules))
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
    """The settings as command-line arguments, so that files and flags share one parser."""
    types = {name: bare(hint) for name, hint in leaves(RunConfig).items()}
    for name, value in flat.items():
        if name not in types:
            raise unknown("field", name, types)
        if types[name] is bool:
            if not isinstance(value, bool):
                raise UserError(f"{name} must be true or false, got {value!r}")
            group, _, last = name.rpartition(".")
            yield flag(".".join(filter(None, (group, last if value else f"no-{last}"))))
        elif isinstance(value, bool) and types[name] == Choice:
            yield f"{flag(name)}={'yes' if value else 'no'}"  # YAML parses a bare yes as true
        elif isinstance(value, (list, tuple)):
            yield from (flag(name), *map(str, value))
        else:
            yield f"{flag(name)}={value}"
