"""Layers one after another, and sums of branches: a network's description, wide or infinite.

kernel = Serial(Dense(1.5, 0.1), ReLU(), Dense(1.5, 0.1))
nngp, ntk = kernel(x, y)                         # infinite width, closed form
net = kernel.network((784,), width=512)          # the same network, finite
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polymode.equivariance.kernels import blocks, finite
from polymode.equivariance.kernels.blocks import Kernels
from polymode.equivariance.kernels.covariance import Covariance
from polymode.equivariance.kernels.layers import Dense, Layer, most


class Serial(Layer):
    """Layers in a row; without any, the identity.

    Args:
        layers: from input to output.

    >>> from polymode.equivariance.kernels import ReLU
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> nngp, ntk = Serial(Dense(2**0.5), ReLU(), Dense())(x)
    >>> [round(value, 6) for value in ntk[0].tolist()]
    [1.0, 0.159155]
    """

    def __init__(self, *layers: Layer) -> None:
        for layer in layers:
            if not isinstance(layer, Layer):
                raise ValueError(
                    f"Serial takes layers such as Dense() or ReLU(), got {layer!r}; an activation"
                    " of torch goes into Activation(function)"
                )
        self.parts = layers

    def __call__(
        self,
        x: Tensor,
        y: Tensor | None = None,
        *,
        ntk: bool = True,
        dtype: torch.dtype = torch.float64,
    ) -> Kernels:
        """Return NNGP and NTK between all rows of `x` and all of `y`, (N, N') each.

        Args:
            x: (N, d) or (N, C, H, W). y: likewise; by default `x`, and each pair is computed once.
            ntk: whether the NTK is wanted; else it is empty.
            dtype: float64 by default: with float32 small angles lose half of their digits.
        """
        return blocks.evaluate(self, x, y, ntk, dtype)

    def pairs(
        self, x: Tensor, y: Tensor, *, ntk: bool = True, dtype: torch.dtype = torch.float64
    ) -> Kernels:
        """Return NNGP and NTK of the pairs (x[n], y[n]) only, (N,) each."""
        return blocks.evaluate_pairs(self, x, y, ntk, dtype)

    def network(
        self, input_shape: tuple[int, ...] | int, width: int, outputs: int = 1
    ) -> nn.Sequential:
        """Return a finite network of the same description, in NTK parametrisation.

        Its parameters are drawn from N(0, 1) by torch's present random stream. For large `width`
        its empirical tangent kernel is near the NTK, off by about 1/√width.

        Args:
            input_shape: (d,) or (C, H, W). width: units, or channels, of hidden layers.
            outputs: of the last layer, which must be Dense.
        """
        if width < 1 or outputs < 1:
            raise ValueError(f"`width` and `outputs` must be ≥ 1, got {width} and {outputs}")
        if not self.parts or not isinstance(self.parts[-1], Dense):
            last = self.parts[-1] if self.parts else "nothing"
            raise ValueError(f"a network ends in Dense(), so that it has outputs; got {last}")
        shape = (input_shape,) if isinstance(input_shape, int) else tuple(input_shape)
        modules: list[nn.Module] = []
        for layer in self.parts:
            size = outputs if layer is self.parts[-1] else width
            module, shape = layer.build(shape, size)
            modules.append(module)
        return nn.Sequential(*modules)

    def act(self, covariance: Covariance) -> None:
        for layer in self.parts:
            if len(layer.layers()) == 1:
                covariance.where = repr(layer)
            layer.act(covariance)

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        modules: list[nn.Module] = []
        for layer in self.parts:
            module, shape = layer.build(shape, width)
            modules.append(module)
        return nn.Sequential(*modules), shape

    def needs(self, after: str) -> str:
        for layer in reversed(self.parts):
            after = layer.needs(after)
        return after

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        for layer in self.parts:
            shape = layer.shape_after(shape)
        return shape

    def layers(self) -> list[Layer]:
        return [each for layer in self.parts for each in layer.layers()]

    def __repr__(self) -> str:
        return f"Serial({', '.join(map(repr, self.parts))})"


class Residual(Layer):
    """The sum of branches: K and Θ add.

    Sums of kernels need branches without a common part: all but one must end in new weights
    (Dense or Conv), so that products of two branches are 0 on average.

    Args:
        branches: with one, the identity is the other: x + branch(x).
    """

    def __init__(self, *branches: Layer) -> None:
        if not branches:
            raise ValueError("Residual needs at least one branch")
        self.branches = branches if len(branches) > 1 else (Serial(), *branches)

    def act(self, covariance: Covariance) -> None:
        found = []
        for branch in self.branches:
            each = covariance.copy()
            branch.act(each)
            found.append(each)
        if sum(not (each.fresh and each.gaussian) for each in found) > 1:
            raise ValueError(
                f"more than one branch of {self} does not end in new weights: their products have"
                " no closed form; end them in Dense() or Conv()"
            )
        if len({(each.form, each.nngp.shape) for each in found}) > 1:
            raise ValueError(f"the branches of {self} differ in shape")
        total = found[0]
        for each in found[1:]:
            total.nngp.add_(each.nngp)
            if each.ntk is not None:
                total.ntk = each.ntk if total.ntk is None else total.ntk.add_(each.ntk)
        covariance.nngp, covariance.ntk, covariance.form = total.nngp, total.ntk, total.form
        covariance.gaussian = all(each.gaussian for each in found)
        covariance.fresh = all(each.fresh for each in found) or covariance.fresh

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        built = [branch.build(shape, width) for branch in self.branches]
        shapes = [found for _, found in built]
        if len(set(shapes)) > 1:
            raise ValueError(
                f"the branches of {self} have outputs of shapes {', '.join(map(str, shapes))}; put"
                f" a Dense() or Conv() before the sum, so that all have {width} units"
            )
        return finite.Sum([module for module, _ in built]), shapes[0]

    def needs(self, after: str) -> str:
        return most([branch.needs(after) for branch in self.branches])

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.branches[-1].shape_after(shape)

    def layers(self) -> list[Layer]:
        return [each for branch in self.branches for each in branch.layers()]

    def __repr__(self) -> str:
        return f"Residual({', '.join(map(repr, self.branches))})"
