"""Threads by mode, memory that is kept between learner steps, and what a machine can compile."""

import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch

from casa.config.fields import CheckpointConfig
from casa.config.load import make_config
from casa.engines.resolve import pick_compile, pick_mode
from casa.errors import UserError
from casa.runtime import threads

FAULTS = """
import resource, sys, torch
from casa.runtime.threads import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def work():
    a = torch.ones(12_000_000)
    b = a + 1
for _ in range(3):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_is_kept():
    faults = {}
    for choice in ("keep", "default"):
        run = subprocess.run([sys.executable, "-c", FAULTS, choice], check=True, capture_output=True, text=True)
        faults[choice] = int(run.stdout)
    assert faults["default"] > 100  # blocks of 48 MB go back to the system every time
    assert faults["keep"] < faults["default"] / 5


def test_threads_are_shared_where_acting_and_learning_overlap(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(threads, "THREADS", 8)
    assert [threads.torch_threads(*case) for case in (("sync", cpu), ("async", cpu), ("async", cuda))] == [4, 2, 1]
    monkeypatch.setattr(threads, "THREADS", 1)
    assert threads.torch_threads("async", cpu) == 1
    before = torch.get_num_threads()
    try:
        monkeypatch.setattr(threads, "THREADS", 2)
        threads.prepare("async", cpu)
        assert torch.get_num_threads() == 1
        assert threads.torch_threads("sync", cpu) == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="niceness is a thread's on Linux alone")
def test_what_is_made_with_low_priority_yields_and_its_maker_does_not():
    def make():
        inherited: list[int] = []
        child = threading.Thread(target=lambda: inherited.append(os.getpriority(os.PRIO_PROCESS, 0)))
        child.start()
        child.join()
        return inherited[0]

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert threads.with_low_priority(make) == min(before + 5, 19)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
    with pytest.raises(ZeroDivisionError):
        threads.with_low_priority(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("recipe", "device", "expected"), [("ppo", "cpu", "sync"), ("casa", "cpu", "async"), ("r2d2", "cpu", "async")]
)
def test_on_policy_data_is_fresh_by_default(recipe, device, expected):
    config = make_config({"recipe": recipe, "env": "CartPole-v1", "device": device})
    assert pick_mode(config) == expected
    assert pick_mode(replace(config, mode="async")) == "async"
    assert pick_mode(replace(config, checkpoint=CheckpointConfig(exact=True, every_steps=9))) == "sync"


def test_on_policy_data_is_fast_by_default_on_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert pick_mode(make_config({"recipe": "ppo", "env": "CartPole-v1", "device": "cuda"})) == "async"


def test_a_machine_that_cannot_compile_is_told_in_a_sentence(monkeypatch):
    settings = {"recipe": "casa", "env": "CartPole-v1", "device": "cpu", "compile": "yes", "net.backbone": "mlp"}
    config = make_config(settings)
    cpu = torch.device("cpu")

    def fails(f):
        def call(*args):
            raise RuntimeError("\nno compiler found\nand much more")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(UserError, match="compile 'yes' does not work on this machine, use 'auto' or 'no': no compiler"):
        pick_compile(config, cpu, True, "vector")
    monkeypatch.setattr(torch, "compile", lambda f: f)
    assert pick_compile(config, cpu, True, "vector")


def test_small_networks_are_compiled_for_long_runs_on_a_cpu(monkeypatch):
    """ppo-casa makes 10 / 256 learner steps an agent step here, so 512,000 agent steps are 20,000 of them."""
    monkeypatch.setattr("casa.engines.resolve.can_compile_steps", lambda: True)
    config = make_config({"recipe": "ppo-casa", "env": "Pendulum-v1", "preset": "continuous", "steps": 512_000})
    cpu = torch.device("cpu")
    assert config.data.reuse / (config.data.batch * config.data.seq_len) == 10 / 256
    assert pick_compile(config, cpu, False, "vector")
    assert not pick_compile(replace(config, steps=511_999), cpu, False, "vector")
    assert not pick_compile(config, cpu, False, "image")
    assert not pick_compile(replace(config, net=replace(config.net, lstm=8)), cpu, False, "vector")
    assert not pick_compile(replace(config, engine="ray"), cpu, False, "vector")
    assert not pick_compile(replace(config, compile="no"), cpu, False, "vector")
    monkeypatch.setattr("casa.engines.resolve.can_compile_steps", lambda: False)
    assert not pick_compile(config, cpu, False, "vector")
