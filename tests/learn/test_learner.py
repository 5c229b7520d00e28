"""One learner step against its definition: gradients, priorities, angles, shares of several threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.support.learner_cases import ACTIONS, OBS, make_learner, random_batch
from tests.support.small import ATOMS, DISCRETE, probe_system, small_config
from torch import nn

from casa.config.recipes import RECIPES
from casa.engines.loops import LOOPS
from casa.heads import HEADS
from casa.learn.diagnostics import noise_scales
from casa.learn.learner import Learner
from casa.learn.objective import TrainedSteps, advantage_unit, explained_variance, objective
from casa.nn import Network
from casa.targets.n_step_q import h, h_inverse


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


@pytest.mark.parametrize("recipe", [name for name in DISCRETE if RECIPES[name]["agent.head"] not in ATOMS])
def test_gradient_is_the_papers(recipe):
    """-∇loss = E[α₁ (V^ - V) ∇V + α₂ (Q^ - Q) ∇Q + α₃ τ ρ Â ∇ log π] for outputs that are linear in features."""
    row = RECIPES[recipe]
    batch = random_batch(6, 5, seed=2)
    torch.manual_seed(1)
    features = batch.obs.double()
    head, chosen_tau = row["agent.head"], row["agent.tau"]
    sizes = {name: 1 if name == "value" else ACTIONS for name in HEADS[head].outputs}
    linear = {name: nn.Linear(OBS, size, bias=False).double() for name, size in sizes.items()}
    raw = {name: layer(features) for name, layer in linear.items()}
    out = HEADS[head]({k: v.squeeze(-1) if k == "value" else v for k, v in raw.items()}, chosen_tau)
    target = None if out.q is None else replace(out.detach(), q=torch.randn_like(out.q))
    sequence_weights = torch.rand(5, dtype=torch.float64)
    facts = {name: x for name, x in batch._asdict().items() if name in TrainedSteps._fields}
    trained = TrainedSteps(**facts, weights=sequence_weights)
    agent = small_config(recipe, **{"agent.entropy_cost": 0}).agent
    result = objective(out, target, trained, agent)
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
    if row["agent.targets"] == "vtrace+retrace":  # Ψ comes from V-Trace: r + γ V^' - V
        following = np.concatenate([v_hat[1:], numpy(out.v)[-1:]])
        following = np.where((batch.terminated | batch.truncated).numpy(), numpy(out.v)[1:], following)
        discounts = agent.discount * (~batch.terminated).double().numpy()
        np.testing.assert_allclose(psi[valid], (numpy(batch.rewards) + discounts * following - v)[valid], rtol=1e-5)
        # Where an episode ends, ReTrace is its first term: r + γ E_π[Q(s', ·)].
        expected = (np.exp(numpy(out.log_pi)) * numpy(out.q)).sum(-1)[1:]
        ended = (batch.terminated | batch.truncated).numpy() & valid
        np.testing.assert_allclose(q_hat[ended], (numpy(batch.rewards) + discounts * expected)[ended], rtol=1e-5)
    else:
        np.testing.assert_allclose(psi[valid], (q_hat - v)[valid], rtol=1e-5, atol=1e-6)
    if row["agent.policy_loss"] == "clip":
        # The gradient of min(r Â, clip(r) Â) is Â r ∇log π where the clip does not bind, else 0.
        strength = np.where(np.where(psi > 0, ratio < 1.2, ratio > 0.8), ratio, 0.0)
    elif row["agent.targets"] == "n-step-q":
        strength = np.minimum(ratio, 1.0)
        pi, all_q = np.exp(numpy(out.log_pi)[:-1]), numpy(out.q)[:-1]
        np.testing.assert_allclose(v_hat[valid], ((pi * all_q).sum(-1) + q_hat - q)[valid], rtol=1e-5, atol=1e-6)
    else:
        strength = np.minimum(ratio, row["agent.rho_bar"])
    tau = chosen_tau if HEADS[head].tempered else 1.0
    common = numpy(sequence_weights) * valid / valid.sum()
    if agent.trust_region:
        all_pi = numpy(out.log_pi)[:-1]
        divergence = (np.exp(all_pi) * (all_pi - numpy(batch.policy))).sum(-1)
        assert 0 < (divergence < agent.trust_region).sum() < divergence.size
        common = common * (divergence < agent.trust_region)
    a1, a2, a3 = row["agent.weights"]
    weight = (a1 * common * (v_hat - v), a2 * common * (q_hat - q), a3 * tau * common * strength * psi)
    for name, expected in slow_gradient(head, chosen_tau, now, actions, weight).items():
        gradient = np.einsum("tbn,tbd->nd", expected, numpy(features)[:-1])
        np.testing.assert_allclose(-numpy(linear[name].weight.grad), gradient, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("unit", ["tau", "return"])
@pytest.mark.parametrize("recipe", ["casa", "ppo-casa", "ppo"])
def test_normalised_advantages_divide_the_q_loss_and_the_policy_objective(recipe, unit):
    """L_Q / uσ and J / uσ with σ² = E[Ψ²] over the valid steps: the same gradient as with smaller weights."""
    batch = random_batch(6, 5, seed=3)
    learner = make_learner(recipe, **{"agent.advantage_norm": True, "agent.advantage_unit": unit, "agent.tau": 0.3})
    trained = learner.trained_steps(batch, torch.ones(5))
    found = objective(*learner.outputs(batch), trained, learner.agent)
    assert found.estimate.advantage[~trained.valid].abs().min() > 0  # these must not count
    psi = found.estimate.advantage[trained.valid]
    sigma = psi.square().mean().sqrt() * (0.3 if unit == "tau" and recipe != "ppo" else 1.0)
    w_v, w_q, w_pi = learner.agent.weights
    agent = replace(learner.agent, advantage_norm=False, weights=(w_v, float(w_q / sigma), float(w_pi / sigma)))
    expected = objective(*learner.outputs(batch), trained, agent)
    parameters = learner.optimizer.parameters
    pair = [torch.autograd.grad(x.loss, parameters, allow_unused=True) for x in (found, expected)]
    for mine, other in zip(*pair, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_centred_advantages_have_mean_zero_in_the_policy_objective_alone():
    batch = random_batch(6, 5, seed=3)
    learner = make_learner("ppo", **{"agent.policy_loss": "score", "agent.weights": (0.0, 0.0, 1.0)})
    trained = learner.trained_steps(batch, torch.ones(5))
    out, target = learner.outputs(batch)
    found = objective(out, target, trained, replace(learner.agent, advantage_centre=True))
    psi, log_pi = found.estimate.advantage, out.map(lambda x: x[:-1]).log_prob(trained.actions)
    kept = trained.valid
    assert psi[~kept].abs().min() > 0  # these must not count
    expected = -((psi[kept] - psi[kept].mean()) * log_pi[kept]).mean()
    torch.testing.assert_close(found.loss, expected)
    plain = objective(out, target, trained, learner.agent)
    torch.testing.assert_close(plain.loss, -(psi[kept] * log_pi[kept]).mean())
    assert found.scalars["loss_v"] == plain.scalars["loss_v"]


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_logged_distance_from_the_behaviour_policy(shift):
    """KL(μ ‖ π) = E_μ[r - 1 - log r] with r = π/μ, and the share of steps with r outside 1 ± ε."""
    batch = random_batch(6, 5, seed=3)
    learner = make_learner("ppo")
    out, target = learner.outputs(batch)
    trained = learner.trained_steps(batch, torch.ones(5))
    log_pi = out.map(lambda x: x[:-1]).log_prob(trained.actions).detach()
    offset = shift * torch.tensor([0.5, -0.5, 0.1, -0.1, 0.0, 0.0])[:, None].expand(6, 5)
    broken = torch.where(trained.valid, log_pi - offset, torch.nan)  # what is not valid must not count
    found = objective(out, target, trained._replace(log_mu=broken), learner.agent).scalars
    log_r = offset[trained.valid]
    torch.testing.assert_close(found["kl"], (log_r.exp() - 1 - log_r).mean())
    assert learner.agent.clip == 0.2
    torch.testing.assert_close(found["clip_fraction"], (log_r.abs() > 0.4).float().mean())
    assert (found["kl"] > 0) == (shift > 0)


def test_no_advantage_at_all_is_no_reason_for_a_step():
    """With rewards of 0 and V = 0, σ has a lower bound: an error of 1e-6 must not become an advantage of 1."""
    batch = random_batch(6, 5, seed=3)
    agent = make_learner("casa", **{"agent.advantage_norm": True}).agent
    tiny = torch.full((6, 5), 1e-6)
    assert 1e-6 / advantage_unit(tiny, batch.valid, agent, agent.tau) <= 1e-3


def test_a_replayed_batch_is_weighted_and_a_fresh_one_is_not():
    batch, twice = random_batch(6, 5, seed=3), torch.full((5,), 2.0)
    for recipe, factor in (("r2d2-casa", 2), ("casa", 1)):
        learner = make_learner(recipe)
        once, more = (learner.compute(batch, weights).loss for weights in (torch.ones(5), twice))
        torch.testing.assert_close(more, factor * once)


def test_on_a_cpu_most_scalars_are_those_of_every_fourth_step():
    batch, learner = random_batch(6, 5, seed=3), make_learner("casa")
    found = [learner.step(batch, torch.ones(5), 0.0).scalars for _ in range(9)]
    assert all({"loss", "gradient_norm", "version"} <= scalars.keys() for scalars in found)
    assert [step for step, scalars in enumerate(found) if "entropy" in scalars] == [0, 4, 8]


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


def test_angles_are_logged_as_often_as_asked():
    """On every second learner step; the CASA head's χ is 1 by construction."""
    system = probe_system("casa", steps=96 * 12, **{"log.diagnostics_every": 2})
    updates = [update for progress in LOOPS["sync"](system) for update in progress.updates]
    assert len(updates) >= 4
    for i, update in enumerate(updates):
        assert ("chi" in update) == (i % 2 == 0)
    for update in updates[::2]:
        assert update["chi"] == pytest.approx(1, abs=1e-4) and -1 <= update["cos_beta"] <= 1 + 1e-6


