from __future__ import annotations

import doctest

import pytest
import torch
from torch import nn

from polymode.nets import mlp
from polymode.nets.activations import ACTIVATIONS, Erf


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_docstring_examples():
    import sys

    assert doctest.testmod(sys.modules["polymode.nets.mlp"]).failed == 0


@pytest.mark.parametrize(
    "shape, outputs, hidden, expected",
    [
        ((2,), 2, (64, 64), 4_482),
        ((1, 28, 28), 10, (128, 128), 118_282),
        ((3,), 1, (), 4),
        ((20,), 3, (16,), 20 * 16 + 16 + 16 * 3 + 3),
    ],
)
def test_parameter_count_and_output_shape(shape, outputs, hidden, expected):
    net = mlp(shape, outputs, hidden=hidden)
    assert count(net) == expected
    assert net(torch.zeros(5, *shape)).shape == (5, outputs)


def test_layers_in_order_by_exact_type():
    net = mlp((1, 4, 4), 3, hidden=(8, 6), activation="tanh", norm="layer", dropout=0.2)
    block = [nn.Linear, nn.LayerNorm, nn.Tanh, nn.Dropout]
    assert type(net) is nn.Sequential
    assert [type(layer) for layer in net] == [nn.Flatten, *block, *block, nn.Linear]
    assert [layer.p for layer in net if isinstance(layer, nn.Dropout)] == [0.2, 0.2]


def test_no_layer_that_does_nothing():
    assert [type(layer) for layer in mlp((2,), 1, hidden=(3,))] == [nn.Linear, nn.ReLU, nn.Linear]


def test_without_biases():
    """1-50-50-1 of the linearised-Laplace toy: 50 + 2,500 + 50 weights and nothing else."""
    net = mlp((1,), 1, hidden=(50, 50), bias=False)
    assert [tuple(p.shape) for p in net.parameters()] == [(50, 1), (50, 50), (1, 50)]


def test_dropout_of_inputs_comes_first():
    types = [type(m) for m in mlp((1, 2, 2), 1, hidden=(3,), dropout=0.5, input_dropout=0.2)]
    assert types == [nn.Flatten, nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]


def test_activation_as_a_class_or_function():
    """A new module each time, so that learned slopes are not shared."""
    net = mlp((2,), 1, hidden=(4, 4), activation=nn.PReLU)
    slopes = [m for m in net if isinstance(m, nn.PReLU)]
    assert len(slopes) == 2 and slopes[0] is not slopes[1]
    leaky = mlp((2,), 1, hidden=(4,), activation=lambda: nn.LeakyReLU(0.3))
    assert leaky[1].negative_slope == 0.3


def test_erf():
    torch.testing.assert_close(Erf()(torch.tensor([0.0, 1.0])), torch.tensor([0.0, 0.8427008]))


def test_equals_the_formula():
    net = mlp((3,), 2, hidden=(5,), activation="silu").double()
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first, last = net[0], net[2]
    hidden = x @ first.weight.T + first.bias
    expected = (hidden / (1 + torch.exp(-hidden))) @ last.weight.T + last.bias
    torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("norm", [None, "batch", "layer"])
def test_every_option_gives_gradients(activation, norm):
    net = mlp((2,), 2, hidden=(4, 4), activation=activation, norm=norm)
    net(torch.randn(8, 2)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"input_shape": ()}, r"shape of one example"),
        ({"input_shape": 2}, r"shape of one example"),
        ({"input_shape": (0,)}, r"shape of one example"),
        ({"num_outputs": 0}, r"`num_outputs` of mlp must be >= 1, got 0"),
        ({"hidden": 64}, r"must be a sequence of integers >= 1, such as \(64, 64\), got 64"),
        ({"hidden": (64, 0)}, r"integers >= 1, .* got \(64, 0\)"),
        ({"activation": "rely"}, r"Did you mean 'relu'"),
        ({"norm": "group"}, r"None, \"batch\" or \"layer\", got 'group'"),
        ({"dropout": 1.0}, r"`dropout` of mlp must be a number in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"got -0.1"),
        ({"input_dropout": 1.5}, r"`input_dropout` of mlp must be a number in \[0, 1\), got 1.5"),
        ({"dropout": "high"}, r"`dropout` of mlp must be a number in \[0, 1\), got 'high'"),
        ({"activation": torch.relu}, r"make an nn.Module when called.*nn.PReLU"),
        ({"activation": nn.ReLU()}, "make an nn.Module when called.*got a ReLU"),
        ({"activation": None}, "`activation` of mlp must be text or a function, got None"),
    ],
)
def test_bad_options(options, message):
    arguments = {"input_shape": (2,), "num_outputs": 2, **options}
    with pytest.raises(ValueError, match=message):
        mlp(arguments.pop("input_shape"), arguments.pop("num_outputs"), **arguments)
