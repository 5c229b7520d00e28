"""`casa suite SET`, `casa suite merge`, `casa suite report`: arguments, and what they call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from tyro.conf import Positional, arg

from casa.config.arguments import parse, parse_known
from casa.errors import UserError, unknown
from casa.experiments.places import Where, open_place


@dataclass(frozen=True)
class SuiteArgs(Where):
    """Train and evaluate recipes on many games, with a plan first; resumable, and a table at the end.

    The same command continues after any interruption; finished runs are never repeated.
    casa suite merge DIR OTHER... adds the runs of other machines' directories to DIR.
    casa suite report DIR makes tables, figures and a page of what is there.
    Other flags of casa train are passed to all runs: --preset, --device, --env.num-envs and so on.
    """

    suite: Annotated[Positional[str], arg(metavar="SET")]
    """atari57, atari26, atari10, atari5, minatar, or ids separated by commas."""
    recipe: str = "casa"
    """The agent; casa recipes lists them."""
    recipes: str = ""
    """Several agents, separated by commas, instead of --recipe."""
    games: str = ""
    """Some of the set's games, separated by commas; empty: all."""
    steps: int = 50_000_000
    """Agent steps of each run; the default is 200M frames of Atari."""
    seeds: int = 5
    """Seeds of each recipe on each game."""
    first_seed: int = 0
    """The first of these seeds."""
    protocol: Literal["preset", "paper", "sticky"] = "preset"
    """Atari: the preset's actions and lives; paper: all 18 actions, lives ignored; sticky: the same with sticky actions
    0.25 and no no-ops; docs/evaluation.md."""
    episodes: int = 30
    """Episodes of the evaluation of each finished run."""
    policy: Literal["sampled", "greedy"] = "sampled"
    """Policy of the evaluation."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Checkpoint to evaluate; best: the one with the highest training return."""
    dir: Path = Path("suite")
    """Directory of all runs and of the report."""
    share: str = "1/1"
    """2/4: of four machines this is the second, and runs every fourth run; casa suite merge puts them together."""
    retries: int = 2
    """How often the jobs of a run are tried again after failures."""
    minutes: float = 0.0
    """Stop after so many minutes; the same command continues. 0: no limit."""
    plan: bool = False
    """Show the plan with estimated hours and disk, and run nothing."""
    rate: float = 0.0
    """Agent steps per second of each run, for the plan, as on another machine; 0: measured here first."""


@dataclass(frozen=True)
class MergeArgs:
    """Add the runs of other directories, of other machines perhaps, to DIR: same settings, other games or seeds."""

    dir: Annotated[Positional[Path], arg(metavar="DIR")]
    """Directory that receives the runs; it need not exist."""
    others: Annotated[Positional[tuple[Path, ...]], arg(metavar="OTHER...")]
    """Directories of other suites; they are not changed."""


@dataclass(frozen=True)
class ReportArgs:
    """Write DIR/report: Markdown, LaTeX and CSV tables, figures, and a page that opens offline."""

    dir: Annotated[Positional[Path], arg(metavar="DIR")]
    """Directory of a suite."""
    published: str = ""
    """CSV file of other agents' scores, for a table at equal frames: agent, game, frames, score, protocol."""


def suite_command(argv: Sequence[str], console: Console) -> int:
    """The exit status of `casa suite ARGV`."""
    if argv[:1] == ["merge"]:
        from casa.suite.merge import merge

        merging = parse(MergeArgs, argv[1:], prog="casa suite merge")
        merge(merging.dir, merging.others, console)
        return 0
    if argv[:1] == ["report"]:
        from casa.suite.report import write_report

        asked = parse(ReportArgs, argv[1:], prog="casa suite report")
        write_report(asked.dir, console, Path(asked.published) if asked.published else None)
        return 0
    args, rest = parse_known(SuiteArgs, argv, prog="casa suite")
    return _run(args, rest, console)


def _run(args: SuiteArgs, rest: Sequence[str], console: Console) -> int:
    from casa.config.load import settings_of
    from casa.experiments.display import follow
    from casa.experiments.state import check_settings
    from casa.suite import budget, spec
    from casa.suite.report import write_report
    from casa.suite.schedule import SuiteScheduler, alone
    from casa.tables import RECIPES

    for name, value, least in _bounds(args):
        if value < least:
            raise UserError(f"--{name} must be >= {least}, got {value}")
    part, parts = _share(args.share)
    set_name, envs, settings = spec.environments(args.suite, args.games)
    settings = {**settings, **spec.PROTOCOLS[args.protocol], **settings_of(rest)}
    names = tuple(dict.fromkeys(part.strip() for part in (args.recipes or args.recipe).split(",")))
    for recipe in names:
        if recipe not in RECIPES:
            raise unknown("recipe", recipe, RECIPES)
    seeds = tuple(range(args.first_seed, args.first_seed + args.seeds))
    evaluation = spec.Evaluation(args.episodes, args.policy, args.checkpoint)
    suite = spec.Suite(set_name, envs, names, seeds, args.steps, settings, evaluation)
    mine = suite.planned(args.dir)[part - 1 :: parts]
    with open_place(args, args.dir, mine, lambda text: console.print(text, highlight=False)) as place:
        scheduler = SuiteScheduler(mine, place, evaluation, args.retries, args.minutes * 60 or None)
        if args.plan:
            budget.show_plan(suite, mine, place, scheduler, args.dir, console, args.rate)
            return 0
        with alone(args.dir):
            if (args.dir / spec.FILE).exists():
                spec.save(spec.joined(spec.load(args.dir), suite, str(args.dir), "the command"), args.dir)
            else:
                spec.save(suite, args.dir)
            for run in mine:
                check_settings(run.path, dict(run.settings))
            budget.show_plan(suite, mine, place, scheduler, args.dir, console, args.rate)
            progress = follow(scheduler, console)
            write_report(args.dir, console)
    if progress.waiting:
        console.print(f"{len(progress.waiting)} runs are left; the same command continues them", highlight=False)
    return 1 if progress.failed else 0


def _bounds(args: SuiteArgs) -> list[tuple[str, float, int]]:
    least = {"steps": 1, "seeds": 1, "first-seed": 0, "episodes": 1, "retries": 0, "minutes": 0, "rate": 0}
    return [(name, getattr(args, name.replace("-", "_")), lowest) for name, lowest in least.items()]


def _share(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise UserError(f"--share must be PART/PARTS such as 2/4, with PART from 1 to PARTS, got {text!r}")
    return int(part), int(parts)
