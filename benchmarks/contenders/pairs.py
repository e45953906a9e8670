"""Mutual information of all pairs of networks, mean over inputs: in tiles, and pair by pair.

The loops take some pairs, spread over all, and their times are scaled by the number of pairs.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, islice

import torch
from torch import Tensor

from ..cases import Case
from . import Job

PAIRS = 1000  # that the loops do


@lru_cache(maxsize=1)
def _log_probs(case: Case) -> Tensor:
    """Predictions (S, B, C) of networks that have something in common."""
    generator = torch.Generator().manual_seed(0)
    common = 3.0 * torch.randn(case.num_examples, case.num_classes, generator=generator)
    log_probs = torch.empty(case.num_modes, *common.shape)
    for member in log_probs:  # one by one, so that the data are no peak of memory
        own = torch.randn(common.shape, generator=generator)
        member.copy_((common + own).log_softmax(-1))
    return log_probs


def polymode(case: Case) -> Job:
    """All pairs."""
    from polymode.metrics.diversity import pairwise_mutual_information
    from polymode.prediction import CategoricalPrediction

    prediction = CategoricalPrediction(_log_probs(case))

    def run() -> None:
        pairwise_mutual_information(prediction)

    return Job(run, 1)


def _some_pairs(case: Case) -> tuple[list[tuple[int, int]], float]:
    """Every n-th pair, and by how much their time is multiplied."""
    total = case.num_modes * (case.num_modes - 1) // 2
    step = max(1, total // PAIRS)
    pairs = list(islice(combinations(range(case.num_modes), 2), 0, None, step))
    return pairs, total / len(pairs)


def _entropy(probs: Tensor) -> Tensor:
    return -(probs * probs.log()).sum(-1).mean()


def formula(case: Case) -> Job:
    """The definition, H(mean) - mean H, for one pair after another."""
    probs = _log_probs(case).exp()
    pairs, scale = _some_pairs(case)

    def run() -> None:
        for i, j in pairs:
            mean = 0.5 * (probs[i] + probs[j])
            (_entropy(mean) - 0.5 * (_entropy(probs[i]) + _entropy(probs[j]))).item()

    return Job(run, 1, scale=scale)


def entropies_kept(case: Case) -> Job:
    """The same with the entropies of the single networks computed once, which is not timed."""
    probs = _log_probs(case).exp()
    own = [_entropy(each).item() for each in probs]
    pairs, scale = _some_pairs(case)

    def run() -> None:
        for i, j in pairs:
            _entropy(0.5 * (probs[i] + probs[j])).item() - 0.5 * (own[i] + own[j])

    return Job(run, 1, scale=scale)
