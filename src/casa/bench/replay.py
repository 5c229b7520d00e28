"""Cost of prioritized replay: sampling a batch of sequences and updating their priorities."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np
import torch

from casa.envs.types import EnvSpec
from casa.rollout.ring import Ring, RingShape
from casa.rollout.samplers import SLOTS_A_STEP, PrioritizedSampler
from casa.runtime.resources import available_bytes

BATCH, SEQ_LEN, ENVS, FRAMES = 8, 40, 160, 400_000
"""R2D2's batch and replay sizes (the paper's Table 10), and the number of environments (Table 8)."""


def replay_cost(spec: EnvSpec, device: torch.device, frames: int = FRAMES, calls: int = 200) -> dict[str, Any]:
    """Median milliseconds to sample 8 x 40 steps from a full replay buffer and update their priorities.

    `sample_update_ms` includes the gather of the frames of `spec`; None if `frames` of them would take more than half
    of the free memory. `draw_update_ms` uses one-byte frames: it measures the sum tree and the importance weights.
    """
    stacked = spec.frame_stack > 1
    whole = RingShape(
        capacity=-(-frames // ENVS),
        num_envs=ENVS,
        frame_shape=spec.obs_shape[1:] if stacked else spec.obs_shape,
        frame_dtype=torch.uint8 if spec.obs_dtype == np.uint8 else torch.float32,
        stack=spec.frame_stack,
        state_size=0,
        state_every=SEQ_LEN,
    )
    bare = RingShape(whole.capacity, ENVS, (1,), torch.uint8, 1, 0, SEQ_LEN)
    fits = whole.bytes < available_bytes(device) / 2
    return {
        "sequences": BATCH,
        "length": SEQ_LEN,
        "frames": whole.capacity * ENVS,
        "draw_update_ms": _milliseconds(bare, device, calls),
        "sample_update_ms": _milliseconds(whole, device, calls) if fits else None,
    }


def _milliseconds(shape: RingShape, device: torch.device, calls: int) -> float:
    sampler = _full(shape, device)
    priorities = np.random.default_rng(0).random((calls, BATCH))
    taken = []
    for row in priorities:
        began = time.perf_counter()
        sample = sampler.next()
        sampler.update(sample, row)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return 1e3 * median(taken)


def _full(shape: RingShape, device: torch.device) -> PrioritizedSampler:
    """The sampler of a full ring, with all memory pages resident."""
    ring = Ring(shape, device)
    ring.frames.fill_(1)
    ring.ages.fill_(shape.capacity)
    ring.rewind(np.full(shape.num_envs, shape.capacity - shape.stack - SLOTS_A_STEP - 1))
    sampler = PrioritizedSampler(
        ring,
        seq_len=SEQ_LEN,
        burn_in=0,
        batch=BATCH,
        reuse=1,
        exponent=0.9,
        importance=0.6,
        min_fill=0,
        rng=np.random.default_rng(0),
    )
    sampler.observe()
    return sampler
