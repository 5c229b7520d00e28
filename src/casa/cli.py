"""The command line: parse, call, print. Each command imports what it needs when it runs, so that --help is fast."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from casa.config.arguments import parse, parse_known
from casa.errors import UserError, unknown
from casa.experiments.places import Where

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Command:
    """A subcommand: one line of help, and the function from its arguments to the exit status."""

    summary: str
    run: Callable[[list[str]], int]


def _train(argv: list[str]) -> int:
    from casa.config import help

    if help.asked(argv):
        from casa.envs.suggest import suggest_preset

        help.print_help(argv, suggest_preset)
        return 0
    let_idle_threads_sleep()
    from casa.config.load import load_config
    from casa.envs.suggest import suggest_preset
    from casa.run.interrupt import Interrupted
    from casa.run.training import train

    try:
        train(load_config(argv, suggest=suggest_preset), _sturdy_console())
    except Interrupted as stopped:
        return stopped.status
    return 0


@dataclass(frozen=True)
class ResumeArgs:
    """Continue a run from its newest complete checkpoint."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run directory."""
    steps: int = 0
    """Total agent steps to reach; 0: as configured."""
    lr: float = 0.0
    """Learning rate to continue from, falling linearly to 0 at the end; 0: the run's current rate."""
    device: Literal["configured", "auto", "cpu", "cuda"] = "configured"
    """Device to continue on."""
    trust: bool = False
    """Allow importing the modules that the run names: its environment's (module:name) and its plug-ins."""


def _resume(argv: list[str]) -> int:
    args = parse(ResumeArgs, argv, prog="casa resume")
    let_idle_threads_sleep()
    from casa.run.interrupt import Interrupted
    from casa.run.training import resume

    device = None if args.device == "configured" else args.device
    try:
        resume(args.run, _sturdy_console(), args.steps or None, args.trust, device, args.lr or None)
    except Interrupted as stopped:
        return stopped.status
    return 0


@dataclass(frozen=True)
class EvalArgs:
    """Evaluate a trained agent on new episodes; RUN/eval-STEP.json holds every number."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run directory, or one of its checkpoints."""
    episodes: int = 30
    """Episodes for each policy; every episode that is started counts, whatever its length."""
    checkpoint: Annotated[str, arg(aliases=["--which"])] = "latest"
    """Checkpoint: latest, best, good (the newest one from which learning went on) or a step."""
    policy: Literal["both", "greedy", "sampled"] = "both"
    """greedy: the best action; sampled: drawn from the policy (value-based agents: epsilon-greedy, 0.001, or noisy)."""
    tau: float | None = None
    """Temperature of the sampled policy softmax(A / tau); writes RUN/eval-STEP-tau-TAU.json. None: as in training."""
    seed: int = 0
    """Seed of the environments and the sampled actions; training's seeds are never reused."""
    num_envs: int = 0
    """Maximum number of parallel environments; 0: as in training."""
    json: str = ""
    """Output file; empty: RUN/eval-STEP.json."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to evaluate on."""
    trust: bool = False
    """Allow importing the modules that the run names: its environment's (module:name) and its plug-ins."""


def _eval(argv: list[str]) -> int:
    args = parse(EvalArgs, argv, prog="casa eval")
    let_idle_threads_sleep()
    from casa.run.evaluate_view import evaluate_command

    evaluate_command(
        _sturdy_console(),
        args.run,
        which=args.checkpoint,
        episodes=args.episodes,
        modes=("greedy", "sampled") if args.policy == "both" else (args.policy,),
        tau=args.tau,
        seed=args.seed,
        num_envs=args.num_envs,
        json_path=Path(args.json) if args.json else None,
        device=args.device,
        trust=args.trust,
    )
    return 0


@dataclass(frozen=True)
class WatchArgs:
    """Play a trained agent and see its critic act: a video, a GIF and an HTML player in RUN/videos, or --live."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run directory, or one of its checkpoints."""
    checkpoint: str = "latest"
    """Checkpoint: latest, best, good or a step."""
    episodes: int = 1
    """Episodes to play."""
    steps: int = 1000
    """Maximum number of agent steps in all; 0: no limit."""
    policy: Literal["sampled", "greedy"] = "sampled"
    """sampled: drawn from the policy (value-based agents: epsilon-greedy, 0.001, or noisy); greedy: the best action."""
    tau: float | None = None
    """Temperature of the sampled policy softmax(A / tau). None: as in training."""
    seed: int = 0
    """Seed of the environment and of the sampled actions."""
    output: Annotated[str, arg(aliases=["-o"])] = ""
    """Folder for the files; empty: RUN/videos."""
    gif_start: float = 0.0
    """Where the GIF begins, in seconds of the video."""
    gif_seconds: float = 8.0
    """Length of the GIF in seconds."""
    live: bool = False
    """Draw in the terminal instead of writing files."""
    speed: float = 1.0
    """With --live: multiple of the environment's own speed."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Device of the network."""
    trust: bool = False
    """Allow importing the modules that the run names: its environment's (module:name) and its plug-ins."""


