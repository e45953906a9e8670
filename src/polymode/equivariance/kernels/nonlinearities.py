r"""Activations: Gaussian expectations of products, exact where there is a closed form.

For two units with variances q, q' and covariance K, K ← T = E[φ(u) φ(v)] and Θ ← Θ Ṫ with
Ṫ = E[φ'(u) φ'(v)]. With the correlation ρ = K / √(q q'), its angle θ and s = sin θ:

    slopes a below 0, b above   Ṫ = (a² + b²)/2 − c θ,  T = √(q q') (c s + ρ Ṫ),  c = (a − b)²/(2π)
    erf                         T = (2/π) atan2(2K, r),  Ṫ = 4/(π r),  r² = (1+2q)(1+2q') − 4K²
    any φ                       T = Σ_k a_k(q) a_k(q') ρ^k,  a_k(q) = E[φ(√q z) h_k(z)]

(Cho and Saul 2009; Williams 1996; Mehler's formula with normalised Hermite polynomials h_k, the
coefficients by Gauss-Hermite quadrature). Near ρ = 1 the angle has half of the digits of ρ, so
angles that rounding could make up are taken as 0: kernels of equal inputs are then exact.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from polymode.core.warn import warn
from polymode.equivariance.kernels import finite
from polymode.equivariance.kernels.covariance import Covariance
from polymode.equivariance.kernels.layers import Layer

PIECE = 2**16  # numbers of a kernel that are worked on at a time: all that is needed stays in cache


class Elementwise(Layer):
    """A function of single units."""

    def act(self, covariance: Covariance) -> None:
        covariance.require_gaussian("expectations are those of Gaussian units")
        first, second = covariance.variances.of(covariance)
        nngp, ntk = covariance.nngp, covariance.ntk
        rows = max(1, PIECE // max(1, nngp[0].numel()))
        for start in range(0, len(nngp), rows):
            piece = slice(start, start + rows)
            tangent = None if ntk is None else ntk[piece]
            ours, theirs = (q if len(q) == 1 else q[piece] for q in (first, second))
            self.expect(nngp[piece], tangent, ours, theirs)
        covariance.gaussian = False

    @abstractmethod
    def expect(self, nngp: Tensor, ntk: Tensor | None, first: Tensor, second: Tensor) -> None:
        """Change K to T and Θ to Θ Ṫ, in place, for variances that can be multiplied with them."""


def correlate(nngp: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Divide K by both standard deviations, in place; return these. Where one is 0, ρ is 0."""
    roots = first.clamp_min(0).sqrt(), second.clamp_min(0).sqrt()
    for root in roots:
        nngp.mul_(root.reciprocal().nan_to_num_(posinf=0.0))
    return roots


@dataclass(frozen=True)
class ABReLU(Elementwise):
    """Slope `below` for negative, `above` for positive units."""

    below: float = 0.0
    above: float = 1.0

    def expect(self, nngp: Tensor, ntk: Tensor | None, first: Tensor, second: Tensor) -> None:
        roots = correlate(nngp, first, second)
        sine = torch.addcmul(torch.ones((), dtype=nngp.dtype), nngp, nngp, value=-1)
        torch.threshold_(sine, 32 * torch.finfo(nngp.dtype).eps, 0.0)
        sine.sqrt_()
        bend = (self.above - self.below) ** 2 / (2 * math.pi)
        slope = torch.atan2(sine, nngp)
        slope.mul_(-bend).add_((self.below**2 + self.above**2) / 2)
        if ntk is not None:
            ntk.mul_(slope)
        nngp.mul_(slope).add_(sine, alpha=bend)
        for root in roots:
            nngp.mul_(root)

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        if (self.below, self.above) == (0.0, 1.0):
            return nn.ReLU(), shape
        if self.above == 1.0:
            return nn.LeakyReLU(self.below), shape
        return finite.TwoSlopes(self.below, self.above), shape


@dataclass(frozen=True)
class ReLU(ABReLU):
    """max(x, 0)."""

    below: float = field(default=0.0, init=False, repr=False)
    above: float = field(default=1.0, init=False, repr=False)


