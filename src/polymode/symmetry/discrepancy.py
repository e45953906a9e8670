r"""Maximum mean discrepancy between two samples of networks, under twenty kernels at once.

For samples x_1..m, y_1..n and a kernel k,

.. math:: MMD^2 = E\,k(x, x') + E\,k(y, y') - 2 E\,k(x, y),

0 if and only if both come from the same distribution. The *unbiased* estimate leaves out the pairs
(i, i) and may be negative; the *biased* one has them and may not. The kernels are

    laplace   k = exp(−‖x − y‖₁ / λ)        gaussian   k = exp(−(‖x − y‖₂ / λ)²), without factor 2

with ten lengthscales λ each, on a geometric grid from half the smallest to twice the largest
distance between the two samples, as in the code of the paper (which bounds them: see
`lengthscales`). The aggregate is the mean over the twenty; as a mean of kernels is a kernel, it is
an MMD² itself.

The null spread is that of the same number when the m + n networks are divided at random. It needs
nothing but K z for 0/1 vectors z, so all divisions and the estimate come from one pass over K, in
blocks that stay in a processor's cache; for the aggregate, one product with the mean kernel is
enough. Distances are computed once for all lengthscales. Squared L2 and L1 distances add up over
layers, so those of whole networks are sums of those of layers.

Samples of one mode are alike. With L samples of each of M modes, a share (L − 1) / (M L − 1) of the
pairs within x is of one mode, and MMD² stays near this share of its value for one mode even where
the modes are draws from the very distribution of y. `between` leaves these pairs out: it is
unbiased if modes are the independent draws, and says whether they are from where y is from.

References: A. Gretton, K. Borgwardt, M. Rasch, B. Schölkopf, A. Smola, A kernel two-sample test,
JMLR 13, 2012. A. Schrab et al., MMD aggregated two-sample test, JMLR 24, 2023 (the grid).
O. Laurent, E. Aldea, G. Franchi, ICLR 2024.

Shapes: `m`, `n` networks, `N = m + n`, `D` weights, `R` divisions at random.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call, shown
from polymode.core.memory import require_free
from polymode.core.rng import generator

KERNELS = ("laplace", "gaussian")
NUM_LENGTHSCALES = 10
LOOKED_AT = 500  # networks of each sample from which lengthscales are found
BLOCK_BYTES = 2**20  # of a block of a kernel matrix
COLUMNS = 2**14  # weights at a time, in products


class Distances(NamedTuple):
    """Between every two of N networks: L1, and the square of L2, (N, N) each."""

    laplace: Tensor
    gaussian: Tensor

    def plus(self, more: Distances) -> Distances:
        """Return the distances of two groups of weights together."""
        return Distances(self.laplace + more.laplace, self.gaussian + more.gaussian)


class MMD(NamedTuple):
    """MMD² of two samples.

    Attributes:
        unbiased, biased: by kernel and lengthscale, (2, 10), float64.
        null: the aggregate for R divisions at random, (R,).
        each_null: the unbiased one of every kernel for these divisions, (R, 2, 10), if asked for.
        lengthscales: (2, 10).
        between: the estimate from pairs of different modes alone, (2, 10), if modes are known and
            several; see the module.
    """

    unbiased: Tensor
    biased: Tensor
    null: Tensor
    each_null: Tensor | None
    lengthscales: Tensor
    between: Tensor | None = None

    def __repr__(self) -> str:
        null = f", null s.d. {self.null_std:.2g}, p = {self.p_value:.2g}" if len(self.null) else ""
        return f"MMD({self.aggregate:.4g}, the mean over {self.unbiased.numel()} kernels{null})"

    @property
    def aggregate(self) -> float:
        """Mean of the unbiased estimates over the twenty kernels."""
        return float(self.unbiased.mean())

    @property
    def null_std(self) -> float:
        """Standard deviation of the aggregate over divisions at random; NaN for fewer than two."""
        return float(self.null.std())

    @property
    def p_value(self) -> float:
        """Share of divisions, the given one included, whose aggregate is at least as large."""
        return float(1 + (self.null >= self.unbiased.mean()).sum()) / (1 + len(self.null))


def mmd(
    x: Tensor,
    y: Tensor,
    *,
    lengths: OnlyTensor | None = None,
    num_permutations: int = 200,
    each_kernel: bool = True,
    seed: int = 0,
    modes: OnlyTensor | None = None,
) -> MMD:
    """Return MMD² between the rows of x (m, D) and of y (n, D).

    Args:
        x, y: at least two rows each, float32 or float64, in which it is computed.
        lengths: lengthscales (2, 10) of the two kernels; by default `lengthscales` finds them.
        num_permutations: divisions at random for the null spread, ≥ 0.
        each_kernel: whether every kernel has its null, which takes longer, or only the aggregate.
        seed: of these divisions.
        modes: number of the mode that each row of x belongs to, (m,), for `between`.

    Traps: both samples count as independent draws. Neighbours of one Markov chain are not, so the
    null spread is then too small.

    >>> x = torch.arange(4.0)[:, None]
    >>> found = mmd(x, x + 10, num_permutations=0)
    >>> found.aggregate > 0.5, found.unbiased.shape
    (True, torch.Size([2, 10]))
    """
    check_call(mmd, locals(), but=("x", "y"))
    _check(x, y, num_permutations)
    if lengths is not None and not (
        lengths.dim() == 2 and len(lengths) == 2 and (lengths > 0).all()
    ):
        raise ValueError(f"`lengths` of mmd must be (2, K) numbers > 0, got {shown(lengths)}")
    if modes is not None and modes.shape != x.shape[:1]:
        raise ValueError(f"`modes` of mmd must have one entry per row of x, got {shown(modes)}")
    null: dict[str, Any] = {"num_permutations": num_permutations, "seed": seed}
    null |= {"each_kernel": each_kernel, "modes": modes}
    return mmd_of(distances(torch.cat([x, y])), len(x), lengths=lengths, **null)


def mmd_of(
    pairs: Distances,
    m: int,
    *,
    lengths: Tensor | None = None,
    num_permutations: int = 200,
    each_kernel: bool = True,
    seed: int = 0,
    modes: Tensor | None = None,
) -> MMD:
    """Return MMD² between the first m networks and the others, from distances (N, N)."""
    if lengths is None:
        lengths = lengthscales(pairs, m)
    n = len(pairs.laplace) - m
    division = divisions(m + n, m, num_permutations, seed).to(pairs.laplace.dtype)
    apart = torch.zeros(m, m) if modes is None else (modes[:, None] != modes).float()
    sums = _sums(pairs, lengths, m, division, each_kernel, apart.to(pairs.laplace.dtype))
    shape = lengths.shape
    null = _estimate(sums.divided, m, n, sums.total if each_kernel else sums.total.mean())
    return MMD(
        _estimate(sums.first, m, n, sums.total).view(shape),
        _with_diagonal(sums.first, m, n, sums.total).view(shape),
        null.mean(-1),
        null.view(-1, *shape) if each_kernel else None,
        lengths,
        _between(sums, apart, m, n).view(shape) if apart.any() else None,
    )


def lengthscales(pairs: Distances, m: int) -> Tensor:
    """Return ten lengthscales for each kernel, (2, 10), from distances across the two samples.

    On a geometric grid from a/2 to 2b, with a the smallest distance among the first 500 of either
    sample, or max(5 % quantile, 0.1) where that is below 0.1, and b = max(largest distance, 0.3).
    """
    grids = []
    for kernel, matrix in zip(KERNELS, pairs, strict=True):
        across = matrix[: min(m, LOOKED_AT), m : m + LOOKED_AT].double()
        across = across if kernel == "laplace" else across.clamp(min=0).sqrt()
        least = float(across.min())
        if least < 0.1:
            sorted_ = across.flatten().sort().values
            least = max(float(sorted_[int(0.05 * len(sorted_))]), 0.1)
        first, last = math.log10(least / 2), math.log10(2 * max(float(across.max()), 0.3))
        grids.append(torch.logspace(first, last, NUM_LENGTHSCALES, dtype=torch.float64))
    return torch.stack(grids)


def distances(rows: Tensor, columns: Tensor | None = None) -> Distances:
    """Return distances between every two rows (N, D), or from each row to each of `columns`."""
    same = columns is None
    second = rows if columns is None else columns
    need = 3 * len(rows) * len(second) * rows.element_size()
    require_free(need, f"distances of {len(rows):,} × {len(second):,} networks", "Take fewer")
    laplace = torch.zeros(len(rows), len(second), dtype=rows.dtype)
    gaussian = torch.zeros(len(rows), len(second), dtype=rows.dtype)
    centre = second.mean(0)
    for start in range(0, rows.shape[1], COLUMNS):
        part = slice(start, start + COLUMNS)
        a = (rows[:, part] - centre[part]).contiguous()
        b = a if same else (second[:, part] - centre[part]).contiguous()
        _add_l1(laplace, a, b, same)
        gaussian += _squares(a, b)
    if same:
        gaussian.fill_diagonal_(0.0)
    if not (torch.isfinite(laplace).all() and torch.isfinite(gaussian).all()):
        largest = max(float(rows.abs().max()), float(second.abs().max()))
        raise ValueError(
            f"squared distances of networks with weights up to {largest:.2g} overflow"
            f" {str(rows.dtype).removeprefix('torch.')}; divide all weights by one number, or give"
            " them in float64"
        )
    return Distances(laplace, gaussian.clamp_(min=0.0))


def _add_l1(total: Tensor, a: Tensor, b: Tensor, same: bool) -> None:
    """Add L1 distances; of a symmetric matrix only one half is computed."""
    if not same:
        total += torch.cdist(a, b, p=1.0)
        return
    side = 128
    for start in range(0, len(a), side):
        rows = slice(start, start + side)
        block = torch.cdist(a[rows], a[start:], p=1.0)
        total[rows, start:] += block
        total[start + side :, rows] += block[:, side:].T


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Return squared distances by one product; in float64, where the differences survive it."""
    a64, b64 = a.double(), b.double()
    inner = a64 @ b64.T
    return (a64.square().sum(1)[:, None] + b64.square().sum(1) - 2 * inner).to(a.dtype)


