"""Our loop, timed as a rival is: run by benchmarks/peers.py in a process of its own.

    python benchmarks/rivals/ours.py --seconds 20 --recipe ppo --net.backbone nature --data.reuse 4

Every flag of `casa train` is taken. The last line of the output is JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from casa.cli import let_idle_threads_sleep
from casa.config.arguments import parse_known


@dataclass(frozen=True)
class Args:
    seconds: float = 20.0
    warm_up: float = 3.0


def main() -> None:
    args, rest = parse_known(Args, sys.argv[1:], prog="ours.py")
    let_idle_threads_sleep()  # as `casa train` does, before torch is loaded
    import torch

    from casa.bench.stages import EndToEnd
    from casa.config.load import load_config
    from casa.engines.resolve import pick_mode
    from casa.envs import make_env

    config = load_config(rest)
    mode = pick_mode(config)
    loop = EndToEnd(config, mode, make_env)
    try:
        loop.warm_up(args.warm_up)
        before = loop.system.steps
        rate = loop.measure(args.seconds)
        found = {
            "steps_per_second": rate,
            "steps": loop.system.steps - before,
            "envs": config.env.num_envs,
            "mode": mode,
            "precision": loop.system.config.precision,
            "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for p in loop.system.network.parameters()),
            "reuse": loop.row["reuse"],
            "bottleneck": loop.row["bottleneck"],
        }
    finally:
        loop.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
