"""AdamW with its two schedules, warm-up and clip; steps that are not finite; the exchange of weights."""

import copy
import math

import numpy as np
import pytest
import torch
from tests.support.learner_cases import make_learner, random_batch, same, weights_of
from tests.support.small import DISCRETE, play, probe_system, small_config
from torch import nn

from casa.engines.loops import LOOPS
from casa.learn.learner import Diverged
from casa.learn.optimizer import Optimizer, rate


class TestSchedules:
    def test_rate(self):
        """Linear up over the warm-up, linear to 0 over the run, and both at once."""
        assert rate(0, 0.0, 1.0, 4) == 0.25
        assert [rate(k, 0.0, 2.0, 4) for k in (1, 3, 4, 100)] == [1.0, 2.0, 2.0, 2.0]
        assert rate(100, 0.25, 2.0, 4) == 1.5
        assert rate(1, 0.5, 2.0, 4) == 0.5
        assert rate(100, 1.0, 2.0, 4) == rate(100, 1.01, 2.0, 4) == 0.0
        assert rate(0, 0.0, 3.0, 0) == 3.0

    def optimizer(self, **changes):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        return layer, Optimizer(layer, small_config("casa", **changes).learner)

    def grads(self, layer, size):
        return [torch.full_like(p, size) for p in layer.parameters()]

    @pytest.mark.parametrize("progress", [0.0, 0.5, 0.9, 1.0])
    def test_weights_decay_by_both_schedules_and_biases_do_not(self, progress):
        layer, optimizer = self.optimizer(**{"learner.lr": 0.5, "learner.weight_decay": 0.2, "learner.warmup": 10})
        weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
        optimizer.schedule(4, progress)
        optimizer.apply(torch.zeros(()), self.grads(layer, 0.0))
        lr, decay = 0.5 * 0.5 * (1 - progress), 0.2 * (1 - progress)
        torch.testing.assert_close(layer.weight.detach(), weight * (1 - lr * decay))
        assert torch.equal(layer.bias.detach(), bias)

    def test_step_is_adam_with_the_papers_constants(self):
        changes = {"learner.lr": 0.1, "learner.warmup": 0, "learner.clip_norm": 1e9}
        layer, optimizer = self.optimizer(**changes)
        assert optimizer.config.betas == (0.9, 0.98) and optimizer.config.adam_eps == 1e-6
        value, m, v = layer.bias.detach().double().clone(), 0.0, 0.0
        for k, g in enumerate((0.3, -0.2, 0.5)):
            optimizer.schedule(k, 0.0)
            optimizer.apply(torch.zeros(()), self.grads(layer, g))
            m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
            value -= 0.1 * (m / (1 - 0.9 ** (k + 1))) / (math.sqrt(v / (1 - 0.98 ** (k + 1))) + 1e-6)
        torch.testing.assert_close(layer.bias.detach().double(), value, rtol=1e-5, atol=1e-6)

    def test_norm_is_clipped(self):
        layer, optimizer = self.optimizer(**{"learner.clip_norm": 2.0})
        optimizer.schedule(0, 0.0)
        norm, applied = optimizer.apply(torch.zeros(()), self.grads(layer, 7.0))
        assert applied and float(norm) == pytest.approx(7 * math.sqrt(8))
        moments = torch.cat([moments.first.flatten() for moments in optimizer.moments])
        assert float(moments.norm()) == pytest.approx(0.1 * 2.0, rel=1e-4)

    def test_gradients_in_another_order_of_memory_meet_their_own_weights(self):
        torch.manual_seed(0)
        layer = nn.Conv2d(3, 4, 2, bias=False).to(memory_format=torch.channels_last)
        optimizer = Optimizer(layer, small_config("casa", **{"learner.lr": 0.1, "learner.warmup": 0}).learner)
        before, grad = layer.weight.detach().clone(), torch.randn(4, 3, 2, 2)
        assert grad.stride() != layer.weight.stride()
        optimizer.schedule(0, 0.0)
        optimizer.apply(torch.zeros(()), [grad])
        moved = layer.weight.detach() - before  # Adam's first step is η against the sign of the gradient
        torch.testing.assert_close(moved, -0.1 * grad.sign(), atol=1e-3, rtol=1e-3)

    @pytest.mark.parametrize("decay", [0.0, 0.1])
    def test_it_is_torchs_adamw_to_the_bit_and_so_is_what_it_saves(self, decay):
        """A channels-last convolution, a step that is not finite, and a parameter without a gradient."""
        torch.manual_seed(0)
        convolution = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        model = nn.Sequential(convolution, nn.Linear(4, 2), nn.Linear(2, 2))
        twin = copy.deepcopy(model)
        changes = {"learner.lr": 0.1, "learner.warmup": 3, "learner.clip_norm": 1.0, "learner.weight_decay": decay}
        config = small_config("casa", **changes).learner
        optimizer = Optimizer(model, config)
        weights = [p for p in twin.parameters() if p.dim() > 1]
        groups = [{"params": weights}, {"params": [p for p in twin.parameters() if p.dim() <= 1]}]
        other = torch.optim.AdamW(groups, lr=torch.zeros(()), betas=config.betas, eps=config.adam_eps, fused=True)
        for k in range(6):
            grads = [10**-k * torch.randn(p.shape) for p in model.parameters()]
            grads[2] = grads[3] = None
            optimizer.schedule(k, k / 10)
            bad = k == 3
            optimizer.apply(torch.tensor(math.nan if bad else 1.0), [None if g is None else g.clone() for g in grads])
            if bad:
                continue
            for p, grad in zip(twin.parameters(), grads, strict=True):
                p.grad = None if grad is None else torch.empty_like(p).copy_(grad)
            nn.utils.clip_grad_norm_(twin.parameters(), config.clip_norm)
            with torch.no_grad():
                for p in (p for p in weights if p.grad is not None):
                    p.mul_(1 - optimizer.lr * optimizer.decay)
            for group in other.param_groups:
                group["lr"], group["weight_decay"] = optimizer.lr.clone(), 0.0
            other.step()
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
        mine, theirs = optimizer.state_dict()["state"], other.state_dict()["state"]
        assert theirs.keys() < mine.keys()
        for i, saved in theirs.items():
            assert saved.keys() == mine[i].keys() and all(torch.equal(saved[name], mine[i][name]) for name in saved)
        again = Optimizer(copy.deepcopy(model), config)
        again.load_state_dict({"state": theirs})
        for before, after in zip(optimizer.moments, again.moments, strict=True):
            assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(before, after, strict=True))

    def test_moments_of_another_network_are_refused(self):
        _, optimizer = self.optimizer()
        saved = optimizer.state_dict()["state"]
        with pytest.raises(KeyError, match="of which there are 2"):
            optimizer.load_state_dict({"state": {**saved, 2: saved[0]}})

    def test_a_gradient_of_another_shape_is_refused(self):
        """The fused kernel would read beyond its end."""
        layer, optimizer = self.optimizer()
        with pytest.raises(ValueError, match=r"shape \(1, 3\) for a parameter of shape \(2, 3\)"):
            optimizer.apply(torch.zeros(()), [layer.weight.detach()[:1], layer.bias.detach()])


