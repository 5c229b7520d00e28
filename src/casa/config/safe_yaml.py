"""YAML of unknown origin: plain data, without aliases and not nested too deeply."""

from __future__ import annotations

from typing import Any

import yaml

DEEPEST = 30
"""Levels of nesting; a configuration has 3."""


class _Plain(yaml.SafeLoader):
    """Without aliases, of which ten lines can stand for gigabytes, and at most DEEPEST levels."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it uses an alias (*name); write the value out")
        if self.depth == DEEPEST:
            raise yaml.YAMLError(f"it is nested more than {DEEPEST} levels deep")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def load_plain(text: str, aliases: bool = False) -> Any:
    """The value of a YAML text; ValueError in one sentence if it is not YAML, or uses aliases and must not."""
    try:
        return yaml.load(text, yaml.SafeLoader if aliases else _Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date with a 13th month
        raise ValueError(" ".join(str(error).split())) from None
