"""Vector, matrix and Dirichlet scaling against SciPy, scikit-learn and plain autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from polymode.prediction import CategoricalPrediction
from polymode.recalibration import recalibrate
from polymode.recalibration.affine import Affine, fit

KINDS = ("vector", "matrix", "dirichlet")
FLOOR = math.log(1e-30)


def draw(samples: int, n: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Log-probabilities (S, n, C), wrong by a matrix, a bias, noise, and labels of the truth."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    logits = 2 * torch.randn(n, classes, **options)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    wrong = 1.5 * torch.eye(classes) + 0.2 * torch.randn(classes, classes, **options)
    logits = logits @ wrong + torch.randn(classes, **options)
    return (logits + 0.5 * torch.randn(samples, n, classes, **options)).log_softmax(-1), labels


def loss(log_probs: Tensor, labels: Tensor, kind: str, penalty: float, weight, bias) -> Tensor:
    """Plain twin of the objective, as the module's text has it."""
    n, classes = log_probs.shape[1:]
    matrix = torch.diag(weight) if weight.dim() == 1 else weight
    probs = (log_probs @ matrix.T + bias).softmax(-1).mean(0)
    nll = -probs[torch.arange(n), labels].log().mean()
    eye = torch.eye(classes, dtype=torch.float64)
    if kind != "dirichlet":
        return nll + penalty / (2 * n) * ((matrix - eye).square().sum() + bias.square().sum())
    off = (matrix * (1 - eye)).square().sum() / (classes * (classes - 1))
    own = (matrix.diagonal() - 1).square().sum() / (2 * n)
    return nll + penalty * (off + bias.square().mean()) + own


def fitted(parameters: dict) -> tuple[Tensor, Tensor]:
    return tuple(
        torch.tensor(parameters[key], dtype=torch.float64, requires_grad=True)
        for key in ("weight", "bias")
    )


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(KINDS), st.integers(0, 2**31), st.integers(1, 50), st.integers(2, 5),
    st.integers(1, 3), st.sampled_from([0.1, 1.0, 10.0]),
)  # fmt: skip
def test_the_gradient_is_zero(kind, seed, n, classes, samples, penalty) -> None:
    """Also where labels are separable (few examples) and where classes have none."""
    log_probs, labels = draw(samples, n, classes, seed)
    weight, bias = fitted(fit(log_probs, labels, Affine(penalty=penalty), kind=kind))
    value = loss(log_probs.clamp(min=FLOOR), labels, kind, penalty, weight, bias)
    for gradient in torch.autograd.grad(value, (weight, bias)):
        assert gradient.abs().max() < 1e-8
    identity = torch.eye(classes, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
    assert value <= loss(log_probs, labels, kind, penalty, *identity) + 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [1, 4])
def test_against_scipy(kind, samples) -> None:
    """BFGS on the plain objective from the identity ends at the same map."""
    log_probs, labels = draw(samples, 300, 4)
    weight, bias = fitted(fit(log_probs, labels, Affine(penalty=0.3), kind=kind))
    shapes = [weight.shape, bias.shape]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.tensor(flat, requires_grad=True)
        parts = [p.view(s) for p, s in zip(theta.split([weight.numel(), 4]), shapes, strict=True)]
        value = loss(log_probs, labels, kind, 0.3, *parts)
        return value.item(), torch.autograd.grad(value, theta)[0].numpy()

    start = (torch.ones(4) if kind == "vector" else torch.eye(4)).flatten()
    start = torch.cat([start, torch.zeros(4)]).double().numpy()
    best = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9})
    ours = torch.cat([weight.detach().flatten(), bias.detach()])
    np.testing.assert_allclose(ours, best.x, atol=1e-5)


def test_against_scikit_learn() -> None:
    """Under a penalty too weak to matter, matrix scaling is multinomial logistic regression."""
    from sklearn.linear_model import LogisticRegression

    log_probs, labels = draw(1, 400, 3)
    tiny = fit(log_probs, labels, Affine(penalty=1e-5), kind="matrix")
    oracle = LogisticRegression(C=1e5, tol=1e-10, max_iter=10_000).fit(log_probs[0], labels)
    weight, bias = fitted(tiny)
    ours = (log_probs[0] @ weight.T + bias).softmax(-1).detach()
    np.testing.assert_allclose(ours, oracle.predict_proba(log_probs[0]), atol=1e-4)