class TestTargetNetwork:
    def test_copied_exactly_every_period(self):
        learner = make_learner("r2d2", **{"learner.target_period": 3, "data.seq_len": 6})
        copied = weights_of(learner.network)
        for k in range(1, 10):
            learner.step(random_batch(6, 4, seed=k), torch.ones(4), 0.0)
            if k % 3 == 0:
                copied = weights_of(learner.network)
            assert same(copied, learner.target)
            assert same(copied, learner.network) == (k % 3 == 0)

    def test_only_where_targets_need_one(self):
        with_target = {name for name in DISCRETE if make_learner(name).target is not None}
        assert with_target == {"r2d2", "r2d2-v1", "r2d2-casa", "rainbow"}


class TestBadSteps:
    def bad(self, seed=0, value=float("nan")):
        batch = random_batch(4, 4, seed=seed, ends=0)
        batch.rewards[1, 2] = value
        return batch

    def moments(self, learner):
        return [moments.first.clone() for moments in learner.optimizer.moments]

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
    @pytest.mark.parametrize("recipe", ["ppo", "r2d2", "casa"])
    def test_skipped_and_counted_and_nothing_moves(self, recipe, value):
        learner = make_learner(recipe, **{"agent.value_rescale": False, "learner.weight_decay": 0.1})
        learner.step(random_batch(4, 4), torch.ones(4), 0.0)
        weights, moments = weights_of(learner.network), self.moments(learner)
        result = learner.step(self.bad(value=value), torch.ones(4), 0.0)
        assert not result.applied
        assert (learner.steps, learner.skipped, learner.bad_in_a_row) == (2, 1, 1)
        assert same(weights, learner.network)
        assert all(torch.equal(a, b) for a, b in zip(moments, self.moments(learner), strict=True))
        assert learner.step(random_batch(4, 4), torch.ones(4), 0.0).applied
        assert (learner.steps, learner.skipped, learner.bad_in_a_row) == (3, 1, 0)
        assert not same(weights, learner.network)

    def test_a_loss_that_is_not_finite_is_enough(self):
        """Squares overflow before gradients do: such a step is not applied either."""
        learner = make_learner("ppo", **{"learner.clip_norm": 1e30})
        with torch.no_grad():  # V so far off that its error's square is infinite, behind a weight of 1e-12
            for p in learner.network.outputs["value"].parameters():
                p.zero_()
            learner.network.outputs["value"].linear2.bias.fill_(1e21)
        weights = weights_of(learner.network)
        batch = random_batch(4, 4, ends=0)
        result = learner.step(batch, torch.full((4,), 1e-12), 0.0)
        assert not math.isfinite(result.scalars["loss_v"])
        assert not result.applied
        assert same(weights, learner.network)

    def test_ten_in_a_row_stop_the_run(self):
        learner = make_learner("casa", **{"learner.max_bad_steps": 3})
        for _ in range(2):
            learner.step(self.bad(), torch.ones(4), 0.0)
        learner.step(random_batch(4, 4), torch.ones(4), 0.0)  # one good step, and the count begins anew
        for _ in range(2):
            learner.step(self.bad(), torch.ones(4), 0.0)
        with pytest.raises(Diverged, match=r"not finite in 3 learner steps in a row.*learner\.lr.*reward"):
            learner.step(self.bad(), torch.ones(4), 0.0)
        assert learner.skipped == 5
        assert small_config("casa").learner.max_bad_steps == 10

    def test_errors_of_a_skipped_step_are_no_priorities(self):
        system = probe_system("r2d2", **{"env.num_envs": 24, "data.batch": 24, "steps": 24 * 40})
        for _ in LOOPS["sync"](system):
            pass
        sample = system.sampler.next()
        before = system.sampler.tree.get(np.arange(system.sampler.tree.capacity)).copy()
        sample.batch.rewards[0, 0] = float("nan")
        assert system.learn(sample) == {}
        assert (system.sampler.tree.get(np.arange(len(before))) == before).all()


