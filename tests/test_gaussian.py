"""The head casa-gaussian against integrals on a grid: Q, its gradient, its means, ε-greedy on it, and where it fits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal

import casa
from casa.actions import ActionSpec, Knots
from casa.config.load import from_recipe
from casa.diagnostics import measure_conflict
from casa.errors import UserError
from casa.heads import casa_gaussian_head
from casa.learn.objective import TrainedSteps, objective
from casa.nn import Network
from casa.rollout.behaviour import epsilon_greedy
from casa.run.evaluate import evaluate
from casa.runtime.seeds import seed_for
from casa.watch.film import Film
from casa.watch.highlights import disagreements
from casa.watch.panel import Panel
from casa.watch.record import Stage
from tests.support.runs import rows, run

TAU, STATES, DIMENSIONS = 0.3, 4, 3


def outputs(seed=0):
    """mean, log std and V in 4 states, for 3 dimensions; fp64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"mean": (STATES, DIMENSIONS), "log_std": (STATES, DIMENSIONS), "value": (STATES,)}
    made = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: (x * (0.5 if name == "log_std" else 1.0)).requires_grad_() for name, x in made.items()}


def head(seed=0, tau=TAU, knots=301):
    given = outputs(seed)
    return given, casa_gaussian_head(**given, tau=tau, sizes=(Knots(knots),) * DIMENSIONS)


def integral(density, function, low=-14.0, high=14.0, points=20_001):
    """∫ π_d(u) f_d(u) du [states, dimensions]: the trapezium rule is exact to rounding for such smooth functions."""
    u = torch.linspace(low, high, points, dtype=torch.float64)[:, None, None]
    return torch.trapezoid(density(u) * function(u), dx=(high - low) / (points - 1), dim=0)


def test_q_is_the_advantage_less_its_mean_plus_v():
    """Q = A - E_π[A] + V with A = -τ Σ_d (a_d - mean_d)² / 2 std_d² and π ∝ exp(A/τ), all written out."""
    given, out = head()
    mean, log_std, value = (x.detach() for x in given.values())

    def advantage(u):
        return -TAU * (u - mean) ** 2 / (2 * log_std.exp() ** 2)

    mass = integral(lambda u: (advantage(u) / TAU).exp(), torch.ones_like)
    expected = integral(lambda u: (advantage(u) / TAU).exp() / mass, advantage)
    for seed in range(5):
        actions = 2 * torch.randn(STATES, DIMENSIONS, generator=torch.Generator().manual_seed(seed)).double()
        torch.testing.assert_close(out.q_of(actions), (advantage(actions) - expected).sum(-1) + value)
        log_pi = (advantage(actions) / TAU - mass.log()).sum(-1)
        torch.testing.assert_close(out.log_prob(actions), log_pi)
    torch.testing.assert_close(out.scaled(torch.tensor(3.0)).q_of(actions), 3 * out.q_of(actions))


