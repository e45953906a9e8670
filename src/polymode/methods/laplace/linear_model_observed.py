"""What the linear model is held against: targets, and the curvature of their likelihood.

For outputs h (N, K) of a convex loss ℓ = −log p(y | h):

    gaussian      −∇ℓ = β (y − h),   B = ∇²ℓ = diag(β),      β = 1 / noise², one number or K
    categorical   −∇ℓ = e_y − p,     B = diag(p) − p pᵀ,     p = softmax(h)
    bernoulli     −∇ℓ = y − p,       B = p (1 − p),          p = sigmoid(h)

and R Rᵀ = B: diag(√β), diag(√p) − p √pᵀ, √(p (1 − p)).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.likelihoods.kinds import Likelihood

COVERED = ("gaussian", "categorical", "bernoulli")


class Observed(NamedTuple):
    """Targets of a likelihood.

    Attributes:
        kind: one of `COVERED`.
        targets: (N, K) values, or (N,) labels.
        precision: β of a Gaussian, (K,); of no meaning for classes.
    """

    kind: str
    targets: Tensor
    precision: Tensor

    @property
    def gaussian(self) -> bool:
        return self.kind == "gaussian"

    def part(self, rows: slice) -> Observed:
        """Return some of the examples."""
        return self._replace(targets=self.targets[rows])

    def log_likelihood(self, outputs: Tensor) -> Tensor:
        """Return the sum over examples of log p(y | h), nats."""
        if self.kind == "gaussian":
            squares = (self.targets - outputs).square() * self.precision
            constants = (self.precision / (2 * math.pi)).log().expand_as(outputs)
            return 0.5 * (constants - squares).sum()
        if self.kind == "categorical":
            return -F.cross_entropy(outputs, self.targets, reduction="sum")
        labels = self.targets.to(outputs).view_as(outputs)
        return -F.binary_cross_entropy_with_logits(outputs, labels, reduction="sum")

    def most_likely(self) -> float:
        """Return the largest value that `log_likelihood` can have."""
        if not self.gaussian:
            return 0.0
        rows = self.targets if self.targets.dim() > 1 else self.targets.unsqueeze(-1)
        return 0.5 * float((self.precision / (2 * math.pi)).log().expand_as(rows).double().sum())

    def residual(self, outputs: Tensor) -> Tensor:
        """Return −∇ℓ, (N, K)."""
        if self.kind == "gaussian":
            return self.precision * (self.targets - outputs)
        if self.kind == "categorical":
            labels = F.one_hot(self.targets, outputs.shape[-1]).to(outputs)
            return labels - outputs.softmax(-1)
        return self.targets.to(outputs).view_as(outputs) - outputs.sigmoid()

    def root(self, outputs: Tensor) -> Tensor:
        """Return R, (N, K, K), with R Rᵀ = B."""
        if self.kind == "gaussian":
            return torch.diag(self.precision.sqrt().expand(outputs.shape[-1])).expand(
                len(outputs), -1, -1
            )
        if self.kind == "categorical":
            probs = outputs.softmax(-1)
            half = probs.sqrt()
            return torch.diag_embed(half) - probs.unsqueeze(-1) * half.unsqueeze(-2)
        probs = outputs.sigmoid()
        return torch.diag_embed((probs * (1 - probs)).sqrt())

    def curvature(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """Return B v of v (N, K)."""
        if self.kind == "gaussian":
            return self.precision * vectors
        if self.kind == "categorical":
            probs = outputs.softmax(-1)
            return probs * (vectors - (probs * vectors).sum(-1, keepdim=True))
        probs = outputs.sigmoid()
        return probs * (1 - probs) * vectors


def observed(likelihood: Likelihood, targets: Tensor, noise: Tensor | float = 1.0) -> Observed:
    """Return targets as the linear model takes them.

    Args:
        noise: standard deviation of a Gaussian, one number or K of them.
    """
    if likelihood.name not in COVERED:
        raise ValueError(
            f"the evidence of a linear model needs a likelihood of {', '.join(COVERED)}, got"
            f" '{likelihood.name}'; give `prior_precision` and evidence=None"
        )
    dtype = targets.dtype if targets.is_floating_point() else torch.get_default_dtype()
    sigma = torch.as_tensor(noise, dtype=dtype, device=targets.device)
    return Observed(likelihood.name, targets, sigma.reshape(-1) ** -2)
