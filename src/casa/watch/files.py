"""Files of a film: MP4, GIF and the HTML player."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from casa.page.player import player_page
from casa.run import durable
from casa.watch.film import Film, needs
from casa.watch.highlights import disagreements, rewards, value_changes
from casa.watch.panel import Panel

COLOURS = 64
"""Colours of a GIF."""


def write_mp4(film: Film, path: Path, steps: Iterable[int]) -> Path:
    """An H.264 video at the environment's own speed."""
    ffmpeg = needs("imageio_ffmpeg")
    panel = Panel(film)
    beside = path.with_name(f".tmp-{path.name}")
    options = {"fps": film.cast.fps, "codec": "libx264", "quality": None, "macro_block_size": 2}
    options |= {"output_params": ["-crf", "23", "-preset", "veryfast", "-movflags", "+faststart"]}
    beside.unlink(missing_ok=True)  # never write through a link
    writer = ffmpeg.write_frames(str(beside), panel.size, **options)
    writer.send(None)
    try:
        for t in steps:
            writer.send(panel.draw(t).tobytes())
        writer.close()
        os.replace(beside, path)
    finally:
        writer.close()
        beside.unlink(missing_ok=True)
    return path


def write_gif(film: Film, path: Path, steps: Iterable[int], scale: float = 0.8) -> Path:
    """An endless GIF of some steps; browsers show at most 50 frames a second, so faster films skip steps."""
    panel, images = Panel(film), needs("PIL.Image")
    size = (round(scale * panel.size[0]), round(scale * panel.size[1]))
    skip = max(1, round(film.cast.fps / 25))
    pictures = [panel.draw(t).resize(size, images.Resampling.LANCZOS) for i, t in enumerate(steps) if i % skip == 0]
    # An octree keeps small areas of their own colour, such as one row of bricks, that other methods merge.
    palette = pictures[len(pictures) // 2].quantize(COLOURS, images.Quantize.FASTOCTREE)
    first, *rest = [picture.quantize(palette=palette, dither=images.Dither.NONE) for picture in pictures]
    duration = round(1000 * skip / film.cast.fps)
    data = io.BytesIO()
    first.save(data, "GIF", save_all=True, append_images=rest, duration=duration, loop=0, optimize=False)
    durable.replace(path, data.getvalue())
    return path


def write_html(film: Film, path: Path) -> Path:
    """The player, one file that opens offline."""
    cast, moments = film.cast, film.moments
    jumps: dict[str, Sequence[int]] = {
        "Large changes of V": value_changes(moments),
        "π and argmax Q disagree": disagreements(moments, cast.parts),
        "Rewards": rewards(moments),
    }
    steps: list[dict[str, Any]] = []
    for moment in moments:
        numbers = {name: value for name, value in moment._asdict().items() if name != "frame"}
        pi, q = (None if x is None else x.tolist() for x in (moment.pi, moment.q))
        steps.append({**numbers, "pi": pi, "q": q, "action": list(moment.action)})
    facts = [cast.agent, f"after {cast.step:,} agent steps", f"V and Q in {cast.unit}"]
    page = player_page(cast.title, facts, cast.parts, cast.fps, film.frames, steps, jumps)
    durable.replace(path, page.encode())
    return path