def test_vector_recovers_a_known_map() -> None:
    """Log-probabilities made wrong by w, b come back. False alarms: 1e-3 in all.

    The log-likelihood ratio of the truth, twice n times the gap in mean NLL, is chi squared with
    2C - 1 degrees of freedom (a constant in b is free): its 0.999 quantile for C = 3 is 20.5.
    """
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(5000, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    labels = torch.multinomial(truth.exp(), 1, generator=generator)[:, 0]
    wrong = ((truth - torch.tensor([0.5, 0.0, -0.5])) / 0.4).log_softmax(-1)
    prediction = CategoricalPrediction(wrong[None])
    right = recalibrate(prediction, labels, "vector", penalty=1e-6)(prediction)
    nll, best = (-CategoricalPrediction(t[None]).log_prob(labels).mean() for t in (wrong, truth))
    gap = best + right.log_prob(labels).mean()
    assert -1e-6 < 2 * 5000 * gap < 20.5
    assert nll - best > 0.05


def test_more_freedom_fits_better() -> None:
    """On the data of the fit and with little penalty: matrix <= vector <= temperature <= none."""
    log_probs, labels = draw(3, 500, 4)
    prediction = CategoricalPrediction(log_probs)
    nll = [-prediction.log_prob(labels).mean()]
    for method in ("temperature", "vector", "matrix"):
        options = {} if method == "temperature" else {"penalty": 1e-3}
        mapped = recalibrate(prediction, labels, method, **options)(prediction)
        nll.append(-mapped.log_prob(labels).mean())
    assert nll[3] < nll[2] < nll[1] < nll[0]


def test_strong_penalties() -> None:
    """Vector and matrix become the identity; Dirichlet a diagonal map without intercept."""
    log_probs, labels = draw(1, 200, 3)
    for kind in ("vector", "matrix"):
        weight, bias = fitted(fit(log_probs, labels, Affine(penalty=1e9), kind=kind))
        eye = torch.ones(3) if kind == "vector" else torch.eye(3)
        assert (weight - eye).abs().max() < 1e-5 and bias.abs().max() < 1e-5
    weight, bias = fitted(fit(log_probs, labels, Affine(penalty=1e9), kind="dirichlet"))
    assert (weight - weight.diagonal().diag()).abs().max() < 1e-5 and bias.abs().max() < 1e-5
    assert (weight.diagonal() - 1).abs().max() > 0.05


@pytest.mark.cpu_seconds(6)
def test_penalty_by_cross_validation() -> None:
    """Of several the best on held-out folds is taken: weak where data are many, strong where few.

    1e4 forbids the correction that 3,000 examples ask for; 1e-6 lets 30 parameters follow 20
    examples of a prediction that is right already.
    """
    log_probs, labels = draw(1, 3000, 3)
    choice = (1e-6, 1e4)
    assert fit(log_probs, labels, Affine(penalty=choice), kind="dirichlet")["penalty"] == 1e-6
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(1, 20, 5, generator=generator, dtype=torch.float64).log_softmax(-1)
    few = torch.multinomial(right[0].exp(), 1, generator=generator)[:, 0]
    assert fit(right, few, Affine(penalty=choice), kind="dirichlet")["penalty"] == 1e4
    with pytest.raises(ValueError, match="needs >= 5 examples, got 4"):
        fit(log_probs[:, :4], labels[:4], Affine(penalty=choice), kind="dirichlet")


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.inf, math.nan, ()])
def test_bad_penalty(penalty) -> None:
    log_probs, labels = draw(1, 20, 3)
    with pytest.raises(ValueError, match="finite and > 0"):
        fit(log_probs, labels, Affine(penalty=penalty), kind="matrix")


@pytest.mark.parametrize("kind", KINDS)
def test_zero_probabilities_and_separable_labels(kind) -> None:
    """Finite parameters, and zeros become small numbers."""
    probs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).repeat(5, 1)
    prediction = CategoricalPrediction.from_probs(probs)
    labels = torch.arange(3).repeat(5)
    map_ = recalibrate(prediction, labels, kind)
    assert torch.tensor(map_.parameters["weight"]).isfinite().all()
    wrong = map_(prediction).log_prob((labels + 1) % 3)
    assert wrong.isfinite().all() and (wrong < -20).all()
