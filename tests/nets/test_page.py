"""The counts in docs/nets.md are those of the networks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from polymode import nets

PAGE = (Path(__file__).parents[2] / "docs" / "nets.md").read_text()
ROWS = re.findall(r"^\| `(.+?)` \| ([\d,]+) \| ([^|]*?) ?\|", PAGE, re.M)


@pytest.mark.parametrize(("call", "parameters", "published"), ROWS)
def test_counts(call, parameters, published) -> None:
    with torch.device("meta"):
        net = eval(call, {name: getattr(nets, name) for name in nets.__all__})
    counted = sum(p.numel() for p in net.parameters())
    assert counted == int(parameters.replace(",", ""))
    if re.fullmatch(r"[\d,]+", published) and "blank_skips" not in call:
        assert published == parameters


def test_every_network_has_a_row() -> None:
    assert {call.split("(")[0] for call, _, _ in ROWS} | {"resnet"} == set(nets.__all__)
    assert len(ROWS) == PAGE.count("\n| `")
