"""`casa watch`: play, show in the terminal or write a video, a GIF and the player into RUN/videos."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

from casa.errors import UserError
from casa.run.agent import Agent, load
from casa.run.display import number
from casa.run.messages import say
from casa.watch.film import Film, needs
from casa.watch.record import Moment, Stage

T = TypeVar("T")
PLAIN_EVERY = 5.0
"""Seconds between lines of progress when the output is piped."""


def watch_command(
    console: Console,
    run: Path,
    *,
    which: str = "latest",
    episodes: int = 1,
    steps: int = 1000,
    policy: str = "sampled",
    tau: float | None = None,
    seed: int = 0,
    folder: Path | None = None,
    gif_start: float = 0.0,
    gif_seconds: float = 8.0,
    live: bool = False,
    speed: float = 1.0,
    device: str = "cpu",
    trust: bool = False,
) -> list[Path]:
    """Play episodes of a run's agent; returns the files written, none if `live`."""
    if live and not console.is_terminal:
        raise UserError("--live draws in a terminal, and the output is not one; leave it out to write a video")
    if not speed > 0:
        raise UserError(f"speed must be > 0, got {speed:g}")
    if not live:
        for module in ("PIL", "imageio_ffmpeg"):
            needs(module)
    # Environments that draw with SDL then need no screen and no loudspeaker.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    agent = load(run, which, device=device, tau=tau, trust=trust)
    stage = Stage(agent)
    try:
        moments = stage.play(episodes, steps, policy == "greedy", seed)
        if live:
            from casa.watch.live import show_live

            last = show_live(console, stage.cast, moments, speed)
            _say_end(console, stage, last)
            return []
        film = Film(stage.cast)
        for moment in _progress(console, "playing", moments, steps or None):
            film.add(moment)
        _say_end(console, stage, film.moments[-1])
    finally:
        stage.close()
    stem = _stem(agent, policy, tau, seed)
    videos = _run_of(agent) / "videos"
    if folder is None and videos.is_symlink():
        raise UserError(f"{videos} is a symbolic link: name the folder with --output")
    return _write(console, film, folder or videos, stem, gif_start, gif_seconds)


def _write(console: Console, film: Film, folder: Path, stem: str, start: float, seconds: float) -> list[Path]:
    from casa.watch.files import write_gif, write_html, write_mp4

    count, fps = len(film.moments), film.cast.fps
    first = min(max(round(start * fps), 0), count - 1)
    part = range(first, min(first + max(round(seconds * fps), 1), count))
    makers: list[tuple[str, Callable[[Path], Path]]] = [
        ("mp4", lambda path: write_mp4(film, path, _progress(console, "video", range(count), count))),
        ("gif", lambda path: write_gif(film, path, _progress(console, "GIF", part, len(part)))),
        ("html", lambda path: write_html(film, path)),
    ]
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for ending, make in makers:
            path = make(folder / f"{stem}.{ending}")
            written.append(path)
            say(console, f"{path}: {path.stat().st_size / 2**20:.2f} MiB")
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror or error}") from error
    return written


def _stem(agent: Agent, policy: str, tau: float | None, seed: int) -> str:
    """`step-350008`, and what differs from the defaults."""
    more = ["greedy"] if policy == "greedy" else []
    more += [] if tau is None else [f"tau-{tau:g}"]
    more += [f"seed-{seed}"] if seed else []
    return "-".join([f"step-{agent.step}", *more])


def _run_of(agent: Agent) -> Path:
    assert agent.path is not None, "a loaded agent knows its checkpoint"
    folder = agent.path.parent
    return folder.parent if folder.name == "checkpoints" else folder


def _say_end(console: Console, stage: Stage, last: Moment | None) -> None:
    if stage.note:
        instead = "its observations are shown" if stage.agent.spec.kind == "image" else "there is no picture of it"
        say(console, f"warning: {stage.note}; {instead}")
    if last is not None:
        say(console, f"{stage.cast.title}: the last episode {last.over}, return {number(last.score)}")


def _progress(console: Console, what: str, items: Iterable[T], total: int | None) -> Iterator[T]:
    """A progress bar in a terminal; when piped, a line every five seconds."""
    if console.is_terminal:
        with Progress(console=console, transient=True) as bar:
            yield from bar.track(items, total=total, description=what)
        return
    last = time.perf_counter()
    for i, item in enumerate(items):
        yield item
        if time.perf_counter() - last >= PLAIN_EVERY:
            last = time.perf_counter()
            say(console, f"{what}: step {i + 1:,}" + (f" of {total:,}" if total else ""))
