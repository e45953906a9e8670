r"""TV-PredCP: a prior of the filters' lengthscale under which images have few jumps.

Images of low total variation, p(f) ∝ exp(−λ TV(f)), have no normalised Gaussian prior.
A Gaussian prior f ~ N(f̂, J Σ(s², ℓ) Jᵀ) is brought near to it through its hyperparameters: with the
other blocks at their trained weights, the expected total variation of block g

    κ_g(ℓ, s²) = E TV(f̂ + J_g w),    w ~ N(0, Σ_g(s², ℓ)),

is given the exponential density of rate λ, so by change of variables

    log p(log ℓ_g | s²) = log λ − λ κ_g + log |∂κ_g / ∂ log ℓ_g|.

(E. Nalisnick, J. Gordon, J. M. Hernández-Lobato, Predictive complexity priors, AISTATS 2021; with
total variation: Antorán et al., TMLR 2023. Their code multiplies all of the last line by a tuned
constant; here it is the density itself, with λ as the one number to choose.)

TV is anisotropic, Σ |f_i − f_j| over neighbours in rows and columns. A difference of neighbours is
Gaussian, with mean d = f̂_i − f̂_j and variance v, so κ has a closed form; the reference samples it.

    E |N(d, v)| = √(2 v / π) exp(−d² / 2 v) + d erf(d / √(2 v)),    v = Σ_c c(s², ℓ) v_c,

with v_c the variances of differences for each component of `evidence.py`. Both derivatives of κ are
those of this formula, so the one that sampling with subgradients leaves out (TV is linear almost
everywhere) is there.

Shapes: `n` pixels, `D` pairs of neighbours, `C` components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.tomography.filter_prior import FilterPrior, Hyper
from polymode.tomography.image_evidence import Kernels
from polymode.tomography.linearised import Linearised


def neighbours(shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the two pixels of each pair of neighbours, (D,) each.

    >>> [each.tolist() for each in neighbours((1, 3))]
    [[0, 1], [1, 2]]
    """
    grid = torch.arange(shape[0] * shape[1]).view(shape)
    left = torch.cat([grid[:, :-1].flatten(), grid[:-1].flatten()])
    right = torch.cat([grid[:, 1:].flatten(), grid[1:].flatten()])
    return left, right


def expected_variation(mean: Tensor, variance: Tensor) -> Tensor:
    """Return Σ E |N(mean, variance)|, a number, from (D,) each."""
    safe = variance.clamp_min(1e-24)
    spread = (2 * safe / math.pi).sqrt() * torch.exp(-(mean**2) / (2 * safe))
    return (spread + mean * torch.erf(mean / (2 * safe).sqrt())).sum()


@dataclass(frozen=True)
class TVPredCP:
    """log p(log ℓ | s²) of all Matérn blocks; call it with hyperparameters.

    Attributes:
        prior: of the filters. jumps: d, (D,). variances: v_c, (C, D). rate: λ > 0.
    """

    prior: FilterPrior
    jumps: Tensor
    variances: Tensor
    rate: float

    def kappa(self, hyper: Hyper) -> Tensor:
        """Return κ of each block, (G,)."""
        kappas, first = [], 0
        for g, block in enumerate(self.prior.blocks):
            coefficients = block.coefficients(hyper.log_variance[g], hyper.log_lengthscale[g])
            part = self.variances[first : first + len(coefficients)]
            first += len(coefficients)
            kappas.append(expected_variation(self.jumps, torch.stack(coefficients) @ part))
        return torch.stack(kappas)

    def __call__(self, hyper: Hyper) -> Tensor:
        """Return the sum over Matérn blocks of log p(log ℓ | s²), differentiable."""
        wanted = [g for g, block in enumerate(self.prior.blocks) if block.kind == "matern"]
        with torch.enable_grad():
            length = hyper.log_lengthscale
            length = length if length.requires_grad else length.detach().requires_grad_()
            kappa = self.kappa(hyper._replace(log_lengthscale=length))
            slope = torch.autograd.grad(kappa.sum(), length, create_graph=True)[0]
            size = slope[wanted].abs().clamp_min(1e-300)
            return (math.log(self.rate) - self.rate * kappa[wanted] + size.log()).sum()


def tv_predcp(model: Linearised, kernels: Kernels, rate: float) -> TVPredCP:
    """Return TV-PredCP of a linear model, exactly, from the kernels of its image.

    Args:
        rate: λ > 0. That of the objective |A f − y|² / (2 σ²) + λ TV(f).
    """
    if kernels.pixels is None:
        raise ValueError("TV-PredCP needs the kernels of pixels; assemble them with pixels=True")
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"`rate` of tv_predcp must be > 0, got {rate}")
    left, right = neighbours(model.operator.image_shape)
    diagonal = kernels.pixels.diagonal(dim1=1, dim2=2)
    between = kernels.pixels[:, left, right]
    variances = diagonal[:, left] + diagonal[:, right] - 2 * between
    jumps = (model.image[left] - model.image[right]).double()
    return TVPredCP(model.prior, jumps, variances, rate)
