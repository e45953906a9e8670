"""Small convolutional networks: parameter counts, shapes, refusals."""

from __future__ import annotations

import doctest
import sys

import pytest
import torch
from torch import nn

from polymode.nets import cnn, lenet, optunet


@pytest.mark.parametrize(("shape", "expected"), [((1, 28, 28), 355), ((3, 32, 32), 419)])
def test_parameter_count_of_optunet(shape, expected):
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


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_docstring_examples():
    assert doctest.testmod(sys.modules["polymode.nets.convolutional"]).failed == 0


@pytest.mark.parametrize(
    "shape, expected", [((1, 28, 28), 44_426), ((3, 32, 32), 62_006), ((1, 8, 8), 21_386)]
)
def test_parameter_count_of_lenet(shape, expected):
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


def test_dropout_is_before_both_dense_layers_and_nowhere_else() -> None:
    kinds = [type(layer) for layer in cnn((1, 28, 28), 10, dropout=0.5)]
    assert kinds == [
        nn.Conv2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten,
        nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear,
    ]  # fmt: skip
    assert nn.Dropout not in [type(layer) for layer in cnn((1, 28, 28), 10)]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 5, 9), {}, "cnn"),
        ((1, 28, 28), {"dropout": 1.0}, "`dropout` of cnn"),
        ((1, 28, 28), {"channels": ()}, "`(channels|hidden)` of cnn"),
        ((1, 28, 28), {"hidden": 0}, "`(channels|hidden)` of cnn"),
    ],
)
def test_sizes_that_leave_nothing_are_refused(shape, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        cnn(shape, 10, **options)
