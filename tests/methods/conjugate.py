"""Conjugate linear regression: its posterior is a Gaussian in closed form.

y = Φ θ + σ ε,  θ ~ N(0, λ⁻¹ I):    A = ΦᵀΦ/σ² + λ I,   θ | D ~ N(A⁻¹ Φᵀ y / σ², A⁻¹)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian

N, P, NOISE, PRECISION = 30, 3, 0.5, 4.0
STREAM = torch.Generator().manual_seed(0)
X = torch.randn(N, 2, generator=STREAM, dtype=torch.float64) * torch.tensor([1.0, 0.7])
Y = (
    X @ torch.tensor([[1.0], [-2.0]]).double()
    + 0.3
    + NOISE * torch.randn(N, 1, generator=STREAM).double()
)
LIKELIHOOD = Gaussian(noise=NOISE)
TASK = pm.Task(train=(X, Y), likelihood=LIKELIHOOD, target_scaling=None)


def exact(temperature: float = 1.0, copies: int = 1) -> tuple[Tensor, Tensor]:
    """Return mean (P,) and covariance (P, P) of weights and bias, of so many copies of the data."""
    features = torch.cat([X, torch.ones(N, 1).double()], 1)
    precision = copies * features.T @ features / NOISE**2 + PRECISION * torch.eye(P).double()
    covariance = precision.inverse()
    return covariance @ (copies * features.T @ Y[:, 0]) / NOISE**2, temperature * covariance


def linear() -> nn.Module:
    return nn.Linear(2, 1)


def vectors(weights: dict[str, Tensor], start: str = "network/") -> Tensor:
    """Return weights and bias as vectors (..., P)."""
    return torch.cat([weights[f"{start}weight"][..., 0, :], weights[f"{start}bias"]], -1)


def largest_score(theta: Tensor, temperature: float = 1.0) -> float:
    """Return the largest |z| = error / MCSE of three means and six covariances of samples
    (L, M, P), with errors from the independent chains.

    With ω = L⁻¹ (θ − mean), covariance = L Lᵀ, the mean of ω is 0 and its covariance I. For a
    sampler that is right, and 100 chains or more, the largest of nine exceeds 4.5 for 6 seeds in
    100,000.
    """
    mean, covariance = exact(temperature)
    white = (theta - mean) @ torch.linalg.cholesky(covariance).inverse().T
    first, second = torch.triu_indices(P, P)
    found = torch.cat([white, white[..., first] * white[..., second]], -1).mean(0)
    truth = torch.cat([torch.zeros(P), torch.eye(P)[first, second]])
    error = found.std(0) / len(found) ** 0.5
    return ((found.mean(0) - truth) / error).abs().max().item()
