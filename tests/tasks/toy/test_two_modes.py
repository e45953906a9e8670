from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from polymode.nets import mlp
from polymode.tasks import task
from polymode.tasks.toy.two_modes import FLIP, TwoModePosterior

NOISE, ALPHA = 0.2, 1.0


@pytest.fixture(scope="module")
def own():
    return task("two_modes")


def log_marginal(own, points: torch.Tensor) -> torch.Tensor:
    """log p(y, w, b) with v and c integrated in the space of the data: y ~ N(0, K).

    K = Phi Phi^T / alpha + sigma^2 I, (N, N) for each point.
    """
    x, y = own.train.x.double()[:, 0], own.train.y.double()
    values = []
    for some in points.split(4000):
        hidden = torch.tanh(some[:, :1] * x + some[:, 1:])
        kernel = (hidden[:, :, None] * hidden[:, None, :] + 1) / ALPHA
        root = torch.linalg.cholesky(kernel + NOISE**2 * torch.eye(len(x), dtype=torch.float64))
        white = torch.linalg.solve_triangular(root, y.expand(len(some), -1, -1), upper=False)
        log_det = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
        values.append(-(white.square().sum((1, 2)) + log_det + len(x) * math.log(2 * math.pi)) / 2)
    log_prior = math.log(ALPHA / (2 * math.pi)) - ALPHA / 2 * points.square().sum(1)
    return torch.cat(values) + log_prior


def grid(step: float, w: tuple[float, float], b: tuple[float, float]) -> torch.Tensor:
    ticks = [torch.arange(a, z, step, dtype=torch.float64) for a, z in (w, b)]
    return torch.cartesian_prod(*ticks)


