"""Evidential networks: losses and predictions against SciPy's closed forms and plain sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import polymode as pm
from polymode.likelihoods import Gaussian
from polymode.methods import evidential
from polymode.methods.evidential import Evidence, EvidentialWeights

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=STREAM, dtype=torch.float64)
VALUES = torch.cat([X[:, :1].sin(), X[:, 1:2] * 3], 1) + 0.1 * torch.randn(60, 2, generator=STREAM)
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()


def net(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


def fit(task: pm.Task, outputs: int, **options) -> pm.Posterior:
    return pm.fit("evidential", net=lambda: net(outputs), task=task, num_modes=2, epochs=20,
                  dtype=torch.float64, progress="silent", **options)  # fmt: skip


def of_values(**options) -> pm.Posterior:
    task = pm.Task(train=(X, VALUES), likelihood=Gaussian(noise="learned"), target_scaling=None)
    return fit(task, 2, **options)


def test_the_loss_of_values_is_that_of_student_t() -> None:
    """−log p(y) of SciPy's Student-t, to 1e-12, and the regulariser written out."""
    gamma, nu, beta = (
        torch.rand(4, 5, 2, generator=STREAM, dtype=torch.float64) + 0.2 for _ in "abc"
    )
    alpha = 1 + torch.rand(4, 5, 2, generator=STREAM, dtype=torch.float64)
    y = torch.randn(4, 5, 2, generator=STREAM, dtype=torch.float64)
    scale = (beta * (1 + nu) / (nu * alpha)).sqrt()
    expected = -stats.t.logpdf(y.numpy(), (2 * alpha).numpy(), gamma.numpy(), scale.numpy())
    found = evidential.nig_nll(Evidence(gamma, nu, alpha, beta), y)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", evidential.LOSSES)
def test_the_losses_of_classes_are_expectations_under_the_dirichlet(kind) -> None:
    """E‖y − p‖² by SciPy's variances, −log E p, −E log p by 200,000 draws; within 6 standard errors
    of the mean for the last (false alarm 2e-9 each), to 1e-12 for the others."""
    outputs = torch.randn(3, 4, generator=STREAM, dtype=torch.float64) * 2
    labels = torch.tensor([0, 3, 1])
    alpha = 1 + torch.log1p(outputs.exp())
    for row, label, z in zip(alpha.numpy(), labels, outputs, strict=True):
        law = stats.dirichlet(row)
        truth = np.eye(4)[label]
        cost = float(evidential.loss_of_classes(kind, 0.0)(z[None], label[None], {}))
        if kind == "mse":
            assert cost == pytest.approx(((truth - law.mean()) ** 2 + law.var()).sum(), rel=1e-12)
        elif kind == "log":
            assert cost == pytest.approx(-np.log(law.mean()[label]), rel=1e-12)
        else:
            logs = -np.log(law.rvs(200_000, random_state=1)[:, label])
            assert abs(cost - logs.mean()) < 6 * logs.std() / 200_000**0.5


def test_the_divergence_from_the_flat_dirichlet_is_that_of_torch() -> None:
    alpha = 1 + 3 * torch.rand(6, 4, generator=STREAM, dtype=torch.float64)
    law = torch.distributions.Dirichlet(alpha)
    flat = torch.distributions.Dirichlet(torch.ones_like(alpha))
    expected = torch.distributions.kl_divergence(law, flat)
    torch.testing.assert_close(evidential.divergence_from_flat(alpha), expected)
    wrong = torch.tensor([[3.0, 0.0, 1.0]], dtype=torch.float64)
    masked = torch.tensor(
        [[1 + torch.log1p(wrong[0, 0].exp()), 1.0, 1 + torch.log1p(wrong[0, 2].exp())]]
    )
    gain = [evidential.loss_of_classes("log", w)(wrong, torch.tensor([1]), {}) for w in (0.0, 0.3)]
    assert (gain[1] - gain[0]).item() == pytest.approx(
        0.3 * evidential.divergence_from_flat(masked).item()
    )


