"""The table of every method with its defaults, made of made-up rows."""

from __future__ import annotations

from docs.defaults_table import costs, defaults_tables


def row(method: str, task: str, split: int = 0, **facts) -> dict:
    scores = {key: facts.pop(key) for key in ("nll", "accuracy", "coverage") if key in facts}
    usual = {"part": "test", "options": {}, "warnings": [], "seconds": 1.0}
    return {**usual, "method": method, "task": task, "split": split, "scores": scores, **facts}


def line(text: str, start: str) -> str:
    return next(each for each in text.splitlines() if start in each)


def test_cells_mark_what_is_worse_than_a_constant_warned_of_or_failed() -> None:
    rows = [
        row("constant", "boston", nll=3.5, coverage=0.96, seconds=0.0),
        row("map", "boston", nll=3.0, coverage=0.7, seconds=2.0),
        row("swag", "boston", nll=4.0, coverage=0.8, seconds=3.0, warnings=["too hot"]),
        row("vi", "boston", error="diverged", warnings=["large"]),
        row("mile", "boston", error="not done after 120 s"),
        row("lit", "boston", error="ValueError: needs another network"),
    ]
    text = defaults_tables(rows)
    assert "| 3.50 | 0.96–0.96 | – |" in line(text, "*constant*")
    assert "| 3.00 | 0.70–0.70 | 1× |" in line(text, "`map`]")
    assert "| 4.00 ✗! | 0.80–0.80 | 1.5× |" in line(text, "`swag`]")
    assert "| failed ! | – | 0.5× |" in line(text, "`vi`]")
    assert "| > 120 s | –" in line(text, "`mile`]") and "| refused | –" in line(text, "`lit`]")


def test_means_are_over_splits_of_the_test_part_with_nothing_set() -> None:
    rows = [
        row("constant", "wine", nll=1.1, accuracy=0.4),
        row("map", "wine", split=0, nll=0.2, accuracy=1.0),
        row("map", "wine", split=1, nll=0.4, accuracy=0.8),
        row("map", "wine", split=2, nll=9.0, accuracy=0.1, part="val"),
        row("map", "wine", split=3, nll=9.0, accuracy=0.1, options={"lr": 1.0}),
    ]
    text = defaults_tables(rows)
    assert "| 0.30 (0.90) | 1× |" in line(text, "`map`]")
    assert "Means over 2 splits" in text


def test_costs_are_medians_of_the_ratios_to_map_on_the_same_split() -> None:
    rows = [
        row("constant", "wine", nll=1.1, seconds=0.0),
        row("map", "wine", seconds=2.0, predict_seconds=0.1),
        row("map", "yacht", seconds=1.0, predict_seconds=0.1),
        row("vi", "wine", seconds=4.0, predict_seconds=0.3),
        row("vi", "yacht", seconds=6.0, predict_seconds=0.5),
        row("vi", "boston", seconds=99.0, predict_seconds=99.0),
    ]
    assert costs(rows) == {"map": {"fit": 1.0, "predict": 1.0}, "vi": {"fit": 4.0, "predict": 4.0}}