@dataclass(frozen=True)
class LeakyReLU(ABReLU):
    """Slope `below` for negative units, 1 for positive ones."""

    below: float = 0.01
    above: float = field(default=1.0, init=False, repr=False)


@dataclass(frozen=True)
class Erf(Elementwise):
    """The error function."""

    def expect(self, nngp: Tensor, ntk: Tensor | None, first: Tensor, second: Tensor) -> None:
        nngp.mul_(2)
        root = torch.addcmul((1 + 2 * first) * (1 + 2 * second), nngp, nngp, value=-1).sqrt_()
        nngp.copy_(torch.atan2(nngp, root)).mul_(2 / math.pi)
        if ntk is not None:
            ntk.div_(root).mul_(4 / math.pi)

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        return finite.Erf(), shape


@dataclass(frozen=True)
class Activation(Elementwise):
    """Any activation: Mehler's series with coefficients by Gauss-Hermite quadrature.

    The weight of all terms beyond `degree` is E[φ²] − Σ a_k². It is put on the power degree + 1, so
    that variances are exact; where it is more than `tolerance` of E[φ²], a warning says so:
    activations with kinks need closed forms.

    Args:
        function: of one tensor, differentiable.
        degree: of the series. nodes: of the quadrature.
        tolerance: part of E[φ²] that may lie beyond `degree` without a warning.
    """

    function: Callable[[Tensor], Tensor] = torch.tanh
    degree: int = 40
    nodes: int = 160
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        if not 1 <= self.degree < self.nodes <= 250:
            raise ValueError(
                "Activation needs 1 ≤ degree < nodes ≤ 250, got"
                f" degree={self.degree}, nodes={self.nodes}"
            )

    def expect(self, nngp: Tensor, ntk: Tensor | None, first: Tensor, second: Tensor) -> None:
        (ours, our_slopes), (theirs, their_slopes) = map(self._coefficients, (first, second))
        correlate(nngp, first, second)
        rho = nngp.clamp(-1, 1)
        if ntk is not None:
            ntk.mul_(_series(rho, our_slopes, their_slopes))
        nngp.copy_(_series(rho, ours, theirs))

    def _coefficients(self, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return a_k of φ and of φ', (degree + 2, ...) each, the last for all that is beyond."""
        places, weights, basis = _quadrature(self.nodes, self.degree)
        roots = variance.clamp_min(0).double().sqrt()[..., None]
        units = (roots * places).detach().requires_grad_()
        with torch.enable_grad():
            values = self.function(units)
            (slopes,) = torch.autograd.grad(values.sum(), units)
        coefficients = []
        for outputs in (values.detach(), slopes):
            series = (outputs * weights) @ basis  # (..., degree + 1)
            total = outputs.square() @ weights
            beyond = (total - series.square().sum(-1)).clamp_min(0)
            if outputs is not slopes and bool((beyond > self.tolerance * total).any()):
                part = float((beyond / total.clamp_min(1e-300)).max())
                warn(
                    f"{part:.1%} of E[φ²] lies beyond degree {self.degree} of the series of"
                    f" {self}: its kernel is rough; take a higher `degree`, or a closed form",
                )
            series = torch.cat([series, beyond.sqrt()[..., None]], -1)
            coefficients.append(series.movedim(-1, 0).to(variance.dtype))
        return coefficients[0], coefficients[1]

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        return finite.Elementwise(self.function), shape

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", repr(self.function))
        return f"Activation({name}, degree={self.degree})"


def _series(rho: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return Σ_k first_k second_k ρ^k, by Horner's rule."""
    total = (first[-1] * second[-1]) * rho
    for ours, theirs in zip(reversed(first[1:-1]), reversed(second[1:-1]), strict=True):
        total.add_(ours * theirs).mul_(rho)
    return total.add_(first[0] * second[0])


@cache
def _quadrature(nodes: int, degree: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return places, weights of E over N(0, 1), and normalised Hermite polynomials there."""
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    basis = [np.ones_like(places), places]
    for k in range(1, degree):
        basis.append((places * basis[k] - math.sqrt(k) * basis[k - 1]) / math.sqrt(k + 1))
    table = np.stack(basis[: degree + 1], 1)
    return torch.from_numpy(places), torch.from_numpy(weights), torch.from_numpy(table)