def test_evidence_and_moments_against_a_brute_force_grid(own):
    """One mode on an even grid of (w, b), (v, c) conditioned in the space of the data: to 1e-8."""
    points = grid(0.06, (0.06, 7.5), (-3.0, 3.0))
    values = log_marginal(own, points)
    log_half = values.logsumexp(0).item() + 2 * math.log(0.06)
    assert own.exact.log_evidence == pytest.approx(log_half + math.log(2), abs=1e-8)
    probs = values.softmax(0)
    kept = probs > 1e-13
    points, probs = points[kept], probs[kept] / probs[kept].sum()
    x, y = own.train.x.double()[:, 0], own.train.y.double()
    hidden = torch.tanh(points[:, :1] * x + points[:, 1:])
    phi = torch.stack([hidden, torch.ones_like(hidden)], dim=2)
    kernel = phi @ phi.mT / ALPHA + NOISE**2 * torch.eye(len(x), dtype=torch.float64)
    gain = torch.linalg.solve(kernel, phi / ALPHA).mT
    inner_covariance = torch.eye(2, dtype=torch.float64) / ALPHA - gain @ phi / ALPHA
    theta = torch.cat([points, (gain @ y)[..., 0]], dim=1)
    mean = probs @ theta
    expected = (theta - mean).T @ (probs[:, None] * (theta - mean))
    expected[2:, 2:] += torch.tensordot(probs, inner_covariance, dims=1)
    torch.testing.assert_close(own.exact.means[0], mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(own.exact.covariances[0], expected, rtol=0, atol=1e-8)


def test_mirror_image_and_valley_between(own):
    points = grid(0.7, (-4.0, 4.0), (-4.0, 4.0))
    torch.testing.assert_close(log_marginal(own, points), log_marginal(own, -points))
    assert own.exact.weights.tolist() == [0.5, 0.5]
    valley = log_marginal(own, grid(0.01, (0.0, 0.005), (-10.0, 10.0))).max()
    peak = log_marginal(own, own.exact.nodes.points).max()
    assert own.exact.separation == pytest.approx(float(peak - valley), abs=0.1)
    assert own.exact.separation > 100


@pytest.mark.parametrize("seed", range(3))
def test_there_are_exactly_two_modes(seed):
    """Local maxima of the density of (w, b) on a grid."""
    own = task("two_modes", seed)
    side = torch.arange(-6.0, 6.01, 0.15, dtype=torch.float64)
    values = log_marginal(own, torch.cartesian_prod(side, side)).view(len(side), len(side))
    windows = torch.nn.functional.max_pool2d(values[None], 3, stride=1, padding=1)[0]
    peaks = ((values == windows) & (values > values.min())).nonzero()
    found = side[peaks]
    assert len(found) == 2
    marginal_modes = own.exact.means[:, :2]
    assert (torch.cdist(found, marginal_modes).min(1).values < 0.6).all()


def test_against_importance_sampling_of_all_four_parameters(own):
    """40,000 draws of a Student-t around the Laplace approximation of one mode; evidence, means and
    predictive within 4 standard errors (16 comparisons, false-alarm rate 0.001)."""
    x, y = own.train.x.double().numpy()[:, 0], own.train.y.double().numpy()[:, 0]
    shape = own.exact.laplace_covariances[0].numpy()
    proposal = stats.multivariate_t(own.exact.modes[0].numpy(), 1.5 * shape, df=5, seed=1)
    theta = proposal.rvs(40_000)
    w, b, v, c = theta.T[:, :, None]
    log_joint = stats.norm.logpdf(y, v * np.tanh(w * x + b) + c, NOISE).sum(1)
    log_joint += stats.norm.logpdf(theta).sum(1)
    log_half = own.exact.log_evidence - math.log(2)
    values = np.exp(log_joint - proposal.logpdf(theta) - log_half)
    assert values.mean() == pytest.approx(1, abs=4 * values.std() / 200)
    new = own.test.x[:10].double()
    functions = v * np.tanh(w * new.numpy()[:, 0] + b) + c
    for found, expected in [
        *zip(theta.T, own.exact.means[0].numpy(), strict=True),
        *zip(functions.T, own.exact.predict(new)[0].numpy()[:, 0], strict=True),
    ]:
        errors = values * (found - expected)
        assert abs(errors.mean()) < 4 * errors.std() / 200
    squares = values * (v[:, 0] - own.exact.means[0, 2].item()) ** 2
    assert squares.mean() == pytest.approx(
        own.exact.covariances[0, 2, 2].item(), abs=4 * squares.std() / 200
    )


def test_modes_are_maxima_of_the_networks_log_posterior(own):
    """With the network itself: gradient zero, and the Hessian is the inverse Laplace covariance."""
    net = mlp((1,), 1, hidden=(1,), activation="tanh").double()
    names = [(name, p.shape) for name, p in net.named_parameters()]
    x, y = own.train.x.double(), own.train.y.double()

    def log_posterior(theta: torch.Tensor) -> torch.Tensor:
        params = {name: theta[i].view(shape) for i, (name, shape) in enumerate(names)}
        outputs = torch.func.functional_call(net, params, (x,))
        return -(y - outputs).square().sum() / (2 * NOISE**2) - ALPHA / 2 * theta.square().sum()

    for mode, covariance in zip(own.exact.modes, own.exact.laplace_covariances, strict=True):
        assert torch.func.grad(log_posterior)(mode).abs().max() < 1e-6
        hessian = torch.autograd.functional.hessian(log_posterior, mode)
        torch.testing.assert_close(torch.linalg.inv(-hessian), covariance, rtol=1e-6, atol=1e-9)
    assert own.exact.modes[0, 0] > 0 > own.exact.modes[1, 0]
    torch.testing.assert_close(own.exact.modes[1], FLIP * own.exact.modes[0])


def test_predictive_density_is_the_ratio_of_evidences(own):
    x, y = own.test.x[:3], own.test.y[:3]
    log_probs = own.exact.log_prob(x, y)
    for i in range(3):
        more = torch.cat([own.train.x, x[i : i + 1]]), torch.cat([own.train.y, y[i : i + 1]])
        both = TwoModePosterior.of(*more, prior_precision=ALPHA, noise=NOISE)
        assert both.log_evidence - own.exact.log_evidence == pytest.approx(
            float(log_probs[i]), abs=1e-8
        )


def test_predict_has_the_moments_of_the_density(own):
    """Mean and variance by integration of `log_prob` over y, at an input among the data and far."""
    y = torch.linspace(-6, 6, 801, dtype=torch.float64)[:, None]
    for place in (0.3, 4.5):
        x = torch.full_like(y, place)
        mass = own.exact.log_prob(x, y).exp() * float(y[1] - y[0])
        mean, variance = (float(t) for t in own.exact.predict(x[:1]))
        assert float(mass.sum()) == pytest.approx(1, abs=1e-8)
        assert float(mass @ y) == pytest.approx(mean, abs=1e-8)
        assert float(mass @ (y - mean).square()) == pytest.approx(variance, abs=1e-8)


def test_moments_of_both_modes_together(own):
    """The mixture of two mirrored parts, written out."""
    exact = own.exact
    torch.testing.assert_close(exact.mean[:3], torch.zeros(3, dtype=torch.float64))
    second = [exact.covariances[k] + torch.outer(exact.means[k], exact.means[k]) for k in range(2)]
    expected = sum(second) / 2 - torch.outer(exact.mean, exact.mean)
    torch.testing.assert_close(exact.covariance, expected)
    assert float(exact.covariance[0, 0]) > 20 * float(exact.covariances[0, 0, 0])


def test_stated_accuracy_over_seeds():
    for seed in range(5):
        assert task("two_modes", seed).exact.error <= 1e-9


def test_truth_and_ood(own):
    x = torch.tensor([[0.4], [-1.0]], dtype=torch.float64)
    expected = 1.2 * torch.tanh(1.5 * x + 0.5) - 0.3
    torch.testing.assert_close(own.truth(x), expected, rtol=1e-6, atol=1e-6)
    assert float(own.train.x.abs().max()) <= 2
    outside = own.ood["outside"].x.abs()
    assert float(outside.min()) >= 2 and float(outside.max()) <= 5


@pytest.mark.parametrize(
    "options, message",
    [
        ({"noise": 0.0}, "`noise` of two_modes must be a number > 0 and finite, got 0.0"),
        (
            {"prior_precision": -1.0},
            "`prior_precision` of two_modes must be a number > 0 and",
        ),
        (
            {"noise": 1.0, "num_train": 5},
            r"merge: .* nats lower, reference answers need 32; take more examples",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        task("two_modes", **options)


def test_log_prob_far_out_is_finite(own):
    far = own.exact.log_prob(torch.tensor([[0.0]]), torch.tensor([[100.0]]))
    assert math.isfinite(float(far)) and float(far) < -1e4