def _watch(argv: list[str]) -> int:
    args = parse(WatchArgs, argv, prog="casa watch")
    let_idle_threads_sleep()
    from casa.watch.command import watch_command

    watch_command(
        _console(),
        args.run,
        which=args.checkpoint,
        episodes=args.episodes,
        steps=args.steps,
        policy=args.policy,
        tau=args.tau,
        seed=args.seed,
        folder=Path(args.output) if args.output else None,
        gif_start=args.gif_start,
        gif_seconds=args.gif_seconds,
        live=args.live,
        speed=args.speed,
        device=args.device,
        trust=args.trust,
    )
    return 0


@dataclass(frozen=True)
class ReportArgs:
    """Write a report of runs that opens offline: curves, conflict, speed, differences, scores, videos."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN")]
    """Run directories, or folders of them; runs that differ in the seed alone become one curve with a band."""
    output: Annotated[str, arg(aliases=["-o"])] = ""
    """HTML file; empty: RUN/report.html for one run, report.html for several."""
    follow: bool = False
    """Serve the report on this machine (127.0.0.1) and update it while the runs train."""
    port: int = 8057
    """Port of --follow; 0: any free one."""
    browser: bool = True
    """With --follow, open the browser."""


def _report(argv: list[str]) -> int:
    args = parse(ReportArgs, argv, prog="casa report")
    from casa.report.html import follow_command, report_command

    if args.follow:
        follow_command(_console(), args.runs, args.port, args.browser)
    else:
        report_command(_console(), args.runs, Path(args.output) if args.output else None)
    return 0


@dataclass(frozen=True)
class BenchArgs:
    """Measure the throughput of each stage of a run and of the full loop, and find the bottleneck.

    Every flag of casa train is accepted too: --recipe, --env, --device, --mode, --data.reuse and so on.
    """

    seconds: float = 5.0
    """Seconds per stage and round; up to five times as long for a slow full loop, since it learns in bursts."""
    rounds: int = 3
    """Number of rounds over all stages; medians are shown."""
    soak: float = 0.0
    """Minutes of an extra casa train run that checks whether memory grows; 0: none."""
    profile: bool = False
    """Also show the timeline of each thread and the most expensive kernels."""
    json: str = ""
    """File for the raw numbers."""


def _bench(argv: list[str]) -> int:
    args, rest = parse_known(BenchArgs, argv, prog="casa bench")
    let_idle_threads_sleep()
    from casa.bench.measure import bench_command
    from casa.config.load import load_config
    from casa.envs.suggest import suggest_preset

    bench_command(
        load_config(rest, suggest=suggest_preset),
        _sturdy_console(),
        seconds=args.seconds,
        rounds=args.rounds,
        soak_minutes=args.soak,
        profile=args.profile,
        json_path=Path(args.json) if args.json else None,
    )
    return 0


def let_idle_threads_sleep() -> None:
    """Let idle OpenMP threads sleep: spinning ones would take the emulator's cores. Call before importing torch."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@dataclass(frozen=True)
class RecipesArgs:
    """Show the table of agents, or all values of one agent and where each comes from."""

    name: Annotated[Positional[str], arg(metavar="[NAME]")] = ""
    """Recipe to show in full."""
    preset: Literal["auto", "paper", "gpu", "laptop", "classic", "grid", "continuous"] = "auto"
    """auto: the paper's values for the table; for one recipe, those that casa train would use on this machine."""


def _recipes(argv: list[str]) -> int:
    args = parse(RecipesArgs, argv, prog="casa recipes")
    from casa.config.load import default_preset
    from casa.report.tables import print_recipe, print_recipes

    if args.name:
        print_recipe(_console(), args.name, default_preset() if args.preset == "auto" else args.preset)
    else:
        print_recipes(_console(), "paper" if args.preset == "auto" else args.preset)
    return 0


@dataclass(frozen=True)
class VerifyArgs:
    """Check every statement of the paper numerically, and report whether it holds."""

    seeds: int = 5
    """Number of random problems per statement."""
    json: str = ""
    """File for the raw numbers."""


def _verify(argv: list[str]) -> int:
    args = parse(VerifyArgs, argv, prog="casa verify")
    from casa.theory.verify import verify_command

    return verify_command(json_path=args.json or None, seeds=args.seeds)


@dataclass(frozen=True)
class EnvsArgs:
    """List the installed environments."""

    pattern: Annotated[Positional[str], arg(metavar="[PATTERN]")] = ""
    """Part of a name; * and ? are wildcards."""


