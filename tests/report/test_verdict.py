"""The verdict and the alerts: each appears when it should, and only then."""

from __future__ import annotations

import pytest

from polymode.metrics import Results, compare
from polymode.metrics.results import Cost, Row
from polymode.report.verdict import alerts, verdict


def result(method: str, seed: int, nll: float | None, spread: dict[str, float] | None = None):
    rows = [Row("test", "nll", nll, "nats/example", "down", 400, 0.02)]
    for dataset, value in (spread or {}).items():
        rows.append(Row(dataset, "disagreement", value, "fraction of pairs", "", 400, 0.0))
    return Results("digits", method, "mlp", seed, {}, tuple(rows), Cost(1, 10, 0.1, 100))


def board(first: list[float | None], second: list[float | None]):
    named = [("map", first), ("other", second)]
    return compare([result(m, s, v) for m, values in named for s, v in enumerate(values)])


def titles(found) -> list[str]:
    return [alert.title for alert in found]


def test_clear_winner():
    clear = board([0.30, 0.31, 0.29], [0.10, 0.11, 0.09])
    text = verdict(clear)
    assert text.startswith("other has the lowest test NLL on digits: 0.100 ± 0.006 against 0.300")
    assert "paired difference 0.200 ± 0.000 (95 % interval 0.200 to 0.200, 3 seeds)" in text
    assert alerts(clear) == []


def test_within_noise():
    close = board([0.10, 0.14, 0.12], [0.11, 0.12, 0.11])
    assert verdict(close).startswith("No clear winner on digits by test NLL: other has 0.113")
    assert titles(alerts(close)) == ["Difference within noise"]


def test_one_seed():
    single = board([0.3], [0.1])
    assert verdict(single).endswith("one seed, no spread known.")
    assert titles(alerts(single)) == ["One seed only"]
    assert "map, other" in alerts(single)[0].text


def test_one_method():
    alone = compare([result("map", seed, 0.2) for seed in (0, 1)])
    assert verdict(alone) == "map reaches a test NLL of 0.200 ± 0.000 nats per example on digits."
    assert alerts(alone) == []


def test_no_finite_score():
    assert verdict(board([None], [None])) == "No method has a finite test NLL on digits."


@pytest.mark.parametrize(
    ("spread", "collapsed"),
    [
        ({"test": 0.003, "ood:patches": 0.004}, True),
        ({"test": 0.003, "ood:patches": 0.3}, False),  # easy data, but the members do differ
        ({"test": 0.003}, True),
        ({}, False),
    ],
)
def test_collapse_is_said_where_members_agree_everywhere(spread, collapsed):
    found = titles(alerts(compare([result("map", seed, 0.1, spread) for seed in (0, 1)])))
    assert found == (["Members collapsed: map"] if collapsed else [])


def test_failures_come_first():
    found = alerts(board([0.3], [0.1]), failures=2)
    assert titles(found) == ["2 cells failed", "One seed only"]
