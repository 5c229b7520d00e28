"""One learner step against its definition: burn-in, gradients, schedules, target network, priorities, bad steps."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from small import one_thread, play, probe_system, small_config  # noqa: F401
from torch import nn

from casa.heads import HEADS
from casa.nn import Network
from casa.recipes import RECIPES
from casa.rollout.ring import Batch
from casa.targets.n_step_q import h, h_inverse
from casa.train.learner import Diverged, Learner
from casa.train.loops import LOOPS
from casa.train.objective import Facts, objective
from casa.train.optimizer import Optimizer, rate

OBS, ACTIONS = 3, 4


def random_batch(length, size, state_size=0, seed=0, ends=0.2):
    """Sequences of the canonical stream: an end is followed by its final observation, and that by a start."""
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((2, length, size), bool)
    starts = np.zeros((length + 1, size), bool)
    for b in range(size):
        for t in range(length):
            if not starts[t, b] and t and (terminated[t - 1, b] or truncated[t - 1, b]):
                starts[t + 1, b] = True  # slot t holds a final observation
            elif rng.random() < ends:
                (terminated if rng.random() < 0.5 else truncated)[t, b] = True
    valid = ~starts[1:]

    def normal(*shape):
        return torch.as_tensor(rng.normal(size=shape), dtype=torch.float32)

    actions = torch.as_tensor(rng.integers(ACTIONS, size=(length, size)))
    return Batch(
        obs=normal(length + 1, size, OBS),
        starts=torch.as_tensor(starts),
        actions=actions,
        log_mu=-normal(length, size).abs() - 0.5,
        rewards=normal(length, size) * torch.as_tensor(valid),
        terminated=torch.as_tensor(terminated),
        truncated=torch.as_tensor(truncated),
        valid=torch.as_tensor(valid),
        versions=torch.zeros(length, size, dtype=torch.int32),
        state=normal(size, state_size),
    )


def make_learner(recipe, seed=0, lstm=0, **changes):
    config = small_config(recipe, **{"net.lstm": lstm, "net.hidden": 16, **changes})
    torch.manual_seed(seed)
    agent = config.agent
    network = Network((OBS,), ACTIONS, backbone="mlp", lstm=lstm, head=agent.head, tau=agent.tau, hidden=16)
    return Learner(network, config)


def weights_of(module):
    return [p.detach().clone() for p in module.parameters()]


def same(before, module):
    return all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


class TestBurnIn:
    BURN, LENGTH = 3, 7

    def learner(self, recipe):
        return make_learner(recipe, lstm=8, **{"data.burn_in": self.BURN, "data.seq_len": self.LENGTH - self.BURN})

    @pytest.mark.parametrize("recipe", ["casa", "r2d2", "impala"])
    def test_carries_no_gradient(self, recipe):
        learner, batch = self.learner(recipe), random_batch(self.LENGTH, 5, 16, ends=0)
        obs, state = batch.obs.requires_grad_(), batch.state.requires_grad_()
        learner.compute(batch._replace(obs=obs, state=state), torch.ones(5)).loss.backward()
        assert state.grad is None or not state.grad.any()
        assert not obs.grad[: self.BURN].any()
        # The last observation only bootstraps.
        assert obs.grad[self.BURN : -1].flatten(1).any(1).all()
        assert not obs.grad[-1].any()

    def test_is_the_same_function_as_a_whole_unroll(self):
        learner, batch = self.learner("casa"), random_batch(self.LENGTH, 5, 16, seed=1)
        out, _ = learner.outputs(batch)
        whole, _ = learner.network(batch.obs, batch.state, batch.starts)
        assert out.v.shape == (self.LENGTH - self.BURN + 1, 5)
        torch.testing.assert_close(out.v, whole.v[self.BURN :])
        torch.testing.assert_close(out.log_pi, whole.log_pi[self.BURN :])

    def test_starts_from_the_stored_state_and_resets_inside(self):
        learner, batch = self.learner("casa"), random_batch(self.LENGTH, 2, 16, ends=0)
        batch.starts[2, 1] = True  # the second sequence starts anew within the burn-in
        base = learner.outputs(batch)[0].v
        other_state = learner.outputs(batch._replace(state=batch.state + 1))[0].v
        assert (other_state[:, 0] != base[:, 0]).all()
        assert torch.equal(other_state[:, 1], base[:, 1])
        obs = batch.obs.clone()
        obs[0] += 1  # before the reset
        before = learner.outputs(batch._replace(obs=obs))[0].v
        assert (before[:, 0] != base[:, 0]).all()
        assert torch.equal(before[:, 1], base[:, 1])
        obs = batch.obs.clone()
        obs[2] += 1  # at the reset
        assert (learner.outputs(batch._replace(obs=obs))[0].v != base).all()

    def test_without_lstm_it_is_skipped(self):
        learner = make_learner("casa", **{"data.burn_in": 3, "data.seq_len": 4})
        batch = random_batch(7, 5)
        out, _ = learner.outputs(batch)
        torch.testing.assert_close(out.v, learner.network(batch.obs[3:])[0].v)

    @pytest.mark.parametrize(("recipe", "burn_in"), [("casa", 8), ("r2d2", 4)])
    def test_ring_stores_the_state_at_the_first_observation(self, recipe, burn_in):
        """Unrolled from the stored state with the acting weights, the learner sees log μ as the actor did."""
        system = probe_system(
            recipe,
            **{
                **dict.fromkeys(("env.num_envs", "data.batch"), 24),
                "net.lstm": 8,
                "data.burn_in": burn_in,
                "steps": 24 * 40,
                "learner.pull_every": 10_000,  # one policy acts all the time
                "data.min_fill": 24,
                "agent.behaviour": "sample",
            },
        )
        seen = 0
        for _ in LOOPS["sync"](system):
            batch = system.ring.gather(np.arange(24), np.full(24, max(system.ticks - 20, 0) // 4 * 4), burn_in + 4)
            if system.ticks < burn_in + 24:
                continue
            out, _ = system.actor_network(batch.obs, batch.state, batch.starts)
            log_pi = out.log_pi[:-1].gather(-1, batch.actions[..., None]).squeeze(-1)
            torch.testing.assert_close(log_pi, batch.log_mu, atol=1e-5, rtol=1e-5)
            wrong, _ = system.actor_network(batch.obs, batch.state * 0, batch.starts)
            seen += bool((wrong.log_pi[0] - out.log_pi[0]).abs().max() > 1e-4)
        assert seen


def slow_gradient(head, tau, raw, actions, weight):
    """∂/∂outputs of Σ w_V V + w_Q Q(a) + w_π log π(a), by the paper's formulas, in NumPy: output -> [..., n]."""
    w_v, w_q, w_pi = weight
    taken = np.eye(ACTIONS)[actions]
    logits = raw["logits"] if "logits" in raw else raw["advantage"]
    scale = 1.0 if "logits" in raw else tau
    exp = np.exp((logits - logits.max(-1, keepdims=True)) / scale)
    pi = exp / exp.sum(-1, keepdims=True)
    score = w_pi[..., None] * (taken - pi) / scale
    mean = (pi * logits).sum(-1, keepdims=True)
    through_q = {
        "casa": taken - pi,
        "type1": taken - pi - pi * (logits - mean) / tau,
        "type2": taken - pi,
        "type3": taken,
        "type4": taken,
        "dueling": taken,
    }
    if head == "actor-critic":
        return {"logits": score, "value": w_v[..., None]}
    if head == "q-critic":
        return {"logits": score, "q": w_v[..., None] * pi + w_q[..., None] * taken}
    if head == "type5":
        return {"advantage": score, "value": w_v[..., None], "q": w_q[..., None] * taken}
    value = w_v + (w_q if head in ("type2", "type4", "dueling") else 0)
    return {"advantage": score + w_q[..., None] * through_q[head], "value": value[..., None]}


