"""Multilayer perceptron: dense layers with a nonlinearity between them.

    h_0 = x,    h_l = dropout(phi(norm(W_l h_{l-1} + b_l))),    outputs = W_{L+1} h_L + b_{L+1}

Source: D. E. Rumelhart, G. E. Hinton, R. J. Williams, "Learning representations by back-propagating
errors", Nature 323 (1986). Weights start as torch's `nn.Linear` starts them. `B` batch, `K`
outputs.
"""

from __future__ import annotations

import math

from torch import nn

from polymode.core.checks import Probability, Shape, Sizes, check_call
from polymode.nets.activations import Activation, activation_maker
from polymode.nets.sizes import check_probability, check_sizes
from polymode.tracing.modules import not_too_large

NORMS: dict[str, type[nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


@not_too_large()
def mlp(
    input_shape: Shape,
    num_outputs: int,
    *,
    hidden: Sizes = (64, 64),
    activation: Activation = "relu",
    norm: str | None = None,
    bias: bool = True,
    dropout: Probability = 0.0,
    input_dropout: Probability = 0.0,
) -> nn.Sequential:
    """Return an MLP as an `nn.Sequential` of standard layers.

    A dense layer from n to m units has (n + 1) m parameters, n m without bias, a norm behind it 2 m
    more; 2-64-64-2 has 4,482 parameters in all, 784-128-128-10 has 118,282, and 1-50-50-1 without
    biases, the toy network of linearised Laplace (Antorán et al., 2022), has 2,600. `hidden=()` is
    the linear model.

    Args:
        input_shape: shape of one example; more than one axis is flattened first.
        num_outputs: K >= 1, `task.num_outputs`.
        hidden: units of each hidden layer, each >= 1.
        activation: one of `ACTIVATIONS`, or what makes an `nn.Module` when called: `nn.PReLU`.
        norm: None, "batch" (`BatchNorm1d`) or "layer" (`LayerNorm`), before the activation.
        bias: whether dense layers have biases.
        dropout: probability in [0, 1) that a hidden unit is dropped, after the activation.
        input_dropout: probability in [0, 1) that an input is dropped.

    Returns:
        module from (B, *input_shape) to (B, K).

    >>> sum(p.numel() for p in mlp((2,), 2).parameters())
    4482
    >>> sum(p.numel() for p in mlp((1,), 1, hidden=(50, 50), bias=False).parameters())
    2600
    """
    check_call(mlp, locals())
    check_sizes("mlp", input_shape, num_outputs, dropout)
    check_probability("mlp", "input_dropout", input_dropout)
    make_activation = activation_maker("mlp", activation)
    if norm is not None and norm not in NORMS:
        raise ValueError(f'`norm` of mlp must be None, "batch" or "layer", got {norm!r}')

    layers: list[nn.Module] = [nn.Flatten()] if len(input_shape) > 1 else []
    if input_dropout > 0:
        layers.append(nn.Dropout(input_dropout))
    width = math.prod(input_shape)
    for units in hidden:
        layers.append(nn.Linear(width, units, bias=bias))
        if norm is not None:
            layers.append(NORMS[norm](units))
        layers.append(make_activation())
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        width = units
    layers.append(nn.Linear(width, num_outputs, bias=bias))
    return nn.Sequential(*layers)