@pytest.mark.parametrize("tau", [1.0, 1e-3])
def test_the_gradient_of_q_is_tau_times_that_of_log_pi(tau):
    given, out = head(tau=tau)
    actions = out.sample(torch.Generator().manual_seed(0)).detach()
    weights = torch.randn(STATES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    of_q, of_pi = (
        torch.autograd.grad((weights * x).sum(), list(given.values()), retain_graph=True, allow_unused=True)
        for x in (out.q_of(actions), out.log_prob(actions))
    )
    assert of_q[2] is of_pi[2] is None  # nothing flows into V
    for q, pi in zip(of_q[:2], of_pi[:2], strict=True):
        assert pi.abs().min() > 0
        torch.testing.assert_close(q, tau * pi, rtol=1e-13, atol=0)
    (of_v,) = torch.autograd.grad(out.v.sum(), [given["value"]])
    assert (of_v == 1).all()


def normal(out):
    mean, log_std = out.detach().log_pi.chunk(2, -1)
    return Normal(mean, log_std.exp())


def parabola(out):
    """Each dimension's share of Q - V, as a function of u."""
    pi = normal(out)
    return lambda u: TAU * 0.5 * (1 - ((u - pi.loc) / pi.scale) ** 2)


def test_means_and_spread_are_their_integrals():
    (_, out), (_, other) = head(0), head(1)

    def density(u):
        return normal(out).log_prob(u).exp()

    torch.testing.assert_close(out.mean_q(), integral(density, parabola(out)).sum(-1) + out.v)
    torch.testing.assert_close(out.mean_q_of(other), integral(density, parabola(other)).sum(-1) + other.v)
    best, drawn = out.argmax_q(), out.sample(torch.Generator().manual_seed(0))
    assert torch.equal(best, normal(out).loc) and (out.q_of(best) > out.q_of(drawn)).all()
    grid = torch.linspace(-1, 1, 4001, dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(out.spread(), parabola(out)(grid).var(0).sum(-1).sqrt(), rtol=2e-3, atol=0)


@pytest.mark.parametrize("tau", [TAU, 0.05, 0.4])
def test_the_entropy_of_boltzmanns_policy_is_its_integral(tau):
    """-∫ p log p of p ∝ exp(Q/τ), with other τ than the head's."""
    _, out = head()
    mass = integral(lambda u: (parabola(out)(u) / tau).exp(), torch.ones_like)

    def log_p(u):
        return parabola(out)(u) / tau - mass.log()

    expected = integral(lambda u: -log_p(u).exp(), log_p).sum(-1)
    torch.testing.assert_close(out.boltzmann_entropy(tau), expected)
    assert torch.allclose(out.entropy(), expected) == (tau == TAU)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_knows_its_density(epsilon):
    """log μ against ε U(-1, 1) + (1 - ε) π; shares of actions in bins against ∫ μ; E_μ[1/μ in a box] is its volume."""
    count, tau = 40_000, 0.5
    mean, std = torch.tensor([0.8, -0.2]), torch.tensor([0.5, 0.1])
    out = casa_gaussian_head(
        mean.expand(count, 2), std.log().expand(count, 2), torch.zeros(count), tau, (Knots(5),) * 2
    )
    actions, log_mu = epsilon_greedy(out, torch.full((count,), epsilon), torch.Generator().manual_seed(0))
    inside = (actions >= -1) & (actions <= 1)
    mu = epsilon / 2 * inside + (1 - epsilon) * Normal(mean, std).log_prob(actions).exp()
    torch.testing.assert_close(log_mu, mu.log().sum(-1))
    edges = torch.tensor([-4.0, -1.0, -0.5, 0.0, 0.5, 1.0, 4.0])
    for d in range(2):
        low, high = edges[:-1], edges[1:]
        shares = torch.histogram(actions[:, d], edges).hist / count
        uniform = (high.clamp(-1, 1) - low.clamp(-1, 1)) / 2
        near = Normal(mean[d], std[d])
        expected = epsilon * uniform + (1 - epsilon) * (near.cdf(high) - near.cdf(low))
        assert expected.sum() == pytest.approx(1, abs=1e-6)  # μ integrates to 1
        assert ((shares - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt() + 1e-6).all()
    box = ((actions - mean).abs() < 0.15).all(-1)
    volume = (box * (-log_mu).exp()).mean()
    assert float(volume) == pytest.approx(0.09, rel=0.1 if epsilon < 1 else 0.15)


def test_expected_q_bootstraps_from_the_policys_mean():
    _, out = head(0)
    _, target = head(1)
    out, target = (x.detach().map(lambda y: y.unsqueeze(1)) for x in (out, target))  # 4 steps of one sequence
    no, rewards = torch.zeros(3, 1, dtype=torch.bool), torch.randn(3, 1).double()
    given = TrainedSteps(torch.randn(3, 1, 3).double(), torch.zeros(3, 1).double(), rewards, no, no, ~no, None)
    agent = replace(
        from_recipe("r2d2-casa", "continuous").agent, value_rescale=False, discount=0.9, n_step=1, head="casa-gaussian"
    )
    found = objective(out, target, given, agent).estimate.q
    torch.testing.assert_close(found, rewards + 0.9 * out.mean_q_of(target)[1:])
    largest = objective(out, target, given, replace(agent, targets="n-step-q")).estimate.q
    torch.testing.assert_close(largest, rewards + 0.9 * target.q_of(out.argmax_q())[1:])


def test_what_is_drawn_is_q_at_the_knots():
    _, out = head(knots=7)
    curves = out.drawn_q().unflatten(-1, (DIMENSIONS, 7))
    for k, u in enumerate(torch.linspace(-1, 1, 7).double()):
        torch.testing.assert_close(curves[..., k].sum(-1), out.q_of(u.expand(STATES, DIMENSIONS)))
    best = curves.argmax(-1)
    assert torch.equal(best, out.drawn().unflatten(-1, (DIMENSIONS, 7)).argmax(-1))


@pytest.mark.parametrize("lstm", [0, 6])
def test_chi_is_one(lstm):
    torch.manual_seed(0)
    space = ActionSpec.box([-1] * 2, [2] * 2)
    net = Network((5,), space, backbone="mlp", head="casa-gaussian", lstm=lstm, hidden=9, tau=TAU, initial_std=0.5)
    net.double()
    obs, state = torch.randn(6, 4, 5).double(), torch.zeros(4, 2 * lstm).double()
    actions = torch.randn(5, 4, 2).double()
    v, q = torch.randn(2, 5, 4).double()
    mask = torch.ones(5, 4, dtype=torch.bool)
    found = measure_conflict(
        net, lambda: net(obs, state)[0], actions, lambda out: (v, q), mask, tau=TAU, recurrent=lstm > 0
    ).scalars
    assert float(found["chi"]) == pytest.approx(1, abs=1e-12)
    assert -1 <= float(found["cos_beta"]) <= 1
    out = net(obs, state)[0].map(lambda x: x[:-1])
    assert float(found["entropy_q"]) == pytest.approx(float(out.entropy().detach().mean()))
    terms = (q - out.q_of(actions)).detach() * out.q_of(actions), (q - out.v).detach() * out.log_prob(actions)
    weights = [p for name, p in net.named_parameters() if "value" not in name]
    a, b = (torch.cat([g.flatten() for g in torch.autograd.grad(x.sum(), weights, retain_graph=True)]) for x in terms)
    assert float(found["cos_beta"]) == pytest.approx(float(a @ b / (a.norm() * b.norm())))


REACH = {"env": "tests.test_continuous:Reach", "agent.head": "casa-gaussian", "log.diagnostics_every": 20}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    scaled = {"casa": {"agent.reward_scale": "return"}, "r2d2-casa": {}}
    return {name: run(name, folder / name, **REACH, **settings) for name, settings in scaled.items()}


@pytest.mark.parametrize("recipe", ["casa", "r2d2-casa"])
def test_a_run_is_evaluated_and_watched(recipe, trained):
    agent = casa.load(trained[recipe], trust=True)
    assert len(evaluate(agent, episodes=2)["modes"]["greedy"]["returns"]) == 2
    row = rows(trained[recipe])[-1]
    assert row["chi"] == pytest.approx(1, abs=1e-5) and -1 <= row["cos_beta"] <= 1
    stage = Stage(agent)
    film = Film(stage.cast)
    obs, _ = agent.make_env().reset(seed=seed_for(0, "watched starts", 0, 0) % 2**31)
    for moment in stage.play(steps=5):
        film.add(moment)
    stage.close()
    _, _, out = agent.consider(obs)
    assert np.allclose(film.moments[0].q, out.drawn_q()) and len(out.drawn_q()) == 2 * 11
    if recipe == "r2d2-casa":
        assert film.moments[0].pi is None
    else:
        assert np.allclose(film.moments[0].pi, out.drawn()) and disagreements(film.moments, stage.cast.parts) == []
    panel = Panel(film)
    assert panel.draw(0).tobytes() != panel.draw(4).tobytes()


def test_another_temperature_has_no_meaning(trained):
    """The width of the density is an output of the network."""
    with pytest.raises(UserError, match=r"tau 0\.5 has no meaning for the casa-gaussian head and 'sample' behaviour"):
        casa.load(trained["casa"], tau=0.5)


def test_an_exported_run_has_the_agents_q(trained, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    agent = casa.load(trained["casa"], trust=True)
    session = ort.InferenceSession(str(agent.to_onnx(tmp_path / "agent.onnx")))
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)
    action, log_pi, value, q = session.run(["action", "log_pi", "value", "q"], {"obs": obs})
    np.testing.assert_allclose(action, agent.predict(obs, deterministic=True)[0], rtol=1e-5, atol=1e-5)
    _, _, out = agent.consider(obs)
    np.testing.assert_allclose(value, out.v, rtol=1e-5, atol=1e-5)
    at = np.random.default_rng(1).uniform(-1, 1, (5, 2)).astype(np.float32)
    mean, log_std = np.split(log_pi, 2, -1)
    by_hand = q[:, 0] + q[:, 1] * (0.5 * (1 - ((at - mean) / np.exp(log_std)) ** 2)).sum(-1)
    np.testing.assert_allclose(by_hand, out.q_of(torch.from_numpy(at)), rtol=1e-5, atol=1e-5)


def test_discrete_actions_are_refused(tmp_path):
    said = r"^head 'casa-gaussian' is for continuous actions, not for 2 actions; use 'casa'$"
    with pytest.raises(UserError, match=said):
        run("casa", tmp_path / "run", **{"agent.head": "casa-gaussian"})


def test_without_chance_it_plays_the_mean_of_what_reaches_the_environment():
    """∫ π(u) min(max(u, -1), 1) du, with means inside and outside the bounds."""
    _, out = head()
    expected = integral(lambda u: normal(out).log_prob(u).exp(), lambda u: u.clamp(-1, 1) + 0 * normal(out).loc)
    torch.testing.assert_close(out.mode(), expected, rtol=0, atol=1e-6)
    assert (normal(out).loc.abs() > 1).any() and (out.mode().abs() < 1).all()


def test_the_network_puts_out_the_slope_of_the_advantage():
    """mean / std² = 10 y: with half the standard deviation, the same outputs y give a quarter of the mean."""
    torch.manual_seed(0)
    net = Network((4,), ActionSpec.box([-1] * 3, [1] * 3), backbone="mlp", head="casa-gaussian", hidden=16, tau=TAU)
    obs, means = torch.randn(1, 5, 4), []
    for std in (0.6, 0.3):
        with torch.no_grad():
            net.outputs["log_std"].linear.weight.fill_(np.log(std))
            y = net.outputs["mean"](net.backbone(obs[0]))
            means.append(net(obs)[0].argmax_q()[0])
        torch.testing.assert_close(means[-1], 10 * y * std**2)
    assert means[0].abs().max() > 0
