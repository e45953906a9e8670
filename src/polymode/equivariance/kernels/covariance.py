"""Covariances between the values of two inputs, on their way through the layers.

What is kept depends on what later layers need, from little to much:

    "vector"    one number per pair: inputs are vectors, or their pixels are summed up;
    "diagonal"  (H, W): the same pixel of both inputs, enough for convolutions before `Flatten`;
    "full"      (H, H', W, W'): every pixel of one with every pixel of the other, for pooling.

The axes of the pairs come last, so that neighbours in memory are other pairs of the same pixels:
(N, N') for vectors, else one axis of `P` pairs. The order H, H', W, W' makes a sum over the windows
of a convolution two sums along diagonals, see `window_sum`.

Layers divide by the standard deviations of both inputs. These belong to single inputs, so they are
computed once per input (`Recorded`) and looked up for every pair (`Replayed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

FORMS = ("vector", "diagonal", "full")


class Variances(Protocol):
    """Where variances of the two inputs of each pair come from."""

    def of(self, covariance: Covariance) -> tuple[Tensor, Tensor]:
        """Return both, so that they can be multiplied with the covariances."""


@dataclass
class Covariance:
    """NNGP and NTK of pairs of inputs after some layers; layers change it in place.

    Attributes:
        nngp: covariance of one unit (or channel) at two inputs, over random weights.
        ntk: the tangent kernel; None where it is 0, before the first weights, or not wanted.
        form: see above.
        variances: of the inputs of each pair.
        gaussian: whether units are Gaussian with mean 0, as after a layer of weights.
        fresh: whether they are independent of other branches of the network.
        wants_ntk: whether `ntk` is wanted.
        where: name of the present layer, for messages.
    """

    nngp: Tensor
    form: str
    variances: Variances
    ntk: Tensor | None = None
    gaussian: bool = False
    fresh: bool = False
    wants_ntk: bool = True
    where: str = ""

    def copy(self) -> Covariance:
        """Return one that can be changed without changing this one."""
        ntk = None if self.ntk is None else self.ntk.clone()
        return Covariance(
            self.nngp.clone(), self.form, self.variances, ntk, self.gaussian, False,
            self.wants_ntk, self.where,
        )  # fmt: skip

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        step = 2 if self.form == "full" else 1
        return self.nngp.shape[0], self.nngp.shape[step]

    def require_pixels(self) -> None:
        if self.form == "vector":
            raise ValueError(f"{self.where} needs images (N, C, H, W), but is given vectors")

    def require_gaussian(self, why: str) -> None:
        if not self.gaussian:
            raise ValueError(
                f"{self.where} must follow a layer of weights (Dense, Conv), or a sum of such:"
                f" {why}"
            )


def same_pixels(full: Tensor) -> Tensor:
    """Return (H, W, P) of (H, H', W, W', P): the same pixel of both inputs."""
    diagonal = full.diagonal(dim1=0, dim2=1).diagonal(dim1=0, dim2=1)  # (P, H, W)
    return diagonal.permute(1, 2, 0).contiguous()


def placed(variance: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """Return variances (H, W, P) of both inputs where axes of a covariance have them."""
    if form != "full":
        return variance, variance
    return variance[:, None, :, None], variance[None, :, None, :]


class Recorded:
    """The two inputs of each pair are the same: records their variances in `variances`."""

    def __init__(self) -> None:
        self.variances: list[Tensor] = []

    def of(self, covariance: Covariance) -> tuple[Tensor, Tensor]:
        nngp = covariance.nngp
        variance = same_pixels(nngp) if covariance.form == "full" else nngp.clone()
        self.variances.append(variance)
        return placed(variance, covariance.form)


class Replayed:
    """Recorded variances of single inputs, combined for pairs, in the same order.

    Args:
        first, second: (..., N) and (..., N') for each place where variances are used.
        rows, columns: which input of each side a pair has, (P,) each; None for all pairs (N, N').
    """

    def __init__(
        self,
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> None:
        self._pairs: Iterator[tuple[Tensor, Tensor]] = zip(first, second, strict=True)
        self._rows, self._columns = rows, columns

    def of(self, covariance: Covariance) -> tuple[Tensor, Tensor]:
        first, second = next(self._pairs)
        if self._rows is None or self._columns is None:
            return first[..., :, None], second[..., None, :]
        left = placed(first[..., self._rows], covariance.form)[0]
        return left, placed(second[..., self._columns], covariance.form)[1]


def window_sum(
    values: Tensor, axes: Sequence[int], size: int, padding: int, stride: int, periodic: bool
) -> Tensor:
    """Return sums over windows that move along all `axes` together.

    out[i, ...] = Σ_d values[i s + d − p, ...], the same index along every one of `axes`; terms
    outside are 0, or wrap around if `periodic`. A k×k convolution of the covariances of pixels is
    one such sum for (H, H') and one for (W, W'): 2k shifted terms instead of k².
    """
    side = values.shape[axes[0]]
    if periodic:
        rolls = (shift for shift in range(-padding, size - padding) if shift)
        return sum((values.roll([-shift] * len(axes), list(axes)) for shift in rolls), values)
    length = (side + 2 * padding - size) // stride + 1
    shape = list(values.shape)
    for axis in axes:
        shape[axis] = length
    total: Tensor | None = None
    # The shift without a gap comes first: it is copied, not added to zeros.
    for shift in sorted(range(-padding, size - padding), key=abs):
        low = max(0, -(shift // stride))  # the least i with i s + shift >= 0
        high = min(length, (side - 1 - shift) // stride + 1)
        if high <= low:
            continue
        source = [slice(None)] * values.ndim
        target = [slice(None)] * values.ndim
        for axis in axes:
            source[axis] = slice(low * stride + shift, (high - 1) * stride + shift + 1, stride)
            target[axis] = slice(low, high)
        part = values[tuple(source)]
        if total is None:
            if (low, high) == (0, length):
                total = part.clone()
                continue
            total = values.new_zeros(shape)
        total[tuple(target)] += part
    assert total is not None
    return total


def window_mean(values: Tensor, axis: int, size: int, stride: int) -> Tensor:
    """Return means over windows along one axis."""
    length = (values.shape[axis] - size) // stride + 1
    total: Tensor | None = None
    for shift in range(size):
        part = values.narrow(axis, shift, (length - 1) * stride + 1)
        index = [slice(None)] * values.ndim
        index[axis] = slice(None, None, stride)
        part = part[tuple(index)]
        total = part.clone() if total is None else total.add_(part)
    assert total is not None
    return total.div_(size)


def input_covariance(x: Tensor, y: Tensor, form: str) -> Tensor:
    """Return x·y / d of all pairs: (N, N'), else (H, W, P) or (H, H', W, W', P), P = N N'.

    Args:
        x, y: (N, d) and (N', d), or (N, C, H, W) and (N', C, H, W); d or C is averaged over.
    """
    features = x.shape[1]
    if form == "vector":
        return (x @ y.mT).div_(features)
    if form == "diagonal":
        products = x.permute(2, 3, 0, 1) @ y.permute(2, 3, 1, 0)
        return products.flatten(2).div_(features)
    num, _, height, width = x.shape
    left = x.permute(2, 3, 0, 1).reshape(-1, features)
    right = y.permute(2, 3, 0, 1).reshape(-1, features)
    products = (left @ right.mT).div_(features).view(height, width, num, height, width, len(y))
    return products.permute(0, 3, 1, 4, 2, 5).flatten(4)


def paired_covariance(x: Tensor, y: Tensor, form: str) -> Tensor:
    """Return the same for the pairs (x[n], y[n]) only: (N,), (H, W, N) or (H, H', W, W', N)."""
    if form == "vector":
        return (x * y).sum(1).div_(x.shape[1])
    if form == "diagonal":
        return (x * y).sum(1).permute(1, 2, 0).contiguous().div_(x.shape[1])
    (num, features, height, width) = x.shape
    products = x.flatten(2).mT @ y.flatten(2)  # (N, H W, H' W')
    products = products.div_(features).view(num, height, width, height, width)
    return products.permute(1, 3, 2, 4, 0).contiguous()


def all_pairs(first: int, second: int) -> tuple[Tensor, Tensor]:
    """Return row and column of each of the pairs, rows slowest."""
    index = torch.arange(first * second)
    return index // second, index % second
