"""The code of docs/tabular.md runs, and its command does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "tabular.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.mark.cpu_seconds(10)
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_run(number, capsys) -> None:
    names: dict = {}
    with torch.random.fork_rng():
        exec(BLOCKS[number], names)
    assert capsys.readouterr().out
    if "distribution" in names:
        assert names["model"].score(names["x"][300:], names["price"][300:]) > 0.8
    if "after" in names:  # skewed noise: the map is better than the Gaussian it starts from
        y, new = names["y"][500:], names["prediction"][500:]
        assert names["crps"](names["after"], y).value < names["crps"](new, y).value - 0.05
        assert names["classes"].act([[0, -10], [-1, -1]]).action.tolist() == [0, 1]