@pytest.mark.parametrize("recipe", RECIPES)
def test_gradient_is_the_papers(recipe):
    """-∇loss = E[α₁ (V^ - V) ∇V + α₂ (Q^ - Q) ∇Q + α₃ τ ρ Â ∇ log π] for outputs that are linear in features."""
    row = RECIPES[recipe]
    batch = random_batch(6, 5, seed=2)
    torch.manual_seed(1)
    features = batch.obs.double()
    sizes = {name: 1 if name == "value" else ACTIONS for name in HEADS[row.head].outputs}
    linear = {name: nn.Linear(OBS, size, bias=False).double() for name, size in sizes.items()}
    raw = {name: layer(features) for name, layer in linear.items()}
    out = HEADS[row.head]({k: v.squeeze(-1) if k == "value" else v for k, v in raw.items()}, row.tau)
    target_q = None if out.q is None else torch.randn_like(out.q)
    sequence_weights = torch.rand(5, dtype=torch.float64)
    facts = Facts(*(getattr(batch, name) for name in Facts._fields[:-1]), sequence_weights)
    agent = small_config(recipe, **{"agent.entropy_cost": 0}).agent
    result = objective(out, target_q, facts, agent)
    result.loss.backward()

    def numpy(x):
        return x.detach().double().numpy()

    actions = batch.actions.numpy()
    valid = batch.valid.numpy()
    now = {name: numpy(x)[:-1] for name, x in raw.items()}
    pick = (*np.indices(actions.shape), actions)
    v, log_pi = numpy(out.v)[:-1], numpy(out.log_pi)[:-1][pick]
    q_hat, v_hat = numpy(result.estimate.q), numpy(result.estimate.v)
    q = np.zeros_like(v) if out.q is None else numpy(out.q)[:-1][pick]
    ratio = np.exp(log_pi - numpy(batch.log_mu))
    psi = numpy(result.estimate.advantage)
    if row.targets == "vtrace+retrace":  # Ψ comes from V-Trace: r + γ V^' - V
        following = np.concatenate([v_hat[1:], numpy(out.v)[-1:]])
        following = np.where((batch.terminated | batch.truncated).numpy(), numpy(out.v)[1:], following)
        discounts = agent.discount * (~batch.terminated).double().numpy()
        np.testing.assert_allclose(psi[valid], (numpy(batch.rewards) + discounts * following - v)[valid], rtol=1e-5)
    else:
        np.testing.assert_allclose(psi[valid], (q_hat - v)[valid], rtol=1e-5, atol=1e-6)
    if row.policy_loss == "clip":
        # The gradient of min(r Â, clip(r) Â) is Â r ∇log π where the clip does not bind, else 0.
        strength = np.where(np.where(psi > 0, ratio < 1.2, ratio > 0.8), ratio, 0.0)
    elif row.targets == "n-step-q":
        strength = np.ones_like(v)
    else:
        strength = np.minimum(ratio, row.rho_bar)
    tau = row.tau if HEADS[row.head].tempered else 1.0
    common = numpy(sequence_weights) * valid / valid.sum()
    a1, a2, a3 = row.weights
    weight = (a1 * common * (v_hat - v), a2 * common * (q_hat - q), a3 * tau * common * strength * psi)
    for name, expected in slow_gradient(row.head, row.tau, now, actions, weight).items():
        gradient = np.einsum("tbn,tbd->nd", expected, numpy(features)[:-1])
        np.testing.assert_allclose(-numpy(linear[name].weight.grad), gradient, rtol=1e-4, atol=1e-6, err_msg=name)


