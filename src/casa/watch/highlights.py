"""The steps of a recording that are worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from casa.watch.record import Moment, Part

MOST = 12
APART = 4
"""Steps between two of the largest changes of V, at least: one event is one jump."""


def value_changes(moments: Sequence[Moment]) -> list[int]:
    """The steps t with the largest |V(s_t) - V(s_{t-1})| within an episode, in the order of time."""
    changes = {
        t: abs(now.v - before.v)
        for t, (before, now) in enumerate(pairwise(moments), 1)
        if now.v is not None and before.v is not None and now.episode == before.episode
    }
    found: list[int] = []
    for t in sorted(changes, key=lambda t: -changes[t]):
        if changes[t] > 0 and all(abs(t - other) >= APART for other in found):
            found.append(t)
        if len(found) == MOST:
            break
    return sorted(found)


def disagreements(moments: Sequence[Moment], parts: Sequence[Part]) -> list[int]:
    """The steps where the most probable option of a part is not the one with the largest Q; ties agree."""
    return [t for t, m in enumerate(moments) if m.pi is not None and m.q is not None and _differ(m.pi, m.q, parts)]


def rewards(moments: Sequence[Moment]) -> list[int]:
    """The steps whose action gave a reward, unless most did."""
    found = [t for t, moment in enumerate(moments) if moment.reward != 0]
    return found if 2 * len(found) <= len(moments) else []


def _differ(pi: npt.NDArray[np.float64], q: npt.NDArray[np.float64], parts: Sequence[Part]) -> bool:
    first = 0
    for part in parts:
        block = slice(first, first := first + len(part.options))
        if q[block][pi[block].argmax()] < q[block].max() and pi[block][q[block].argmax()] < pi[block].max():
            return True
    return False
