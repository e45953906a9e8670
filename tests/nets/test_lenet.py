from __future__ import annotations

import doctest
import sys

import pytest
import torch
from torch import nn

from polymode.nets import lenet


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_docstring_examples():
    assert doctest.testmod(sys.modules["polymode.nets.lenet"]).failed == 0


@pytest.mark.parametrize(
    "shape, expected", [((1, 28, 28), 44_426), ((3, 32, 32), 62_006), ((1, 8, 8), 21_386)]
)
def test_parameter_count(shape, expected):
    assert count(lenet(shape, 10)) == expected


@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (1, 4, 4), (2, 4, 31), (1, 19, 19), (1, 20, 20)]
)
def test_output_shape_at_the_edges_of_the_padding_rule(shape):
    assert lenet(shape, 7)(torch.zeros(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize("side, padding", [(19, 2), (20, 0), (28, 0)])
def test_pads_only_small_images(side, padding):
    convolutions = [m for m in lenet((1, side, side), 10) if isinstance(m, nn.Conv2d)]
    assert [(m.out_channels, m.padding) for m in convolutions] == [
        (6, (padding, padding)),
        (16, (padding, padding)),
    ]


def test_dropout_in_the_dense_layers_only():
    types = [type(m) for m in lenet((1, 28, 28), 10, dropout=0.3)]
    assert types[7:] == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert nn.Dropout not in types[:7]


@pytest.mark.parametrize(
    "shape, message",
    [
        ((28, 28), r"\(C, H, W\), got input_shape \(28, 28\).*x\[:, None\]"),
        ((64,), r"\(C, H, W\), got input_shape \(64,\)"),
        ((1, 3, 28), r"at least 4x4 pixels, got 3x28"),
    ],
)
def test_bad_input_shape(shape, message):
    with pytest.raises(ValueError, match=message):
        lenet(shape, 10)
