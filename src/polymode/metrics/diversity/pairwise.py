r"""How much the predictions of every two members differ: matrices (S, S), means over inputs.

====================================  ========================================  ============
`pairwise_disagreement`               share of inputs with different classes    [0, 1]
`pairwise_kl`                         :math:`KL(p_i \| p_j)`, not symmetric     [0, inf] nats
`pairwise_mutual_information`         Jensen-Shannon divergence                 [0, log 2] nats
====================================  ========================================  ============

All take one prediction, or probabilities (S, B, C), or an iterable of such batches of inputs: sums
over inputs add up, so neither all pairs nor all inputs need to be in memory at once. Results are
float64, with zeros on the diagonal.

    matrix = pairwise_mutual_information(post.stream(x))
    values = upper(matrix)              # S (S - 1) / 2 of them, for a histogram

`S` samples, `B` batch, `C` classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.core.threads import for_each_member
from polymode.prediction import CategoricalPrediction, Prediction

PIECE_BYTES = 2**24  # of one piece of inputs in float32; computing on it takes several copies
TILE_ROWS = 16  # of each side of a tile
TILE_BYTES = 2**19  # of one of a tile's two buffers

Probabilities: TypeAlias = Prediction | Tensor | np.ndarray
"""A `CategoricalPrediction`, or probabilities (S, B, C), which may be a memory-mapped array."""
Predictions: TypeAlias = Probabilities | Iterable[Probabilities]
"""All inputs at once, or an iterable of batches of them, such as `post.stream(x)`."""


def pairwise_mutual_information(predictions: Predictions) -> Tensor:
    r"""Return the mutual information of every two members, (S, S), in [0, log 2] nats.

    .. math:: \frac1B\sum_n H[\tfrac12(p_{in} + p_{jn})] - \tfrac12(H[p_{in}] + H[p_{jn}]),

    the mutual information of an ensemble of these two members, the Jensen-Shannon divergence: 0 if
    they predict the same, log 2 if they never have a class in common. Symmetric; its root is a
    metric. In float32 the error is below 1e-6 nats; float64 is computed in float64.

    A pair costs B C logarithms, and about as much again for everything else.

    Traps: not the mutual information of the full ensemble, which is up to log S and not a mean over
    pairs; rightly small on easy inputs, where confident and correct members agree.

    Reference: O. Laurent, E. Aldea, G. Franchi, A symmetry-aware exploration of Bayesian neural
    network posteriors, ICLR 2024, where no pair of 1,000 networks comes near 0.

    >>> probs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]])
    >>> print(pairwise_mutual_information(probs))
    tensor([[0.0000, 0.6931, 0.2158],
            [0.6931, 0.0000, 0.2158],
            [0.2158, 0.2158, 0.0000]], dtype=torch.float64)
    """

    check_call(pairwise_mutual_information, locals())

    def add(total: Tensor, log_probs: Tensor) -> None:
        add_pair_sums(total, log_probs.flatten(1).exp())

    sums = _mean_over_inputs(predictions, add)
    sums = sums.triu() + sums.triu(1).T  # minus the entropy of the mean of each pair
    entropies = sums.diagonal()
    return (0.5 * (entropies[:, None] + entropies) - sums).clamp_(0.0, math.log(2.0))


def pairwise_kl(predictions: Predictions) -> Tensor:
    r"""Return :math:`\frac1B\sum_n \sum_k p_{ink} \log (p_{ink} / p_{jnk})`, (S, S), in nats.

    Row i, column j is :math:`KL(p_i \| p_j)`: what it costs to believe j where i is right. Not
    symmetric. Infinite, not clipped, where j gives exactly 0 at any input to a class that i holds
    possible; log-probabilities of predictions reach far below the smallest float, probabilities in
    an array do not. Computed in float64 from probabilities that are normalised once more.

    Traps: unbounded, so a few confident contradictions dominate the mean; see
    `pairwise_mutual_information`.

    >>> probs = torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]])
    >>> print(pairwise_kl(probs))
    tensor([[0.0000,    inf],
            [0.6931, 0.0000]], dtype=torch.float64)
    """

    check_call(pairwise_kl, locals())

    def add(total: Tensor, log_probs: Tensor) -> None:
        logs = log_probs.double().log_softmax(-1).flatten(1)
        probs, impossible = logs.exp(), logs.isneginf()
        if impossible.any():
            clash = (~impossible).float() @ impossible.float().T > 0
            total += (probs @ logs.masked_fill_(impossible, 0.0).T).masked_fill_(clash, -math.inf)
        else:
            total += probs @ logs.T

    cross = _mean_over_inputs(predictions, add)
    return (cross.diagonal()[:, None] - cross).clamp_(min=0.0)


def pairwise_disagreement(predictions: Predictions) -> Tensor:
    r"""Return the share of inputs at which two members name different classes, (S, S), in [0, 1].

    :math:`\frac1B\sum_n 1[\arg\max p_{in} \ne \arg\max p_{jn}]`; of equally probable classes the
    first is named. Its mean over pairs is the mean of `prediction.disagreement` over inputs.

    Traps: two members of accuracy a disagree on at most 2 (1 - a) of the inputs, so compare at
    equal accuracy.

    Reference: S. Fort, H. Hu, B. Lakshminarayanan, Deep ensembles: a loss landscape perspective,
    2019.

    >>> probs = torch.tensor([[[0.9, 0.1], [0.4, 0.6]], [[0.8, 0.2], [0.7, 0.3]]])
    >>> print(pairwise_disagreement(probs))
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """

    check_call(pairwise_disagreement, locals())

    def add(total: Tensor, log_probs: Tensor) -> None:
        votes = log_probs.argmax(-1, keepdim=True)
        hot = torch.zeros_like(log_probs).scatter_(-1, votes, 1.0).flatten(1)
        total += log_probs.shape[1] - hot @ hot.T  # whole numbers, exact in float32

    return _mean_over_inputs(predictions, add)


def upper(matrix: OnlyTensor) -> Tensor:
    """Return the values above the diagonal of (S, S), each pair once, (S (S - 1) / 2,).

    For an asymmetric matrix, as from `pairwise_kl`, `upper(matrix.T)` has the other half.

    >>> upper(torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]]))
    tensor([1., 2., 3.])
    """
    check_call(upper, locals())
    size = _square(matrix)
    return matrix[torch.ones(size, size, dtype=torch.bool).triu(1).to(matrix.device)]


def mean_pairwise(matrix: OnlyTensor) -> float:
    """Return the mean of (S, S) over pairs of different members, both orders."""
    check_call(mean_pairwise, locals())
    size = _square(matrix)
    return (matrix.sum() - matrix.diagonal().sum()).item() / (size * (size - 1))


def _square(matrix: Tensor) -> int:
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
        raise ValueError(f"`matrix` must be (S, S) with S >= 2, got {tuple(matrix.shape)}")
    return len(matrix)


def _mean_over_inputs(predictions: Predictions, add: Callable[[Tensor, Tensor], None]) -> Tensor:
    """Return the mean over inputs, (S, S) float64, of the sums that `add` accumulates."""
    total, num_inputs = None, 0
    for log_probs in pieces(predictions):
        if total is None:
            total = torch.zeros(len(log_probs), len(log_probs), dtype=torch.float64)
        add(total, log_probs)
        num_inputs += log_probs.shape[1]
    if total is None:
        raise ValueError("there is nothing to compare: 0 inputs")
    return total.div_(num_inputs)


def pieces(predictions: Predictions) -> Iterator[Tensor]:
    """Yield log-probabilities (S, b, C) on the CPU, of b inputs at a time.

    Float64 stays float64, everything else becomes float32. Every piece is checked: all batches must
    have the same members, at least 2, and probabilities must add up to 1.
    """
    if isinstance(predictions, (Prediction, Tensor, np.ndarray)):
        predictions = [predictions]
    shape: tuple[int, int] | None = None
    for batch in predictions:
        samples, num_inputs, classes = _shape(batch)
        if shape not in (None, (samples, classes)):
            raise ValueError(
                f"all batches must be of the same members and classes, got {shape} and then"
                f" {(samples, classes)}"
            )
        shape = samples, classes
        rows = max(1, PIECE_BYTES // (4 * samples * classes))
        for start in range(0, num_inputs, rows):
            yield _log_probs(batch, slice(start, start + rows))


def _shape(batch: Probabilities) -> tuple[int, int, int]:
    """Return (S, B, C), or raise what is wrong with the batch."""
    if isinstance(batch, CategoricalPrediction):
        batch = batch.log_probs
    if not isinstance(batch, (Tensor, np.ndarray)):
        raise ValueError(
            "pairs of members are compared by their class probabilities: give"
            f" CategoricalPredictions or arrays (S, B, C), got {type(batch).__name__}"
        )
    if batch.ndim != 3:
        raise ValueError(f"probabilities must have axes (S, B, C), got shape {tuple(batch.shape)}")
    samples, num_inputs, classes = batch.shape
    if samples < 2:
        raise ValueError(f"pairs need at least 2 samples, got {samples}")
    return samples, num_inputs, classes


def _log_probs(batch: Probabilities, rows: slice) -> Tensor:
    """Return the log-probabilities of some inputs, in float32 or float64, on the CPU."""
    if isinstance(batch, np.ndarray):
        part = torch.from_numpy(np.array(batch[:, rows]))  # a copy: the file may be read-only
    else:
        assert isinstance(batch, (CategoricalPrediction, Tensor))
        tensor = batch.log_probs if isinstance(batch, CategoricalPrediction) else batch
        part = tensor.detach()[:, rows].cpu()
    part = part if part.dtype == torch.float64 else part.float()
    if isinstance(batch, CategoricalPrediction):
        return part
    return CategoricalPrediction.from_probs(part).log_probs


def add_pair_sums(total: Tensor, rows: Tensor) -> None:
    r"""Add :math:`\sum_k m_k \log m_k` with :math:`m = (p_i + p_j) / 2` to total (S, S), i <= j.

    A thousand rows of 20,000 numbers are half a million pairs and 10¹⁰ logarithms, the costly part
    of pairwise information. They are computed in tiles of a few rows by a few rows by some hundred
    columns, whose two buffers fit in a core's second-level cache, with one thread per core. Memory
    is a copy of the rows and two tiles per thread, whatever the number of pairs.

    Args:
        total: (S, S) float64; entries below the diagonal have no meaning.
        rows: (S, K) numbers >= 0, float32 or float64; 0 log 0 is 0.
    """
    samples, width = rows.shape
    side, blocks = _even(samples, TILE_ROWS)
    columns, parts = _even(width, max(1, TILE_BYTES // (side * side * rows.element_size())))
    padded = F.pad(rows / 2, (0, columns * parts - width, 0, side * blocks - samples))
    padded.clamp_(min=torch.finfo(rows.dtype).tiny)  # m log m: 0 next to any probability
    tiles = padded.view(blocks, side, parts, columns).transpose(1, 2).contiguous()
    left = [[tile[:, None] for tile in block] for block in tiles]
    right = [[tile[None] for tile in block] for block in tiles]

    def work(i: int) -> None:
        mean = torch.empty(side, side, columns, dtype=rows.dtype)
        product = torch.empty_like(mean)
        sums = torch.empty(parts, side, side, dtype=rows.dtype)
        out = sums.unbind()
        for j in range(i, blocks):
            for upper_tile, lower_tile, place in zip(left[i], right[j], out, strict=True):
                torch.add(upper_tile, lower_tile, out=mean)
                torch.log(mean, out=product)
                torch.mul(mean, product, out=product)
                torch.sum(product, -1, out=place)
            where = total[i * side : (i + 1) * side, j * side : (j + 1) * side]
            where += sums.sum(0, dtype=torch.float64)[: where.shape[0], : where.shape[1]]

    for_each_member(blocks, work)  # the first have most to do, so that threads finish together


def _even(size: int, most: int) -> tuple[int, int]:
    """Return the length of equal parts, not above `most`, that cover `size`, and their number."""
    parts = -(-size // most)
    return -(-size // parts), parts
