"""Resolve the name that a user types: an Atari game, a Gymnasium id, or a name in the user's own module."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, NamedTuple

from casa.atari57.games import fold
from casa.errors import UserError, describe, nearest

_TWO_PLAYERS_ONLY = {"combat", "joust", "maze_craze", "warlords"}


class EnvId(NamedTuple):
    """`name` is ALE's ROM name (atari), a registered id (gym), or `module:attribute` (module)."""

    kind: Literal["atari", "gym", "module"]
    name: str


@cache
def roms() -> dict[str, str]:
    """Normalized name (`fold`) -> ROM name, for every single-player game that ships with ALE."""
    from ale_py.roms import get_all_rom_ids

    return {fold(rom): rom for rom in sorted(get_all_rom_ids()) if rom not in _TWO_PLAYERS_ONLY}


def display_name(rom: str) -> str:
    """`ms_pacman` -> `MsPacman`, as in `ALE/MsPacman-v5`."""
    return rom.title().replace("_", "")


def gym_ids() -> list[str]:
    """Ids currently registered with Gymnasium, without ALE's."""
    from gymnasium.envs.registration import registry

    return [name for name, spec in registry.items() if not str(spec.entry_point).startswith("ale_py")]


def register_installed(namespace: str = "") -> None:
    """Register the ids of installed packages that declare them in the entry-point group `gymnasium.envs`.

    Gymnasium itself registers a package's ids only when the package is imported. With `namespace`, such as "MinAtar",
    only the package of that name.
    """
    for entry in entry_points(group="gymnasium.envs"):
        wanted = not namespace or entry.name.casefold() == namespace.casefold()
        if wanted and entry not in _registered:
            _registered.append(entry)
            try:
                entry.load()()
            except Exception as error:
                warnings.warn(f"{entry.value} cannot register its environments: {describe(error)}", stacklevel=2)


_registered: list[EntryPoint] = []


def latest_ids() -> dict[str, str]:
    """Id without its version -> the id with the highest version, for `gym_ids()`."""
    from gymnasium.envs.registration import parse_env_id

    def version(name: str) -> int:
        return parse_env_id(name)[2] or 0

    latest: dict[str, str] = {}
    for name in sorted(gym_ids(), key=version):
        namespace, bare, _ = parse_env_id(name)
        latest[f"{namespace}/{bare}" if namespace else bare] = name
    return latest


def require_trust(name: str, trusted: bool, where: str) -> None:
    """UserError if the file `where` names an untrusted `module:attribute`: making it runs that module's code."""
    if ":" in name and not trusted:
        raise UserError(
            f"{where} names the environment {name}, which runs code of that module; "
            "add --trust (in Python: trust=True) if you trust where this run comes from"
        )


def resolve(name: str) -> EnvId:
    """The environment that `name` refers to.

    Tried in this order: `module:attribute`; a registered Gymnasium id, spelled exactly; an Atari game in any spelling
    (`Breakout`, `ALE/Breakout-v5`, `BreakoutNoFrameskip-v4`, `ms_pacman`, `Ms. Pac-Man`); a Gymnasium id in
    another case or without its version. So `Blackjack-v1` is Gymnasium's and `Blackjack` is Atari's.
    """
    name = name.strip()
    if ":" in name:
        return EnvId("module", name)
    if "/" in name:
        register_installed(name.partition("/")[0])
    registered = gym_ids()
    if name in registered:
        return EnvId("gym", name)
    if rom := roms().get(fold(name)):
        return EnvId("atari", rom)
    # Later entries win, so a full id takes precedence over one without its version.
    folded = {key.casefold(): value for key, value in latest_ids().items()}
    folded |= {known.casefold(): known for known in registered}
    if found := folded.get(name.casefold()):
        return EnvId("gym", found)
    raise _unknown(name, registered)


def _unknown(name: str, registered: list[str]) -> UserError:
    if name.casefold().startswith("minatar/") and not any(known.startswith("MinAtar/") for known in registered):
        return UserError(f"env.id {name!r} needs MinAtar; pip install 'casa-rl[minatar]'")
    games = {display_name(rom): f"ALE/{display_name(rom)}-v5" for rom in roms().values()}
    if name.casefold().startswith("ale/"):
        near = nearest(fold(name), games)
        suggestion = games[near] if near else None
    else:
        full = latest_ids()
        suggestion = nearest(name, [*registered, *games, *full]) or nearest(fold(name), games)
        suggestion = full.get(suggestion or "", suggestion)
    hint = f"did you mean {suggestion!r}?" if suggestion else "see `casa envs` for what is installed"
    return UserError(f"env.id {name!r} is unknown; {hint}")
