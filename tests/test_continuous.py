"""Continuous actions: heads against integrals on a grid, χ = 1, mixed spaces, DR-Trace with densities, whole runs."""

import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import casa
from casa.actions import ActionSpec, Knots, pick
from casa.config.load import from_recipe, make_config
from casa.diagnostics import gradient_angles
from casa.engines.build import build_system
from casa.errors import UserError
from casa.heads import HEADS
from casa.learn.learner import Learner
from casa.learn.objective import TrainedSteps, objective
from casa.nn import Network
from casa.rollout.behaviour import epsilon_greedy
from tests.support.learner_cases import random_batch
from tests.support.small import ATOMS, GAUSSIAN

KNOT_HEADS = [name for name in HEADS if name not in GAUSSIAN + ATOMS]
SIZES = {"one": (Knots(5),), "three": (Knots(4),) * 3, "uneven": (Knots(3), Knots(6)), "mixed": (3, Knots(5), 2)}


def outputs(head, sizes, leading=(3, 2), seed=0):
    generator = torch.Generator().manual_seed(seed)
    width = sum(part.count if isinstance(part, Knots) else part for part in sizes)
    return {
        name: torch.randn(
            *leading, *(() if name == "value" else (width,)), generator=generator, dtype=torch.float64
        ).requires_grad_()
        for name in head.outputs
    }


def one_by_one(part):
    """(actions, their measure) of one part: all options, or a fine grid whose points are 2/N apart."""
    if not isinstance(part, Knots):
        return torch.arange(part).double(), torch.ones(part, dtype=torch.float64)
    edges = torch.linspace(-1, 1, 60 * (part.count - 1) + 1, dtype=torch.float64)
    return (edges[1:] + edges[:-1]) / 2, edges.diff()


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", KNOT_HEADS)
def test_a_head_is_its_integrals(name, sizes):
    """Each part's density, its expectations and the entropy, on a grid; the other parts are held at one action."""
    head = HEADS[name]
    out = head(outputs(head, sizes), 0.7, sizes)
    middle = torch.tensor([1.0 if isinstance(part, int) else 0.3 for part in sizes], dtype=torch.float64)
    entropy, mean_q = 0.0, 0.0
    for d, part in enumerate(sizes):
        actions, measure = one_by_one(part)
        given = middle.repeat(len(actions), 1)
        given[:, d] = actions
        wide = out.map(lambda x: x.expand(actions.shape[0], *x.shape))  # noqa: B023
        log_pi = wide.log_prob(given[:, None, None].expand(-1, 3, 2, -1))
        # log π(a) = log π_d(a_d) + a constant of the other parts: normalised over a_d it is log π_d.
        log_pi = log_pi - (log_pi.exp() * measure[:, None, None]).sum(0).log()
        pi = log_pi.exp() * measure[:, None, None]
        entropy = entropy - (pi * log_pi).sum(0)
        if head.has_q:
            q = wide.q_of(given[:, None, None].expand(-1, 3, 2, -1))
            base = out.q_of(middle.expand(3, 2, -1))
            mean_q = mean_q + (pi * q).sum(0) - base
    torch.testing.assert_close(out.entropy(), entropy, rtol=0, atol=2e-3)
    total = out.log_prob(out.mode())
    for seed in range(20):
        assert (out.log_prob(out.sample(torch.Generator().manual_seed(seed))) <= total + 1e-9).all()
    if head.has_q:
        torch.testing.assert_close(out.mean_q(), mean_q + out.q_of(middle.expand(3, 2, -1)), rtol=0, atol=2e-3)
        if name in ("casa", "type1", "type2", "q-critic"):
            torch.testing.assert_close(out.mean_q(), out.v)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("tau", [1.0, 1e-3])
def test_the_gradient_of_q_is_tau_times_that_of_log_pi(sizes, tau):
    head = HEADS["casa"]
    given = outputs(head, sizes)
    out = head(given, tau, sizes)
    for seed in range(5):
        taken = out.sample(torch.Generator().manual_seed(seed))
        of_q = torch.autograd.grad(out.q_of(taken).sum(), given["advantage"], retain_graph=True)[0]
        of_pi = torch.autograd.grad(out.log_prob(taken).sum(), given["advantage"], retain_graph=True)[0]
        torch.testing.assert_close(of_q, tau * of_pi, rtol=0, atol=1e-12)