class _Sums(NamedTuple):
    """Sums over K kernel matrices without their diagonals: within the first group and across, for
    the given division (K, 2) and those at random (R, K, 2), or (R, 1, 2) of the mean kernel; over
    all (K,); and over pairs of different modes of the first group (K,)."""

    first: Tensor
    divided: Tensor
    total: Tensor
    between: Tensor


def divisions(count: int, m: int, number: int, seed: int) -> Tensor:
    """Return 0/1 columns (N, R) that name m of N networks, float32."""
    stream = generator(seed, "mmd")
    columns = torch.zeros(count, number)
    for column in range(number):
        columns[torch.randperm(count, generator=stream)[:m], column] = 1.0
    return columns


def _sums(
    pairs: Distances, lengths: Tensor, m: int, division: Tensor, each_kernel: bool, apart: Tensor
) -> _Sums:
    """Return all sums from one pass over the distances, block by block."""
    count, number = len(pairs.laplace), lengths.numel()
    dtype = pairs.laplace.dtype
    side = max(1, BLOCK_BYTES // (count * dtype.itemsize))
    kernel_rows, mean_rows = torch.empty(2, side, count, dtype=dtype).unbind()
    first = torch.zeros(number, 2, dtype=torch.float64)
    total, between = torch.zeros(2, number, dtype=torch.float64).unbind()
    divided = torch.zeros(division.shape[1], number if each_kernel else 1, 2, dtype=torch.float64)
    scales = torch.stack([lengths[0], lengths[1] ** 2]).tolist()
    for start in range(0, count, side):
        size = min(side, count - start)
        ours = max(0, min(m - start, size))
        chosen = division[start : start + size]
        mean = mean_rows[:size].zero_()
        place = 0
        for matrix, row in zip(pairs, scales, strict=True):
            for scale in row:
                rows = matrix[start : start + size]
                kernel = torch.mul(rows, -1.0 / scale, out=kernel_rows[:size]).exp_()
                kernel.diagonal(start).zero_()  # pairs (i, i)
                first[place, 0] += kernel[:ours, :m].sum(dtype=torch.float64)
                first[place, 1] += kernel[:ours, m:].sum(dtype=torch.float64)
                total[place] += kernel.sum(dtype=torch.float64)
                across_modes = kernel[:ours, :m] * apart[start : start + ours]
                between[place] += across_modes.sum(dtype=torch.float64)
                if each_kernel:
                    _divide(divided[:, place], kernel, division, chosen)
                elif len(divided):
                    mean += kernel
                place += 1
        if not each_kernel:
            _divide(divided[:, 0], mean.div_(number), division, chosen)
    return _Sums(first, divided, total, between)


def _divide(sums: Tensor, kernel: Tensor, division: Tensor, chosen: Tensor) -> None:
    """Add the sums within and across of some rows of a kernel, for all divisions, (R, 2)."""
    if len(sums):
        within = (chosen * (kernel @ division)).sum(0, dtype=torch.float64)
        reached = (chosen * kernel.sum(1, keepdim=True)).sum(0, dtype=torch.float64)
        sums[:, 0] += within
        sums[:, 1] += reached - within


def _estimate(sums: Tensor, m: int, n: int, total: Tensor) -> Tensor:
    """Return the U-statistic from sums within the first group and across, (..., 2)."""
    within, across = sums.unbind(-1)
    second = total - within - 2 * across
    return within / (m * (m - 1)) + second / (n * (n - 1)) - 2 * across / (m * n)


def _between(sums: _Sums, apart: Tensor, m: int, n: int) -> Tensor:
    """Return the U-statistic with pairs of different modes alone in its first part."""
    within, across = sums.first.unbind(-1)
    second = sums.total - within - 2 * across
    return sums.between / apart.double().sum() + second / (n * (n - 1)) - 2 * across / (m * n)


def _with_diagonal(sums: Tensor, m: int, n: int, total: Tensor) -> Tensor:
    """Return the V-statistic, in which k(x, x) = 1 counts."""
    within, across = sums.unbind(-1)
    second = total - within - 2 * across
    return (within + m) / m**2 + (second + n) / n**2 - 2 * across / (m * n)


def _check(x: Tensor, y: Tensor, num_permutations: int) -> None:
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        wrong = type(y if isinstance(x, Tensor) else x).__name__
        raise ValueError(
            f"x and y of mmd must be tensors (networks, weights), got a {wrong}; pm.examine(post,"
            ' task, "symmetry", ...) takes posteriors'
        )
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1] or min(len(x), len(y)) < 2:
        raise ValueError(
            "mmd takes two samples of at least 2 rows with equally many columns, got"
            f" {tuple(x.shape)} and {tuple(y.shape)}"
        )
    for rows in (x, y):
        if not torch.isfinite(rows).all():
            bad = int((~torch.isfinite(rows).all(1)).sum())
            raise ValueError(f"{bad:,} of {len(rows):,} networks have weights that are not finite")
    if type(num_permutations) is not int or not 0 <= num_permutations <= 10**6:
        raise ValueError(
            "`num_permutations` of mmd must be an integer from 0 to 1,000,000, got"
            f" {num_permutations!r}"
        )
