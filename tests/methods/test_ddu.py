"""DDU: the density of features is that of scikit-learn's Gaussians, and predictions carry it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.mixture import GaussianMixture
from torch import nn

import polymode as pm
from polymode.methods.ddu import DensityWeights, decomposed
from polymode.metrics import ood

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(150, 3, generator=STREAM, dtype=torch.float64)
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
TASK = pm.Task(train=(X, LABELS), likelihood="categorical")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def fit(task: pm.Task = TASK, **options) -> pm.Posterior:
    usual = {"net": net, "num_modes": 2, "epochs": 20, "dtype": torch.float64}
    return pm.fit("ddu", task=task, progress="silent", **(usual | options))


def test_the_density_is_that_of_scikit_learn() -> None:
    """Of its mixture with means and covariances of the classes, and of SciPy's Gaussians; `energy`
    is minus the mean over modes."""
    post = fit()
    weights = post.weights
    assert isinstance(weights, DensityWeights)
    x = torch.cat([X[:20], 5 * X[:20]])
    found = weights.log_density(x)
    for mode, member in enumerate(post.members):
        z, new = (member[:2](part).detach().numpy() for part in (X, x))
        covariances = np.stack([np.cov(z[LABELS == c].T) for c in range(3)])
        mixture = GaussianMixture(3)
        mixture.weights_ = np.bincount(LABELS) / 150
        mixture.means_ = np.stack([z[LABELS == c].mean(0) for c in range(3)])
        roots = np.linalg.cholesky(np.linalg.inv(covariances))
        mixture.precisions_cholesky_ = roots
        log_density = found[mode].detach().numpy()
        np.testing.assert_allclose(log_density, mixture.score_samples(new), rtol=1e-8)
        logs = np.stack([
            stats.multivariate_normal(mean, covariance).logpdf(new) + np.log(share)
            for mean, covariance, share in zip(
                weights.means[mode].numpy(), covariances, mixture.weights_, strict=True)
        ], 1)  # fmt: skip
        np.testing.assert_allclose(np.logaddexp.reduce(logs, 1), log_density, rtol=1e-8)
    energy = post.predict(x).energy
    torch.testing.assert_close(energy, -found.mean(0).detach())
    plain = pm.fit("map", net=post, task=TASK, epochs=0, progress="silent").predict(x)
    torch.testing.assert_close(post.predict(x).log_probs, plain.log_probs)


def test_scores_of_ood_inputs_use_the_density() -> None:
    """Inputs far away have lower density, and are told apart by `energy` through `pm.evaluate`."""
    task = pm.Task(train=(X, LABELS), test=(X[:50], LABELS[:50]), likelihood="categorical",
                   ood={"far": 6 + X[:50]})  # fmt: skip
    post = fit(task)
    inside, outside = post.predict(X[:50]), post.predict(6 + X[:50])
    score = ood.auroc(inside.energy, outside.energy).value
    rows = [
        row
        for row in pm.evaluate(post, task).rows
        if "energy" in row.metric and "auroc" in row.metric
    ]
    assert rows
    assert rows[0].value == pytest.approx(score)


def test_singular_covariances_get_the_least_jitter() -> None:
    singular = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64)).repeat(1, 2, 1, 1)
    singular[0, 1] = torch.eye(2)
    roots = decomposed(singular)
    torch.testing.assert_close(roots[0, 1], torch.eye(2, dtype=torch.float64))
    assert 0 < roots[0, 0, 1, 1] < 1e-8
    dead = pm.fit("ddu", net=lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)),
                  task=pm.Task(train=(X.float() - 9, LABELS), likelihood="categorical"),
                  num_modes=1, epochs=1, progress="silent")  # fmt: skip
    assert dead.predict(X.float()).energy.isfinite().all()


def test_a_class_that_is_absent_has_no_share() -> None:
    post = fit(pm.Task(train=(X, LABELS.clamp(max=1)), likelihood="categorical", target_size=3))
    assert (post.weights.log_shares[:, 2] == -torch.inf).all()
    assert post.predict(X).energy.isfinite().all()


def test_of_values_it_is_one_gaussian() -> None:
    task = pm.Task(train=(X, X.sin()), likelihood=pm.likelihoods.Gaussian(noise=0.3))
    post = fit(task)
    z = post.members[0][:2](X).detach().numpy()
    expected = stats.multivariate_normal(z.mean(0), np.cov(z.T)).logpdf(z)
    np.testing.assert_allclose(post.weights.log_density(X)[0].detach().numpy(), expected, rtol=1e-8)
