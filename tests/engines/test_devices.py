"""One code on a CPU and on a GPU: what is static, staged, graphed or rounded gives what the plain code gives.

The cases that need a GPU run where there is one.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.pictures import LENGTH, PictureVec
from tests.support.small import small_config

from casa.engines.build import build_system
from casa.engines.loops import LOOPS
from casa.learn.learner import Learner
from casa.runtime import streams
from casa.runtime.streams import Fence, Graphed, Readback, Staging, on, side_stream
from casa.runtime.threads import prepare

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
FAMILIES = {
    "casa": {"net.lstm": 16, "data.burn_in": 4, "net.backbone": "impala-deep", "data.batch": 16},
    "ppo-casa": {"net.backbone": "impala-shallow", "data.batch": 16},
    "r2d2-casa": {"net.backbone": "impala-shallow", "data.batch": 16},
    "rainbow": {"net.backbone": "impala-shallow", "data.batch": 16},
}


def make(recipe, device, mode="sync", groups=1, **changes):
    prepare(mode, torch.device(device))
    torch.set_num_threads(1)
    settings = {"device": device, "mode": mode, "env.num_envs": 32, "compile": "no", **FAMILIES[recipe], **changes}
    config = small_config(recipe, **settings)
    system = build_system(config, groups, env_factory=lambda _, count, seed: PictureVec(count, seed))
    system.begin()
    return system


def run(system, mode="sync"):
    scores = []
    for progress in LOOPS[mode](system):
        scores += [episode.score for episode in progress.episodes]
    return scores


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", FAMILIES)
def test_the_actor_sees_what_the_environment_shows(recipe, device):
    """The device has had the newest frames only; its stacks are the environment's, across resets."""
    system = make(recipe, device, steps=32 * 25)
    env, actor = system.envs[0], system.actors[0]
    for _ in range(25):
        actor.act()
        actor.absorb()
        assert np.array_equal(actor.writer.observations().cpu().numpy(), env.stack)
        assert np.array_equal(system.ring._cursor.cpu().numpy(), system.ring.written)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", FAMILIES)
