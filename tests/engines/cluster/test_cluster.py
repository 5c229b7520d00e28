"""Runs over Ray with real processes: equal to the local engine to the bit, and they survive what is killed."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.runs import again, differences, is_due, quiet, rows, run, run_config, said, saved_steps

import casa
from casa.engines.cluster.session import import_ray
from casa.run.evaluate import evaluate
from casa.run.training import train

CASES = {
    "ppo-casa with scaled rewards": ("ppo-casa", {"agent.reward_scale": "return"}),
    "r2d2-casa with LSTM and burn-in": ("r2d2-casa", {"net.lstm": 8, "data.burn_in": 3, "steps": 400}),
    "laser": ("laser", {"agent.trust_region": 0.01}),
    "casa with a Gaussian": ("casa", {"env": "Pendulum-v1", "agent.head": "casa-gaussian"}),
    "rainbow": ("rainbow", {"steps": 400}),
}
ray = import_ray()
RAY = {"engine": "ray", "cluster.actor_cpus": 0.5}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    size = {"num_cpus": 4, "object_store_memory": 200 * 2**20}
    ray.init("local", **size, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("case", CASES)
def test_one_worker_in_step_equals_the_local_engine_to_the_bit(case, tmp_path):
    recipe, settings = CASES[case]
    local, remote = tmp_path / "local", tmp_path / "ray"
    run(recipe, local, **settings)
    run(recipe, remote, **settings, **RAY)
    assert rows(remote)[-1]["learner_steps"] > 20
    assert rows(remote)[-1]["worker_restarts"] == 0
    # The learner's process has no random actions of its own, and its log has the workers' columns.
    assert set(differences(local, remote)) <= {"/actor/random", "logs"}
    assert rows(local, "episodes.jsonl") == rows(remote, "episodes.jsonl")


def test_mixed_replay_of_two_workers_and_two_learners(tmp_path):
    """Policies travel with the slots: nearly all are inside a wide trust region."""
    settings = {"mode": "async", "cluster.actors": 2, "cluster.learners": 2, "data.batch": 8, "data.reuse": 4}
    path = run("laser", tmp_path / "run", steps=1600, **settings, **RAY, **{"agent.trust_region": 2.0})
    last = rows(path)[-1]
    assert is_due(last["step"], 1600, envs=16) and last["worker_restarts"] == 0
    assert last["reuse"] == pytest.approx(4, rel=0.1) and last["replay_fill"] > 0.5
    assert last["trusted"] > 0.9


def test_a_directory_is_evaluated_and_resumed_as_any_other(tmp_path):
    path = run("casa", tmp_path / "run", steps=160, **RAY)
    assert len(evaluate(casa.load(path), episodes=2, modes=("greedy",))["modes"]["greedy"]["returns"]) == 2
    assert "resumed at" in again(path, steps=320, lr=1e-3)
    assert is_due(saved_steps(path)[-1], 320)


def workers():
    """Workers and helpers of the node that this process has started."""

    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes()
            if command.startswith((b"ray::RolloutWorker", b"ray::LearnerHelper")):
                found += [command] if parent(parent(path.name)) == os.getpid() else []
    return found


class Killer(casa.Callback):
    """Slows the learner, and watches its backlog; kills a worker at the 1st report, a learner at the 2nd."""

    def __init__(self):
        self.backlog, self.killed, self.alive = 0.0, [], 0

    def on_update(self, training, scalars):
        system, data = training.system, training.config.data
        trained = system.sampler.served * data.seq_len / data.reuse
        self.backlog = max(self.backlog, system.ring.written.sum() - trained)
        if len(self.killed) == 0:
            time.sleep(0.01)

    def on_report(self, training, row):
        self.alive = max(self.alive, len(workers()))
        victims = [training.system.actors[1].handle, training.system.learner._helpers[0]]
        if len(self.killed) < 2:
            pid = ray.get(victims[len(self.killed)].__ray_call__.remote(lambda self: os.getpid()))
            os.kill(pid, signal.SIGKILL)
            self.killed.append(pid)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """(run directory, its callback, what it said) of a run with 2 workers and 2 learners, of each of which one dies."""
    path, killer, console = tmp_path_factory.mktemp("killed") / "run", Killer(), quiet()
    settings = {"mode": "async", "cluster.actors": 2, "cluster.learners": 2, "log.every_steps": 400, "data.batch": 8}
    config = run_config("casa", path, steps=4000, **{**settings, **RAY, "checkpoint.every_steps": 1000})
    train(config, console, [killer])
    return path, killer, said(console)


def test_a_run_survives_its_workers_and_learners(killed):
    path, killer, text = killed
    last = rows(path)[-1]
    assert len(killer.killed) == 2
    assert "worker 1 was lost and is started again" in text and "a learner was lost" in text
    # On a busy machine Ray may lose sight of another one: every loss is said, and counted.
    assert last["worker_restarts"] == text.count("was lost and is started again"), text
    assert last["learner_restarts"] == text.count("a learner was lost"), text
    assert 4000 <= last["step"] <= 4000 + 16
    assert last["reuse"] <= 2 and last["learner_steps"] >= 4000 * 2 / (8 * 5) * 0.95  # no data was left out
    assert last["slowest_worker"] in (0, 1) and last["slowest_worker_speed"] > 0
    assert all(row["policy_lag"] >= 0 for row in rows(path))


def test_the_backlog_is_bounded(killed):
    """As locally: a sequence of each environment, two batches; and the sequences that the workers are playing."""
    _, killer, _ = killed
    local = (8 + 8) * 5 + 8 * 5 / 2
    assert local / 2 < killer.backlog <= local + 8 * 5 + 2 * 8


def test_no_process_is_left(killed):
    _, killer, _ = killed
    assert killer.alive >= 3
    deadline = time.monotonic() + 20
    while workers() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert workers() == []


def test_an_environment_that_fails_names_its_worker(tmp_path):
    config = run_config("casa", tmp_path / "run", **RAY, **{"env.kwargs": "{nonsense: 1}"})
    with pytest.raises(casa.UserError, match=r"worker 0: .*nonsense"):
        train(config, quiet())
