"""The leaderboard: means over seeds, best marks, paired differences, names of entries."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from polymode.metrics import Results, compare
from polymode.metrics.results import Cost, Row


def result(method: str, seed: int, nll: float | None, accuracy: float = 0.9, **config) -> Results:
    note = "" if nll is not None else "n/a (needs >= 2 samples)"
    rows = (
        Row("test", "accuracy", accuracy, "fraction", "up", 400, 0.01),
        Row("test", "nll", nll, "nats/example", "down", 400, 0.02, note),
        Row("test", "disagreement", 0.1, "fraction of pairs", "", 400, 0.01),
        Row("shift:noise:1", "accuracy", accuracy - 0.1, "fraction", "up", 400, 0.01),
        Row("shift:noise:2", "accuracy", accuracy - 0.3, "fraction", "up", 300, 0.01),
    )
    return Results("digits", method, "lenet", seed, config, rows, Cost(1, 100, 0.5, 1000, 2.0))


A, B = [0.10, 0.14, 0.12], [0.09, 0.12, 0.11]


@pytest.fixture
def board():
    first = [result("map", seed, value) for seed, value in enumerate(A)]
    return compare([*first, *(result("other", seed, value) for seed, value in enumerate(B))])


def test_mean_and_standard_error_over_seeds(board):
    cell = board["map", "test", "nll"]
    assert cell.mean == pytest.approx(np.mean(A))
    assert cell.standard_error == pytest.approx(np.std(A, ddof=1) / np.sqrt(3))
    assert (cell.n, cell.best) == (3, False)
    assert board["other", "test", "nll"].best


def test_ties_are_all_best_and_descriptions_have_none(board):
    assert board["map", "test", "accuracy"].best
    assert board["other", "test", "accuracy"].best
    assert not board["map", "test", "disagreement"].best


def test_mean_over_shifts(board):
    cell = board["map", "shift:mean", "accuracy"]
    assert cell.mean == pytest.approx(0.7)
    assert "shifts (mean of 2)" in board.table()


def test_difference_is_paired_with_a_t_interval(board):
    gap = board.difference("map", "other")
    interval = stats.ttest_rel(A, B).confidence_interval(0.95)
    assert gap.mean == pytest.approx(np.mean(A) - np.mean(B))
    assert (gap.low, gap.high) == pytest.approx((interval.low, interval.high))
    assert gap.n == 3
    assert not gap.clear
    constant = compare([result(m, s, v) for m, v in (("a", 0.3), ("b", 0.1)) for s in (0, 1)])
    assert constant.difference("a", "b").clear


def test_difference_uses_shared_seeds_only():
    board = compare([result("a", 0, 0.3), result("a", 1, 9.0), result("b", 0, 0.1)])
    gap = board.difference("a", "b")
    assert (gap.mean, gap.n, gap.standard_error, gap.clear) == (pytest.approx(0.2), 1, None, False)
    assert compare([result("a", 0, 0.3), result("b", 1, 0.1)]).difference("a", "b") is None


def test_one_seed_has_no_spread():
    board = compare([result("map", 0, 0.1), result("other", 0, 0.2)])
    assert board["map", "test", "nll"].standard_error is None
    assert "1 seed:" in board.table()
    assert "±" not in board.table().split("\n", 1)[1]


def test_what_does_not_apply_stays_so_and_is_never_best():
    board = compare([result("map", 0, None), result("other", 0, 0.2)])
    cell = board["map", "test", "nll"]
    assert (cell.mean, cell.note) == (None, "n/a (needs >= 2 samples)")
    assert not board["other", "test", "nll"].best
    json.loads(board.to_json(), parse_constant=pytest.fail)


def test_options_that_differ_name_the_entries():
    board = compare(
        [result("e", 0, 0.1, num_modes=2, lr=1), result("e", 0, 0.2, num_modes=5, lr=1)]
    )
    assert board.labels == ["e (num_modes=2)", "e (num_modes=5)"]
    assert compare([result("e", 0, 0.1, lr=1), result("f", 0, 0.2, lr=2)]).labels == ["e", "f"]


def test_table_marks_the_best_and_fits_a_terminal(board):
    table = board.table()
    line = next(each for each in table.splitlines() if each.startswith("  other"))
    assert "0.107 ± 0.009*" in line
    assert "NLL ↓" in table
    assert "disagreement" not in table
    assert max(map(len, table.splitlines())) <= 80


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="0 results"):
        compare([])
    with pytest.raises(ValueError, match="one seed twice"):
        compare([result("a", 0, 0.1), result("a", 0, 0.1)])
    with pytest.raises(ValueError, match="one task can be compared, got digits, moons"):
        compare([result("a", 0, 0.1), result("a", 0, 0.1).replace(task="moons")])