def test_samples_of_mixed_parts_have_their_distribution():
    head, sizes, count = HEADS["casa"], SIZES["mixed"], 40_000
    given = {name: x.detach()[0, 0].expand(count, *x.shape[2:]) for name, x in outputs(head, sizes).items()}
    out = head(given, 1.0, sizes)
    actions = out.sample(torch.Generator().manual_seed(1))
    gears = actions[:, 0].long().bincount(minlength=3) / count
    torch.testing.assert_close(gears.double(), out.pi[0, :3], rtol=0, atol=0.015)
    mean = (out.pi[0, 3:8] * torch.linspace(-1, 1, 5)).sum()
    assert abs(actions[:, 1].mean() - mean) < 0.015
    assert abs(float(torch.corrcoef(actions.T)[0, 1])) < 0.02  # the parts are independent


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_divergence_is_its_integral(sizes):
    """KL(π ‖ μ) = Σ_d ∫ π_d log π_d/μ_d, on a fine grid."""
    head = HEADS["actor-critic"]
    one, other = (head(outputs(head, sizes, seed=seed), sizes=sizes) for seed in (1, 2))
    widths = [part.count if isinstance(part, Knots) else part for part in sizes]
    expected = torch.zeros(3, 2, dtype=torch.float64)
    for part, log_pi, log_mu in zip(sizes, one.log_pi.split(widths, -1), other.log_pi.split(widths, -1), strict=True):
        for action, measure in zip(*one_by_one(part), strict=True):
            at = [pick(x, action.expand(3, 2)[..., None], (part,)) for x in (log_pi, log_mu)]
            expected += measure * at[0].exp() * (at[0] - at[1])
    torch.testing.assert_close(one.divergence(other.log_pi), expected, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("laser", {}),
        ("casa", {"agent.kernel": "gaussian"}),
        ("casa-no-dr", {"env.kwargs": "{}"}),
        ("ppo-gaussian", {"agent.targets": "vtrace", "env.kwargs": "{}"}),
    ],
)
def test_the_policy_that_acted_is_stored(recipe, changes):
    """log μ of the taken action is that of the stored policy, for every layout of it."""
    config = make_config(
        {
            "recipe": recipe,
            "preset": "continuous",
            "env": "tests.test_continuous:Reach",
            "env.kwargs": "{mixed: true}",
            "env.vectorization": "sync",
            "agent.trust_region": 0.1,
            **changes,
        }
    )
    system = build_system(config)
    try:
        system.begin()
        actor = system.actors[0]
        for _ in range(12):
            actor.act()
            actor.absorb()
        batch = system.ring.gather(np.arange(8), np.zeros(8, np.int64), 12)
        with torch.no_grad():
            out = system.network(batch.obs, batch.state, batch.starts)[0].map(lambda x: x[:-1])
        torch.testing.assert_close(batch.policy, out.log_pi)
        stored = replace(out, log_pi=batch.policy)
        assert batch.valid.any() and not batch.valid.all()
        torch.testing.assert_close(stored.log_prob(batch.actions)[batch.valid], batch.log_mu[batch.valid])
    finally:
        system.close()


@pytest.mark.parametrize("kernel", ["hat", "gaussian", "polynomial"])
@pytest.mark.parametrize("std", [0.15, 0.3, 0.6])
def test_the_first_density_is_a_gaussian_cut_off_at_the_bounds(kernel, std):
    torch.manual_seed(0)
    spec = ActionSpec.box([-1] * 2, [2] * 2)
    net = Network((4,), spec, backbone="mlp", hidden=16, tau=0.02, knots=31 if kernel != "polynomial" else 2,
                  kernel=kernel, initial_std=std, head_layers=1, advantage_unit="tau")  # fmt: skip
    actions = net(torch.randn(1, 1, 4).expand(20_000, 1, 4))[0].detach().sample(torch.Generator().manual_seed(0))
    u = np.linspace(-1, 1, 2001)
    expected = np.sqrt(np.average(u**2, weights=np.exp(-(u**2) / (2 * std**2))))
    assert float(actions.std()) == pytest.approx(expected, rel=0.06)  # the weights add a little


