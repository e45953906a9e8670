"""FixUp: residual networks without normalisation, kept trainable by how they start.

A residual branch of m layers in a network of L branches: the last layer starts at 0, the others at
He's initialisation times L^(-1/(2m-2)), the classifier at 0; a scalar bias stands before each
convolution, linear layer and activation, and one scalar multiplier in each branch. Here m = 2.

Source: H. Zhang, Y. N. Dauphin, T. Ma, "Fixup initialization: residual learning without
normalization", ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Shift(nn.Module):
    """x + b with one scalar b, at first 0."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Scale(nn.Module):
    """a x with one scalar a, at first 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class FixupBlock(nn.Module):
    """phi(shortcut(x) + a conv2(phi(conv1(x + b1) + b2) + b3) + b4).

    A shortcut that changes the shape sees x + b1, an identity sees x.
    """

    def __init__(
        self,
        conv1: nn.Conv2d,
        conv2: nn.Conv2d,
        shortcut: nn.Module,
        make_activation: Callable[[], nn.Module],
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        self.shift1, self.conv1, self.shift2 = Shift(), conv1, Shift()
        self.shift3, self.conv2, self.scale, self.shift4 = Shift(), conv2, Scale(), Shift()
        self.shortcut, self.dropout = shortcut, dropout
        self.activation1, self.activation2 = make_activation(), make_activation()

    def forward(self, x: Tensor) -> Tensor:
        shifted = self.shift1(x)
        h = self.dropout(self.activation1(self.shift2(self.conv1(shifted))))
        h = self.shift4(self.scale(self.conv2(self.shift3(h))))
        same = isinstance(self.shortcut, nn.Identity)
        return self.activation2(h + (x if same else self.shortcut(shifted)))


def start_fixup(net: nn.Module, classifier: nn.Linear) -> None:
    """Set the parameters of a network of `FixupBlock`s to FixUp's start.

    Convolutions outside of branches (stem, projections) start as He's, with the number of outgoing
    connections, like the branches' first ones.
    """
    blocks = [module for module in net.modules() if isinstance(module, FixupBlock)]
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
    with torch.no_grad():
        for block in blocks:
            block.conv1.weight.mul_(len(blocks) ** -0.5)
            block.conv2.weight.zero_()
        classifier.weight.zero_()
        classifier.bias.zero_()