@pytest.mark.parametrize("recipe", DISCRETE)
def test_every_recipe_measures_what_its_head_defines(recipe):
    learner = make_learner(recipe, lstm=8, **{"data.burn_in": 2, "data.seq_len": 5, "data.batch": 5, "data.reuse": 1})
    found = learner.conflict(random_batch(7, 5, 16, seed=3))
    defined = {"chi", "cos_beta", "cos_v_q", "entropy_q"}
    assert defined & set(found) == (defined if learner.network.head.has_q else set())
    assert {"cos_v_pi", "feature_rank", "dormant_units", "grad_variance_pi"} < set(found)
    assert found["measured_sequences"] == 2


def test_weights_that_are_not_finite_are_left_to_the_learner_step():
    learner = make_learner("casa", **{"data.batch": 5})
    with torch.no_grad():
        learner.network.backbone.linear1.weight.fill_(torch.nan)
    found = learner.conflict(random_batch(5, 5, 16, seed=3))
    assert "cos_beta" not in found and "feature_rank" not in found


def test_the_measured_sequences_rotate():
    learner = make_learner("casa", **{"data.batch": 8, "log.diagnostics_every": 10})
    batch, seen = random_batch(5, 8, 16, seed=3), set()
    for step in range(0, 70, 10):
        learner.steps = step
        learner.conflict(batch)
        columns = [int((batch.rewards == row[:, None]).all(0).nonzero()) for row in learner.conflict._batch.rewards.T]
        assert columns == [columns[0], columns[0] + 1]
        seen |= set(columns)
    assert seen == set(range(8))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("lstm", [0, 8])