@pytest.mark.parametrize("kernel", ["hat", "gaussian", "polynomial"])
@pytest.mark.parametrize(("head", "is_one"), [("casa", True), ("type1", False), ("type3", False), ("type5", False)])
def test_chi_is_one_for_casa_alone(head, is_one, kernel):
    torch.manual_seed(0)
    net = Network(
        (6,), ActionSpec.box([-1] * 3, [2] * 3), backbone="mlp", head=head, tau=0.2, hidden=16, knots=6, kernel=kernel
    )
    obs, targets = torch.randn(1, 12, 6), torch.randn(1, 12)
    actions = 2 * torch.rand(1, 12, 3) - 1
    found = gradient_angles(net, lambda: net(obs)[0], actions, targets, targets.flip(1))
    assert (abs(found.chi - 1) < 1e-5) == is_one


@pytest.mark.parametrize("kernel", ["hat", "polynomial"])
def test_without_chance_a_smooth_density_plays_its_mean_and_others_their_likeliest_knot(kernel):
    torch.manual_seed(0)
    space = ActionSpec.group("tuple", (), (ActionSpec.discrete(3), ActionSpec.box([-1] * 2, [2] * 2)))
    net = Network((4,), space, backbone="mlp", hidden=16, knots=5, kernel=kernel, tau=0.1)
    with torch.no_grad():
        net.outputs["advantage"].linear2.weight.mul_(10)
        out, _ = net(torch.randn(1, 40_000, 4)[:, :1].expand(1, 40_000, 4))
    played = out.mode()[0, 0]
    drawn = out.sample(torch.Generator().manual_seed(0))[0]
    assert played[0] == drawn[:, 0].mode().values
    if kernel == "polynomial":
        torch.testing.assert_close(played[1:], drawn[:, 1:].mean(0), rtol=0, atol=0.02)
    else:
        assert all(abs((2 * x) % 1) < 1e-5 for x in played[1:])  # knots are 1/2 apart
        assert (out.log_prob(out.mode()) >= out.log_prob(drawn.unsqueeze(0)) - 1e-4).all()


