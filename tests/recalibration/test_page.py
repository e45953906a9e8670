"""The code of docs/recalibration.md runs, and says what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "recalibration.md"


def run() -> dict:
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        page = PAGE.read_text().split("## Ship it")[0]  # the rest is run by test_docs
        for block in re.findall(r"```python\n(.*?)```", page, re.S):
            exec(block, names)
    return names


def test_the_example(capsys) -> None:
    """The NLL falls, members stay, and the T found is one of too sure a prediction."""
    names = run()
    labels = names["labels"][1000:]
    before, after = names["prediction"][1000:], names["after"]
    assert after.log_prob(labels).mean() > before.log_prob(labels).mean() + 0.1
    assert after.num_samples == 4 and names["fix"].parameters["temperature"] > 1.5
    assert capsys.readouterr().out.startswith("Recalibration(temperature, samples, n=1000")