def test_on_cuda_the_measurement_is_a_graph_and_equals_the_cpu(lstm):
    changes = {"data.batch": 8, "data.burn_in": 2, "data.seq_len": 5, "log.diagnostics_every": 1}
    learner = make_learner("casa", lstm=lstm, **changes)
    other = make_learner("casa", lstm=lstm, **changes).network.cuda()
    on_device = Learner(other, learner.config)
    for step in range(6):  # the graph is captured at the fourth call
        batch = random_batch(7, 8, 2 * lstm, seed=step)
        learner.steps = on_device.steps = step
        found = on_device.conflict(type(batch)(*(x.cuda() for x in batch)))
        assert found == pytest.approx(learner.conflict(batch), rel=1e-2, abs=1e-3)
    assert on_device.conflict._measure._graph is not None


def test_a_noise_scale_is_a_ratio_of_means():
    row = {"grad_variance_v": 6.0, "grad_square_v": 2.0, "grad_variance_q": 1.0, "grad_square_q": -0.1}
    assert noise_scales(row) == {"noise_scale_v": 3.0, "noise_scale_q": None}


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("recipe", [*DISCRETE, "ppo-gaussian", "casa with a Gaussian"])
def test_shares_of_a_batch_add_up_to_its_gradient(recipe, workers):
    """Whatever the number of threads, and however many steps of each share are valid."""
    name, _, gaussian = recipe.partition(" with a ")
    head = {"agent.head": "casa-gaussian"} if gaussian else {}
    learner = make_learner(name, lstm=8, **head, **{"data.burn_in": 2, "data.seq_len": 5})
    batch, weights = random_batch(7, 5, 16, seed=3, ends=0.5, box=recipe not in DISCRETE), torch.rand(5)
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