def test_a_gaussian_head_is_torchs_normal():
    torch.manual_seed(0)
    net = Network((4,), ActionSpec.box([-1] * 3, [2] * 3), backbone="mlp", head="gaussian", hidden=16)
    with torch.no_grad():
        net.outputs["log_std"].linear.weight.normal_()
    out, _ = net(torch.randn(5, 2, 4))
    mean, log_std = out.log_pi.chunk(2, -1)
    assert (log_std == log_std[0, 0]).all()  # the same in every state
    normal = torch.distributions.Normal(mean, log_std.exp())
    actions = out.sample(torch.Generator().manual_seed(0))
    torch.testing.assert_close(out.log_prob(actions), normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(out.entropy(), normal.entropy().sum(-1))
    other = out.map(lambda x: x + torch.randn_like(x))
    m, log_s = other.log_pi.chunk(2, -1)
    divergence = torch.distributions.kl_divergence(normal, torch.distributions.Normal(m, log_s.exp())).sum(-1)
    torch.testing.assert_close(out.divergence(other.log_pi), divergence)
    grid = torch.linspace(-1, 1, 2001).unsqueeze(-1).unsqueeze(-1).unsqueeze(-1)
    torch.testing.assert_close(out.spread(), normal.log_prob(grid).var(0).sum(-1).sqrt(), rtol=5e-3, atol=0)
    obs, targets = torch.randn(1, 7, 4), torch.randn(1, 7)
    found = gradient_angles(net, lambda: net(obs)[0], 2 * torch.rand(1, 7, 3) - 1, targets, targets.flip(1))
    assert math.isfinite(found.cos_v_pi)


def test_heads_refuse_actions_that_do_not_fit():
    with pytest.raises(ValueError, match="head 'gaussian' is for continuous actions, not for 3 actions"):
        Network((4,), 3, backbone="mlp", head="gaussian")
    mixed = ActionSpec.group("tuple", (), (ActionSpec.discrete(3), ActionSpec.box([-1] * 2, [2] * 2)))
    with pytest.raises(ValueError, match=r"head 'casa-gaussian' is for .* not for 3 actions \+ 2 .*; use 'casa'"):
        Network((4,), mixed, backbone="mlp", head="casa-gaussian")


def test_dr_trace_with_densities_is_its_definition():
    """Ratios π(a)/μ(a) of densities, clipped, in the sums of the definition; an action in several dimensions."""
    torch.manual_seed(0)
    steps, batch, sizes = 6, 3, (Knots(5),) * 2
    raw = {"advantage": torch.randn(steps + 1, batch, 10).double(), "value": torch.randn(steps + 1, batch).double()}
    out = HEADS["casa"](raw, 0.5, sizes)
    actions = 2 * torch.rand(steps, batch, 2) - 1
    log_mu = torch.randn(steps, batch).double() - 1
    rewards = torch.randn(steps, batch).double()
    no = torch.zeros(steps, batch, dtype=torch.bool)
    bounds = {"rho_bar": 1.05, "c_bar": 0.9, "trust_region": 0.0}
    agent = replace(from_recipe("casa", "classic").agent, **bounds, discount=0.9, reward_scale="none")
    given = TrainedSteps(actions, log_mu, rewards, no, no, ~no, torch.ones(batch).double())
    found = objective(out, None, given, agent).estimate
    v, q = out.v, out.map(lambda x: x[:-1]).q_of(actions)
    ratio = (out.map(lambda x: x[:-1]).log_prob(actions) - log_mu).exp()
    rho, c = ratio.clamp(max=1.05), ratio.clamp(max=0.9)
    for b in range(batch):
        for t in range(steps):
            literal, trace = v[t, b], 1.0
            for k in range(t, steps):
                literal = literal + trace * rho[k, b] * (rewards[k, b] + 0.9 * v[k + 1, b] - q[k, b])
                trace = trace * 0.9 * c[k, b]
            assert float(found.v[t, b]) == pytest.approx(float(literal), abs=1e-6)
            after = found.v[t + 1, b] if t + 1 < steps else v[t + 1, b]
            assert float(found.q[t, b]) == pytest.approx(float(rewards[t, b] + 0.9 * after), abs=1e-6)
    torch.testing.assert_close(found.rhos, rho)
    assert float(ratio.max()) > 1.05 > float(ratio.min())  # both sides of the clipping are tested


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("best", ["left", "inside", "right"])
def test_epsilon_greedy_knows_its_density(sizes, best):
    """Shares of actions in bins against ∫ μ; with one part at a bound, where its interval is half as long."""
    count, epsilon = 40_000, 0.3
    widths = [part.count if isinstance(part, Knots) else part for part in sizes]
    where = {"left": 0, "inside": 1, "right": -1}[best]
    row = torch.cat([torch.eye(width)[where] for width in widths])
    given = {"advantage": row.expand(count, -1), "value": torch.zeros(count)}
    out = HEADS["dueling"](given, 1.0, sizes)
    actions, log_mu = epsilon_greedy(out, torch.full((count,), epsilon), torch.Generator().manual_seed(0))
    expected = torch.zeros(count)
    for d, part in enumerate(sizes):
        if isinstance(part, Knots):
            h = 2 / (part.count - 1)
            bounds = {"left": (-1, -1 + h / 2), "inside": (-1 + h / 2, -1 + 3 * h / 2), "right": (1 - h / 2, 1)}
            low, high = bounds[best]
            inside, density = (actions[:, d] >= low) & (actions[:, d] <= high), 1 / (high - low)
            share = 1 - epsilon + epsilon * (high - low) / 2
            assert actions[:, d].min() >= -1 and actions[:, d].max() <= 1
            mu = epsilon / 2 + (1 - epsilon) * inside * density
        else:
            inside = actions[:, d] == where % part
            share = 1 - epsilon + epsilon / part
            mu = epsilon / part + (1 - epsilon) * inside
        assert abs(float(inside.double().mean()) - share) < 5 * math.sqrt(share * (1 - share) / count)
        expected += mu.log()
    torch.testing.assert_close(log_mu, expected)
    greedy, log_mu = epsilon_greedy(out, torch.zeros(count), torch.Generator().manual_seed(0))
    assert log_mu.isfinite().all()
    spacing = torch.tensor([1 / (part.count - 1) if isinstance(part, Knots) else 0.0 for part in sizes])
    assert ((greedy - out.argmax_q()).abs() <= spacing + 1e-6).all()


def test_expected_q_bootstraps_from_the_policys_mean():
    """Q^ = r + γ E_π[Q_target(s')] with the online π, as an integral; the maximum is another number."""
    sizes = (Knots(5), Knots(5))
    head = HEADS["casa"]
    out, target = (head(outputs(head, sizes, (2, 3), seed), 0.5, sizes).detach() for seed in (0, 1))
    no, rewards = torch.zeros(1, 3, dtype=torch.bool), torch.randn(1, 3).double()
    actions = torch.rand(1, 3, 2).double() * 2 - 1
    given = TrainedSteps(actions, torch.zeros(1, 3).double(), rewards, no, no, ~no, None)
    agent = replace(from_recipe("r2d2-casa", "continuous").agent, value_rescale=False, discount=0.9)
    assert agent.targets == "n-step-expected-q"
    found = objective(out, target, given, agent).estimate.q
    grid, measure = one_by_one(sizes[0])
    pairs, weights = torch.cartesian_prod(grid, grid), torch.cartesian_prod(measure, measure).prod(-1)
    for b in range(3):
        after, there = (x.map(lambda y: y[1, b].expand(len(pairs), -1) if y.ndim > 2 else y) for x in (out, target))  # noqa: B023
        mean = (after.log_prob(pairs).exp() * weights * there.q_of(pairs)).sum()
        assert float(found[0, b]) == pytest.approx(float(rewards[0, b] + 0.9 * mean), abs=1e-3)
    largest = objective(out, target, given, replace(agent, targets="n-step-q")).estimate.q
    assert (largest - found).abs().min() > 1e-2


class Reach(gym.Env):
    """The observation shows a point; an action that hits it is worth 1, less its squared distance. Episodes of 10.

    The dimensions have other scales; `mixed` adds a gear, of which only one is right.
    """

    def __init__(self, mixed=False, bounded=True):
        self.observation_space = Box(-1, 1, (2,), np.float32)
        self.mixed = mixed
        self.low, self.high = np.array([-2.0, 10.0], np.float32), np.array([2.0, 20.0], np.float32)
        box = Box(self.low, self.high) if bounded else Box(-np.inf, np.inf, (2,))
        self.action_space = Dict(gear=Discrete(3, start=1), move=box) if mixed else box

    def _show(self):
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.goal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self._show(), {}

    def step(self, action):
        assert self.mixed or self.action_space.contains(action), action
        move = action["move"] if self.mixed else action
        place = 2 * (np.asarray(move) - self.low) / (self.high - self.low) - 1
        reward = 1 - float(((place - self.goal) ** 2).sum())
        if self.mixed:
            reward -= float(action["gear"] != 2)
        self.left -= 1
        return self._show(), reward, self.left == 0, False, {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "mixed"),
    [
        ("casa", False),
        ("ppo-casa", True),
        ("casa-no-dr", False),
        ("laser", True),
        ("ppo-gaussian", False),
        ("r2d2-casa", True),
    ],
)
def test_agents_learn_continuous_actions(recipe, mixed, tmp_path):
    """Chance is about 10 · (1 - 2 · 2/3) = -3.3, and 6.7 less with gears. Trains, loads, predicts and evaluates."""
    made = casa.train(
        recipe,
        env="tests.test_continuous:Reach",
        steps=8_000 if recipe == "r2d2-casa" else 16_000,
        run_dir=tmp_path / "run",
        quiet=True,
        env__kwargs=f"{{mixed: {str(mixed).lower()}}}",
        log__tensorboard="no",
        log__every_steps=1_000,
        **{"agent.discount": 0.5, "learner.lr": 1e-3},
    )
    assert made.config.preset == "continuous"
    assert made.metrics[0]["return"] < 2
    assert made.row["return"] > 6, made.row["return"]
    agent = made.load()
    env = agent.make_env()
    obs, _ = env.reset(seed=0)
    action, _ = agent.predict(obs, deterministic=True)
    batch, _ = agent.predict(np.stack([obs, obs]))
    if mixed:
        assert action["gear"] == 2 and action["move"].shape == (2,) and batch["gear"].shape == (2,)
    else:
        assert env.action_space.contains(action) and batch.shape == (2, 2)
    env.step(action)
    assert made.evaluate(episodes=4, modes=("greedy",))["modes"]["greedy"]["mean"] > 8


