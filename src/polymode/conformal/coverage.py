"""Coverage and size of sets and intervals on labelled data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.conformal.prediction_intervals import PredictionIntervals
from polymode.conformal.prediction_sets import PredictionSets
from polymode.core.checks import check_call
from polymode.likelihoods.targets import check_as_many, check_labels, check_values


def covered(sets: PredictionSets | PredictionIntervals, targets: Tensor) -> Tensor:
    """Return whether each target is inside, bool: (B,) of sets, (B, D) of intervals."""
    check_call(covered, locals())
    if isinstance(sets, PredictionSets):
        labels = check_labels(targets, sets.members.shape[-1]).to(sets.members.device)
        check_as_many(len(labels), len(sets), "target(s)", "set(s)")
        return sets.members.gather(1, labels[:, None])[:, 0]
    values = check_values(targets, sets.lower.shape[-1]).to(sets.lower)
    check_as_many(len(values), len(sets), "target(s)", "set(s)")
    return (sets.lower <= values) & (values <= sets.upper)


def coverage(sets: PredictionSets | PredictionIntervals, targets: Tensor) -> Tensor:
    """Return the share of targets inside, in [0, 1]: () of sets, (D,) of intervals."""
    check_call(coverage, locals())
    return covered(sets, targets).double().mean(0)


def mean_size(sets: PredictionSets | PredictionIntervals) -> Tensor:
    """Return the mean number of classes, (), or the mean width in units of y, (D,)."""
    check_call(mean_size, locals())
    check_as_many(len(sets), len(sets), "target(s)", "set(s)")
    return (sets.sizes if isinstance(sets, PredictionSets) else sets.widths).double().mean(0)


class SizeStrata(NamedTuple):
    """Coverage of sets of similar size; strata without sets are left out.

    Args:
        sizes: smallest and largest size of each stratum.
        counts: sets in each, int64 (strata,).
        coverage: share of labels inside, (strata,).
    """

    sizes: list[tuple[int, int]]
    counts: Tensor
    coverage: Tensor

    @property
    def worst(self) -> float:
        """The lowest coverage of a stratum; noisy where `counts` are small."""
        return self.coverage.min().item()


def size_stratified_coverage(
    sets: PredictionSets, targets: Tensor, smallest: Sequence[int] = (0, 2, 4, 11, 101)
) -> SizeStrata:
    """Return the coverage by size of the set, far below the level if sets do not adapt.

    Marginal coverage says nothing about hard inputs: large sets may cover less than small ones.
    Empty sets, which cover nothing, are in the lowest stratum.

    Args:
        smallest: size at which each stratum begins, rising from 0; as in the reference.

    Reference: A. Angelopoulos, S. Bates, J. Malik, M. I. Jordan, ICLR 2021, section 4.
    """
    check_call(size_stratified_coverage, locals())
    starts = [int(start) for start in smallest]
    if not starts or starts[0] != 0 or sorted(set(starts)) != starts:
        raise ValueError(f"`smallest` must rise from 0, got {list(smallest)}")
    hits, classes = covered(sets, targets).double(), sets.members.shape[-1]
    stratum = torch.bucketize(sets.sizes, torch.tensor(starts[1:]), right=True)
    count = stratum.bincount(minlength=len(starts))
    hit = stratum.bincount(hits, minlength=len(starts))
    used = count > 0
    ends = [*(start - 1 for start in starts[1:]), max(classes, starts[-1])]
    sizes = [(a, min(b, classes)) for a, b, use in zip(starts, ends, used, strict=True) if use]
    return SizeStrata(sizes, count[used], hit[used] / count[used])
