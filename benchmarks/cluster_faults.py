"""Kill random parts of a run over a Ray cluster, and see that it goes on: python benchmarks/cluster_faults.py.

A cluster of three nodes on this machine (a head without cores, two nodes with two each) trains CartPole with two
rollout workers and two learners. Again and again, at a random moment, one of these dies by SIGKILL: a rollout worker, a
helper of the learner, a node, or the learner's process itself, after which `casa resume` goes on. A fault counts as
survived when rows of metrics come again; the seconds until then include the start of new processes. In the end the run
is stopped by SIGINT: it must save, leave with status 130, and leave no process behind.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from ray.cluster_utils import Cluster

from casa.run import checkpoint
from casa.runtime.machine import machine

PARTS = {"worker": b"ray::RolloutWorker", "learner": b"ray::LearnerHelper"}
KINDS = ("worker", "worker", "learner", "node", "driver")
PATIENCE = 300.0
NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
SETTINGS = {
    "--recipe": "casa",
    "--env": "CartPole-v1",
    "--mode": "async",
    "--device": "cpu",
    "--steps": "100_000_000",
    "--env.num-envs": "8",
    "--engine": "ray",
    "--actors": "2",
    "--learners": "2",
    "--cluster.actor-cpus": "0.5",
    "--log.every-steps": "500",
    "--log.tensorboard": "no",
    "--checkpoint.every-seconds": "5",
}


def pids(part):
    """Processes of a kind of part."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(PARTS[part]):
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def rows(run):
    try:
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    except (OSError, json.JSONDecodeError):  # a row is being written
        return []


def wait(condition, what):
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"hangs: {what} not after {PATIENCE:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - began


def complete():
    return len(pids("worker")) == 2 and len(pids("learner")) == 1


class Campaign:
    def __init__(self, run, log):
        self.run, self.log = run, log
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False},
        )
        self.nodes = [self.cluster.add_node(**NODE) for _ in range(2)]
        flags = [word for pair in SETTINGS.items() for word in pair]
        self.driver = self.start("train", *flags, "--address", self.cluster.address, "--run-dir", str(run))

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "casa.cli", *arguments], stdout=self.log, stderr=self.log, start_new_session=True
        )

    def strike(self, kind, rng):
        """Kill one part; returns what happened besides."""
        if kind in PARTS:
            os.kill(rng.choice(pids(kind)), signal.SIGKILL)
        elif kind == "node":
            lost = rng.randrange(2)
            self.cluster.remove_node(self.nodes[lost], allow_graceful=False)
            self.nodes[lost] = self.cluster.add_node(**NODE)
        else:
            self.driver.kill()
            self.driver.wait()
            gone = wait(lambda: not pids("worker") and not pids("learner"), "workers of a killed driver gone")
            self.driver = self.start("resume", str(self.run))
            return {"workers_gone_after_s": round(gone, 1)}
        return {}

    def end(self):
        """Stop the run; its exit status, and the seconds until no process of it is left."""
        self.driver.send_signal(signal.SIGINT)
        status = self.driver.wait(PATIENCE)
        return status, round(wait(lambda: not pids("worker") and not pids("learner"), "workers gone"), 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("results/cluster_faults.json"))
    args = parser.parse_args()
    rng, faults = random.Random(args.seed), []
    result = {
        "command": f"python benchmarks/cluster_faults.py --faults {args.faults} --seed {args.seed}",
        "machine": machine(torch.device("cpu")),
        "settings": SETTINGS,
        "faults": faults,
    }
    args.dir.mkdir(parents=True)
    with open(args.dir / "log.txt", "w") as log:
        campaign = Campaign(args.dir / "run", log)
        run = campaign.run
        wait(lambda: len(rows(run)) >= 2 and complete(), "a first row")
        for number in range(args.faults):
            time.sleep(rng.uniform(0, 5))
            wait(complete, "all parts alive")
            kind, step = rng.choice(KINDS), rows(run)[-1]["step"]
            extra = campaign.strike(kind, rng)
            newest = len(rows(run))
            seconds = wait(lambda: len(rows(run)) >= newest + 2 and complete(), f"progress after {kind}")  # noqa: B023
            faults.append({"kind": kind, "at_step": step, "recovered_after_s": round(seconds, 1), **extra})
            print(number, faults[-1], flush=True)
            args.output.write_text(json.dumps(result, indent=1) + "\n")
        status, gone = campaign.end()
        campaign.cluster.shutdown()
    steps = [row["step"] for row in rows(run)]
    result |= {
        "exit_status_after_sigint": status,
        "processes_gone_after_s": gone,
        "rows": len(steps),
        "rows_in_order": steps == sorted(set(steps)),
        "last_row": {k: v for k, v in rows(run)[-1].items() if k in ("step", "return", "worker_restarts", "reuse")},
        "last_checkpoint": checkpoint.load(run).step,
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    assert status == 130 and result["rows_in_order"]


if __name__ == "__main__":
    main()
