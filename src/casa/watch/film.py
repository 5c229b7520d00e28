"""A recording, kept small: the numbers of every step, and its frames as WebP."""

from __future__ import annotations

import importlib
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from casa.envs.types import Array
from casa.errors import UserError
from casa.watch.record import Cast, Moment

if TYPE_CHECKING:
    from PIL import Image

WIDEST = 640
"""Pixels: larger frames are scaled down."""
LARGE = 12_000
"""Bytes of a lossless frame above which it is compressed with loss: a photo, not a drawing."""


@dataclass
class Film:
    """The moments of a recording, without their frames, and the frames; `frames` is empty if nothing was rendered."""

    cast: Cast
    moments: list[Moment] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)

    def add(self, moment: Moment) -> None:
        """Append one moment; where an environment stops rendering, its last frame stays."""
        if moment.frame is not None and len(self.frames) == len(self.moments):
            self.frames.append(compress(moment.frame))
        elif self.frames:
            self.frames.append(self.frames[-1])
        self.moments.append(moment._replace(frame=None))

    def picture(self, t: int) -> Image.Image | None:
        """The frame of step t."""
        if not self.frames:
            return None
        image = needs("PIL.Image")
        found: Image.Image = image.open(io.BytesIO(self.frames[t])).convert("RGB")
        return found


def compress(frame: Array) -> bytes:
    """RGB [H, W, 3] as WebP: without loss if that is small, as for games, and with a little loss for photos."""
    image = needs("PIL.Image").fromarray(frame)
    if max(image.size) > WIDEST:
        image.thumbnail((WIDEST, WIDEST))
    for options in ({"lossless": True}, {"quality": 82}):
        buffer = io.BytesIO()
        image.save(buffer, "WEBP", method=2, **options)
        if buffer.tell() <= LARGE:
            break
    return buffer.getvalue()


def needs(module: str) -> Any:
    """Import a module of the extra `watch`; UserError that names the extra if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"casa watch needs {module.partition('.')[0]}: pip install 'casa-rl[watch]'") from None
