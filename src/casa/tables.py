"""Registries: tables from names in a configuration to what they stand for.

The built-in entries are added when their module is imported; user modules add more with `casa.register`. A table
imports the module of its built-in entries at the first lookup. `casa.config` can therefore check names without
importing the modules that define them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from casa.errors import UserError, unknown

T = TypeVar("T")


class Table(Mapping[str, T], Generic[T]):
    """Name -> entry; `table[name]` raises a UserError that names the nearest entry.

    `kind` is the user's word for an entry ("head"); importing the module `home` adds the built-in entries.
    """

    def __init__(self, kind: str, home: str) -> None:
        self.kind, self.home = kind, home
        self._entries: dict[str, T] = {}
        self._origins: dict[str, str] = {}
        self._loaded = False

    def add(self, name: str, entry: T, origin: str) -> None:
        """Add an entry of the module `origin`; UserError if another module has registered the name."""
        if name != name.strip() or not name or name == "auto":
            raise UserError(f"{self.kind} {name!r} is no usable name; use letters, digits and '-'")
        if origin != self.home:
            self._load()
        taken = self._origins.get(name, origin)
        if taken != origin:
            raise UserError(f"{self.kind} {name!r} is registered by {taken} already; choose another name in {origin}")
        self._entries[name], self._origins[name] = entry, origin

    def origin(self, name: str) -> str:
        """The module that registered an entry."""
        self[name]
        return self._origins[name]

    def remove_from(self, origin: str) -> None:
        """Remove every entry of a module, so that it can be imported again."""
        for name in [name for name, module in self._origins.items() if module == origin]:
            del self._entries[name], self._origins[name]

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True
            importlib.import_module(self.home)


HEADS: Table[Any] = Table("head", "casa.heads")
BACKBONES: Table[Any] = Table("backbone", "casa.nn.backbones")
RECIPES: Table[Any] = Table("recipe", "casa.config.recipes")
BEHAVIOURS: Table[Any] = Table("behaviour", "casa.rollout.behaviour")
TARGETS: Table[Any] = Table("targets", "casa.learn.estimators")
POLICY_LOSSES: Table[Any] = Table("policy loss", "casa.learn.policy_losses")
GRADIENTS: Table[Any] = Table("gradients", "casa.learn.gradients")
REWARDS: Table[Any] = Table("reward", "casa.learn.rewards")
DIAGNOSTICS: Table[Any] = Table("diagnostic", "casa.learn.diagnostics")
CALLBACKS: Table[Any] = Table("callback", "casa.run.callbacks")

TABLES: dict[str, Table[Any]] = {
    table.kind: table
    for table in (
        HEADS,
        BACKBONES,
        RECIPES,
        BEHAVIOURS,
        TARGETS,
        POLICY_LOSSES,
        GRADIENTS,
        REWARDS,
        DIAGNOSTICS,
        CALLBACKS,
    )
}
"""Kind -> its table."""