def test_explained_variance_is_that_of_the_valid_steps():
    target, mask = torch.tensor([[1.0, 3.0], [5.0, 900.0]]), torch.tensor([[True, True], [True, False]])
    assert explained_variance(target + 7, target, mask) == pytest.approx(1)  # the mean is no matter
    assert explained_variance(torch.zeros(2, 2), target, mask) == pytest.approx(0)
    half = torch.tensor([[1.0, 3.0], [1.0, float("nan")]])  # errors 0, 0, 4 against targets 1, 3, 5
    assert explained_variance(half, target, mask) == pytest.approx(1 - (32 / 9) / (8 / 3))
    assert explained_variance(target, torch.ones(2, 2), mask) == 0  # nothing to explain
    assert explained_variance(-9 * target, target, mask) == -1


@pytest.mark.parametrize("wanted", ["yes", "no"])
def test_a_second_backbone_for_v_is_built_and_compiled_as_the_first(wanted):
    system = probe_system("casa", compile=wanted, **{"net.value_backbone": True, "precision": "bf16"})
    for net in (system.network, system.actor_network):
        compiled = [part._compiled_call_impl is not None for part in (net.backbone, net.value_backbone)]
        assert compiled == [wanted == "yes"] * 2


def test_compiled_are_the_backbone_and_the_recurrent_cell():
    for wanted in ("no", "yes"):
        config = small_config("casa", **{"net.lstm": 8, "data.burn_in": 2, "compile": wanted})
        network = Network((4,), 2, backbone="mlp", lstm=8)
        Learner(network, config)
        parts = (network.backbone, network.core.cell)
        assert [part._compiled_call_impl is not None for part in parts] == [wanted == "yes"] * 2


