r"""How much every two members differ in what they predict: matrices (S, S), means over inputs.

====================================  ========================================  ============
`pairwise_disagreement`               share of inputs with different classes    [0, 1]
`pairwise_kl`                         :math:`KL(p_i \| p_j)`, not symmetric     [0, inf] nats
`pairwise_mutual_information`         Jensen-Shannon divergence                 [0, log 2] nats
====================================  ========================================  ============

All take one prediction, or probabilities (S, B, C), or an iterable of such batches of inputs: means
over inputs add up, so that neither pairs nor inputs need to be in memory together. Whether the
inputs are those of the test set or come from elsewhere makes no difference here; a figure shows
both side by side. Results are float64, with zeros on the diagonal.

    matrix = pairwise_mutual_information(post.stream(x))
    values = upper(matrix)              # S (S - 1) / 2 of them, for a histogram

`S` samples, `B` batch, `C` classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.metrics.diversity.pieces import Predictions, pieces
from polymode.metrics.diversity.tiles import add_pair_sums


def pairwise_mutual_information(predictions: Predictions) -> Tensor:
    r"""Return the mutual information of every two members, (S, S), in [0, log 2] nats.

    .. math:: \frac1B\sum_n H[\tfrac12(p_{in} + p_{jn})] - \tfrac12(H[p_{in}] + H[p_{jn}]),

    the mutual information of an ensemble of the two alone, also called Jensen-Shannon divergence:
    0 where they predict the same, log 2 where they never have a class in common. Symmetric; its
    root is a metric. In float32 the error is below 1e-6 nats; float64 is computed in float64.

    A pair costs B C logarithms, and about as much again for all else.

    Traps: not the mutual information of the whole ensemble, which is up to log S and no mean of
    pairs; small on easy inputs for good reason, since members that are all sure and right agree.

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

    Traps: unbounded, so a few confident contradictions rule the mean; see
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

    Of a matrix that is not symmetric, as of `pairwise_kl`, `upper(matrix.T)` has the other half.

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
    """Return the mean over inputs, (S, S) float64, of what `add` adds up piece by piece."""
    total, num_inputs = None, 0
    for log_probs in pieces(predictions):
        if total is None:
            total = torch.zeros(len(log_probs), len(log_probs), dtype=torch.float64)
        add(total, log_probs)
        num_inputs += log_probs.shape[1]
    if total is None:
        raise ValueError("there is nothing to compare: 0 inputs")
    return total.div_(num_inputs)