@pytest.mark.parametrize("recipe", ["casa", "r2d2"])
def test_weights_are_published_and_pulled_on_time(recipe):
    """Version v acts from the first multiple of pull_every agent steps of an environment, on average over all, at
    which v, a multiple of publish_every, is out.
    """
    publish, pull, envs = 3, 5, 12
    system = probe_system(
        recipe,
        **{
            **{"env.num_envs": envs, "data.batch": 7, "data.seq_len": 2, "data.min_fill": 30},
            **{"learner.publish_every": publish, "learner.pull_every": pull, "steps": envs * 60},
            "data.replay_frames": envs * 200,
        },
    )
    acting, pulls, expected, lags = 0, 0, [], []
    for progress in LOOPS["sync"](system):
        expected.append(acting)
        lags += [float(update["policy_lag"]) for update in progress.updates]
        if system.steps // envs // pull > pulls:
            acting, pulls = system.learner.steps // publish * publish, system.steps // envs // pull
    assert acting > 20 and pulls == 60 // pull
    capacity, ticks = system.ring.shape.capacity, len(expected)  # in some of which an environment only resets
    last = min(ticks, capacity)
    written = [system.ring.versions[t % capacity].unique().tolist() for t in range(ticks - last, ticks)]
    assert written == [[version] for version in expected[-last:]]
    published = weights_of(system.network) if system.learner.steps % publish == 0 else None
    assert published is None or same(published, system.actor_network) == (acting == system.learner.steps)
    # A batch is at least as old as what has not been pulled yet.
    assert min(lags[10:]) >= 1
    assert lags == sorted(lags) or max(lags) < system.learner.steps


def test_actors_have_the_published_weights_not_newer_ones():
    system = probe_system("casa", **{"learner.publish_every": 4, "learner.pull_every": 1, "steps": 96 * 30})
    history, ticks, version = {0: weights_of(system.network)}, 0, 0
    for _ in LOOPS["sync"](system):
        history[system.learner.steps] = weights_of(system.network)
        if system.ticks > ticks:
            ticks, version = system.ticks, system.learner.steps // 4 * 4
        assert version == system.actors[0].version
        if version in history:
            assert same(history[version], system.actor_network)
    assert system.learner.steps > 8


def test_progress_drives_the_schedules():
    """The last learner step of a run has a rate near 0, but not 0, the first one the warm-up's."""
    system = probe_system("casa", steps=96 * 40, **{"learner.warmup": 4, "learner.lr": 0.01})
    planned = 96 * 40 * 2 / (96 * 4)  # learner steps
    rates = []
    for progress in LOOPS["sync"](system):
        if progress.updates:
            assert len(progress.updates) == 2
            rates.append((system.steps, float(system.learner.optimizer.lr)))
    first = rates[0]
    assert first[1] == pytest.approx(0.01 * 2 / 4 * (1 - first[0] / (96 * 40)))
    for steps, rate_then in rates[2:]:
        assert rate_then == pytest.approx(0.01 * max(1 - steps / (96 * 40), 1 / (planned + 1)))
    assert rates[-1][0] >= 96 * 37


def test_the_scores_of_a_run_are_those_of_its_environments():
    """`play` sees each episode once, with its raw return."""
    system = probe_system("ppo", ("constant", "truncation"), steps=96 * 30)
    scores = play(system)
    assert set(scores["constant"]) == {1.0} and set(scores["truncation"]) == {5.0}
    # One tick and one more to reset, five and one more.
    ticks = int(system.ring.written[0])
    assert len(scores["constant"]) == 48 * ((ticks + 1) // 2) and len(scores["truncation"]) == 48 * ((ticks + 1) // 6)
    assert system.steps == 48 * ((ticks + 1) // 2) + 48 * (ticks - ticks // 6) >= 96 * 30
