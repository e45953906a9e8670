"""Cells, texts of differences and verdicts that all studies share."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from polymode.metrics.paired import Difference, paired
from polymode.studies.study import Runs, functions_of_modules, paired_difference, paired_log_ratio
from polymode.studies.table_cells import (
    Column,
    by_seed,
    column_cells,
    compare_published,
    count_seeds,
    difference_text,
    judge_equal,
    judge_not_below,
    judge_sign,
    marked_interval,
    present,
    ratio_text,
    seeds_of,
)

ACCURACY = ("test", "accuracy")


@pytest.fixture
def runs(make):
    values = [("a", 0, 0.5), ("a", 1, 0.7), ("b", 1, 0.25)]
    return Runs({"p": [make(arm, seed, {ACCURACY: value}) for arm, seed, value in values]})


def test_cells_of_a_column_share_their_decimals(runs) -> None:
    per_cent = column_cells(runs, "p", ["a", "b", "c"], Column(*ACCURACY, 100))
    assert per_cent == ["60.00 ± 10.00", "25.00", "n/a"]
    assert column_cells(runs, "p", ["a"], Column(*ACCURACY)) == ["0.600 ± 0.100"]
    assert count_seeds(runs, "p") == "1 to 2" and count_seeds(runs, "p", ["a"]) == "2"


def test_seeds_that_are_missing_are_nan(runs) -> None:
    seeds = seeds_of(runs, "p", ["a", "b"])
    rows = [runs.values("p", arm, *ACCURACY) for arm in ("a", "b")]
    np.testing.assert_equal(by_seed(rows, seeds), [[0.5, 0.7], [np.nan, 0.25]])


def test_differences_and_ratios_are_paired_by_seed() -> None:
    first, second = {0: 2.0, 1: 8.0, 2: 1.0}, {0: 1.0, 1: 4.0}
    assert paired_difference(first, second) == paired([1.0, 4.0])
    assert paired_difference(first, 1.0) == paired([1.0, 7.0, 0.0])
    ratio = paired_log_ratio(first, second)
    assert ratio is not None and ratio.n == 2 and ratio.mean == pytest.approx(math.log(2))
    assert paired_difference(first, {}) is None and paired_log_ratio({}, second) is None


def test_texts_without_an_interval_and_without_runs() -> None:
    single = Difference(-0.5, None, 1, None, None)
    assert difference_text(single, "NLL") == "NLL: −0.500, 1 seed"
    assert difference_text(None, "NLL") == "NLL: not run"
    assert marked_interval(None, "*") == "n/a" and marked_interval(single, "*") == "−0.500"
    assert ratio_text(None, 2) == "n/a" and ratio_text(single._replace(mean=0.0), 2) == "1.00"


@pytest.mark.parametrize(
    ("gaps", "sign", "verdict"),
    [
        ([1.0, 1.1, 0.9], 1, "holds"),
        ([1.0, 1.1, 0.9], -1, "does not hold"),
        ([-1.0, -1.1, -0.9], -1, "holds"),
        ([1.0, -1.0, 0.1], 1, "undecided"),
        ([1.0], 1, "undecided"),
        ([], 1, "not run"),
    ],
)
def test_a_sign_is_decided_by_its_interval(gaps, sign, verdict):
    assert judge_sign(paired(gaps), sign=sign) == verdict


@pytest.mark.parametrize(
    ("low", "high", "equal", "not_below"),
    [
        (-0.5, 0.5, "holds", "holds"),
        (-0.5, 3.0, "undecided", "holds"),
        (2.0, 3.0, "does not hold", "holds"),
        (-3.0, 0.5, "undecided", "undecided"),
        (-3.0, -0.5, "undecided", "does not hold"),
        (-3.0, -2.0, "does not hold", "does not hold"),
    ],
)
def test_margins_are_decided_by_the_ends_of_the_interval(low, high, equal, not_below) -> None:
    gap = Difference((low + high) / 2, 0.1, 5, low, high)
    assert judge_equal(gap, 1.0) == equal
    assert judge_not_below(gap, 1.0, refuted_below=0.0) == not_below
    assert judge_equal(None, 1.0) == "not run"
    assert judge_equal(gap._replace(low=None), 1.0) == "undecided"


def test_modules_may_lack_figures_and_comparisons(runs) -> None:
    class First:
        tables = staticmethod(lambda runs: {"t": 1})
        parts = staticmethod(lambda preset: {"p": preset})
        claims = staticmethod(lambda runs: ["c"])

    class Second(First):
        figures = staticmethod(lambda runs: {"f": 2})
        comparisons = staticmethod(lambda preset, runs: [preset])

    functions = functions_of_modules(First, Second)
    assert functions["figures"](runs) == {"f": 2} and functions["parts"]("cpu") == {"p": "cpu"}
    assert functions["claims"](runs) == ["c", "c"]
    assert functions["comparisons"]("cpu", runs) == ["cpu"]
    assert present({"a": None, "b": 0}) == {"b": 0}


class Printed(NamedTuple):
    """A line of a paper's table."""

    rate: float
    loss: float


@pytest.mark.parametrize("metric", ["accuracy", "aupr", "aupr_in", "auroc", "nll", "ece"])
def test_published_numbers_are_compared_in_the_direction_of_their_metric(metric) -> None:
    (row,) = compare_published(
        {"p": {"a": Printed(0.5, 1.0)}},
        {"rate": 0.1},
        lambda part: {"x": Column("test", metric, field="rate"), "y": Column("t", "nll")},
        lambda column, part, line: [0.2, 0.4],
    )
    assert row.direction == ("up" if metric.startswith(("acc", "aupr")) else "down")
    assert (row.paper, row.ours) == (0.5, pytest.approx(0.3))
