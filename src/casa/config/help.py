"""`casa train --help`: one screen with the common flags; `--help GROUP` and `--help all` show the rest."""

from __future__ import annotations

import dataclasses
import textwrap
import typing
from collections.abc import Sequence

from casa.config.arguments import flag, leaves, parse
from casa.config.fields import RunConfig
from casa.config.load import Suggest, load_config
from casa.errors import unknown

_COMMON = {
    "--recipe NAME": "the agent; casa recipes lists them (default: casa; ppo-casa for vectors with continuous actions)",
    "--env ID": "an Atari game (Breakout), a Gymnasium id (CartPole-v1), or your own (my_module:make_env)",
    "--steps N": "agent steps; 1_000_000 and 1e6 are read too",
    "--seed N": "determines everything in the sync loop (default: 0)",
    "--run-dir DIR": "where everything is written (default: runs/RECIPE-ENVIRONMENT-SEED)",
    "--preset NAME": "classic, grid, continuous, laptop, gpu or paper (default: as environment and machine suggest)",
    "--device NAME": "auto, cpu or cuda (default: auto)",
    "--mode NAME": "sync: deterministic to the bit; async: acting overlaps with learning (default: auto)",
    "--engine NAME": "local: one process; ray: workers and learners on a cluster, with --actors N --learners N",
    "--config FILE": "settings from a YAML file; flags beat it, and it beats the recipe",
    "--plugin MODULE": "a module of yours that registers heads, targets, recipes (may be repeated)",
}
_WIDTH = 80


def asked(argv: Sequence[str]) -> bool:
    """Whether the arguments ask for help."""
    return any(word in ("-h", "--help") for word in argv)


def print_help(argv: Sequence[str], suggest: Suggest | None = None) -> None:
    """Print the help that the arguments request, with the values of the recipe that they name."""
    words = list(argv)
    at = next(i for i, word in enumerate(words) if word in ("-h", "--help"))
    topic = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else ""
    rest = words[:at] + words[at + 1 + bool(topic) :]
    if not topic:
        print(short())
        return
    config = load_config(rest, suggest=suggest)
    groups = {f.name for f in dataclasses.fields(RunConfig) if dataclasses.is_dataclass(getattr(config, f.name))}
    if topic == "all":
        parse(RunConfig, ["--help"], prog="casa train", default=config)
    elif topic in groups:
        value = getattr(config, topic)
        only = dataclasses.make_dataclass("Group", [(topic, type(value))], kw_only=True)
        parse(only, ["--help"], prog="casa train", default=only(**{topic: value}))
    else:
        raise unknown("--help", topic, {*groups, "all"})


def short() -> str:
    """The one-screen help text."""
    lines = ["usage: casa train [--recipe NAME] [--env ID] [--steps N] [--GROUP.FIELD VALUE ...]", ""]
    lines += ["Train an agent. Ctrl-C saves; casa resume goes on.", ""]
    for name, text in _COMMON.items():
        lines += _entry(name, text)
    lines += ["", "Every field of a run is a flag:", ""]
    hints = typing.get_type_hints(RunConfig)
    for group, hint in hints.items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            names = [flag(name).removeprefix("--") for name in leaves(hint)]
            lines += _entry(f"--{group}.*", ", ".join(names))
    single = [flag(name) for name in leaves(RunConfig) if "." not in name and flag(name) not in " ".join(_COMMON)]
    lines += _entry("others", ", ".join(single))
    lines += ["", "casa train --help GROUP explains a group (--help agent), --help all everything;"]
    lines += ["with --recipe NAME the values shown are that recipe's."]
    return "\n".join(lines)


def _entry(name: str, text: str) -> list[str]:
    body = textwrap.wrap(text, _WIDTH - 20, break_on_hyphens=False)
    return [f"  {name:<17} {body[0]}", *(" " * 20 + line for line in body[1:])]
