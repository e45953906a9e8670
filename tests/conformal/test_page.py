"""The code of docs/conformal.md runs, and says what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "conformal.md"


def run() -> dict:
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
            exec(block, names)
    return names


def test_the_example(capsys) -> None:
    """90 % are covered. False alarms: 6e-5 (four standard errors of both halves)."""
    names = run()
    found = names["coverage"](names["sets"], names["labels"][500:])
    assert abs(found - 0.9) < 4 * (0.09 / 500 + 0.09 / 1500) ** 0.5
    assert capsys.readouterr().out.startswith("False tensor(0.")


def test_the_numbers_of_the_page() -> None:
    """Beta laws, and how many examples are too few."""
    from scipy import stats

    from polymode.conformal import conformal_rank

    assert stats.beta(19, 2).ppf(0.1) < 0.82 < stats.beta(19, 2).ppf(0.12)
    wide = stats.beta(901, 100)
    assert 0.95 < wide.cdf(0.92) - wide.cdf(0.88) < 0.97
    for level, least in ((0.9, 9), (0.95, 19), (0.99, 99)):
        assert conformal_rank(least, level) == least and conformal_rank(least - 1, level) == least