@pytest.mark.parametrize("wanted", ["yes", "no"])
def test_the_actor_is_compiled_where_the_learner_is(wanted):
    system = probe_system("casa", compile=wanted, **{"net.lstm": 8})
    networks = (system.network, system.actor_network)
    assert [net.backbone._compiled_call_impl is not None for net in networks] == [wanted == "yes"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "backend"),
    [
        ("ppo-casa", "inductor"),
        ("casa", "aot_eager"),
        ("r2d2-casa", "aot_eager"),
        ("ppo-pcgrad", "aot_eager"),
        ("rainbow", "aot_eager"),
    ],
)
def test_a_compiled_step_is_the_step(recipe, backend, monkeypatch):
    """Forward and backward pass, Adam with weight decay and clipping, the normaliser; also after bad batches."""
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend=backend))
    changes = {"learner.weight_decay": 0.01, "learner.clip_norm": 0.5, "learner.max_bad_steps": 9, "net.obs_norm": True}
    learners = []
    for wanted in ("no", "yes"):
        config = small_config(recipe, **changes, compile=wanted)
        torch.manual_seed(3)
        own = recipe == "ppo-casa"
        head, noise = config.agent.head if recipe == "rainbow" else "casa", config.net.noise
        same = {"backbone": "mlp-tanh", "hidden": 16, "obs_norm": True, "value_backbone": own}
        network = Network((OBS,), ACTIONS, **same, head=head, noise=noise)
        learners.append(Learner(network, config, fall_back=False))
    weights = torch.linspace(0.5, 1.0, 9)
    for i in range(6):
        batch = random_batch(12, 9, seed=i)
        if i == 2:
            batch = batch._replace(rewards=torch.full_like(batch.rewards, torch.nan))
        results = [learner.step(batch, weights, 0.1 * i) for learner in learners]
        assert [result.applied for result in results] == [i != 2] * 2
        if i != 2:
            for name, expected in results[1].scalars.items():
                assert results[0].scalars.get(name, expected) == pytest.approx(expected, rel=1e-3, abs=1e-5), name
            np.testing.assert_allclose(results[1].priorities, results[0].priorities, rtol=1e-3, atol=1e-5)
    states = [learner.network.state_dict() | flat_moments(learner) for learner in learners]
    for name, expected in states[0].items():
        torch.testing.assert_close(states[1][name], expected, rtol=1e-3, atol=2e-5, msg=name)


def flat_moments(learner):
    states = learner.optimizer.state_dict()["state"]
    return {f"{i}.{name}": x for i, moments in states.items() for name, x in moments.items()}


@pytest.mark.parametrize("recipe", ["laser", "casa", "casa-no-dr"])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_transition_outside_the_trust_region_gives_no_gradient(recipe, normalised):
    """Not to V, Q, π or the entropy at its state; the others have theirs, divided by all valid transitions."""
    changes = {"agent.trust_region": 0.4, "agent.entropy_cost": 0.1, "agent.advantage_norm": normalised}
    learner = make_learner(recipe, **changes)
    batch = random_batch(12, 9, seed=5)
    out = learner.outputs(batch)[0].map(lambda x: x.detach().requires_grad_())
    result = objective(out, None, learner.trained_steps(batch, torch.ones(9)), learner.agent)
    grads = torch.autograd.grad(result.loss, out.tensors(), allow_unused=True)
    divergence = out.detach().map(lambda x: x[:-1]).divergence(batch.policy)
    used = (divergence < 0.4) & batch.valid
    assert 0 < used.sum() < batch.valid.sum()
    touched = sum(
        grad[:-1].abs().flatten(2).sum(-1) if grad.ndim > 2 else grad[:-1].abs() for grad in grads if grad is not None
    )
    assert torch.equal(touched > 0, used)
    assert torch.equal(result.td_errors != 0, used)
    assert result.scalars["trusted"].item() == pytest.approx((used.sum() / batch.valid.sum()).item())


def test_the_loss_in_a_trust_region_is_divided_by_all_valid_transitions():
    """One that is rejected counts as 0: the others do not weigh more for it."""
    learner = make_learner("laser", **{"agent.trust_region": 0.4})
    batch = random_batch(12, 9, seed=5, ends=0.0)
    out, _ = learner.outputs(batch)
    result = objective(out, None, learner.trained_steps(batch, torch.ones(9)), learner.agent)
    now = out.map(lambda x: x[:-1])
    used = now.divergence(batch.policy) < 0.4
    rho = (now.log_prob(batch.actions) - batch.log_mu).exp().clamp(max=1)
    terms = 0.5 * 0.5 * (result.estimate.v - now.v) ** 2
    terms = terms - rho * result.estimate.advantage * now.log_prob(batch.actions) - 0.01 * now.entropy()
    torch.testing.assert_close(result.loss, (terms * used).sum() / used.numel())
