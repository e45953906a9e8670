from __future__ import annotations

import pytest
import torch
from torch import nn

from polymode.nets import optunet


@pytest.mark.parametrize(("shape", "expected"), [((1, 28, 28), 355), ((3, 32, 32), 419)])
def test_parameter_count(shape, expected):
    """355 is the count that the authors give."""
    assert sum(p.numel() for p in optunet(shape, 10).parameters()) == expected


def test_second_convolution_keeps_the_two_maps_apart():
    """Outputs 0-4 of the grouped convolution see the first map only, 5-9 the second."""
    net = optunet((1, 28, 28), 10)
    conv = net[3]
    assert isinstance(conv, nn.Conv2d) and conv.groups == 2
    maps = torch.randn(1, 2, 8, 8)
    changed = maps.clone()
    changed[:, 1] += 1.0
    same = (conv(maps) == conv(changed)).flatten(2).all(-1)[0]
    assert same.tolist() == [True] * 5 + [False] * 5
