"""Layers one after another, and sums of branches: a network's description, wide or infinite.

kernel = Serial(Dense(1.5, 0.1), ReLU(), Dense(1.5, 0.1))
nngp, ntk = kernel(x, y)                         # infinite width, closed form
net = kernel.network((784,), width=512)          # the same network, finite

A pooled convolutional kernel holds (H W)² numbers per pair and tensor, so all pairs at once would
take terabytes. A block of a few pairs, which fits into the processor's cache, is carried through
all layers, then the next; of symmetric kernels one half is computed. Variances of single inputs
come first and serve all blocks. Shapes: `N`, `N'` inputs, `P` pairs of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.memory import require_free
from polymode.equivariance.kernels import finite
from polymode.equivariance.kernels.covariance import (
    Covariance,
    Recorded,
    Replayed,
    all_pairs,
    input_covariance,
    paired_covariance,
    same_pixels,
)
from polymode.equivariance.kernels.layers import Dense, Layer, most

BLOCK = {
    "vector": 2**18,
    "diagonal": 2**17,
    "full": 2**20,
}  # numbers of a tensor, tuned by measurement
LIVE = 6  # tensors of a block that are in memory at once


class Kernels(NamedTuple):
    """NNGP and NTK, (N, N') each; `ntk` is empty where it was not wanted."""

    nngp: Tensor
    ntk: Tensor


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
        return evaluate(self, x, y, ntk, dtype)

    def pairs(
        self, x: Tensor, y: Tensor, *, ntk: bool = True, dtype: torch.dtype = torch.float64
    ) -> Kernels:
        """Return NNGP and NTK of the pairs (x[n], y[n]) only, (N,) each."""
        return evaluate_pairs(self, x, y, ntk, dtype)

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
        return [part for layer in self.parts for part in layer.layers()]

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
        summands = [covariance.copy() for _ in self.branches]
        for branch, summand in zip(self.branches, summands, strict=True):
            branch.act(summand)
        if sum(not (summand.fresh and summand.gaussian) for summand in summands) > 1:
            raise ValueError(
                f"more than one branch of {self} does not end in new weights: their products have"
                " no closed form; end them in Dense() or Conv()"
            )
        if len({(summand.form, summand.nngp.shape) for summand in summands}) > 1:
            raise ValueError(f"the branches of {self} differ in shape")
        total = summands[0]
        for summand in summands[1:]:
            total.nngp.add_(summand.nngp)
            if summand.ntk is not None:
                total.ntk = summand.ntk if total.ntk is None else total.ntk.add_(summand.ntk)
        covariance.nngp, covariance.ntk, covariance.form = total.nngp, total.ntk, total.form
        covariance.gaussian = all(summand.gaussian for summand in summands)
        covariance.fresh = all(summand.fresh for summand in summands) or covariance.fresh

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        built = [branch.build(shape, width) for branch in self.branches]
        shapes = [shape for _, shape in built]
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
        return [layer for branch in self.branches for layer in branch.layers()]

    def __repr__(self) -> str:
        return f"Residual({', '.join(map(repr, self.branches))})"


def evaluate(kernel: Serial, x: Tensor, y: Tensor | None, ntk: bool, dtype: torch.dtype) -> Kernels:
    """Return the kernels of all pairs, see `Serial.__call__`."""
    x, form = _checked(kernel, x, "x", dtype)
    symmetric = y is None
    y = x if y is None else _checked(kernel, y, "y", dtype)[0]
    _require_alike(x, y)
    _require_memory(x, y, form, ntk)
    with torch.no_grad():
        first = variances(kernel, x, form)
        second = first if symmetric else variances(kernel, y, form)
        nngp = x.new_empty(len(x), len(y))
        tangent = torch.empty_like(nngp if ntk else nngp[:0])
        for rows, columns in _blocks(x, y, form, symmetric):
            ours, theirs = (
                [variance[..., part] for variance in recorded]
                for part, recorded in ((rows, first), (columns, second))
            )
            left, right = x[rows], y[columns]
            pairs = (None, None) if form == "vector" else all_pairs(len(left), len(right))
            replayed = Replayed(ours, theirs, *pairs)
            start = input_covariance(left, right, form)
            result = _through(kernel, Covariance(start, form, replayed, wants_ntk=ntk))
            for matrix, block in ((nngp, result.nngp), (tangent, result.ntk)):
                if block is None:
                    continue
                block = block.view(len(left), len(right))
                matrix[rows, columns] = block
                if symmetric:
                    matrix[columns, rows] = block.mT
    return Kernels(nngp, tangent)


def evaluate_pairs(kernel: Serial, x: Tensor, y: Tensor, ntk: bool, dtype: torch.dtype) -> Kernels:
    """Return the kernels of the pairs (x[n], y[n]), see `Serial.pairs`."""
    x, form = _checked(kernel, x, "x", dtype)
    y, _ = _checked(kernel, y, "y", dtype)
    _require_alike(x, y)
    if len(x) != len(y):
        raise ValueError(f"pairs need as many rows of x as of y, got {len(x)} and {len(y)}")
    results: list[Covariance] = []
    with torch.no_grad():
        for part in _pieces(x, form):
            left, right = x[part], y[part]
            first, second = (variances(kernel, inputs, form) for inputs in (left, right))
            index = torch.arange(len(left))
            start = paired_covariance(left, right, form)
            replayed = Replayed(first, second, index, index)
            results.append(_through(kernel, Covariance(start, form, replayed, wants_ntk=ntk)))
    nngp = torch.cat([result.nngp for result in results])
    tangents = [nngp[:0] if result.ntk is None else result.ntk for result in results]
    return Kernels(nngp, torch.cat(tangents))


def variances(kernel: Serial, x: Tensor, form: str) -> list[Tensor]:
    """Return the variances of each input wherever a layer asks for them, (..., N) each."""
    recorded: list[list[Tensor]] = []
    for part in _pieces(x, form):
        record = Recorded()
        start = paired_covariance(x[part], x[part], form)
        _through(kernel, Covariance(start, form, record, wants_ntk=False))
        recorded.append(record.variances)
    return [torch.cat(parts, -1) for parts in zip(*recorded, strict=True)]


def _through(kernel: Serial, covariance: Covariance) -> Covariance:
    """Carry the covariances through all layers; what no later layer needs is dropped."""
    for number, layer in enumerate(kernel.parts):
        if covariance.form == "full" and _form(kernel, number) != "full":
            covariance.nngp = same_pixels(covariance.nngp)
            if covariance.ntk is not None:
                covariance.ntk = same_pixels(covariance.ntk)
            covariance.form = "diagonal"
        covariance.where = f"layer {number}, {layer!r},"
        layer.act(covariance)
    if covariance.form != "vector":
        raise ValueError(
            "the network ends with pixels: put Flatten() or GlobalAvgPool() before its last layer"
        )
    if covariance.ntk is None and covariance.wants_ntk:
        covariance.ntk = torch.zeros_like(covariance.nngp)
    return covariance


def _form(kernel: Serial, number: int) -> str:
    """Return the form that layers from `number` on need."""
    form = "vector"
    for layer in reversed(kernel.parts[number:]):
        form = layer.needs(form)
    return form


def _checked(kernel: Serial, x: Tensor, name: str, dtype: torch.dtype) -> tuple[Tensor, str]:
    """Return finite inputs with their form."""
    if x.ndim not in (2, 4) or len(x) == 0:
        raise ValueError(
            f"`{name}` must be (N, d) or (N, C, H, W) with N ≥ 1, got {tuple(x.shape)}"
        )
    x = x.detach().to(dtype)
    if not bool(x.isfinite().all()):
        raise ValueError(f"`{name}` has {int((~x.isfinite()).sum())} values that are not finite")
    if x.ndim == 2:
        return x, "vector"
    form = _form(kernel, 0)
    return x, "diagonal" if form == "vector" else form


def _require_alike(x: Tensor, y: Tensor) -> None:
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"`x` and `y` must have the same shape but for N, got {tuple(x.shape)} and"
            f" {tuple(y.shape)}"
        )


