"""The optimum of the linear model, θ* = argmin_θ Σ_n ℓ(y_n, h(θ, x_n)) + ½ θᵀ Λ θ, in three ways.

The loss is convex, so there is one optimum whatever the way; h = c + A θ with rows A = J.

- `solve_primal`: Newton with a P × P matrix; for a Gaussian one step,
  θ* = H⁻¹ Aᵀ β (y − c),   H = Aᵀ B A + Λ.
- `solve_dual`: Newton in the outputs, with an N K × N K matrix; θ* = Λ⁻¹ Aᵀ α,

      α = b − R (I + Rᵀ K R)⁻¹ Rᵀ K b,    b = B u − ∇ℓ,    u = K α,    K = A Λ⁻¹ Aᵀ,

  for a Gaussian one step again. Only K is needed, so all of P is summed over once (Rasmussen and
  Williams, Gaussian Processes for Machine Learning, algorithm 3.3, with N blocks B_n = R_n R_nᵀ).
- `solve_iterative`: Newton whose steps are found by conjugate gradients with products A v and Aᵀ c
  alone (jvp and vjp), a pass over the data each; no matrix at all.

Each Newton step is halved until the loss falls, so all of them converge from anywhere.

Shapes: `N` examples, `K` outputs, `P` weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.curvature.solve import conjugate_gradients
from polymode.methods.laplace.linear_model import Observed

STEPS = 100
_HALVINGS = 30


class DualFit(NamedTuple):
    """The optimum by its dual: θ* = Λ⁻¹ Aᵀ α; α and u = A θ* are (N, K)."""

    alpha: Tensor
    latent: Tensor


def solve_primal(
    features: Tensor, shift: Tensor, data: Observed, precision: Tensor, *, tolerance: float = 1e-9
) -> Tensor:
    """Return θ* (P,) from A (N, K, P), c (N, K) and the diagonal of Λ (P,)."""
    rows = features.flatten(0, 1)
    theta = torch.zeros_like(precision)

    def loss(point: Tensor) -> Tensor:
        outputs = shift + (rows @ point).view_as(shift)
        return 0.5 * (precision * point.square()).sum() - data.log_likelihood(outputs)

    for _ in range(STEPS):
        outputs = shift + (rows @ theta).view_as(shift)
        gradient = precision * theta - rows.T @ data.residual(outputs).flatten()
        half = (data.root(outputs).mT @ features).flatten(0, 1)
        matrix = half.T @ half + torch.diag(precision)
        step = -torch.cholesky_solve(gradient[:, None], torch.linalg.cholesky(matrix))[:, 0]
        theta = _descend(loss, theta, step)
        if (step * gradient).sum().abs() < tolerance:
            break
    return theta


def solve_dual(
    kernel: Tensor,
    shift: Tensor,
    data: Observed,
    *,
    start: Tensor | None = None,
    steps: int = STEPS,
    tolerance: float = 1e-9,
) -> DualFit:
    """Return the optimum from K = A Λ⁻¹ Aᵀ (N K, N K) and c (N, K).

    Args:
        start: α to begin with, (N, K).
        steps: at most so many Newton steps.
        tolerance: of the decrease, nats, that a further step would bring.
    """
    alpha = torch.zeros_like(shift) if start is None else start

    def loss(point: Tensor) -> Tensor:
        latent = (kernel @ point.flatten()).view_as(shift)
        return 0.5 * (point * latent).sum() - data.log_likelihood(shift + latent)

    for _ in range(steps):
        latent = (kernel @ alpha.flatten()).view_as(shift)
        outputs = shift + latent
        residual = data.residual(outputs)
        target = data.curvature(outputs, latent) + residual
        root = data.root(outputs)
        inner = _inner(root, kernel @ target.flatten())
        factor = torch.linalg.cholesky(with_identity(between(root, kernel)))
        inner = torch.cholesky_solve(inner.flatten()[:, None], factor).view_as(inner)
        new = target - (root @ inner.unsqueeze(-1)).squeeze(-1)
        step = new - alpha
        change = (kernel @ step.flatten()).view_as(shift)
        decrease = -(change * (alpha - residual)).sum()
        alpha = _descend(loss, alpha, step)
        if decrease.abs() < tolerance:
            break
    return DualFit(alpha, (kernel @ alpha.flatten()).view_as(shift))


def between(root: Tensor, kernel: Tensor) -> Tensor:
    """Return Rᵀ K R of blocks R (N, K, K) and K (N K, N K)."""
    number, size, _ = root.shape
    left = root.mT @ kernel.view(number, size, -1)
    return (
        (left.view(number * size, number, size).transpose(0, 1) @ root)
        .transpose(0, 1)
        .reshape(number * size, -1)
    )


def with_identity(matrix: Tensor) -> Tensor:
    """Return I + matrix, in place."""
    matrix.diagonal().add_(1.0)
    return matrix


def _inner(root: Tensor, vector: Tensor) -> Tensor:
    """Return Rᵀ v, (N, K)."""
    return (root.mT @ vector.view(len(root), -1, 1)).squeeze(-1)


def solve_iterative(
    products: Products,
    precision: Tensor,
    *,
    start: Tensor | None = None,
    steps: int = 20,
    tolerance: float = 1e-3,
    inner: int = 100,
    forcing: float = 0.1,
) -> Tensor:
    """Return θ* (P,) by Newton steps with conjugate gradients, preconditioned with Λ.

    Kronecker factors at the network's outputs make no better preconditioner: where the network is
    sure they are next to nothing, and on the way to θ* the linear model is not.

    Args:
        products: of the linear model with its data.
        precision: diagonal of Λ, (P,).
        start: θ to begin with; by default 0.
        tolerance: the decrease, nats, that a further step would bring.
        inner: at most so many conjugate gradients per step.
        forcing: error of a step at most, relative; a quadratic loss is solved at once.
    """
    theta = torch.zeros_like(precision) if start is None else start
    for _ in range(steps):
        outputs = products.outputs(theta)
        gradient = precision * theta - products.transposed(products.residual(outputs))

        def product(v: Tensor, outputs: list[Tensor] = outputs) -> Tensor:
            return products.curvature(outputs, v) + precision * v

        accuracy = min(forcing, gradient.norm().item() ** 0.5) if not products.quadratic else 1e-5
        step = conjugate_gradients(product, -gradient, 1 / precision, relative=accuracy, most=inner)
        expected = -(step * gradient).sum()
        theta = _descend(lambda t: products.loss(t, precision), theta, step)
        if expected < tolerance or products.quadratic:
            break
    return theta


class Products:
    """Products of a linear model with vectors, summed over the batches of its data.

    Args:
        multiply, transpose: (vector (P,), x) -> A v (B, K); (c (B, K), x) -> Aᵀ c (P,).
        batches: pairs (x, c (B, K)) of inputs, or what `multiply` takes in their place, and shifts,
            in the order of the data.
        data: the targets of all of them.
        told: called after each product with Aᵀ, of which there is one per pass over the data.
    """

    def __init__(
        self,
        multiply: Callable[[Tensor, Tensor], Tensor],
        transpose: Callable[[Tensor, Tensor], Tensor],
        batches: list[tuple[Tensor, Tensor]],
        data: Observed,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._told = told
        self._multiply, self._transpose, self.batches = multiply, transpose, batches
        ends = torch.tensor([len(x) for x, _ in batches]).cumsum(0).tolist()
        self.data = [
            data.part(slice(end - len(x), end)) for end, (x, _) in zip(ends, batches, strict=True)
        ]
        self.quadratic = data.gaussian

    def with_noise(self, factor: float) -> Products:
        """Return the same with `factor` times the precision of a Gaussian."""
        changed = copy.copy(self)
        changed.data = [data._replace(precision=factor * data.precision) for data in self.data]
        return changed

    def outputs(self, theta: Tensor) -> list[Tensor]:
        """Return h(θ, x) of each batch."""
        return [shift + self._multiply(theta, x) for x, shift in self.batches]

    def residual(self, outputs: list[Tensor]) -> list[Tensor]:
        return [data.residual(h) for data, h in zip(self.data, outputs, strict=True)]

    def transposed(self, cotangents: list[Tensor]) -> Tensor:
        """Return Aᵀ c, (P,)."""
        terms = (self._transpose(c, x) for c, (x, _) in zip(cotangents, self.batches, strict=True))
        total = _sum(terms)
        self._told()
        return total

    def curvature(self, outputs: list[Tensor], vector: Tensor) -> Tensor:
        """Return Aᵀ B A v, (P,), with B at these outputs."""
        images = [
            data.curvature(h, self._multiply(vector, x))
            for data, h, (x, _) in zip(self.data, outputs, self.batches, strict=True)
        ]
        return self.transposed(images)

    def log_likelihood(self, outputs: list[Tensor]) -> Tensor:
        return _sum(data.log_likelihood(h) for data, h in zip(self.data, outputs, strict=True))

    def most_likely(self) -> float:
        return sum(data.most_likely() for data in self.data)

    def loss(self, theta: Tensor, precision: Tensor) -> Tensor:
        """Return −Σ log p + ½ θᵀ Λ θ."""
        prior = 0.5 * (precision * theta.square()).sum()
        return prior - self.log_likelihood(self.outputs(theta))


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, terms)


def _descend(loss: Callable[[Tensor], Tensor], point: Tensor, step: Tensor) -> Tensor:
    """Return point + step, the step halved until the loss does not rise."""
    before, slack = loss(point), 4 * torch.finfo(point.dtype).eps
    for _ in range(_HALVINGS):
        if loss(point + step) <= before + slack * before.abs():
            return point + step
        step = step / 2
    return point
