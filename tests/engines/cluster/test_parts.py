"""The parts of the Ray engine that need no Ray, and what is said where it is missing."""

import random
import sys
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.runs import quiet, run_config

from casa.config.load import load_config, make_config
from casa.engines.cluster import version
from casa.engines.cluster.crew import DEPTH, merged
from casa.engines.cluster.loop import ClusterLoop
from casa.engines.cluster.worker import RolloutWorker, Share, shares
from casa.errors import UserError
from casa.rollout.scale import ReturnScale
from casa.run.training import train


def test_workers_share_all_environments():
    for total, count in ((16, 4), (7, 3), (5, 5)):
        parts = shares(total, count)
        assert np.concatenate([part.envs for part in parts]).tolist() == list(range(total))
        assert max(part.count for part in parts) - min(part.count for part in parts) <= 1


def test_scales_of_several_workers_are_the_scale_of_all_their_returns():
    rng = np.random.default_rng(0)
    samples = [rng.normal(i, 1 + i, 50) for i in range(3)]
    scales = [ReturnScale(50, 0.0, lambda x: x) for _ in samples]
    never, ever = np.zeros(50, bool), np.ones(50, bool)
    for scale, sample in zip(scales, samples, strict=True):
        scale.update(np.arange(50), sample, never, ever)
    found = merged([ReturnScale(1, 0.0, lambda x: x).state_dict(), *(scale.state_dict() for scale in scales)])
    together = np.concatenate(samples)
    assert found["mean"] == pytest.approx(together.mean())
    assert found["m2"] / found["count"] == pytest.approx(together.var())
    assert merged([scales[1].state_dict()]) == scales[1].state_dict()  # to the bit


class Asked:
    """A worker with calls under way, and what it is asked for."""

    def __init__(self, running):
        self.share, self.calls = Share(0, 0, 3), deque((None, 30, 0.0) for _ in range(running))

    running = property(lambda self: len(self.calls))
    sent = property(lambda self: sum(call[1] for call in self.calls))

    def ask(self, slots):
        self.calls.append((None, slots, 0.0))


def ask_naively(actors, steps, room):
    """One worker after the other: a first call always, a second if all second calls and it have room."""
    left = steps - sum(actor.sent for actor in actors)
    for actor in sorted(actors, key=lambda actor: actor.running):
        slots = min(30, left)
        ahead = sum(sum(call[1] for call in list(each.calls)[1:]) for each in actors)
        if slots > 0 and (not actor.calls or (len(actor.calls) < DEPTH and ahead + slots <= room)):
            actor.ask(slots)
            left -= slots


def test_who_is_asked_for_more():
    rng = random.Random(0)
    for _ in range(300):
        running = [rng.randrange(DEPTH + 1) for _ in range(rng.randrange(1, 6))]
        steps, room = rng.randrange(400), rng.randrange(200)
        fast, slow = ([Asked(count) for count in running] for _ in range(2))
        loop = ClusterLoop.__new__(ClusterLoop)
        config = SimpleNamespace(steps=steps, data=SimpleNamespace(seq_len=10))
        sampler = SimpleNamespace(room=lambda ahead, room=room: ahead <= room)
        loop.system = SimpleNamespace(config=config, steps=0, sampler=sampler)
        loop._ask(SimpleNamespace(actors=fast))
        ask_naively(slow, steps, room)
        assert [actor.calls for actor in fast] == [actor.calls for actor in slow]


def test_a_worker_with_other_code_says_so(tmp_path, monkeypatch):
    config = run_config("casa", tmp_path)
    learner = version.code_version()
    monkeypatch.setattr(version, "code_version", lambda: "casa 0.0.1 (0badc0de), torch 1, Python 3")
    with pytest.raises(UserError, match=r"has casa 0.0.1 .*the learner has casa .*install the same version") as found:
        RolloutWorker().make_envs(config, shares(8, 1)[0], learner, 1)
    assert "\n" not in str(found.value)


def test_without_ray_one_sentence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"engine 'ray' needs Ray; .*casa-rl\[ray\]"):
        train(run_config("casa", tmp_path / "run", engine="ray"), quiet())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cluster.actors": 2}, "cluster.actors 2 needs engine 'ray', got engine 'local'"),
        ({"engine": "ray", "cluster.actors": 9}, "cluster.actors must be <= env.num_envs 8, got 9"),
        ({"engine": "ray", "cluster.learners": 3}, "cluster.learners must divide data.batch 4, got 3; .* 2"),
        ({"engine": "ray", "cluster.learners": 2, "device": "cuda"}, "needs device 'cpu', got 'cuda'"),
        ({"engine": "ray", "checkpoint.exact": True}, "checkpoint.exact needs engine 'local'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path, settings, sentence):
    with pytest.raises(UserError, match=sentence.replace("?", r"\?")):
        run_config("casa", tmp_path, **settings)


def test_short_flags():
    config = load_config(["--engine", "ray", "--actors", "4", "--learners=2", "--address", "10.0.0.1:6379"])
    assert (config.cluster.actors, config.cluster.learners, config.cluster.address) == (4, 2, "10.0.0.1:6379")
    assert make_config({"recipe": "casa"}).engine == "local"
