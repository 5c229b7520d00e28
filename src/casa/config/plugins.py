"""Plug-ins: user modules that add entries to the tables, named by --plugin MODULE or installed as entry points."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points

from casa.errors import UserError, describe

GROUP = "casa.plugins"
"""Entry points of this group are imported with every configuration: an installed package is trusted."""

_installed: list[str] | None = None


def load(modules: Iterable[str], trust: bool, source: str = "") -> None:
    """Import the installed plug-ins and `modules`. `source` is the file that names the modules, if any.

    Without `trust`, `modules` are refused with a UserError, since importing one runs its code.
    """
    load_installed()
    for module in modules:
        if module in sys.modules:
            continue  # its code has already run, so trust makes no difference
        if not trust:
            raise UserError(
                f"{source} names the plug-in {module}, which runs code of that module; "
                "add --trust (in Python: trust=True) if you trust where this run comes from"
            )
        import_module(module, f"plug-in {module!r}")


def load_installed() -> list[str]:
    """Import every entry point of the group `casa.plugins` once; returns their names."""
    global _installed
    if _installed is None:
        _installed = []
        for point in entry_points(group=GROUP):
            try:
                point.load()
            except Exception as error:
                raise UserError(f"the installed plug-in {point.name!r} failed: {describe(error)}") from error
            _installed.append(point.name)
    return _installed


def import_module(module: str, what: str) -> object:
    """Import a module from the current directory or the installed packages; `what` describes it in errors."""
    if not module or module.startswith(".") or "/" in module or module.endswith(".py"):
        stem = module.removesuffix(".py").strip("./").replace("/", ".")
        hint = f"; write {stem!r}" if stem else ""
        raise UserError(f"{what}: {module!r} is not the name of a module{hint}")
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise UserError(
                f"{what}: no module {error.name!r} in {directory} or among the installed packages"
            ) from None
        raise UserError(f"{what}: importing {module!r} failed: {describe(error)}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: importing {module!r} failed: {describe(error)}") from error
