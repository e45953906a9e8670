"""The evidence's gradient with the whole curvature for large models: samples instead of matrices.

A sample of N(0, H⁻¹), H = Jᵀ B J + Λ, is the solution of one linear system with random right-hand
side,

    H z = Λ^½ ε₁ + Jᵀ R ε₂,      ε₁, ε₂ ~ N(0, I),      R Rᵀ = B,

found by conjugate gradients with products J v and Jᵀ c alone. The effective number of weights of a
group is γ_g = E[z_gᵀ (Jᵀ B J z)_g], an average over few samples. The noise ε is drawn once, so that
MacKay's updates have a fixed point: from update to update the right-hand side changes with Λ and
not with chance. Samples start where the last ones ended.

The reference finds z by stochastic gradients on ½ ‖J z‖²_B + ½ ‖z − θ₀‖²_Λ with θ₀ = Λ^-½ ε₁ +
Λ⁻¹ Jᵀ R ε₂, whose minimum is the same z. Streams differ between layers.

Limits: no value of the evidence, only its gradient, up to the samples' error.
Reference: J. Antorán, S. Padhy, R. Barbano, E. Nalisnick, D. Janz, J. M. Hernández-Lobato,
    Sampling-based inference for large linear models, with application to linearised Laplace,
    ICLR 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.curvature.solve import conjugate_gradients
from polymode.methods.laplace.evidence_search import Terms
from polymode.methods.laplace.linear_model_solve import (
    Products,
    solve_iterative,
)


class SampledEvidence:
    """Terms of the evidence of classes at m = θ*; call it with λ (G,) and β, see `Evaluate`.

    Args:
        products: of the linear model with its data. outputs: f(θ̃, x) of each batch, (B, K).
        index: places of each group's weights.
        samples: how many z. seed: of ε.
        accuracy: of the conjugate gradients, relative.
    """

    def __init__(
        self,
        products: Products,
        outputs: list[Tensor],
        index: Mapping[str, Tensor],
        *,
        samples: int = 8,
        seed: int = 0,
        accuracy: float = 1e-4,
        most: int = 200,
    ) -> None:
        self.products, self.outputs, self.index = products, outputs, index
        self.accuracy, self.most = accuracy, most
        size = sum(len(places) for places in index.values())
        stream = generator(seed, "evidence", "samples")
        like = outputs[0]
        self.prior_noise = torch.randn(samples, size, generator=stream, dtype=like.dtype)
        pulled = []
        for _ in range(samples):
            noise = [torch.randn(h.shape, generator=stream, dtype=h.dtype) for h in outputs]
            roots = [data.root(h) for data, h in zip(products.data, outputs, strict=True)]
            parts = [(r @ e.unsqueeze(-1)).squeeze(-1) for r, e in zip(roots, noise, strict=True)]
            pulled.append(products.transposed(parts))
        self.data_noise = torch.stack(pulled)
        self.theta: Tensor | None = None
        self.samples: list[Tensor] = [torch.zeros(size, dtype=like.dtype)] * samples

    def each(self, precision: Tensor) -> Tensor:
        """Return λ of every weight, (P,)."""
        full = torch.empty(self.prior_noise.shape[1], dtype=self.prior_noise.dtype)
        for places, value in zip(self.index.values(), precision, strict=True):
            full[places] = value.to(full)
        return full

    def draw(self, precision: Tensor) -> Tensor:
        """Return the samples z, (S, P), for these precisions."""
        full = self.each(precision)

        def product(v: Tensor) -> Tensor:
            return self.products.curvature(self.outputs, v) + full * v

        pairs = zip(self.prior_noise, self.data_noise, self.samples, strict=True)
        self.samples = [
            conjugate_gradients(
                product, full.sqrt() * prior + data, 1 / full,
                start=before, relative=self.accuracy, most=self.most,
            )
            for prior, data, before in pairs
        ]  # fmt: skip
        return torch.stack(self.samples)

    def __call__(self, precision: Tensor, beta: Tensor) -> Terms:
        full = self.each(precision)
        self.theta = solve_iterative(self.products, full, start=self.theta)
        drawn = self.draw(precision)
        images = torch.stack([self.products.curvature(self.outputs, z) for z in drawn])
        shares = (drawn * images).mean(0)
        effective = torch.stack([shares[places].sum() for places in self.index.values()])
        squares = torch.stack([self.theta[p].square().sum() for p in self.index.values()])
        empty = beta.new_zeros(0)
        return Terms(math.nan, effective.double(), squares.double(), empty, empty, empty)
