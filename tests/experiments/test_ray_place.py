"""Runs on the nodes of a Ray cluster, two of them on this machine: spread, resumed elsewhere, stopped, refused."""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.runs import saved_steps

from casa.cli import main
from casa.engines.cluster.session import import_ray
from casa.errors import UserError
from casa.experiments import ray_place
from casa.experiments.child import LOST
from casa.experiments.places import Where, open_place
from casa.experiments.scheduler import LOSSES, Scheduler
from casa.experiments.state import last_row
from casa.experiments.studies import choose, plan

ray = import_ray()
SIZE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
SETTINGS = {"env.num_envs": 8, "env.vectorization": "sync", "net.hidden": 16, "log.tensorboard": "no", "device": "cpu"}
SETTINGS |= {"checkpoint.every_steps": 500, "log.every_steps": 500}


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={**SIZE, "include_dashboard": False})
    ray.init(found.address, log_to_driver=False, logging_level="ERROR")
    yield found
    ray.shutdown()
    found.shutdown()


def two_runs(directory, steps):
    versions = "ppo-casa,ppo-type1"
    study = choose("ablation", envs="CartPole-v1", steps=steps, seeds=1, recipes=versions, settings=SETTINGS)
    return plan(study, directory)


def processes(directory):
    """Those that have the directory on their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [path.parent.name] if str(directory).encode() in path.read_bytes() else []
    return found


def node_of(job):
    return ray.get(job._handle.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))


def the_only_node():
    """The node that is left, once the killed one is known to be dead."""
    deadline = time.monotonic() + 60
    while len(nodes := ray_place._alive()) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    (node,) = nodes
    return node


def test_runs_are_spread_and_go_on_elsewhere_when_their_node_is_lost(cluster, tmp_path):
    second = cluster.add_node(**SIZE)
    runs = two_runs(tmp_path, 8_000)
    nodes, removed = {}, {}
    with open_place(Where(engine="ray"), tmp_path, runs, lambda text: None) as place:
        assert place.slots == 2
        scheduler = Scheduler(runs, place)

        def show(progress):
            if not nodes and len(scheduler._jobs) == 2:
                nodes.update({node_of(job): run for run, job, _ in scheduler._jobs.values()})
            elif not removed and last_row(nodes[second.node_id].path).get("step", 0) > 800:
                removed.update(last_row(nodes[second.node_id].path))
                cluster.remove_node(second, allow_graceful=False)

        progress = scheduler.go(show)
    assert len(nodes) == 2 and 800 < removed["step"] < 8_000
    assert len(progress.finished) == 2 and not progress.failed
    for node, run in nodes.items():
        resumed = "resumed at" in (run.path / "output.log").read_text()
        assert resumed == (node == second.node_id)
        steps = [json.loads(line)["step"] for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        assert steps[-1] >= 8_000 and steps == sorted(set(steps))
    assert not list(tmp_path.glob(".cluster-*"))


def test_a_node_that_is_lost_before_it_is_looked_at_is_passed_over(cluster, tmp_path):
    (tmp_path / "token").touch()
    here = the_only_node()
    ray_place._check([{**here, "NodeID": ray.NodeID.from_random().hex()}, here], tmp_path / "token")
    with pytest.raises(UserError, match="it does not see"):
        ray_place._check([here], tmp_path / "another")


def test_ctrl_c_saves_and_leaves_nothing_behind(cluster, tmp_path):
    the_only_node()
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps({"recipes": ["ppo-casa"], "envs": ["CartPole-v1"], "steps": 10**6, "seeds": 2}))
    code = "import sys, casa.cli, casa.experiments.estimate as estimate; estimate.PROBE_LIMIT = 0.0; "
    code += "sys.exit(casa.cli.main(sys.argv[1:]))"
    flags = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    directory = tmp_path / "out"
    where = ["--engine", "ray", "--address", cluster.address, "--dir", str(directory)]
    command = [sys.executable, "-c", code, "experiment", str(file), *where, *flags]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    first, second = (directory / "runs" / "ppo-casa" / "CartPole-v1" / f"seed-{seed}" for seed in (0, 1))
    deadline = time.monotonic() + 120
    while not last_row(first) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command continues" in out, out
    assert "1 at a time" in out and not (second / "metrics.jsonl").exists()
    assert saved_steps(first)[-1] == last_row(first)["step"] > 0
    assert not processes(directory)


def test_a_directory_that_a_node_does_not_see_is_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "touch", lambda self: None)  # what is written here is not there for the node
    runs = two_runs(tmp_path, 400)
    with (
        pytest.raises(UserError, match=r"node [\d.]+: it does not see .*: --dir must be on storage that all"),
        open_place(Where(engine="ray"), tmp_path, runs, lambda text: None),
    ):
        pass


def test_a_run_that_fits_nowhere_is_refused(cluster, tmp_path):
    runs = two_runs(tmp_path, 400)
    with (
        pytest.raises(UserError, match="a run needs 2 CPUs and 0 GPUs, which no node of the cluster has"),
        open_place(Where(engine="ray", run_cpus=2.0), tmp_path, runs, lambda text: None),
    ):
        pass


@pytest.mark.parametrize(
    ("where", "gpu", "needs", "fits"),
    [
        (Where(), True, {"CPU": 8, "GPU": 1}, 3),  # a GPU and its part of the cores; the node of 4 cores has none
        (Where(run_gpus=0.25), True, {"CPU": 2, "GPU": 0.25}, 12),
        (Where(run_cpus=4.0, run_gpus=0.5), True, {"CPU": 4, "GPU": 0.5}, 6),
        (Where(), False, {"CPU": 1, "GPU": 0}, 36),
    ],
)
def test_how_many_runs_fit(where, gpu, needs, fits):
    nodes = [{"CPU": 16.0, "GPU": 2.0}, {"CPU": 16.0, "GPU": 1.0}, {"CPU": 4.0}]
    found = ray_place._needs(where, nodes, gpu)
    assert found == needs and sum(ray_place._fits(node, found) for node in nodes) == fits


def test_a_run_that_is_lost_at_the_same_step_again_and_again_has_failed(tmp_path):
    class Lost:
        slots = 2
        started = 0

        def start(self, args, log):
            self.started += 1
            return self

        def poll(self):
            return LOST

    place = Lost()
    progress = Scheduler(two_runs(tmp_path, 400)[:1], place).go(lambda progress: None)
    assert place.started == LOSSES and next(iter(progress.failed.values())).startswith("its machine was lost")


def test_flags_of_a_cluster_need_the_engine(tmp_path, capsys):
    assert main(["suite", "CartPole-v1", "--address", "here:1", "--dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("--address needs --engine ray, got --engine local\n")
