r"""Layers of weights and of pixels: what they do to kernels, and the layer of a finite network.

In NTK parametrisation a layer computes f = σ_w / √fan_in W h + σ_b b with W, b ~ N(0, 1). With K
the NNGP and Θ the tangent kernel, at infinite width (Jacot et al. 2018, Lee et al. 2019, Arora et
al. 2019, Novak et al. 2019):

    Dense            K ← σ_w² K + σ_b²,  Θ ← K + σ_w² Θ
    Conv, k×k        K(i, i') ← σ_w²/k² Σ_d K(i+d, i'+d) + σ_b²,  Θ likewise, plus the new K
    Flatten          mean over pixels of K(i, i), as fan-in of the layer behind it
    AvgPool          mean over both windows of K(i, i')
    LayerNorm        K, Θ divided by √(q q'), q = K(x, x)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn

from polymode.equivariance.kernels import finite
from polymode.equivariance.kernels.covariance import (
    FORMS,
    Covariance,
    same_pixels,
    window_mean,
    window_sum,
)


class Layer(ABC):
    """One step of a network of infinite width, and of a finite one."""

    @abstractmethod
    def act(self, covariance: Covariance) -> None:
        """Change the kernels as the layer does."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        """Return the layer of a finite network for inputs of `shape`, and the shape behind it."""

    def needs(self, after: str) -> str:
        """Return which form the covariances before the layer must have for that behind it."""
        return after

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one output, widths aside."""
        return shape

    def layers(self) -> list[Layer]:
        """Return the layers that this one is made of, in the order of evaluation."""
        return [self]


def _positive(layer: Layer, name: str, value: float, *, zero: bool = False) -> None:
    if not (value > 0 or (zero and value == 0)) or not math.isfinite(value):
        kind = "≥ 0" if zero else "> 0"
        raise ValueError(f"`{name}` of {type(layer).__name__} must be {kind}, got {value}")


@dataclass(frozen=True)
class Dense(Layer):
    """A dense layer.

    Args:
        weight_std: σ_w. bias_std: σ_b; with 0 there are no biases.
    """

    weight_std: float = 1.0
    bias_std: float = 0.0

    def __post_init__(self) -> None:
        _positive(self, "weight_std", self.weight_std)
        _positive(self, "bias_std", self.bias_std, zero=True)

    def act(self, covariance: Covariance) -> None:
        if covariance.form != "vector":
            raise ValueError(
                f"{covariance.where} needs vectors, but is given images: put Flatten() or"
                " GlobalAvgPool() before it"
            )
        _weigh(covariance, self.weight_std**2, self.bias_std**2)

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        return finite.Linear(shape[0], width, self.weight_std, self.bias_std), (width,)


def _weigh(covariance: Covariance, weight: float, bias: float) -> None:
    """Multiply by the variance of weights, add that of biases, and what new weights bring to Θ."""
    covariance.nngp.mul_(weight)
    if bias:
        covariance.nngp.add_(bias)
    if covariance.ntk is not None:
        covariance.ntk.mul_(weight).add_(covariance.nngp)
    elif covariance.wants_ntk:
        covariance.ntk = covariance.nngp.clone()
    covariance.gaussian = covariance.fresh = True


