"""A film's steps as pictures: the frame, beside it π and Q as bars, below it V over time. For videos and GIFs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from casa.watch.film import Film, needs
from casa.watch.record import Moment

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

GROUND, CARD, INK, SOFT = (18, 21, 28), (30, 36, 48), (232, 235, 241), (165, 174, 191)
BLUE, ORANGE, GREEN = (122, 167, 255), (255, 157, 92), (95, 211, 138)
HEIGHT, BARS, PLOT, GAP = 400, 330, 96, 12
WINDOW = 240
"""Steps of V in view."""


class Panel:
    """Draws the steps of one film; all pictures have the same `size`, which is even, as video codecs want it."""

    def __init__(self, film: Film) -> None:
        self._image, self._draw, self._font = (needs(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
        self.film = film
        picture = film.picture(0)
        self.scale = 1.0 if picture is None else min(HEIGHT / picture.height, 1.5 * HEIGHT / picture.width)
        width, height = (0, HEIGHT) if picture is None else picture.size
        self.screen = (round(self.scale * width), round(self.scale * height))
        width = self.screen[0] + BARS + GAP * (2 if picture is None else 3)
        height = max(self.screen[1], HEIGHT if len(self._names()) > 8 or picture is None else 200) + PLOT + 3 * GAP
        self.size = (width + width % 2, height + height % 2)
        self.fonts = {size: self._font.load_default(size) for size in (11, 12, 13, 16)}
        shares = [m.pi.max() for m in film.moments if m.pi is not None]
        self.most_pi = max(shares, default=1.0)
        spreads = [np.ptp(m.q) for m in film.moments if m.q is not None]
        self.most_q = float(np.quantile(spreads, 0.95)) or 1.0 if spreads else 1.0
        values = [m.v for m in film.moments if m.v is not None]
        self.low, self.high = min(values, default=0.0), max(values, default=1.0)

    def draw(self, t: int) -> Image.Image:
        """The picture of step t."""
        moment = self.film.moments[t]
        canvas: Image.Image = self._image.new("RGB", self.size, GROUND)
        draw = self._draw.Draw(canvas)
        picture = self.film.picture(t)
        top = self.size[1] - PLOT - 2 * GAP
        left = GAP
        if picture is not None:
            sharp = self._image.Resampling.NEAREST if self.scale > 1 else self._image.Resampling.LANCZOS
            canvas.paste(picture.resize(self.screen, sharp), (GAP, GAP + (top - GAP - self.screen[1]) // 2))
            left += self.screen[0] + GAP
        self._head(draw, moment, left)
        self._bars(draw, moment, left, GAP + 46, top - GAP)
        self._plot(draw, t, top + GAP)
        return canvas

    def _text(self, draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, **options: Any) -> None:
        size = options.pop("size", 12)
        draw.text(at, text, **{"font": self.fonts[size], "fill": INK, **options})

    def _names(self) -> list[str]:
        parts = self.film.cast.parts
        prefix = [f"{part.name} " if len(parts) > 1 else "" for part in parts]
        return [f"{start}{name}" for start, part in zip(prefix, parts, strict=True) for name in part.options]

    def _taken(self, moment: Moment) -> set[int]:
        firsts = np.cumsum([0, *(len(part.options) for part in self.film.cast.parts)])
        return {int(first) + index for first, index in zip(firsts, moment.action, strict=False)}

    def _head(self, draw: ImageDraw.ImageDraw, moment: Moment, left: int) -> None:
        self._text(draw, (left, GAP - 2), self.film.cast.title, size=16)
        facts = [f"return {moment.score:g}"]
        facts += [f"V {moment.v:.2f}"] if moment.v is not None else [f"episode {moment.over}"]
        facts += [f"entropy {moment.entropy:.2f}"] if moment.entropy is not None else []
        self._text(draw, (left, GAP + 22), "   ".join(facts), size=13, fill=SOFT)

    def _bars(self, draw: ImageDraw.ImageDraw, moment: Moment, left: int, top: int, bottom: int) -> None:
        names, taken = self._names(), self._taken(moment)
        row = min((bottom - top - 18) / len(names), 26)
        size = 12 if row >= 15 else 11
        name_width, width = 104, (BARS - 104 - 2 * GAP) // 2
        columns = [("pi(a|s)", BLUE, moment.pi, self.most_pi), ("Q(s,a)", ORANGE, moment.q, self.most_q)]
        shown = [column for column in columns if any(self._column(m, column[0]) is not None for m in self.film.moments)]
        for i, (label, colour, values, most) in enumerate(shown):
            x = left + name_width + i * (width + GAP)
            self._text(draw, (x, top), label, size=11, fill=SOFT)
            for j in range(len(names)):
                y = top + 18 + j * row
                draw.rounded_rectangle((x, y + 2, x + width, y + row - 3), 3, fill=CARD)
                if values is None:
                    continue
                share = values[j] / most if label.startswith("pi") else 1 + (values[j] - values.max()) / most
                if share > 0.01:
                    draw.rounded_rectangle((x, y + 2, x + max(share * width, 4), y + row - 3), 3, fill=colour)
        for j, name in enumerate(names):
            y = top + 18 + j * row + row / 2
            fill = INK if j in taken else SOFT
            self._text(draw, (left + 12, y), name[:15], size=size, anchor="lm", fill=fill)
            if j in taken:
                draw.polygon([(left, y - 4), (left, y + 4), (left + 7, y)], fill=GREEN)

    @staticmethod
    def _column(moment: Moment, label: str) -> Any:
        return moment.pi if label.startswith("pi") else moment.q

    def _plot(self, draw: ImageDraw.ImageDraw, t: int, top: int) -> None:
        """V of the last WINDOW steps, rewards as ticks below it."""
        left, right, bottom = GAP + 44, self.size[0] - GAP, self.size[1] - GAP
        draw.rounded_rectangle((left, top, right, bottom), 4, fill=CARD)
        self._text(draw, (GAP, top), "V(s)", size=13, fill=GREEN)
        for value, y, anchor in ((self.high, top + 20, "la"), (self.low, bottom, "ld")):
            self._text(draw, (GAP, y), f"{value:.3g}", size=11, fill=SOFT, anchor=anchor)
        first = max(0, t - WINDOW)
        span = (self.high - self.low) or 1.0

        def place(i: int, v: float) -> tuple[float, float]:
            x = left + 4 + (i - first) / WINDOW * (right - left - 8)
            return x, bottom - 8 - (v - self.low) / span * (bottom - top - 14)

        line: list[tuple[float, float]] = []
        for i in range(first, t + 1):
            moment = self.film.moments[i]
            if moment.reward:
                x = place(i, self.low)[0]
                draw.line((x, bottom - 6, x, bottom - 1), fill=ORANGE)
            if moment.v is not None:
                line.append(place(i, moment.v))
            if (moment.v is None or i == t) and len(line) > 1:
                draw.line(line, fill=GREEN, width=2)
                line = []
        if (v := self.film.moments[t].v) is not None:
            at = place(t, v)
            draw.ellipse((at[0] - 3, at[1] - 3, at[0] + 3, at[1] + 3), fill=INK)