def test_priorities_by_hand():
    """η max|δ| + (1 - η) mean|δ| of δ = h(n-step double Q) - Q, written as loops over one sequence after another."""
    learner = make_learner("r2d2", **{"data.burn_in": 2, "data.seq_len": 8, "data.eta": 0.7})
    batch = random_batch(10, 6, seed=4, ends=0.25)
    with torch.no_grad():
        for p in learner.target.parameters():
            p.add_(0.05 * torch.randn_like(p))
        q = learner.network(batch.obs)[0].q
        q_target = learner.target(batch.obs)[0].q
    got = learner.step(batch, torch.ones(6), 0.0).priorities
    n, gamma = learner.agent.n_step, learner.agent.discount
    expected = []
    for b in range(6):
        errors = []
        for t in range(2, 10):
            if not batch.valid[t, b]:
                continue
            total, k = 0.0, t
            for i in range(n):
                k = t + i
                total += gamma**i * float(batch.rewards[k, b])
                if batch.terminated[k, b] or batch.truncated[k, b] or k == 9:
                    break
            if not batch.terminated[k, b]:
                best = int(q[k + 1, b].argmax())
                total += gamma ** (k + 1 - t) * float(h_inverse(q_target[k + 1, b, best]))
            errors.append(abs(float(h(torch.tensor(total)) - q[t, b, batch.actions[t, b]])))
        expected.append(0.7 * max(errors) + 0.3 * sum(errors) / len(errors))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


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

    def give(self, layer, size):
        for p in layer.parameters():
            p.grad = torch.full_like(p, size)

    @pytest.mark.parametrize("progress", [0.0, 0.5, 0.9, 1.0])
    def test_weights_decay_by_both_schedules_and_biases_do_not(self, progress):
        layer, optimizer = self.optimizer(**{"learner.lr": 0.5, "learner.weight_decay": 0.2, "learner.warmup": 10})
        weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
        self.give(layer, 0.0)
        optimizer.schedule(4, progress)
        optimizer.apply(torch.zeros(()))
        lr, decay = 0.5 * 0.5 * (1 - progress), 0.2 * (1 - progress)
        torch.testing.assert_close(layer.weight.detach(), weight * (1 - lr * decay))
        assert torch.equal(layer.bias.detach(), bias)

    def test_step_is_adam_with_the_papers_constants(self):
        changes = {"learner.lr": 0.1, "learner.warmup": 0, "learner.clip_norm": 1e9}
        layer, optimizer = self.optimizer(**changes)
        assert optimizer.config.betas == (0.9, 0.98) and optimizer.config.adam_eps == 1e-6
        value, m, v = layer.bias.detach().double().clone(), 0.0, 0.0
        for k, g in enumerate((0.3, -0.2, 0.5)):
            self.give(layer, g)
            optimizer.schedule(k, 0.0)
            optimizer.apply(torch.zeros(()))
            m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
            value -= 0.1 * (m / (1 - 0.9 ** (k + 1))) / (math.sqrt(v / (1 - 0.98 ** (k + 1))) + 1e-6)
        torch.testing.assert_close(layer.bias.detach().double(), value, rtol=1e-5, atol=1e-6)

    def test_norm_is_clipped(self):
        layer, optimizer = self.optimizer(**{"learner.clip_norm": 2.0})
        self.give(layer, 7.0)
        optimizer.schedule(0, 0.0)
        norm, applied = optimizer.apply(torch.zeros(()))
        assert applied and float(norm) == pytest.approx(7 * math.sqrt(8))
        moments = torch.cat([optimizer.adam.state[p]["exp_avg"].flatten() for p in layer.parameters()])
        assert float(moments.norm()) == pytest.approx(0.1 * 2.0, rel=1e-4)


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
        with_target = {name for name in RECIPES if make_learner(name).target is not None}
        assert with_target == {"r2d2", "r2d2-v1", "r2d2-casa"}