def test_bf16_targets_and_losses_are_those_of_fp32(recipe, device):
    """On the same batch: V^ and Q^ within 0.02 + 2%, losses within 0.01 + 5%, entropy within 0.0001 + 1%."""
    system = make(recipe, device, precision="fp32", steps=32 * 40, **{"learner.lr": 3e-3})
    run(system)
    sampler, data = system.sampler, system.config.data
    envs, slots = np.arange(16), np.full(16, (sampler.ring.oldest().max() // data.seq_len + 1) * data.seq_len)
    batch = sampler.ring.gather(envs, slots, data.burn_in + data.seq_len)
    weights = torch.ones(16, device=device)
    found = {}
    for bf16 in (False, True):
        system.learner.bf16 = bf16
        with torch.no_grad():
            found[bf16] = system.learner.compute(batch, weights)
    exact, rounded = found[False], found[True]
    assert not torch.equal(exact.loss, rounded.loss)  # that something was rounded
    for name in ("v", "q"):
        a, b = getattr(exact.estimate, name), getattr(rounded.estimate, name)
        torch.testing.assert_close(b, a, atol=0.02, rtol=0.02)
    for name in ("loss_v", "loss_q", "loss_pi"):
        torch.testing.assert_close(rounded.scalars[name], exact.scalars[name], atol=0.01, rtol=0.05)
    torch.testing.assert_close(rounded.scalars["entropy"], exact.scalars["entropy"], atol=1e-4, rtol=0.01)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_both_precisions_learn_the_pictures(mode, precision, device):
    """Both come within 10% of the best score, in the same number of steps; chance is half of it."""
    if device == "cpu" and precision == "bf16":
        pytest.skip("emulated bf16 takes minutes on a CPU without it")
    changes = {"precision": precision, "steps": 32 * 400, "learner.lr": 3e-3}
    system = make("ppo-casa", device, mode, 2 if mode == "async" else 1, **changes)
    scores = run(system, mode)
    assert np.mean(scores[:100]) < 0.7 * LENGTH
    assert np.mean(scores[-200:]) > 0.9 * LENGTH


class Recorder:
    """An environment, and what each of its games was sent and showed, in order."""

    def __init__(self, env):
        self.env, count = env, env.spec.num_envs
        self.shown, self.sent = [[] for _ in range(count)], [[] for _ in range(count)]

    def __getattr__(self, name):
        return getattr(self.env, name)

    def reset(self, seed):
        obs = self.env.reset(seed)
        self.show(obs, np.zeros(len(obs)), np.zeros(len(obs), bool))
        return obs

    def send(self, actions):
        for i, action in zip(self.env.ids, actions, strict=True):
            self.sent[i].append(action)
        self.env.send(actions)

    def recv(self):
        step = self.env.recv()
        self.show(step.obs, step.rewards, step.terminated)
        return step

    def show(self, obs, rewards, terminated):
        for i, *facts in zip(self.env.ids, obs.copy(), rewards, terminated, strict=True):
            self.shown[i].append(facts)


@pytest.mark.parametrize("device", DEVICES)
def test_what_ready_games_showed_is_what_is_learned_from(device):
    """Real games in batches of the first that are ready, acting and learning at once: the ring has each one's life."""
    prepare("async", torch.device(device))
    torch.set_num_threads(1)
    changes = {"env": "Breakout", "env.num_envs": 6, "env.group_size": 2, "env.threads": 2, "env.noop_max": 0}
    changes |= {"data.batch": 3, "data.seq_len": 20, "data.burn_in": 5, "net.lstm": 8, "data.reuse": 1}
    changes |= {"net.backbone": "impala-shallow", "net.hidden": 16, "device": device, "steps": 6 * 500}
    system = build_system(small_config("casa", **changes), 2)
    actor = system.actors[0]
    actor.env = recorder = Recorder(actor.env)
    system.begin()
    run(system, "async")
    ring = system.ring
    assert sum(facts[2] for life in recorder.shown for facts in life) > 0  # games ended
    for i, (shown, sent) in enumerate(zip(recorder.shown, recorder.sent, strict=True)):
        last, first = int(ring.written[i]), int(ring.oldest()[i])
        assert len(shown) == last + 1 and len(sent) == last
        obs, rewards, terminated = (np.stack(facts[first : last + 1]) for facts in zip(*shown, strict=True))
        batch = ring.gather(np.array([i]), np.array([first]), last - first)
        assert np.array_equal(batch.obs[:, 0].cpu(), obs)
        assert np.array_equal(batch.actions[:, 0].cpu(), sent[first:])
        assert np.array_equal(batch.rewards[:, 0].cpu(), rewards[1:])
        assert np.array_equal(batch.terminated[:, 0].cpu(), terminated[1:])
    system.close()


@needs_gpu
@pytest.mark.parametrize(("recipe", "compiled"), [*((recipe, False) for recipe in FAMILIES), ("casa", True)])
def test_a_graph_of_the_learners_step_is_the_step(recipe, compiled, monkeypatch):
    """Eight steps on the same batches, of which five are replayed, against eight plain ones: the same weights.

    Without TF32: its ten bits of mantissa, summed in another order by a compiled network, are 0.03 apart by then.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    system = make(recipe, "cuda", precision="fp32", steps=32 * 40)
    run(system)
    data = system.config.data
    first = (system.ring.oldest().max() // data.seq_len + 1) * data.seq_len
    batches = [system.ring.gather(np.arange(16) + i, np.full(16, first), data.burn_in + data.seq_len) for i in range(8)]
    weights = torch.rand(16, device="cuda")
    plain, graphed = (copy.deepcopy(system.network) for _ in range(2))
    results = []
    for network, as_graph in ((plain, False), (graphed, True)):
        config = replace(system.config, compile="yes" if compiled and as_graph else "no")
        learner = Learner(network, config)
        if not as_graph:
            learner._train = learner._train_now
        results.append([learner.step(batch, weights, 0.1) for batch in batches])
        assert (getattr(learner._train, "_graph", None) is not None) == as_graph
    for a, b in zip(*results, strict=True):
        assert a.applied and b.applied
        np.testing.assert_allclose(a.priorities, b.priorities, rtol=1e-3, atol=1e-5)
        assert a.scalars == pytest.approx(b.scalars, rel=1e-2, abs=1e-5)
    for start, p, q in zip(system.network.parameters(), plain.parameters(), graphed.parameters(), strict=True):
        if compiled:  # Adam divides what is small by what is small: a few weights go another way
            assert (p - q).norm() <= 0.01 * (p - start).norm()
        else:
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)


def test_the_first_calls_of_a_graph_exclude_captures():
    """They may compile, which waits for the device; on a CPU nothing waits for anything."""
    held = []
    for kind in ("cuda", "cpu"):
        Graphed(lambda: held.append(streams._CAPTURE.locked()), torch.device(kind))()
    assert held == [True, False]


@needs_gpu
def test_a_bad_step_in_a_graph_changes_nothing():
    system = make("casa", "cuda", steps=32 * 40)
    run(system)
    learner, data = system.learner, system.config.data
    assert learner._train._graph is not None
    first = (system.ring.oldest().max() // data.seq_len + 1) * data.seq_len
    batch = system.ring.gather(np.arange(16), np.full(16, first), data.burn_in + data.seq_len)
    weights, before = torch.ones(16, device="cuda"), [p.detach().clone() for p in system.network.parameters()]
    bad = tuple((batch.valid[data.burn_in :].nonzero()[0] + torch.tensor([data.burn_in, 0], device="cuda")).tolist())
    batch.rewards[bad] = float("nan")
    assert not learner.step(batch, weights, 0.1).applied
    assert all(torch.equal(a, b) for a, b in zip(before, system.network.parameters(), strict=True))
    batch.rewards[bad] = 0.0
    assert learner.step(batch, weights, 0.1).applied
    assert not all(torch.equal(a, b) for a, b in zip(before, system.network.parameters(), strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_staging_readback_fences_and_graphs(device):
    device = torch.device(device)
    stage = Staging(device, {"a": ((3, 5), torch.uint8), "b": ((3,), torch.float32), "c": ((1,), torch.int32)})
    total = torch.zeros(3, device=device)

    def add():
        total.add_(stage.device["b"] + stage.device["a"].sum(1) + stage.device["c"])
        return total

    graphed, read, fence = Graphed(add, device), Readback(device), Fence(device)
    expected = np.zeros(3)
    for i in range(6):
        stage.host["a"][:], stage.host["b"][:], stage.host["c"][:] = i, [i, 0.5, -1], 7
        stage.upload()
        fence.wait()
        result = read(graphed())
        fence.mark()
        expected += np.array([i, 0.5, -1]) + 5 * i + 7
        assert np.array_equal(result, expected)
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert fence.passed()


@needs_gpu
def test_a_graph_keeps_the_priority_of_the_stream_it_is_made_in():
    """Kernels are launched later with the priority that they were recorded with."""
    device, priorities = torch.device("cuda"), []
    x = torch.zeros(4, device=device)

    def work():
        priorities.append(torch.cuda.current_stream().priority)
        return x.add_(1)

    for stream, expected in ((side_stream(device), -1), (None, 0)):
        graphed = Graphed(work, device)
        priorities.clear()
        with on(stream):
            for _ in range(6):
                graphed()
        assert graphed._graph is not None and priorities == [expected] * 4


def test_a_run_goes_on_with_another_kind_of_device():
    """The random numbers of the other cannot be continued: new ones, that do not repeat the first."""
    system = make("ppo-casa", "cpu", steps=32 * 40)
    groups, meta = system.state(with_replay=False)
    fresh = system.generator.get_state().clone()
    groups["actor"]["random"] = torch.zeros(16, dtype=torch.uint8)  # the shape of CUDA's
    groups["actor"]["acting"] = {name: x.bfloat16() for name, x in groups["actor"]["acting"].items()}
    system.load_state(groups, {**meta, "boundaries": 3})
    assert not torch.equal(system.generator.get_state(), fresh)
