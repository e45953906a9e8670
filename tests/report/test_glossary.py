"""The glossary: every metric of a board, in words that suit the kind of task."""

from __future__ import annotations

import re

from polymode.metrics import compare
from polymode.metrics.results import Cost, Results, Row
from polymode.report.glossary import glossary


def test_one_metric_has_two_meanings(digits_board, gap_results) -> None:
    """A likelihood is of the label, or of the target."""
    labels, values = glossary(digits_board)["nll"], glossary(compare([gap_results]))["nll"]
    assert "label" in labels.summary
    assert "label" not in values.summary and labels.title == values.title == "NLL"


def test_all_are_there_with_places_of_their_own(digits_board) -> None:
    found = glossary(digits_board)
    assert found.keys() == {column.metric for column in digits_board.columns}
    anchors = [meaning.anchor for meaning in found.values()]
    assert len(set(anchors)) == len(anchors)
    assert all(re.fullmatch(r"metric-\d+-[\w.-]+", anchor) for anchor in anchors)
    assert found["disagreement"].better == "describes, does not score"
    assert "describes" not in found["disagreement"].summary


def test_a_metric_that_nobody_registered() -> None:
    rows = (Row("test", "<my> metric", 0.1, "m", "up", 4, None),)
    board = compare([Results("t", "mine", "mlp", 0, {}, rows, Cost(1, 1, 1, 0.1, 1))])
    meaning = glossary(board)["<my> metric"]
    assert (meaning.title, meaning.unit, meaning.better) == ("<my> metric", "m", "higher is better")