class TestBadSteps:
    def bad(self, seed=0, value=float("nan")):
        batch = random_batch(4, 4, seed=seed, ends=0)
        batch.rewards[1, 2] = value
        return batch

    def moments(self, learner):
        state = learner.optimizer.adam.state
        return [state[p]["exp_avg"].clone() for p in learner.network.parameters()]

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
    """Version v acts from the first multiple of pull_every ticks at which v, a multiple of publish_every, is out."""
    publish, pull, ticks, envs = 3, 5, 60, 12
    system = probe_system(
        recipe,
        **{
            **{"env.num_envs": envs, "data.batch": 7, "data.seq_len": 2, "data.min_fill": 30},
            **{"learner.publish_every": publish, "learner.pull_every": pull, "steps": envs * ticks},
            "data.replay_frames": envs * 200,
        },
    )
    acting, expected, lags = 0, [], []
    for progress in LOOPS["sync"](system):
        expected.append(acting)
        lags += [float(update["policy_lag"]) for update in progress.updates]
        if system.ticks % pull == 0:
            acting = system.learner.steps // publish * publish
    assert acting > 20
    capacity = system.ring.shape.capacity
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
    history = {0: weights_of(system.network)}
    for _ in LOOPS["sync"](system):
        history[system.learner.steps] = weights_of(system.network)
        version = system.actors[0].version
        assert version == system.learner.steps // 4 * 4
        if version in history:
            assert same(history[version], system.actor_network)
    assert system.learner.steps > 8


