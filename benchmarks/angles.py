"""What one call of `gradient_angles` costs: against a training step on the same batch, and against vmap(grad).

    python benchmarks/angles.py            # prints a table and writes results/angles.json

Time: medians over alternating repeats in one process, of the calls that no other process disturbed ("quiet"; of all
calls where fewer than 5 were). Memory: how far the peak resident size rises above a warm process, each method in a
fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.func import functional_call, grad, vmap

from casa.diagnostics import gradient_angles
from casa.losses import policy_loss, q_loss, taken, value_loss
from casa.nn import Network

ACTIONS = 18
QUIET = 0.3  # cores used by others; the system counts in hundredths of a second, a call takes a few of them


class Bench:
    """One network, one batch of N states, and the methods to compare."""

    def __init__(self, states: int, backbone: str, head: str = "casa") -> None:
        torch.manual_seed(0)
        self.net = Network((4, 84, 84), ACTIONS, backbone=backbone, head=head, tau=0.1)
        self.adam = torch.optim.AdamW(self.net.parameters(), lr=1e-9, fused=True)
        self.obs = torch.randint(256, (states, 4, 84, 84), dtype=torch.uint8)
        self.actions = torch.randint(ACTIONS, (states,))
        self.q_target, self.v_target = torch.randn(2, states)

    def methods(self) -> dict[str, Callable[[], object]]:
        return {
            "training step": self.step,
            "gradient_angles": self.angles,
            "vmap(grad), 32 states at a time": lambda: self.vmap_angles(32),
            "vmap(grad)": lambda: self.vmap_angles(len(self.obs)),
        }

    def step(self) -> None:
        out = self.net(self.obs.unsqueeze(0))[0].map(lambda x: x.squeeze(0))
        loss = 0.5 * value_loss(out.v, self.v_target).value
        loss = loss + q_loss(taken(out.q, self.actions), self.q_target).value
        loss = loss + policy_loss(taken(out.log_pi, self.actions), self.q_target - out.v, tau=0.1).value
        loss.backward()
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    def angles(self) -> tuple[float, ...]:
        def forward() -> object:
            return self.net(self.obs.unsqueeze(0))[0].map(lambda x: x.squeeze(0))

        return gradient_angles(self.net, forward, self.actions, self.q_target, self.v_target)

    def vmap_angles(self, chunk: int) -> tuple[float, ...]:
        """The same four numbers from per-state gradients that are held in full."""
        parameters = {name: p.detach() for name, p in self.net.named_parameters()}

        def output(p: dict[str, Tensor], obs: Tensor, action: Tensor, index: int) -> tuple[Tensor, Tensor]:
            out = functional_call(self.net, p, (obs[None, None],))[0].map(lambda x: x[0, 0])
            chosen = (taken(out.q, action), taken(out.log_pi, action), out.v)
            return chosen[index], torch.stack([x.detach() for x in chosen])

        def per_state(obs: Tensor, action: Tensor) -> tuple[list[Tensor], Tensor]:
            found = [grad(output, has_aux=True)(parameters, obs, action, i) for i in range(3)]
            return [torch.cat([g.flatten() for g in gradient.values()]) for gradient, _ in found], found[0][1]

        cosines, sums = 0.0, torch.zeros(3, sum(p.numel() for p in parameters.values()))
        for start in range(0, len(self.obs), chunk):
            here = slice(start, start + chunk)
            (g_q, g_pi, g_v), chosen = vmap(per_state)(self.obs[here], self.actions[here])
            q, _, v = chosen.unbind(1)
            norms = g_q.norm(dim=1).clamp_min(1e-8) * g_pi.norm(dim=1).clamp_min(1e-8)
            cosines += float((torch.einsum("np,np->n", g_q, g_pi) / norms).sum())
            errors = (self.q_target[here] - q, self.q_target[here] - v, self.v_target[here] - v)
            for row, error, gradient in zip(sums, errors, (g_q, g_pi, g_v), strict=True):
                row += error @ gradient
        unit = sums / sums.norm(dim=1, keepdim=True).clamp_min(1e-8)
        cos = unit @ unit.T
        return (cosines / len(self.obs), float(cos[0, 1]), float(cos[1, 2]), float(cos[0, 2]))


@dataclass
class Timing:
    """Seconds of each call, and how many cores other processes used meanwhile."""

    seconds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def quiet(self) -> list[float]:
        """Seconds of the calls that had the machine to themselves."""
        return [s for s, cores in zip(self.seconds, self.others, strict=True) if cores < QUIET]

    def median(self) -> float:
        return statistics.median(self.quiet() if len(self.quiet()) >= 5 else self.seconds)


def used_by_others(work: Callable[[], object]) -> tuple[float, float]:
    """(seconds that `work` took, cores that other processes used during that time)."""

    def ticks() -> float:
        return sum(int(x) for x in Path("/proc/stat").read_text().split()[1:4]) / os.sysconf("SC_CLK_TCK")

    start, own, busy = time.perf_counter(), time.process_time(), ticks()
    work()
    wall = time.perf_counter() - start
    return wall, max(0.0, ticks() - busy - (time.process_time() - own)) / wall


def timings(bench: Bench, repeats: int, patience: float) -> dict[str, Timing]:
    """Time the methods in turns. On a busy machine, wait for a quiet moment, up to `patience` seconds in all."""
    found = {name: Timing() for name in bench.methods()}
    for repeat in range(repeats + 1):  # the first round warms up
        for name, method in bench.methods().items():
            if name.startswith("vmap") and repeat > 3:
                continue  # slow, and no figure hangs on its third digit
            while patience > 0 and used_by_others(lambda: time.sleep(0.3))[1] > 0.1:
                patience -= 0.3
            seconds, others = used_by_others(method)
            if repeat:
                found[name].seconds.append(seconds)
                found[name].others.append(others)
    return found


def _memory(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def rise(name: str, options: argparse.Namespace) -> float:
    """MiB by which the peak resident size rises in one call, after one training step on a few states."""
    bench = Bench(options.states, options.backbone)
    small = Bench(2, options.backbone)
    small.methods()[name]()  # loads the libraries' code and scratch memory
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    bench.methods()[name]()
    return _memory("VmHWM") - before


def in_fresh_process(name: str, options: argparse.Namespace) -> float:
    command = [sys.executable, __file__, "--memory", name]
    for key in ("states", "backbone", "threads"):
        command += [f"--{key}", str(getattr(options, key))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=320)
    parser.add_argument("--backbone", default="impala-shallow")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/angles.json"))
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory:
        print(rise(options.memory, options))
        return

    # On a head whose χ is not 1, both ways must give the same numbers.
    check = Bench(8, options.backbone, head="type1")
    difference = max(abs(a - b) for a, b in zip(check.angles(), check.vmap_angles(8), strict=True))
    if difference > 1e-4:
        raise SystemExit(f"gradient_angles and vmap(grad) differ by {difference}")

    bench = Bench(options.states, options.backbone)
    found = timings(bench, options.repeats, options.patience)
    median = {name: timing.median() for name, timing in found.items()}
    memory = {name: in_fresh_process(name, options) for name in found}

    table = Table(title=f"{options.states} states, {options.backbone}, {options.threads} threads, {processor()}")
    for column in ("method", "ms", "training steps", "MiB", "quiet calls"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, value in median.items():
        ratio = value / median["training step"]
        calls = f"{len(found[name].quiet())} of {len(found[name].seconds)}"
        table.add_row(name, f"{1e3 * value:.1f}", f"{ratio:.2f}", f"{memory[name]:.0f}", calls)
    Console().print(table)

    record = {
        "states": options.states,
        "backbone": options.backbone,
        "parameters": sum(p.numel() for p in bench.net.parameters()),
        "threads": options.threads,
        "processor": processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "largest_difference_to_vmap": difference,
        "angles_in_training_steps": median["gradient_angles"] / median["training step"],
        "methods": {
            name: {
                "median_s": median[name],
                "training_steps": median[name] / median["training step"],
                "peak_rise_mib": memory[name],
                "calls": len(timing.seconds),
                "quiet_calls": len(timing.quiet()),
                "seconds": [round(x, 5) for x in timing.seconds],
                "cores_used_by_others": [round(x, 2) for x in timing.others],
            }
            for name, timing in found.items()
        },
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
