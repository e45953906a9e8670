"""The group-averaged predictor: any network made symmetric, at |G| times its cost.

    p(y | x) = (1/|G|) Σ_g p_f(y | g x)          classes: a mean of probabilities
    F(x)     = (1/|G|) Σ_g ρ(g)⁻¹ f(g x)         values

F is exactly invariant or equivariant where the action is exact: the orbit of h x is the orbit of x
in another order. With interpolated rotations it is not, as the orbit of a rotated image is
interpolated twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polymode.equivariance.groups import Group, group


class GroupAverage(nn.Module):
    """A network averaged over a group.

    Args:
        net: module from inputs to logits or values.
        over: a `Group`, or its name.
        classes: whether outputs are logits; then what is returned are logits of the mean
            probabilities, that is, their logarithms.

    >>> module = GroupAverage(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), "C4")
    >>> x = torch.randn(1, 1, 2, 2)
    >>> torch.allclose(module(x), module(x.rot90(1, (2, 3))), atol=1e-6)
    True
    """

    def __init__(self, net: nn.Module, over: Group | str, *, classes: bool = True) -> None:
        super().__init__()
        self.net, self.group, self.classes = net, group(over), classes
        if classes and not self.group.invariant:
            raise ValueError(
                f"classes are averaged for invariant outputs, but {self.group.name} moves them;"
                " take classes=False for values"
            )
        if not self.group.invariant:
            self.inverses = [self.group.inverse(index) for index in range(len(self.group))]

    def forward(self, x: Tensor) -> Tensor:
        orbit = self.group.orbit(x)
        outputs = self.net(orbit.flatten(0, 1)).unflatten(0, orbit.shape[:2])
        if self.classes:
            return outputs.log_softmax(-1).logsumexp(0) - math.log(len(outputs))
        if self.group.invariant:
            return outputs.mean(0)
        back = [
            self.group.act_on_outputs(y, i) for y, i in zip(outputs, self.inverses, strict=True)
        ]
        return torch.stack(back).mean(0)


def averaged(
    net: Callable[..., nn.Module], over: Group | str, *, classes: bool = True
) -> Callable[..., nn.Module]:
    """Return a factory of averaged networks from a factory such as `pm.nets.lenet`."""

    def make(input_shape: Sequence[int], num_outputs: int, **options: Any) -> nn.Module:
        return GroupAverage(net(input_shape, num_outputs, **options), over, classes=classes)

    return make
