"""The installed environments, as `casa envs` prints them."""

from __future__ import annotations

from fnmatch import fnmatch

from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from casa.envs.registry import EnvList, Listed
from casa.errors import UserError, nearest


def matching(envs: EnvList, pattern: str) -> EnvList:
    """The environments whose name contains `pattern`, ignoring case; * and ? are wildcards."""

    def keep(name: str) -> bool:
        return fnmatch(name.casefold(), f"*{pattern.casefold()}*")

    return EnvList(
        [game for game in envs.atari57 if keep(f"ALE/{game}-v5")],
        [game for game in envs.atari if keep(f"ALE/{game}-v5")],
        {group: kept for group, listed in envs.gymnasium.items() if (kept := [x for x in listed if keep(x.id)])},
    )


def print_envs(console: Console, envs: EnvList, pattern: str = "") -> None:
    """Print Atari games by name, then Gymnasium ids with a description or the reason why they cannot be used."""
    found = matching(envs, pattern)
    for title, games in (
        ("Atari: the 57 games of the benchmark", found.atari57),
        ("Atari: other games", found.atari),
    ):
        if games:
            console.print(f"[bold]{title}[/bold]", highlight=False)
            console.print(Columns(games, equal=True, padding=(0, 2)), highlight=False)
    if found.gymnasium:
        console.print("[bold]Gymnasium[/bold]", highlight=False)
        console.print(_gymnasium([x for listed in found.gymnasium.values() for x in listed]))
    if not any(found):
        names = [*envs.atari57, *envs.atari, *(x.id for listed in envs.gymnasium.values() for x in listed)]
        near = nearest(pattern, names)
        raise UserError(f"no environment matches {pattern!r}" + (f"; did you mean {near!r}?" if near else ""))


def _gymnasium(listed: list[Listed]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")
    for env in listed:
        if env.usable:
            table.add_row(Text(env.id), Text(env.note))
    # Many ids share one reason, such as a missing package: print it once.
    reasons: dict[str, list[str]] = {}
    for env in listed:
        if not env.usable:
            reasons.setdefault(env.note, []).append(env.id)
    for reason, ids in reasons.items():
        table.add_row(Text(", ".join(ids)), Text(f"not usable: {reason}"), style="dim")
    return table
