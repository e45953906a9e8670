"""Squared distances between particles, the median bandwidth and the RBF kernel.

    κ_ij = exp(−|a_i − a_j|² / h),        h = median |a_i − a_j|² / ln M + 10⁻¹²

With this bandwidth the kernels of a particle's neighbours sum to about one: κ is 1/M at the median
distance. Self-distances, which are zero, belong to the median, as in the code of FoRDE.
Reference: Q. Liu, D. Wang, Stein variational gradient descent, NeurIPS 2016, section 5 (the median
    heuristic).

Shapes: `M` particles, `M'` reference particles, `D` coordinates; axes between are independent
problems.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

_EXPLICIT = 1 << 18  # differences of at most this many numbers are written out
_FEW = 16  # coordinates below which it is faster to add these one by one, for all pairs at once
_FLOOR = 1e-12


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return |a_i − b_j|² for all pairs, ≥ 0 and differentiable in both.

    Up to 2¹⁸ coordinate differences, these are written out: equal rows have distance exactly 0.
    Beyond, by |a_i|² + |b_j|² − 2 a_i·b_j after centring on the mean of `b`, clamped at 0: its
    error is of the order of rounding × the squared spread of the particles, not their squared norm;
    the distance of a particle to itself (`b is a`) stays exactly 0.

    Args:
        a: (M, ..., D).
        b: (M', ..., D).

    Returns:
        (M, M', ...).

    >>> points = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> squared_distances(points, points).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(
            f"particles must agree in all but the first axis, got {tuple(a.shape)} and"
            f" {tuple(b.shape)}"
        )
    if a.numel() * b.shape[0] <= _EXPLICIT:
        if a.shape[-1] < _FEW:
            a, b = (points.movedim(-1, 0).contiguous() for points in (a, b))
            return (a.unsqueeze(2) - b.unsqueeze(1)).square().sum(0)
        return (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(-1)
    centre = b.detach().mean(0)
    return _by_products(a - centre, None if b is a else b - centre)


def _by_products(a: Tensor, b: Tensor | None) -> Tensor:
    """Return the distances from inner products; `b=None` means `a` itself."""
    left = a.reshape(a.shape[0], -1, a.shape[-1]).transpose(0, 1)  # (R, M, D)
    right = left if b is None else b.reshape(b.shape[0], -1, b.shape[-1]).transpose(0, 1)
    products = torch.bmm(left, right.mT)  # (R, M, M')
    if b is None:
        squares = products.diagonal(dim1=1, dim2=2)
        distances = squares.unsqueeze(2) + squares.unsqueeze(1) - 2 * products
    else:
        sums = left.square().sum(-1).unsqueeze(2) + right.square().sum(-1).unsqueeze(1)
        distances = sums - 2 * products
    shape = (a.shape[0], right.shape[1], *a.shape[1:-1])
    return distances.clamp_min(0).permute(1, 2, 0).reshape(shape)


def median_bandwidth(squared: Tensor, *, over: str = "reference") -> Tensor:
    """Return the bandwidth h = median / ln M + 10⁻¹², without gradient; 1 for one particle.

    Args:
        squared: squared distances (M, M', ...), self-distances included.
        over: "reference": the median over the first axis, one h for each reference particle and
            problem, (1, M', ...); "all": over all ordered pairs, one h for each problem,
            (1, 1, ...). An even number of values has the mean of the middle two as its median.

    >>> squared = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 1.0], [4.0, 1.0, 0.0]])
    >>> (median_bandwidth(squared) * math.log(3)).tolist()
    [[1.0, 1.0, 1.0]]
    """
    squared = squared.detach()
    number = squared.shape[0]
    if over == "all":
        values = squared.flatten(0, 1)
    elif over == "reference":
        values = squared
    else:
        raise ValueError(f"`over` must be 'reference' or 'all', got {over!r}")
    if number == 1:
        shape = squared.shape[1:] if over == "reference" else (1, *squared.shape[2:])
        return squared.new_ones(1, *shape)
    count = values.shape[0]
    ordered = _sorted(values)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    if over == "all":
        median = median.unsqueeze(0)
    return median.unsqueeze(0) / math.log(number) + _FLOOR


def _sorted(values: Tensor) -> Tensor:
    """Return the values in ascending order along the first axis; NumPy is several times faster."""
    if values.device.type != "cpu" or values.dtype is torch.bfloat16:
        return values.sort(0).values
    order: Literal["K", "C"] = "K" if values.stride(0) == 1 else "C"
    rows = np.array(values.movedim(0, -1).numpy(), order=order)  # what is sorted is side by side
    rows.sort()
    return torch.from_numpy(rows).movedim(-1, 0)


def rbf(squared: Tensor, bandwidth: Tensor | float) -> Tensor:
    """Return the kernel exp(−squared / bandwidth), in [0, 1]."""
    return torch.exp(-squared / bandwidth)
