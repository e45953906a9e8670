"""SNGP: its head against exact Gaussian processes of the same features, its norms against SVDs."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods import Gaussian
from polymode.methods.last_layer.head_weights import HeadWeights
from polymode.nets.conversion.random_features import RandomFeatures

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, generator=STREAM, dtype=torch.float64)
VALUES = torch.cat([X[:, :1].sin(), X[:, 1:2] * X[:, 2:]], 1)
LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
NOISE, PRECISION = 0.2, 0.7


def net(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs))


def fit(task: pm.Task, outputs: int = 2, **options) -> pm.Posterior:
    usual = {"net": lambda: net(outputs), "num_modes": 2, "epochs": 20, "num_features": 40,
             "prior_precision": PRECISION, "dtype": torch.float64}  # fmt: skip
    return pm.fit("sngp", task=task, progress="silent", **(usual | options))


def test_of_values_the_head_is_the_exact_gaussian_process_of_its_features() -> None:
    """In the dual form: with K = Φ Φᵀ / λ, means K* (K + σ² I)⁻¹ y and variances
    k** − K* (K + σ² I)⁻¹ K*ᵀ, to 1e-8."""
    task = pm.Task(train=(X, VALUES), likelihood=Gaussian(noise=NOISE), target_scaling=None)
    post = fit(task)
    x = torch.cat([X[:5], 3 * X[5:10]])
    prediction = post.predict(x)
    for mode, member in enumerate(post.members):
        phi, new = (member[2].features(member[:2](part)).detach() for part in (X, x))
        kernel = phi @ phi.T / PRECISION + NOISE**2 * torch.eye(30, dtype=torch.float64)
        gains = torch.linalg.solve(kernel, phi @ new.T / PRECISION).T
        variance = (new * new).sum(1) / PRECISION - (gains * (new @ phi.T / PRECISION)).sum(1)
        torch.testing.assert_close(prediction.loc[mode], gains @ VALUES, rtol=1e-8, atol=1e-8)
        expected = variance[:, None] + NOISE**2
        torch.testing.assert_close(
            prediction.scale[mode].square(), expected.expand(-1, 2), rtol=1e-8, atol=1e-8
        )


def test_of_classes_covariance_and_mean_field_are_those_of_the_paper() -> None:
    """Σ_k⁻¹ = λ I + Σ p (1 − p) φ φᵀ, logits over √(1 + π/8 φᵀ Σ φ)."""
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    post = fit(task, 3)
    assert isinstance(post.weights, HeadWeights)
    for mode, member in enumerate(post.members):
        phi = member[2].features(member[:2](X)).detach()
        logits = member(X).detach()
        share = logits.softmax(-1)
        scaled = []
        for k in range(3):
            weight = (share * (1 - share))[:, k : k + 1]
            precision = PRECISION * torch.eye(40, dtype=torch.float64) + (weight * phi).T @ phi
            variance = (phi * torch.linalg.solve(precision, phi.T).T).sum(1)
            scaled.append(logits[:, k] / (1 + math.pi / 8 * variance).sqrt())
        expected = torch.stack(scaled, 1).log_softmax(-1)
        torch.testing.assert_close(post.predict(X).log_probs[mode], expected, rtol=1e-8, atol=1e-8)
    drawn = fit(task, 3, link="mc", samples_per_mode=5).predict(X)
    assert drawn.num_samples == 10
    assert (drawn.mutual_information > 0).all()


def test_features_tend_to_the_gaussian_kernel() -> None:
    """With 200,000 features to 0.01; the standard error of an entry is below 0.0016, so that this
    is six of them."""
    layer = nn.Linear(3, 2).double()
    features = RandomFeatures(layer, 200_000, 1.7)
    phi = features(X[:6])
    kernel = torch.from_numpy(RBF(1.7)(X[:6].numpy()))
    assert ((phi @ phi.T - kernel).abs() < 0.01).all()


class Residual(nn.Module):
    """Convolutions of several kinds, with a skip path."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.block = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
        self.down = nn.Conv2d(4, 6, 3, stride=2, groups=2)
        self.hidden, self.head = nn.Linear(24, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        h = h + torch.relu(self.block(h))
        return self.head(torch.relu(self.hidden(torch.relu(self.down(h)).flatten(1))))


def dense(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Return the matrix of a layer without its bias, from its images of unit vectors."""
    size = math.prod(shape)
    units = torch.eye(size, dtype=torch.float64).view(size, *shape)
    with torch.no_grad():
        return (layer(units) - layer(torch.zeros_like(units[:1]))).flatten(1)


def test_hidden_layers_keep_their_norm_below_the_bound() -> None:
    """Singular values of whole layers, written out as matrices; 100 power steps leave 0.1 % at
    most here. The head is not bounded, and larger norms are what training made without a bound."""
    images = torch.randn(24, 1, 6, 6, generator=STREAM, dtype=torch.float64)
    task = pm.Task(train=(images, torch.arange(24) % 2), likelihood="categorical")
    bound = 0.8
    options = {"net": Residual, "epochs": 6, "batch_size": 8, "prior_precision": 1e-3}
    posts = {c: fit(task, norm_bound=c, **options) for c in (bound, None)}
    shapes = {"first": (1, 6, 6), "block": (4, 6, 6), "down": (4, 6, 6), "hidden": (24,)}
    largest: dict[float | None, list[float]] = {bound: [], None: []}
    for c, post in posts.items():
        for member in post.members:
            for name, shape in shapes.items():
                matrix = dense(member.get_submodule(name), shape)
                largest[c].append(float(torch.linalg.matrix_norm(matrix, ord=2)))
    assert max(largest[bound]) <= bound * 1.001
    assert max(largest[None]) > bound
    assert max(largest[bound]) > 0.99 * bound


def test_variance_grows_away_from_the_data() -> None:
    """Up to the prior's, φᵀφ / λ, and predictions of far inputs are those of no evidence."""
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    post = fit(task, 3, num_features=200)
    near, far = (post.weights.moments(part).variance.mean() for part in (X, 20 * X))
    assert far > 2 * near


def test_layers_without_a_bound_are_named() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.mix(x, x, x, need_weights=False)[0].mean(1))

    x = torch.randn(12, 3, 4, generator=STREAM)
    task = pm.Task(train=(x, torch.arange(12) % 2), likelihood="categorical")
    with pytest.warns(UserWarning, match=r"not for mix\.in_proj_weight: the network may stretch"):
        pm.fit("sngp", net=Attention, task=task, epochs=1, num_modes=1, progress="silent")
    quiet = pm.Task(train=(X.float(), VALUES.float()), likelihood=Gaussian(noise=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pm.fit("sngp", net=net, task=quiet, epochs=2, num_modes=1, progress="silent")