def test_what_does_not_fit_is_said(tmp_path):
    def start(**more):
        casa.train(env="tests.test_continuous:Reach", steps=64, run_dir=tmp_path / "run", quiet=True, **more)

    with pytest.raises(UserError, match=r"has no bounds, .* limit it with --env.action-bound"):
        start(recipe="ppo-casa", env__kwargs="{bounded: false}")
    with pytest.raises(UserError, match=r"head 'gaussian' is for continuous actions, not for 2 actions"):
        casa.train("ppo-gaussian", env="CartPole-v1", steps=64, run_dir=tmp_path / "run", quiet=True)


def test_the_maximum_over_several_continuous_actions_is_warned_of():
    notes = {}
    for targets in ("n-step-q", "n-step-expected-q"):
        settings = {"recipe": "r2d2", "env": "tests.test_continuous:Reach", "preset": "continuous", "device": "cpu"}
        settings |= {"agent.targets": targets, "env.vectorization": "sync", "data.replay_frames": 5000}
        system = build_system(make_config(settings), note=notes.setdefault(targets, []).append)
        for env in system.envs:
            env.close()
    assert any("n-step-q overestimates" in note for note in notes["n-step-q"])
    assert not any("overestimates" in note for note in notes["n-step-expected-q"])


@pytest.mark.parametrize(
    ("head", "kernel"), [("casa", "hat"), ("casa", "gaussian"), ("gaussian", "hat"), ("casa-gaussian", "hat")]
)
def test_what_is_drawn_is_a_density_of_every_dimension(head, kernel):
    spec = ActionSpec.box([-1] * 3, [2] * 3)
    net = Network((4,), spec, backbone="mlp", head=head, hidden=16, knots=301, kernel=kernel, initial_std=0.2)
    out, _ = net(torch.randn(1, 5, 4))
    curves = out.drawn().unflatten(-1, (3, -1))
    areas = torch.trapezoid(curves, dx=2 / (curves.shape[-1] - 1))
    torch.testing.assert_close(areas, torch.ones_like(areas), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("recipe", "changes"), [("casa", {"agent.head": "casa"}), ("ppo-gaussian", {})])
