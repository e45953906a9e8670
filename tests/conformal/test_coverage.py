"""Coverage, size and coverage by size, by hand."""

from __future__ import annotations

import pytest
import torch

from polymode.conformal import (
    PredictionIntervals,
    PredictionSets,
    coverage,
    covered,
    mean_size,
    size_stratified_coverage,
)

MEMBERS = torch.tensor(
    [[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
).bool()
LABELS = torch.tensor([0, 0, 1, 3, 2, 1])


def test_sets_by_hand() -> None:
    sets = PredictionSets(MEMBERS)
    assert covered(sets, LABELS).tolist() == [True, False, True, False, True, False]
    assert coverage(sets, LABELS).item() == 0.5
    assert mean_size(sets).item() == pytest.approx(11 / 6)
    assert sets.sizes.tolist() == [1, 1, 2, 3, 4, 0] and len(sets) == 6
    assert repr(sets) == "PredictionSets(B=6, C=4, mean size=1.833, empty=1)"


def test_coverage_by_size() -> None:
    """Strata 0-1, 2-3, 4: 1 of 3, 1 of 2, 1 of 1; empty strata are left out."""
    strata = size_stratified_coverage(PredictionSets(MEMBERS), LABELS)
    assert strata.sizes == [(0, 1), (2, 3), (4, 4)]
    assert strata.counts.tolist() == [3, 2, 1]
    assert strata.coverage.tolist() == pytest.approx([1 / 3, 1 / 2, 1])
    assert strata.worst == pytest.approx(1 / 3)
    one = size_stratified_coverage(PredictionSets(MEMBERS[:2]), LABELS[:2], smallest=(0, 3))
    assert one.sizes == [(0, 2)] and one.worst == 0.5


def test_intervals_by_hand() -> None:
    intervals = PredictionIntervals(
        torch.tensor([[0.0, -1.0], [1.0, 2.0]]), torch.tensor([[1.0, 1.0], [3.0, 1.0]])
    )
    values = torch.tensor([[1.0, 2.0], [2.0, 1.5]])
    assert covered(intervals, values).tolist() == [[True, False], [True, False]]
    assert coverage(intervals, values).tolist() == [1.0, 0.0]
    assert mean_size(intervals).tolist() == [1.5, 1.0]
    assert intervals.empty.tolist() == [[False, False], [False, True]]


def test_errors() -> None:
    sets = PredictionSets(MEMBERS)
    with pytest.raises(ValueError, match=r"Got 2 target\(s\) for 6 set\(s\)"):
        coverage(sets, LABELS[:2])
    with pytest.raises(ValueError, match="need as many, >= 1"):
        mean_size(PredictionSets(MEMBERS[:0]))
    with pytest.raises(ValueError, match="in 0..3"):
        coverage(sets, LABELS + 2)
    for smallest in ((), (1, 2), (0, 3, 3)):
        with pytest.raises(ValueError, match="rise from 0"):
            size_stratified_coverage(sets, LABELS, smallest)
