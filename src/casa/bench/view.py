"""The benchmark as a table, and the bottleneck in one sentence."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from casa.runtime.resources import gib

NAMES = {
    "emulation": "emulation alone, random actions",
    "inference": "inference alone, one batch of all environments",
    "writing": "writing to the ring alone",
    "learner": "sampling, gather and learner alone",
}


def report(record: dict[str, Any]) -> Group:
    """Table, memory, prioritized sampling, the soak test if there was one, and the bottleneck sentence."""
    machine, config = record["machine"], record["config"]
    network = record["network"]
    table = Table(title=f"{config['recipe']} on {config['env']['id']}, {config['env']['num_envs']} environments")
    table.add_column("stage")
    for column in ("steps/s", "frames/s", "of emulation", "share of a step"):
        table.add_column(column, justify="right")
    emulation = record["stages"]["emulation"]["steps_per_second"]

    def add(name: str, speed: float, ratio: float, share: str, style: str = "") -> None:
        frames = speed * record["frames_per_step"]
        table.add_row(name, f"{speed:,.0f}", f"{frames:,.0f}", f"{ratio:.2f}", share, style=style)

    for name, stage in record["stages"].items():
        share = f"{100 * record['shares'][name]:.0f}%"
        add(NAMES[name], stage["steps_per_second"], stage["steps_per_second"] / emulation, share)
    table.add_section()
    for mode, loop in record["end_to_end"].items():
        add(f"end to end, {mode}", loop["steps_per_second"], loop["ratio_to_emulation"], "", "bold")
    ideal = record["ideal_steps_per_second"]
    add("ideal: the stages without loss", ideal, ideal / emulation, "100%", "dim")
    device = machine["gpu"] or machine["processor"]
    data = config["data"]
    facts = [
        f"{device}, {machine['cores']} cores, torch {machine['torch']} with {machine['torch_threads']} threads; "
        f"{network['parameters']:,} parameters ({network['backbone']}), {network['precision']}",
        f"reuse {data['reuse']}, {data['batch']} sequences of {data['seq_len']} a learner step: "
        f"{record['stages']['learner']['trained_frames_per_second']:,.0f} trained frames/s",
        memory_line(record["memory"]),
        replay_line(record["prioritized"]),
        *([soak_line(record["soak"])] if "soak" in record else []),
        sentence(record),
    ]
    return Group(table, *(Text(fact) for fact in facts))


def sentence(record: dict[str, Any]) -> str:
    """The bottleneck, the ideal rate, and how close the loop comes to it."""
    limit, best = record["limit"], record["best_mode"]
    loop = record["end_to_end"][best]
    how = (
        "if emulation had the cores and the rest the GPU"
        if record["machine"]["device"] == "cuda"
        else "if the stages shared the cores without loss"
    )
    return (
        f"The {limit} limits: it is {100 * record['shares'][limit]:.0f}% of a step's work; {how}, "
        f"{record['ideal_steps_per_second']:,.0f} steps/s would be ideal, and {best} reaches "
        f"{loop['steps_per_second']:,.0f} ({100 * loop['ratio_to_ideal']:.0f}% of that, "
        f"{loop['ratio_to_emulation']:.2f} of emulation alone)."
    )


def memory_line(memory: dict[str, Any]) -> str:
    """Sizes of the ring, of resident memory and, on CUDA, of GPU memory."""
    filled = f", {100 * memory['ring_filled']:.0f}% filled" if memory["ring_filled"] < 1 else ""
    parts = [f"ring {gib(memory['ring_bytes'])}{filled}"]
    if memory["rss_bytes"] is not None:
        parts.append(f"resident {gib(memory['rss_bytes'])} when training had begun")
    parts.append(f"peak of this benchmark {gib(memory['peak_rss_bytes_of_benchmark'])}")
    if "cuda_peak_bytes" in memory:
        parts.append(f"on the GPU at most {gib(memory['cuda_peak_bytes'])}")
    return "memory: " + ", ".join(parts)


def replay_line(cost: dict[str, Any]) -> str:
    """Milliseconds of prioritized sampling and priority updates."""
    gather = cost["sample_update_ms"]
    whole = "the frames do not fit in memory" if gather is None else f"{gather:.2f} ms with the gather of frames"
    return (
        f"prioritized sampling and update of {cost['sequences']} x {cost['length']} from {cost['frames']:,} frames: "
        f"{cost['draw_update_ms']:.2f} ms, {whole}"
    )


def soak_line(found: dict[str, Any]) -> str:
    """The slope of resident memory."""
    filling = "" if found["replay_was_full"] else " (the replay was still filling)"
    return (
        f"soak: {found['slope_mib_per_minute']:+.2f} MiB/min over the last "
        f"{found['minutes'] - found['warm_up_minutes']:.1f} of {found['minutes']:.1f} minutes, "
        f"{found['first_mib']:,.0f} to {found['last_mib']:,.0f} MiB{filling}"
    )