def test_predictions_of_values_tend_to_the_student_t_and_its_two_parts() -> None:
    """With 4,000 points the distribution function is SciPy's to 0.002, the parts of the variance,
    where α > 3, those of the closed form to 2 %; and these are what plain sampling of σ², μ and y
    gives, within 6 standard errors."""
    post = of_values()
    weights = post.weights
    assert isinstance(weights, EvidentialWeights)
    x = X[:7]
    evidence = weights.parameters(x)
    assert isinstance(evidence, Evidence)
    gamma, nu, alpha, beta = (part.detach()[0].numpy() for part in evidence)
    prediction = post[:1].predict(x, samples_per_mode=4000)
    scale = np.sqrt(beta * (1 + nu) / (nu * alpha))
    for z in (-2.0, 0.3, 1.5):
        y = torch.from_numpy(gamma + z * scale)
        expected = stats.t.cdf(z, 2 * alpha)
        found = torch.special.ndtr((y - prediction.loc) / prediction.scale).mean(0)
        np.testing.assert_allclose(found.numpy(), expected, atol=2e-3)
    torch.testing.assert_close(prediction.mean, torch.from_numpy(gamma))
    ratio = prediction.epistemic_variance / prediction.variance
    torch.testing.assert_close(ratio, torch.from_numpy(1 / (1 + nu)), rtol=1e-6, atol=1e-9)
    steady = Evidence(
        *(torch.full((1, 1, 1), v, dtype=torch.float64) for v in (0.4, 1.7, 5.0, 2.0))
    )
    stream = torch.Generator().manual_seed(3)
    precision = torch._standard_gamma(torch.full((400_000,), 5.0).double(), generator=stream) / 2.0
    means = 0.4 + (1 / precision / 1.7).sqrt() * torch.randn(400_000, generator=stream).double()
    for sampled, closed in (
        ((1 / precision), 2.0 / 4.0),
        ((means - 0.4).square(), 2.0 / (1.7 * 4.0)),
    ):
        assert abs(sampled.mean() - closed) < 6 * sampled.std() / 400_000**0.5
    weights.parameters = lambda _: steady  # type: ignore[method-assign]
    parts = weights.components(post.likelihood, x[:1], 4000, 0)
    noise = (parts.scale[0].square() * (1 - parts.epistemic[0])).mean()
    assert noise.item() == pytest.approx(0.5, rel=0.02)


def test_predictions_of_classes_are_points_of_the_dirichlet() -> None:
    """With 4,000 points, means are α/S to 0.005, variances and the entropy's expectation those of
    SciPy and of the closed form to 3 %; `energy` is −log S."""
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    post = fit(task, 3)
    alpha = post.weights.parameters(X[:6]).detach()[0]
    prediction = post[:1].predict(X[:6], samples_per_mode=4000)
    total = alpha.sum(-1)
    torch.testing.assert_close(prediction.mean, alpha / total[:, None], rtol=0, atol=5e-3)
    variance = np.stack([stats.dirichlet(row).var() for row in alpha.numpy()])
    np.testing.assert_allclose(prediction.epistemic_variance.numpy(), variance, rtol=0.03)
    share = alpha / total[:, None]
    entropy = -(share * ((alpha + 1).digamma() - (total + 1).digamma()[:, None])).sum(-1)
    torch.testing.assert_close(prediction.expected_entropy, entropy, rtol=0.03, atol=0)
    torch.testing.assert_close(prediction.energy, -total.log())


def test_gamma_quantiles_and_their_slopes() -> None:
    alpha = torch.tensor([1.0, 1.3, 4.0, 80.0], dtype=torch.float64, requires_grad=True)
    probs = torch.tensor([0.01, 0.5, 0.99, 0.3], dtype=torch.float64)
    expected = stats.gamma.ppf(probs.numpy(), alpha.detach().numpy())
    found = evidential.gamma_quantile(alpha, probs)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10)
    assert torch.autograd.gradcheck(lambda a: evidential.gamma_quantile(a, probs), alpha, atol=1e-6)


def test_what_it_is_not_for_is_refused_in_one_line() -> None:
    fixed = pm.Task(train=(X, VALUES), likelihood=Gaussian(noise=0.1))
    for task, options, text in (
        (
            fixed,
            {},
            "learns the noise itself, with one target per example, and the likelihood is gau",
        ),
        (
            pm.Task(train=(X, VALUES), likelihood=Gaussian(noise="learned")),
            {"loss": "mse"},
            "one of classes",
        ),
    ):
        with pytest.raises(ValueError, match=text) as error:
            fit(task, 2, **options)
        assert "\n" not in str(error.value)