def _numbers(x: Tensor, form: str) -> int:
    """Numbers of a tensor per pair of inputs."""
    pixels = math.prod(x.shape[2:])
    return {"vector": 1, "diagonal": pixels, "full": pixels**2}[form]


def _side(x: Tensor, form: str) -> int:
    """Inputs on each side of a block, at least 1."""
    return max(1, math.isqrt(BLOCK[form] // _numbers(x, form)))


def _pieces(x: Tensor, form: str) -> Iterator[slice]:
    """Yield parts of the inputs of which all self-covariances are held at once."""
    size = max(1, BLOCK[form] // _numbers(x, form))
    for start in range(0, len(x), size):
        yield slice(start, min(start + size, len(x)))


def _blocks(x: Tensor, y: Tensor, form: str, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of blocks; of a symmetric matrix those on and above the diagonal."""
    if form == "vector":  # whole rows: long ones make quick products
        height, width = max(1, BLOCK[form] // len(y)), len(y)
    else:
        height = width = _side(x, form)
    for top in range(0, len(x), height):
        rows = slice(top, min(top + height, len(x)))
        for left in range(top if symmetric else 0, len(y), width):
            yield rows, slice(left, min(left + width, len(y)))


def _require_memory(x: Tensor, y: Tensor, form: str, ntk: bool) -> None:
    entries = (1 + ntk) * len(x) * len(y)
    side = _side(x, form)
    pairs = min(side, len(x)) * min(side, len(y)) if form != "vector" else 0
    block = LIVE * max(pairs * _numbers(x, form), min(BLOCK["vector"], entries))
    num_bytes = (entries + block) * x.element_size()
    sides = "x".join(map(str, x.shape[2:]))
    detail = f", {_numbers(x, form):,} numbers per pair of {sides} pixels" if sides else ""
    require_free(
        num_bytes,
        f"kernels of {len(x):,} × {len(y):,} inputs{detail}",
        "Take fewer inputs, smaller images, ntk=False, or Flatten() instead of pooling.",
        x.device,
    )
