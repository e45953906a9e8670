"""Tables: the numbers of the leaderboard, marked, noted, and turned where they are many."""

from __future__ import annotations

import pytest

from polymode.metrics import compare
from polymode.metrics.leaderboard import costs
from polymode.metrics.results import Cost, Results, Row
from polymode.report.embed import Group
from polymode.report.method_tables import (
    joined,
    leaderboard,
    of_family,
    of_metric,
    of_shifts,
    ranked,
    sizes,
)
from polymode.report.sections import _fit


@pytest.fixture(scope="module")
def board(made_up):
    return compare(made_up.results(3, 3, examples=60))


def cell(table, label, title):
    place = [head.title for head in table.heads].index(title)
    return next(line.cells[place] for line in table.lines if line.label == label)


def test_leaderboard_has_the_headlines_and_is_sorted_by_nll(board) -> None:
    table = leaderboard(board)
    assert [line.label for line in table.lines] == ranked(board)
    assert table.heads[table.sorted_by].metric == "nll"
    means = [line.cells[table.sorted_by].value for line in table.lines]
    assert means == sorted(means)
    assert sum(span for _, span in table.groups) == len(table.heads)
    assert [head.title for head in table.heads[-2:]] == ["train", "predict"]
    for entry in board.entries:
        assert cell(table, entry.label, "train").value == costs(entry)["train_seconds"]
        shown = cell(table, entry.label, "NLL")
        assert shown.value == board[entry.label, "test", "nll"].mean
        assert shown.text == f"{shown.value:.{len(shown.text.split('.')[1])}f}"
    assert {line.label for line in table.lines if line.front} == set(board.pareto())
    assert "pareto" in table.marks


def test_best_and_tied_are_those_of_the_leaderboard(board) -> None:
    table = leaderboard(board)
    for line in table.lines:
        for head, shown in zip(table.heads[:3], line.cells, strict=False):
            known = board[line.label, "test", head.metric]
            assert shown.mark == ("best" if known.best else "tied" if known.tied else "")


def test_not_applicable_points_to_a_note(board) -> None:
    table = of_metric(board, "mutual_information", ["test", "ood:near"])
    shown = cell(table, "method_0", "test")
    assert (shown.text, shown.value) == ("n/a", None)
    assert table.notes[shown.note - 1] == "needs ≥ 2 samples"


def test_sizes_tell_modes_from_samples(made_up) -> None:
    every = made_up.results(1, 1, examples=60)
    cost = every[0].cost._replace(num_modes=3, num_samples=90)
    table = sizes(compare([every[0].replace(cost=cost)]))
    assert cell(table, "method_0", "modes").text == "3"
    assert cell(table, "method_0", "samples").text == "90"


def test_long_tables_are_turned(board) -> None:
    assert of_family(board, "ood", "ood:near").turned
    assert not of_family(board, "selective", "test").turned
    assert of_family(board, "ood", "test") is None


def test_mean_over_severities(board) -> None:
    table = of_shifts(board, "nll")
    rows = [board["method_1", f"shift:shift_0:{level}", "nll"].mean for level in range(1, 6)]
    assert cell(table, "method_1", "shift 0").value == pytest.approx(sum(rows) / 5)
    assert of_shifts(board, "no such metric") is None


def test_tables_side_by_side_keep_their_notes(board) -> None:
    parts = [of_metric(board, m, ["test"]) for m in ("disagreement", "nll", "mutual_information")]
    (table,) = joined("all", parts)
    assert [(head.metric, span) for head, span in table.groups] == [
        ("disagreement", 1),
        ("nll", 1),
        ("mutual_information", 1),
    ]
    line = next(line for line in table.lines if line.label == "method_0")
    assert [c.note for c in line.cells] == [1, 0, 1]
    assert len(joined("all", parts * 5)) == 15  # too wide for one


@pytest.mark.parametrize(("value", "mark"), [(0.52, "best"), (0.48, "chance")])
def test_best_is_marked_as_such_unless_a_guess_is_better(value, mark) -> None:
    """Also in tables of one metric, where the columns are data sets."""
    metric = "auroc_predictive_entropy"
    results = [
        Results(
            "t", name, "mlp", 0, {},
            (
                Row("test", "nll", 0.1, "nats/example", "down", 9, None),
                Row("ood:x", metric, area, "probability", "up", 9, None),
            ),
            Cost(1, 1, 1, 1.0, 1, 1.0),
        )
        for name, area in (("a", value), ("b", value - 0.1))
    ]  # fmt: skip
    board = compare(results)
    assert mark in leaderboard(board).marks
    other = ({"best", "chance"} - {mark}).pop()
    shown = of_metric(board, metric, ["ood:x"])
    assert shown is not None and mark in shown.marks and other not in shown.marks


def test_a_guess_at_classes_is_uniform() -> None:
    """An accuracy of 1 / 4 is a guess among four classes, an NLL of log 4 as well."""
    rows = [
        Row("test", "accuracy", 0.2, "fraction", "up", 9, None),
        Row("test", "nll", 1.3, "nats/example", "down", 9, None),
    ]
    results = Results("t", "a", "mlp", 0, {}, tuple(rows), Cost(1, 1, 1, 1.0, 1, 1.0))
    board = compare([results.replace(class_names=tuple("abcd")), results.replace(method="b")])
    marks = {
        head.metric: line.cells[i].mark
        for line in leaderboard(board).lines[:1]
        for i, head in enumerate(leaderboard(board).heads)
    }
    assert marks["accuracy"] == "chance" and marks["nll"] == "best"


def test_negative_numbers_have_a_true_minus() -> None:
    rows = (Row("test", "nll", -1.234, "nats/example", "down", 9, 0.1),)
    results = Results("t", "a", "mlp", 0, {}, rows, Cost(1, 1, 1, 1.0, 1, 1.0))
    assert cell(leaderboard(compare([results])), "a", "NLL").text == "−1.234"


@pytest.mark.parametrize(("used", "fits"), [(1, True), (2, True), (3, False)])
def test_a_quarter_of_a_row_is_too_narrow_for_a_table(board, used, fits) -> None:
    """Three columns would scroll sideways in one cell of four."""
    table = of_metric(board, "nll", ["test"])
    assert table is not None
    wide = table._replace(heads=3 * table.heads)
    assert _fit([wide], [[Group([], "", 4, used)]]) is fits
    assert not _fit([wide], [[Group([], "", 4, used)], [Group([], "", 4, used)]])
