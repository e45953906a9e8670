"""Multilayer perceptron: dense layers with a nonlinearity between them.

    h_0 = x,    h_l = dropout(phi(norm(W_l h_{l-1} + b_l))),    outputs = W_{L+1} h_L + b_{L+1}

Source: D. E. Rumelhart, G. E. Hinton, R. J. Williams, "Learning representations by back-propagating
errors", Nature 323 (1986). Weights start as torch's `nn.Linear` starts them. `B` batch, `K`
outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from polymode.core.registry import suggest

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}
NORMS: dict[str, type[nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def mlp(
    input_shape: Sequence[int],
    num_outputs: int,
    *,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    norm: str | None = None,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return an MLP as an `nn.Sequential` of standard layers.

    A dense layer from n to m units has (n + 1) m parameters, a norm behind it 2 m more; 2-64-64-2
    has 4,482 parameters in all, 784-128-128-10 has 118,282. `hidden=()` is the linear model.

    Args:
        input_shape: shape of one example; more than one axis is flattened first.
        num_outputs: K >= 1, `task.num_outputs`.
        hidden: units of each hidden layer, each >= 1.
        activation: one of `ACTIVATIONS`.
        norm: None, "batch" (`BatchNorm1d`) or "layer" (`LayerNorm`), before the activation.
        dropout: probability in [0, 1) that a hidden unit is dropped, after the activation.

    Returns:
        module from (B, *input_shape) to (B, K).

    >>> sum(p.numel() for p in mlp((2,), 2).parameters())
    4482
    """
    check_sizes("mlp", input_shape, num_outputs, dropout)
    if isinstance(hidden, int) or not all(isinstance(n, int) and n >= 1 for n in hidden):
        raise ValueError(
            f"`hidden` of mlp must be a sequence of integers >= 1, got {hidden!r};"
            " one layer of 64 units is hidden=(64,)"
        )
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"Unknown activation {activation!r} of mlp.{suggest(activation, ACTIVATIONS)}"
            f" Known: {', '.join(ACTIVATIONS)}."
        )
    if norm is not None and norm not in NORMS:
        raise ValueError(f'`norm` of mlp must be None, "batch" or "layer", got {norm!r}')

    layers: list[nn.Module] = [nn.Flatten()] if len(input_shape) > 1 else []
    width = math.prod(input_shape)
    for units in hidden:
        layers.append(nn.Linear(width, units))
        if norm is not None:
            layers.append(NORMS[norm](units))
        layers.append(ACTIVATIONS[activation]())
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
        width = units
    layers.append(nn.Linear(width, num_outputs))
    return nn.Sequential(*layers)


def check_sizes(net: str, input_shape: Sequence[int], num_outputs: int, dropout: float) -> None:
    """Refuse what no network of this room can be built from."""
    if isinstance(input_shape, int) or len(input_shape) == 0 or min(input_shape) < 1:
        raise ValueError(
            f"`input_shape` of {net} must be the shape of one example without the batch axis,"
            f" such as (2,) or (1, 28, 28), got {input_shape!r}"
        )
    if num_outputs < 1:
        raise ValueError(f"`num_outputs` of {net} must be >= 1, got {num_outputs}")
    if not 0 <= dropout < 1:
        raise ValueError(f"`dropout` of {net} must be in [0, 1), got {dropout}")
