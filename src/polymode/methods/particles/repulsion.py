"""The repulsion of FoRDE between input gradients, and its derivative, in closed form.

With the input gradient J_ib of member i at input b, its direction s_ib = J_ib / √(|J_ib|² + ε) and
lengthscales that map it to t_ib (`lengthscales.py`):

    κ_ijb = exp(−|t_ib − t_jb|² / h_jb)
    R_i = ln Σ_j (1/B) Σ_b κ_ijb,        0 ≤ R_i ≤ ln M

The other particle j and the bandwidth h are constants in the derivative, so −∂R_i/∂J_i is the
force of Wasserstein gradient descent with a kernel density estimate. ε = 10⁻²⁴ as in the runs of
the authors. Inputs of one dimension have no direction but a sign, whose derivative is zero; there
the tangent of the graph (1, J) takes the place of J.

Where the closed form leaves that of the authors: a zero gradient has no direction, so no force acts
on it (theirs divides by √ε); particles closer than rounding exert no force on each other.

Reference: T. Trinh et al., Input-gradient space particle inference for neural network ensembles,
    ICLR 2024, equations 8 to 12 and algorithm 1.

Shapes: `M` modes, `B` batch, `D` input dimensions, `K` coordinates after the lengthscales.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.methods.particles.kernel import median_bandwidth, squared_distances
from polymode.methods.particles.lengthscales import IDENTITY, Lengthscales

_EPS = 1e-24
_LARGE = 1 << 18  # numbers in all differences, above which inner products take their place
_TRUSTED = 64  # medians this many times the error of a distance are precise enough
_BLOCK, _LONG = 16, 256  # rows of a small matrix product, and their length
BANDWIDTHS = ("reference", "all")


def repulsion(
    gradients: Tensor, *, lengthscales: Lengthscales = IDENTITY, bandwidth: str = "reference"
) -> tuple[Tensor, Tensor]:
    """Return each member's repulsion R_i (M,) and its derivative ∂R_i/∂J_i (M, B, D).

    Args:
        gradients: J (M, B, D).
        lengthscales: the metric on directions.
        bandwidth: median distance to each reference member at each input ("reference", as the
            authors' code), or over all pairs at each input ("all", as their algorithm).

    >>> apart = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> value, derivative = repulsion(apart)
    >>> value.tolist()  # ln(1 + exp(-2 ln 2)): the median of 0 and 2 is 1
    [0.2231435477733612, 0.2231435477733612]
    """
    if gradients.shape[-1] == 1:
        tangent = torch.cat([torch.ones_like(gradients), gradients], -1)
        value, derivative = _by_differences(tangent, IDENTITY, bandwidth)
        return value, derivative[..., 1:]
    if gradients.numel() * gradients.shape[0] > _LARGE:
        result = _by_products(gradients, lengthscales, bandwidth)
        if result is not None:
            return result
    return _by_differences(gradients, lengthscales, bandwidth)


def _by_differences(j: Tensor, scales: Lengthscales, bandwidth: str) -> tuple[Tensor, Tensor]:
    """Return R and its derivative from the directions themselves; precise for close ones."""
    squares = j.square().sum(-1, keepdim=True)  # (M, B, 1)
    inverse = (squares + _EPS).rsqrt()
    directions = j * inverse
    t = scales.apply(directions)
    squared = squared_distances(t, t)  # (M, M, B)
    longest = 1.0 if scales.axes is None else t.square().sum(-1).amax()
    least = (8 * torch.finfo(j.dtype).eps) ** 2 * longest
    value, mixing = _between(squared, median_bandwidth(squared, over=bandwidth), least)
    cotangent = scales.transpose(torch.bmm(mixing, t.transpose(0, 1)).transpose(0, 1))
    along = (directions * cotangent).sum(-1, keepdim=True)
    inverse = torch.where(squares > _EPS, inverse, 0.0)
    return value, torch.addcmul(cotangent, directions, along, value=-1).mul_(inverse)


def _by_products(j: Tensor, scales: Lengthscales, bandwidth: str) -> tuple[Tensor, Tensor] | None:
    """Return the same from inner products of gradients, in two passes over them.

    Distances of unit vectors have an error of the order of rounding then; where a median lies near
    that, return None.
    """
    if j.stride(-1) != 1:  # else every product of two small matrices would copy its own
        rows = torch.empty(j.shape, dtype=j.dtype, device=j.device)
        for target, source in zip(rows, j, strict=True):
            target.copy_(source)  # one matrix after another: torch transposes these by blocks
        j = rows
    at_inputs = j.transpose(0, 1)  # (B, M, D)
    axes, alpha = scales.axes, 0.0 if scales.axes is None else scales.alpha
    metric = scaled = None
    if alpha < 1:
        metric = _inner_products(at_inputs)  # (B, M, M)
        squares = metric.diagonal(dim1=1, dim2=2)  # (B, M)
    else:
        squares = torch.linalg.vector_norm(j, dim=-1).square().T.contiguous()
    inverse = torch.where(squares > _EPS, (squares + _EPS).rsqrt(), 0.0)
    norms = inverse.unsqueeze(2) * inverse.unsqueeze(1)  # (B, M, M)
    if axes is not None:
        scaled = scales.along_axes(j).transpose(0, 1)  # (B, M, K)
        inner = _inner_products(scaled)
        metric = inner if metric is None else torch.lerp(metric, inner, alpha)
    assert metric is not None
    cosines = metric * norms
    diagonal = cosines.diagonal(dim1=1, dim2=2).contiguous()
    squared = (diagonal.unsqueeze(2) + diagonal.unsqueeze(1)).sub_(cosines, alpha=2).clamp_min_(0)
    squared = squared.permute(1, 2, 0)  # (M, M, B)
    h = median_bandwidth(squared.transpose(0, 1), over=bandwidth)  # the same, sorted more quickly
    error = 64 * torch.finfo(j.dtype).eps * diagonal.amax()
    if h.amin() * math.log(len(j)) < _TRUSTED * error:
        return None
    value, mixing = _between(squared, h, error)
    along = (mixing * cosines).sum(2).mul_(inverse.square())  # (B, M)
    mixing = mixing.mul_(norms)
    if alpha < 1:
        weights = (1 - alpha) * mixing
        weights.diagonal(dim1=1, dim2=2).sub_(along)
        derivative = torch.bmm(weights, at_inputs).transpose(0, 1)  # (M, B, D)
    else:
        derivative = j * along.T.neg().unsqueeze(2)
    if axes is not None and scaled is not None:
        mixed = torch.bmm(mixing, scaled).transpose(0, 1)  # (M, B, K)
        if alpha < 1:
            return value, derivative + scales.from_axes(mixed).mul_(alpha)
        if axes.dim() == 1:
            return value, derivative.addcmul_(mixed, axes)
        derivative.flatten(0, 1).addmm_(mixed.flatten(0, 1), axes.T)
    return value, derivative


def _inner_products(rows: Tensor) -> Tensor:
    """Return the products of all pairs of rows (B, M, D) -> (B, M, M).

    Products of matrices with more rows than `_BLOCK` run at half the speed, and by blocks only one
    half of the pairs is computed; with short rows, writing these takes longer.
    """
    number = rows.shape[1]
    if number <= _BLOCK or rows.shape[2] < _LONG:
        return torch.bmm(rows, rows.mT)
    products = rows.new_empty(len(rows), number, number)
    size = math.ceil(number / math.ceil(number / _BLOCK))
    for a in range(0, number, size):
        b = min(a + size, number)
        part = torch.bmm(rows[:, a:b], rows[:, a:].mT)
        products[:, a:b, a:] = part
        products[:, b:, a:b] = part[:, :, b - a :].mT
    return products


def _between(squared: Tensor, h: Tensor, least: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return R (M,) and the matrices A (B, M, M) with ∂R_i/∂t_i = Σ_j A_ij t_j at each input.

    Args:
        squared: distances (M, M, B).
        h: bandwidth, broadcastable to them.
        least: distances up to this are rounding and exert no force.
    """
    kernels = squared.div(-h).exp_()
    total = kernels.sum((1, 2))  # (M,), at least B: each particle's kernel with itself is 1
    apart = torch.gt(squared, least, out=torch.empty_like(squared))  # numbers: faster than bools
    forces = kernels.div_(total.div(2).view(-1, 1, 1) * h).mul_(apart)
    forces.diagonal().sub_(forces.sum(1).T)
    return total.log() - math.log(squared.shape[2]), forces.permute(2, 0, 1)
