"""Piecewise linear log-densities against literal integrals, finite differences, and extreme values."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from casa import piecewise
from casa.heads import entropy

NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)

VALUES = {
    "random": [0.3, -1.2, 2.0, 0.1, 0.7],
    "all equal": [0.4, 0.4, 0.4, 0.4],
    "equal neighbours": [1.0, 1.0, -2.0, -2.0, 0.0],
    "nearly equal": [0.5, 0.5 + 1e-9, 0.5 - 1e-7, 0.5 + 1e-4],
    "around the series' limit": [0.0, 0.19, 0.4, 1.39, 0.38],
    "steep": [0.0, 40.0, -40.0, 30.0],
    "two knots": [1.0, -0.5],
}


def integral(function, knots):
    """∫ f(u) du over [-1, 1] by Gauss-Legendre in each segment, where f is smooth."""
    edges = np.linspace(-1, 1, knots)
    total = 0.0
    for a, b in itertools.pairwise(edges):
        total += (b - a) / 2 * (WEIGHTS * function((a + b) / 2 + (b - a) / 2 * NODES)).sum()
    return total


def line(y):
    """y(u) by NumPy's interpolation."""
    return lambda u: np.interp(u, np.linspace(-1, 1, len(y)), y)


@pytest.mark.parametrize("y", VALUES.values(), ids=VALUES)
def test_normaliser_expectations_and_entropy_are_the_integrals(y):
    n = len(y)
    log_pi, w = piecewise.normalize(torch.tensor(y, dtype=torch.float64))
    f = line(y)
    z = integral(lambda u: np.exp(f(u)), n)
    np.testing.assert_allclose(log_pi.numpy(), np.array(y) - np.log(z), rtol=0, atol=1e-12)
    other = np.random.default_rng(0).normal(size=n)  # any function of the action: E_π[y] = Σ w y
    found = float((w * torch.from_numpy(other)).sum())
    assert found == pytest.approx(integral(lambda u: np.exp(f(u)) / z * line(other)(u), n), abs=1e-12)
    density = line(log_pi.numpy())
    literal = -integral(lambda u: np.exp(density(u)) * density(u), n)
    assert float(entropy(log_pi, w)) == pytest.approx(literal, abs=1e-11)
    assert float(w.sum()) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("y", VALUES.values(), ids=VALUES)
def test_quantile_inverts_the_distribution_function(y):
    log_pi, _ = piecewise.normalize(torch.tensor(y, dtype=torch.float64))
    uniform = torch.linspace(0, 1, 41, dtype=torch.float64)[:-1]
    actions = piecewise.quantile(log_pi.expand(len(uniform), -1), uniform)
    assert (actions.diff() >= 0).all()
    density, edges = line(log_pi.numpy()), np.linspace(-1, 1, len(y))
    for u, wanted in zip(actions.tolist(), uniform.tolist(), strict=True):
        points = np.unique([*edges[edges < u], u])
        below = 0.0
        for a, b in itertools.pairwise(points):
            below += (b - a) / 2 * (WEIGHTS * np.exp(density((a + b) / 2 + (b - a) / 2 * NODES))).sum()
        assert below == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("y", VALUES.values(), ids=VALUES)
def test_gradients_are_finite_differences(y):
    x = torch.tensor([y], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: piecewise.normalize(x), x, atol=1e-6)
    assert torch.autograd.gradcheck(lambda x: entropy(*piecewise.normalize(x)), x, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    data=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=9),
    scale=st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 30.0, 1e4, 1e8, 1e20]),
    uniform=st.floats(0, 1, exclude_max=True, width=32),
)
@settings(max_examples=150, deadline=None)
def test_extremes_stay_finite_and_normalised(dtype, data, scale, uniform):
    x = (scale * torch.tensor(data, dtype=torch.float64)).to(dtype).requires_grad_()
    log_pi, w = piecewise.normalize(x)
    grads = torch.autograd.grad(log_pi[0] + entropy(log_pi, w), x)
    action = piecewise.quantile(log_pi.detach(), torch.tensor(uniform, dtype=dtype))
    for found in (log_pi, w, *grads, action):
        assert found.isfinite().all()
    assert abs(float(w.detach().sum()) - 1) < 1e-5 and (w >= -1e-6).all()
    assert -1 <= float(action) <= 1
    assert abs(float(grads[0].sum())) < 1e-3 * max(1.0, float(grads[0].abs().max()))  # log π ignores a constant
    best = piecewise.argmax(x)
    at_best = float(piecewise.interpolate(x.detach(), best))
    bound = max(1e-12, 16 * torch.finfo(dtype).eps * float(x.detach().abs().max()))  # of the rounded place of the knot
    assert at_best == pytest.approx(float(x.detach().max()), rel=1e-5, abs=bound)