def test_a_run_is_exported_in_the_units_of_its_environment(recipe, changes, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    made = casa.train(recipe, "tests.test_continuous:Reach", 64, run_dir=tmp_path / "run", quiet=True, **changes)
    agent = made.load()
    session = ort.InferenceSession(str(agent.to_onnx(tmp_path / "agent.onnx")))
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)
    action = session.run(["action"], {"obs": obs})[0]
    np.testing.assert_allclose(action, agent.predict(obs, deterministic=True)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_step_is_the_step():
    """Densities, Q and their gradients in the compiler's layout; with the entropy bonus also the derivative of E_π."""
    learners = []
    for wanted in ("no", "yes"):
        changes = {"compile": wanted, "device": "cpu", "agent.entropy_cost": 0.1, "data.batch": 9, "data.rollout": 0}
        config = make_config({"recipe": "ppo-casa", "preset": "continuous", "env": "Pendulum-v1", **changes})
        torch.manual_seed(0)
        network = Network(
            (5,), ActionSpec.box([-1] * 3, [1] * 3), backbone="mlp-tanh", hidden=16, tau=0.004, obs_norm=True,
            advantage_unit="tau", head_layers=1, knots=4, kernel="polynomial", initial_std=0.6, value_backbone=True,
        )  # fmt: skip
        learners.append(Learner(network, config, fall_back=False))
    for i in range(4):
        batch = random_batch(12, 9, seed=i)
        generator = torch.Generator().manual_seed(i)
        actions = torch.rand(12, 9, 3, generator=generator) * 2 - 1
        obs = torch.randn(13, 9, 5, generator=generator)
        batch = batch._replace(obs=obs, actions=actions, policy=torch.zeros(12, 9, 0))
        eager, compiled = (learner.step(batch, torch.ones(9), 0.0) for learner in learners)
        for name, expected in compiled.scalars.items():
            assert eager.scalars.get(name, expected) == pytest.approx(expected, rel=1e-3, abs=1e-5), name
    states = [learner.network.state_dict() for learner in learners]
    for name, expected in states[0].items():
        torch.testing.assert_close(states[1][name], expected, rtol=1e-3, atol=2e-5, msg=name)
