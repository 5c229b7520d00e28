"""The player: recorded episodes on one page, with what the agent thought at every step beside the frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from casa.page.curves import rounded
from casa.page.document import data_uri, document


def player_page(
    title: str,
    facts: Sequence[str],
    parts: Sequence[tuple[str, Sequence[str], bool]],
    fps: float,
    frames: Sequence[bytes],
    steps: Sequence[dict[str, Any]],
    jumps: dict[str, Sequence[int]],
) -> str:
    """One HTML file that plays `frames` (WebP, or none) at `fps`.

    `parts`: name and option names of each part of an action, and whether it is continuous: its options are knots then,
    and `action` is the position between them. `steps`, one for each frame: v, pi, q, entropy, action,
    reward, score, episode, over. `jumps`: name of a button -> the steps that it goes to.
    """
    for one in steps:
        for name in ("pi", "q"):
            assert one[name] is None or len(one[name]) == sum(len(options) for _, options, _ in parts), name
    data = {
        "title": title,
        "facts": list(facts),
        "parts": [{"name": name, "options": list(options), "continuous": curve} for name, options, curve in parts],
        "fps": fps,
        "frames": [data_uri("image/webp", frame) for frame in frames],
        "steps": [{**one, "pi": _short(one["pi"]), "q": _short(one["q"])} for one in steps],
        "jumps": [{"name": name, "steps": list(found)} for name, found in jumps.items()],
    }
    return document(title, ("base.js", "player.js"), data, "player.html")


def _short(values: Sequence[float] | None) -> list[float | None] | None:
    return None if values is None else rounded(np.array(values, np.float64), 6)