def test_float32_agrees_with_float64():
    x = torch.randn(200, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for scale in (1e-4, 0.3, 3.0, 100.0):
        wide, narrow = piecewise.normalize(scale * x), piecewise.normalize((scale * x).float())
        for a, b in zip(wide, narrow, strict=True):
            torch.testing.assert_close(a, b.double(), rtol=1e-5, atol=1e-6 * max(1.0, scale))


def test_a_density_becomes_greedy_as_the_temperature_falls():
    a = torch.tensor([0.1, 0.5, 0.2, 0.45], dtype=torch.float64)
    for tau in (1e-2, 1e-4, 1e-6):
        log_pi, w = piecewise.normalize(a / tau)
        assert float((w * a).sum()) == pytest.approx(0.5, abs=3 * tau)  # E_π[A] -> max A
        assert abs(float(piecewise.quantile(log_pi, torch.tensor(0.5).double())) + 1 / 3) < 10 * tau


def test_samples_have_the_density():
    log_pi, w = piecewise.normalize(2 * torch.randn(6, generator=torch.Generator().manual_seed(1)))
    count = 50_000
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(2))
    actions = piecewise.quantile(log_pi.expand(count, -1), uniform)
    shares = piecewise.hats(actions, 6).mean(0)  # E[φ_j] = w_j
    torch.testing.assert_close(shares, w, rtol=0, atol=5 * 0.5 / count**0.5)


def test_variance_is_over_uniform_actions():
    y = [0.3, -1.2, 2.0, 0.1]
    f = line(y)
    mean = integral(f, 4) / 2
    literal = integral(lambda u: (f(u) - mean) ** 2, 4) / 2
    assert float(piecewise.variance(torch.tensor(y, dtype=torch.float64))) == pytest.approx(literal, rel=1e-12)


def test_the_gaussian_kernel_on_a_grid_has_the_papers_integrals():
    """log π, E_π[A] and the kernel itself against the appendix' formula, integrated on a fine grid."""
    basis = torch.tensor([0.4, -0.3, 1.1, 0.0, 0.6], dtype=torch.float64)
    values = piecewise.smoothing(5, 65, 0.5).double() @ basis
    log_pi, w = piecewise.normalize(values)

    def kernel(u):
        k = np.exp(-((u[:, None] - np.linspace(-1, 1, 5)) ** 2) / (2 * 0.5**2))
        return k @ basis.numpy() / k.sum(1)

    u, step = np.linspace(-1, 1, 20_001, retstep=True)
    mass = np.exp(kernel(u))
    mass[[0, -1]] /= 2
    z = mass.sum() * step
    found = piecewise.interpolate(log_pi, torch.linspace(-1, 1, 33).double()[:, None]).squeeze()
    np.testing.assert_allclose(found, kernel(np.linspace(-1, 1, 33)) - np.log(z), atol=1e-4)
    assert float((w * values).sum()) == pytest.approx((mass * kernel(u)).sum() * step / z, abs=1e-4)


def test_polynomials_are_legendres():
    u = np.linspace(-1, 1, 9)
    found = piecewise.polynomials(5, 9, unit=3.0).numpy()
    for k in range(1, 6):
        expected = 2 * 3 / (k * (k + 1)) * np.polynomial.legendre.Legendre.basis(k)(u)
        np.testing.assert_allclose(found[:, k - 1], expected, atol=1e-6)


def test_the_mean_is_the_integral():
    y = [0.3, -1.2, 2.0, 0.1]
    _, w = piecewise.normalize(torch.tensor(y, dtype=torch.float64))
    f = line(y)
    z = integral(lambda u: np.exp(f(u)), 4)
    literal = integral(lambda u: u * np.exp(f(u)), 4) / z
    assert float(piecewise.mean(w)) == pytest.approx(literal, rel=1e-9)
