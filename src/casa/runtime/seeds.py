"""Seeds of a run's parts. Each seed depends only on the run's seed, its purpose and its indices."""

from __future__ import annotations

import numpy as np


def seed_for(run_seed: int, purpose: str, *indices: int) -> int:
    """A 31-bit seed from `SeedSequence([run_seed, *purpose, *indices])`."""
    words = [run_seed, *purpose.encode(), *indices]
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)