def test_progress_drives_the_schedules():
    """The last learner step of a run has a rate near 0, the first one the warm-up's."""
    system = probe_system("casa", steps=96 * 40, **{"learner.warmup": 4, "learner.lr": 0.01})
    rates = []
    for progress in LOOPS["sync"](system):
        if progress.updates:
            assert len(progress.updates) == 2
            rates.append((system.steps, float(system.learner.optimizer.lr)))
    first = rates[0]
    assert first[1] == pytest.approx(0.01 * 2 / 4 * (1 - first[0] / (96 * 40)))
    assert rates[-1][1] == pytest.approx(0.01 * (1 - rates[-1][0] / (96 * 40)))
    assert rates[-1][0] >= 96 * 37


def test_the_scores_of_a_run_are_those_of_its_environments():
    """`play` sees each episode once, with its raw return."""
    scores = play(probe_system("ppo", ("constant", "truncation"), steps=96 * 30))
    assert set(scores["constant"]) == {1.0} and set(scores["truncation"]) == {5.0}
    assert len(scores["constant"]) == 48 * 15 and len(scores["truncation"]) == 48 * 5


def test_angles_are_logged_as_often_as_asked():
    """On every second learner step; the CASA head's χ is 1 by construction."""
    system = probe_system("casa", steps=96 * 12, **{"log.angles_every": 2})
    updates = [update for progress in LOOPS["sync"](system) for update in progress.updates]
    assert len(updates) >= 4
    for i, update in enumerate(updates):
        assert ("chi" in update) == (i % 2 == 0)
    for update in updates[::2]:
        assert update["chi"] == pytest.approx(1, abs=1e-4) and -1 <= update["cos_beta"] <= 1 + 1e-6


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("recipe", RECIPES)
def test_shares_of_a_batch_add_up_to_its_gradient(recipe, workers):
    """Whatever the number of threads, and however many steps of each share are valid."""
    learner = make_learner(recipe, lstm=8, **{"data.burn_in": 2, "data.seq_len": 5})
    batch, weights = random_batch(7, 5, 16, seed=3, ends=0.5), torch.rand(5)
    assert len(set(batch.valid[2:].sum(0).tolist())) > 1
    whole = learner.differentiate(batch, weights)
    learner.workers = workers
    learner._pool = ThreadPoolExecutor(workers)
    parts = learner.differentiate(batch, weights)
    torch.testing.assert_close(parts.loss, whole.loss)
    torch.testing.assert_close(parts.td_errors, whole.td_errors)
    torch.testing.assert_close(parts.scalars, whole.scalars)
    assert any(g is not None and g.any() for g in whole.grads)
    for a, b in zip(parts.grads, whole.grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
