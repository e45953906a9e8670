"""Nonlinearities by name.

A network takes the name of one, or anything that makes an `nn.Module` when it is called: a class
such as `nn.PReLU`, or `lambda: nn.LeakyReLU(0.3)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from polymode.core.checks import shown
from polymode.core.registry import suggest

Activation = str | Callable[[], nn.Module]


class Erf(nn.Module):
    """erf(x), whose infinite-width kernels have a closed form (C. K. I. Williams, 1997)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "erf": Erf,
    "gelu": nn.GELU,
    "identity": nn.Identity,
    "leaky_relu": nn.LeakyReLU,
    "mish": nn.Mish,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "tanh": nn.Tanh,
}


def activation_maker(net: str, activation: Activation) -> Callable[[], nn.Module]:
    """Return a function that makes the nonlinearity; `net` is the network's name in errors.

    >>> activation_maker("mlp", "silu")()
    SiLU()
    """
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"Unknown activation {activation!r} of {net}.{suggest(activation, ACTIVATIONS)}"
                f" Known: {', '.join(ACTIVATIONS)}."
            )
        return ACTIVATIONS[activation]
    try:
        module = activation()
    except TypeError:
        module = None
    if not isinstance(module, nn.Module) or module is activation:
        raise ValueError(
            f"`activation` of {net} must be a name or make an nn.Module when called without"
            f" arguments, such as nn.PReLU or lambda: nn.LeakyReLU(0.3), got {shown(activation)}"
        )
    return activation
