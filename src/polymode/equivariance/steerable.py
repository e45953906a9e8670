"""Networks of escnn: convolutions that commute with rotations by construction. An optional extra.

M. Weiler, G. Cesa, General E(2)-equivariant steerable CNNs, NeurIPS 2019; G. Cesa, L. Lang, M.
Weiler, A program to build E(N)-equivariant steerable CNNs, ICLR 2022. escnn's plain install asks
for a Fortran compiler; for the plane it is not needed:

    pip install --no-deps escnn && pip install joblib pymanopt autograd lie_learn

The maps are of regular fields, the filters are steered for all of Ck, pooling is over the group and
then over all pixels, so that outputs are invariant. Exact for quarter turns where sides, padding
and pooling keep the middle; for other angles up to the interpolation of the input and the
sampling of the filters.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from polymode.core.registry import suggest

INSTALL = "pip install --no-deps escnn && pip install joblib pymanopt autograd lie_learn"


def escnn_is_installed() -> bool:
    """Whether the optional extra is there."""
    return importlib.util.find_spec("escnn") is not None


class Steerable(nn.Module):
    """Steerable convolutions with batch normalisation of fields, invariant pooling, dense layers.

    Args:
        input_shape: (C, H, W), square. num_outputs: K.
        order: k of Ck. fields: regular fields of each convolution; each has k channels.
        hidden: units of the dense layer.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        *,
        order: int = 4,
        fields: Sequence[int] = (4, 8, 16),
        hidden: int = 64,
    ) -> None:
        super().__init__()
        if not escnn_is_installed():
            raise ImportError(f"steerable networks need escnn, an optional extra: {INSTALL}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of py3nj, which only 3-D needs
            from escnn import gspaces
            from escnn import nn as steer
        channels, height, width = input_shape
        if height != width:
            raise ValueError(f"steerable networks turn squares, got images of {height}x{width}")
        space = gspaces.rot2dOnR2(N=order)
        before = steer.FieldType(space, channels * [space.trivial_repr])
        convolutions = []
        for number in fields:
            after = steer.FieldType(space, number * [space.regular_repr])
            convolutions.append(steer.R2Conv(before, after, kernel_size=5, padding=2))
            before = after
        self.convolutions, self.order = nn.ModuleList(convolutions), order
        self.norms = nn.ModuleList(nn.BatchNorm3d(number) for number in fields)
        self.wrap = steer.GeometricTensor
        self.head = nn.Sequential(
            nn.Linear(fields[-1], hidden), nn.ReLU(), nn.Linear(hidden, num_outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        def apply(convolution: Any, maps: Tensor) -> Tensor:
            return convolution(self.wrap(maps, convolution.in_type)).tensor

        return _forward(x, self, apply)

    def exported(self) -> nn.Module:
        """Return the same function as an ordinary module, its filters expanded."""
        self.eval()
        plain = [convolution.export() for convolution in self.convolutions]  # type: ignore[operator]
        return Expanded(plain, self.norms, self.order, self.head).eval()


class Expanded(nn.Module):
    """A steerable network with ordinary convolutions."""

    def __init__(
        self, convolutions: Sequence[nn.Module], norms: nn.Module, order: int, head: nn.Module
    ) -> None:
        super().__init__()
        self.convolutions, self.norms = nn.ModuleList(convolutions), norms
        self.order, self.head = order, head

    def forward(self, x: Tensor) -> Tensor:
        return _forward(x, self, lambda layer, maps: layer(maps))


def _forward(x: Tensor, net: Any, apply: Callable[..., Tensor]) -> Tensor:
    """Convolutions with ReLU, pooling by 2 between them, the largest of each field's k channels,
    the mean over pixels, dense layers. The k channels of a field share their normalisation, which
    so commutes with turns; and even sides keep their middle under this pooling."""
    for place, (convolution, norm) in enumerate(zip(net.convolutions, net.norms, strict=True)):
        if place:
            x = F.avg_pool2d(x, 2)
        fields = apply(convolution, x).unflatten(1, (-1, net.order))  # (B, fields, k, H, W)
        x = F.relu(norm(fields)).flatten(1, 2)
    pooled = x.unflatten(1, (-1, net.order)).amax(2)
    return net.head(pooled.mean((2, 3)))


def steerable(name: str, **options: Any) -> Callable[..., nn.Module]:
    """Return a factory of escnn networks that are invariant to Ck, by the group's name."""
    match = re.fullmatch(r"C([1-9]\d*)", name)
    if match is None:
        raise ValueError(f"steerable networks are for Ck, got '{name}'.{suggest(name, ['C4'])}")

    def make(input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        return Steerable(input_shape, num_outputs, order=int(match[1]), **options)

    return make
