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
SMALLEST_ROW = 11
Box = tuple[float, float, float, float]
Colour = tuple[int, int, int]
WINDOW = 240
"""Steps of V in view."""


class Panel:
    """Draws the steps of one film; all pictures have the same `size`, which is even, as video codecs want it."""

    def __init__(self, film: Film) -> None:
        self._image, self._draw, self._font = (needs(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
        self.film = film
        picture = film.picture(0)
        self.scale = 1.0 if picture is None else min(HEIGHT / picture.height, 1.5 * HEIGHT / picture.width)
        width, height = (0, 200) if picture is None else picture.size
        self.screen = (round(self.scale * width), round(self.scale * height))
        width = self.screen[0] + BARS + GAP * (2 if picture is None else 3)
        height = max(self.screen[1], 46 + 18 + GAP + SMALLEST_ROW * self._rows()) + PLOT + 3 * GAP
        self.size = (width + width % 2, height + height % 2)
        self.fonts = {size: self._font.load_default(size) for size in (11, 12, 13, 16)}
        # A full bar is what three quarters of the steps stay below: bars of different steps can be compared.
        shares = [m.pi.max() for m in film.moments if m.pi is not None]
        self.most_pi = float(np.quantile(shares, 0.75)) if shares else 1.0
        spreads = [np.ptp(m.q) for m in film.moments if m.q is not None]
        self.most_q = float(np.quantile(spreads, 0.75)) or 1.0 if spreads else 1.0
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

    def _rows(self) -> int:
        """Rows of the bars: one for each option, and four for the curves of a continuous part."""
        return sum(4 if part.continuous else len(part.options) for part in self.film.cast.parts)

    def _head(self, draw: ImageDraw.ImageDraw, moment: Moment, left: int) -> None:
        self._text(draw, (left, GAP - 2), self.film.cast.title, size=16)
        facts = [f"return {moment.score:g}"]
        facts += [f"V {moment.v:.2f}"] if moment.v is not None else [f"episode {moment.over}"]
        facts += [f"entropy {moment.entropy:.2f}"] if moment.entropy is not None else []
        self._text(draw, (left, GAP + 22), "   ".join(facts), size=13, fill=SOFT)

    def _bars(self, draw: ImageDraw.ImageDraw, moment: Moment, left: int, top: int, bottom: int) -> None:
        row = min((bottom - top - 18) / self._rows(), 26)
        name_width, width = 104, (BARS - 104 - 2 * GAP) // 2
        columns = [("pi(a|s)", BLUE, "pi", self.most_pi, False), ("Q(s,a)", ORANGE, "q", self.most_q, True)]
        shown = [one for one in columns if any(getattr(m, one[2]) is not None for m in self.film.moments)]
        for i, (label, *_) in enumerate(shown):
            self._text(draw, (left + name_width + i * (width + GAP), top), label, size=11, fill=SOFT)
        y, first = top + 18.0, 0
        for d, part in enumerate(self.film.cast.parts):
            block = slice(first, first := first + len(part.options))
            index = moment.action[d] if moment.action else None
            height = row * (4 if part.continuous else 1)
            for i, (_, colour, name, most, from_best) in enumerate(shown):
                x = left + name_width + i * (width + GAP)
                values = getattr(moment, name)
                shares = None
                if values is not None:
                    values = values[block]
                    shares = np.clip(1 + (values - values.max()) / most if from_best else values / most, 0, 1)
                if part.continuous:
                    self._curve(draw, (x, y + 2, x + width, y + height - 3), shares, colour, index)
                else:
                    self._bars_of(draw, (x, y, width, row), len(part.options), shares, colour)
            if part.continuous:
                value = "" if index is None else f" {part.chosen(index)}"
                self._text(draw, (left + 12, y + height / 2), f"{part.name}{value}"[:16], anchor="lm", fill=INK)
                y += height
                continue
            for i, name in enumerate(part.options):
                label = name if len(self.film.cast.parts) == 1 else f"{part.name}: {name}"
                at = (left + 12, y + row / 2)
                size, fill = (12 if row >= 15 else 11), (INK if i == index else SOFT)
                self._text(draw, at, label[:15], size=size, anchor="lm", fill=fill)
                if i == index:
                    draw.polygon([(left, at[1] - 4), (left, at[1] + 4), (left + 7, at[1])], fill=GREEN)
                y += row

    @staticmethod
    def _bars_of(draw: ImageDraw.ImageDraw, box: Box, count: int, shares: Any, colour: Colour) -> None:
        """One bar for each option, downwards from the box (left, top, width, height of a row)."""
        x, y, width, row = box
        for i in range(count):
            top, bottom = y + i * row + 2, y + (i + 1) * row - 3
            draw.rounded_rectangle((x, top, x + width, bottom), 3, fill=CARD)
            if shares is not None and shares[i] > 0.01:
                draw.rounded_rectangle((x, top, x + max(shares[i] * width, 4), bottom), 3, fill=colour)

    @staticmethod
    def _curve(draw: ImageDraw.ImageDraw, box: Box, shares: Any, colour: Colour, index: float | None) -> None:
        """A function of a continuous part in the box (left, top, right, bottom), and the action taken as a line."""
        left, top, right, bottom = box
        draw.rounded_rectangle(box, 3, fill=CARD)
        if shares is None:
            return
        steps = np.linspace(left, right, len(shares))
        line = [(float(x), float(bottom - share * (bottom - top))) for x, share in zip(steps, shares, strict=True)]
        draw.polygon([(left, bottom), *line, (right, bottom)], fill=colour)
        if index is not None:
            x = left + index / (len(shares) - 1) * (right - left)
            draw.line((x, top, x, bottom), fill=INK, width=2)

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