@dataclass(frozen=True)
class Conv(Layer):
    """A convolution over images (N, C, H, W).

    Args:
        size: of the window, one side or (height, width).
        weight_std: σ_w. bias_std: σ_b; with 0 there are no biases.
        stride: steps of the window. With a stride that does not fit the size of the image the grid
            is off its middle, which breaks rotations; see `broken_by`.
        padding: "same" (zeros, odd sizes only), "valid" (none) or "circular".
    """

    size: int | tuple[int, int] = 3
    weight_std: float = 1.0
    bias_std: float = 0.0
    stride: int = 1
    padding: str = "same"

    def __post_init__(self) -> None:
        _positive(self, "weight_std", self.weight_std)
        _positive(self, "bias_std", self.bias_std, zero=True)
        if min(self.sides) < 1 or self.stride < 1:
            raise ValueError(
                f"`size` and `stride` of Conv must be ≥ 1, got {self.size}, {self.stride}"
            )
        if self.padding not in ("same", "valid", "circular"):
            raise ValueError(
                f"`padding` of Conv must be 'same', 'valid' or 'circular', got {self.padding!r}"
            )
        if self.padding != "valid" and not all(side % 2 for side in self.sides):
            raise ValueError(
                f"padding '{self.padding}' is symmetric for odd windows only, got size"
                f" {self.size}: take an odd size, or padding='valid'"
            )
        if self.padding == "circular" and self.stride != 1:
            raise ValueError(f"circular padding is for stride 1, got {self.stride}")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the window."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def pads(self) -> tuple[int, int]:
        """Padding above and below, and at both sides."""
        height, width = self.sides
        return (0, 0) if self.padding == "valid" else (height // 2, width // 2)

    def act(self, covariance: Covariance) -> None:
        covariance.require_pixels()
        axes = ((0, 1), (2, 3)) if covariance.form == "full" else ((0,), (1,))
        how = self.stride, self.padding == "circular"
        for side, size, pad in zip(covariance.sides, self.sides, self.pads, strict=True):
            if side + 2 * pad < size:
                raise ValueError(
                    f"{covariance.where} has a window of {self.sides}, larger than the"
                    f" {covariance.sides[0]}x{covariance.sides[1]} pixels that it is given"
                )
        for along, size, pad in zip(axes, self.sides, self.pads, strict=True):
            covariance.nngp = window_sum(covariance.nngp, along, size, pad, *how)
            if covariance.ntk is not None:
                covariance.ntk = window_sum(covariance.ntk, along, size, pad, *how)
        _weigh(covariance, self.weight_std**2 / math.prod(self.sides), self.bias_std**2)

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        window = finite.Window(self.sides, self.stride, self.pads, self.padding == "circular")
        layer = finite.Conv(shape[0], width, window, self.weight_std, self.bias_std)
        return layer, (width, *self.shape_after(shape)[1:])

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        sides = (
            (side + 2 * pad - size) // self.stride + 1
            for side, size, pad in zip(shape[1:], self.sides, self.pads, strict=True)
        )
        return (shape[0], *sides)


@dataclass(frozen=True)
class Flatten(Layer):
    """All pixels of all channels in a row. Vectors stay as they are."""

    def act(self, covariance: Covariance) -> None:
        if covariance.form == "vector":
            return
        for name in ("nngp", "ntk"):
            kernel = getattr(covariance, name)
            if kernel is not None:
                kernel = same_pixels(kernel) if covariance.form == "full" else kernel
                setattr(covariance, name, kernel.mean((0, 1)))
        covariance.form = "vector"

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        return nn.Flatten(), (math.prod(shape),)

    def needs(self, after: str) -> str:
        return "diagonal"

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (math.prod(shape),)


@dataclass(frozen=True)
class AvgPool(Layer):
    """Means over windows.

    Args:
        size: side of the window. stride: its steps, by default its size.
    """

    size: int = 2
    stride: int | None = None

    def __post_init__(self) -> None:
        _positive(self, "size", self.size)
        _positive(self, "stride", self.steps)

    @property
    def steps(self) -> int:
        """The stride."""
        return self.size if self.stride is None else self.stride

    def act(self, covariance: Covariance) -> None:
        covariance.require_pixels()
        if min(covariance.sides) < self.size:
            raise ValueError(
                f"{covariance.where} has a window of {self.size}, larger than the"
                f" {covariance.sides[0]}x{covariance.sides[1]} pixels that it is given"
            )
        for axis in range(4):
            covariance.nngp = window_mean(covariance.nngp, axis, self.size, self.steps)
            if covariance.ntk is not None:
                covariance.ntk = window_mean(covariance.ntk, axis, self.size, self.steps)

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        return nn.AvgPool2d(self.size, self.steps), self.shape_after(shape)

    def needs(self, after: str) -> str:
        return "full"

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], *((side - self.size) // self.steps + 1 for side in shape[1:]))


@dataclass(frozen=True)
class GlobalAvgPool(Layer):
    """The mean over all pixels."""

    def act(self, covariance: Covariance) -> None:
        covariance.require_pixels()
        covariance.nngp = covariance.nngp.mean((0, 1, 2, 3))
        if covariance.ntk is not None:
            covariance.ntk = covariance.ntk.mean((0, 1, 2, 3))
        covariance.form = "vector"

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return pool, shape[:1]

    def needs(self, after: str) -> str:
        return "full"

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[:1]


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Units of one input (channels of one pixel) normalised to mean 0 and variance 1, no weights.

    At infinite width mean and variance over units are those over random weights.
    """

    def act(self, covariance: Covariance) -> None:
        covariance.require_gaussian("only then is the mean over its units 0")
        first, second = covariance.variances.of(covariance)
        for variance in (first, second):
            scale = variance.rsqrt().nan_to_num_(posinf=0.0)
            covariance.nngp.mul_(scale)
            if covariance.ntk is not None:
                covariance.ntk.mul_(scale)

    def build(self, shape: tuple[int, ...], width: int) -> tuple[nn.Module, tuple[int, ...]]:
        return finite.UnitNorm(), shape


def most(forms: list[str]) -> str:
    """Return the form that keeps most."""
    return max(forms, key=FORMS.index)