def _envs(argv: list[str]) -> int:
    args = parse(EnvsArgs, argv, prog="casa envs")
    from casa.envs import list_envs
    from casa.report.envs import print_envs

    print_envs(_console(), list_envs(), args.pattern)
    return 0


@dataclass(frozen=True)
class ExperimentArgs(Where):
    """Run a study: versions x environments x seeds, with a plan first, resumable, and figures at the end.

    Other flags of casa train are passed to all runs: --preset, --device, --learner.lr and so on.
    """

    study: Annotated[Positional[tuple[str, ...]], arg(metavar="STUDY...")]
    """motivation, ablation, drtrace (the paper's figures 3, 4, 5) or FILE.yaml; several share their common runs."""
    envs: str = ""
    """minatar, or ids separated by commas; empty: the study's own, on Atari."""
    recipes: str = ""
    """Versions of the study to run, separated by commas; empty: all."""
    steps: int = 0
    """Agent steps of each run; 0: the study's own."""
    seeds: int = 0
    """Seeds 0 .. N-1 of each version in each environment; 0: the study's own."""
    dir: Path = Path("experiments")
    """Directory of all runs, numbers and figures."""
    minutes: float = 0.0
    """Stop after so many minutes; the same command continues. 0: no limit."""
    plan: bool = False
    """Show the plan and the estimated time, and run nothing."""
    figures_only: bool = False
    """Run nothing: make numbers, table and figures of the runs that are there."""


def _experiment(argv: list[str]) -> int:
    args, rest = parse_known(ExperimentArgs, argv, prog="casa experiment")
    from casa.config.load import settings_of
    from casa.experiments.command import Options, run_studies
    from casa.experiments.studies import choose

    settings = settings_of(rest)
    studies = [
        choose(
            name, envs=args.envs, steps=args.steps, seeds=args.seeds, recipes=args.recipes, settings=settings
        )
        for name in args.study
    ]
    options = Options(args.dir, args, args.minutes, args.plan, args.figures_only)
    return run_studies(studies, options, _console())


def _suite(argv: list[str]) -> int:
    from casa.suite.command import suite_command

    return suite_command(argv, _console())


COMMANDS: dict[str, Command] = {
    "train": Command("train an agent", _train),
    "resume": Command("continue a run", _resume),
    "eval": Command("play episodes with a trained agent, and score them", _eval),
    "watch": Command("see a trained agent play: pi, Q and V at every step", _watch),
    "report": Command("a report of runs that opens offline, or follows them live", _report),
    "experiment": Command("run one of the paper's studies, or your own", _experiment),
    "suite": Command("train, evaluate and tabulate on many games: atari57, atari5, ...", _suite),
    "bench": Command("how fast each stage is, and what limits", _bench),
    "verify": Command("check the paper's statements numerically", _verify),
    "recipes": Command("the table of agents, or one of them in full", _recipes),
    "envs": Command("the environments that are installed", _envs),
}


def _console() -> Console:
    from rich.console import Console

    # A pipe has no width; 120 columns hold every table.
    return Console(width=None if sys.stdout.isatty() else 120)


def _sturdy_console() -> Console:
    from casa.runtime.output import sturdy_console

    return sturdy_console()


def _help() -> str:
    lines = [f"  {name:<12}{command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: casa COMMAND [OPTIONS]",
            "",
            "Critic AS an Actor: every agent of the paper, trained, measured and checked.",
            "",
            *lines,
            "",
            "casa COMMAND --help describes a command; casa --version prints the version.",
        ]
    )


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if argv else 2
    if argv[0] == "--version":
        from casa import __version__

        print(f"casa {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        raise unknown("command", argv[0], COMMANDS)
    return COMMANDS[argv[0]].run(argv[1:])


def main(argv: list[str] | None = None) -> int:
    """Exit status of `casa ARGV`: 0 success, 1 output lost, 2 user error (one sentence on stderr).

    128 + signal after a signal: a run that it stopped before its last step has been saved.
    """
    from casa.runtime.output import open_standard_streams, send_to_null

    open_standard_streams()
    warnings.formatwarning = lambda message, *place: f"casa: warning: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        # Without Unicode support, print ? for π instead of raising an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except UserError as error:
        _complain(error)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            raise
        # The reader of the pipe has exited (casa recipes | head), or the disk is full. Otherwise Python's flush at exit
        # fails as well.
        send_to_null(sys.stdout)
        if error.errno != errno.EPIPE:
            _complain(f"cannot write the output: {error.strerror}")
        return 1
    except SystemExit as left:  # 0 after --help, 1 when rich met a broken pipe
        return left.code if isinstance(left.code, int) else 0


def _complain(text: object) -> None:
    with contextlib.suppress(OSError):
        print(f"casa: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
