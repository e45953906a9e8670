"""Shift and scale of inputs or targets, found on training data and undone for reports.

z = (x - shift) / scale,    x = z scale + shift
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scaling:
    """An affine map a feature; both tensors broadcast against one example.

    Attributes:
        shift, scale: finite, of shape (), (D,) or (C, 1, 1); scale > 0.

    >>> z = Scaling.of(torch.tensor([[0.0, 7.0], [2.0, 7.0]]))
    >>> z(torch.tensor([[1.0, 8.0]])).tolist()
    [[0.0, 1.0]]
    """

    shift: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        for name in ("shift", "scale"):
            tensor = torch.as_tensor(getattr(self, name))
            tensor = tensor if tensor.is_floating_point() else tensor.float()
            object.__setattr__(self, name, tensor)
        if not (self.shift.isfinite().all() and self.scale.isfinite().all()):
            raise ValueError(f"`shift` and `scale` of Scaling must be finite, got {self!r}")
        if not (self.scale > 0).all():
            raise ValueError(f"`scale` of Scaling must be > 0, got {self.scale.min().item():g}")

    @classmethod
    def of(cls, x: Tensor, per: str = "feature") -> Scaling:
        """Return the mean and (population) standard deviation of training data x (N, ...).

        Args:
            x: floating point. Sums are taken in float64.
            per: "feature" (each entry of an example its own), "channel" (x is (N, C, H, W); one
                number per channel) or "all" (one number).

        A feature that is constant on x gets scale 1, so that nothing is divided by zero.
        """
        if per not in ("feature", "channel", "all"):
            raise ValueError(
                f'`per` of Scaling.of must be "feature", "channel" or "all", got {per!r}'
            )
        axes = {"feature": (0,), "channel": (0, 2, 3), "all": tuple(range(x.ndim))}[per]
        variance, mean = torch.var_mean(x.double(), dim=axes, correction=0, keepdim=True)
        # asked of the values, since rounding leaves a constant feature with some spread
        constant = x.amax(axes, keepdim=True) == x.amin(axes, keepdim=True)
        std = torch.where(constant, 1.0, variance.sqrt())
        shape = () if per == "all" else mean.shape[1:]
        return cls(mean.reshape(shape).to(x.dtype), std.reshape(shape).to(x.dtype))

    def __call__(self, x: Tensor) -> Tensor:
        """Return (x - shift) / scale."""
        return (x - self.shift.to(x)) / self.scale.to(x)

    def inverse(self, z: Tensor) -> Tensor:
        """Return z scale + shift."""
        return z * self.scale.to(z) + self.shift.to(z)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, JSON-safe."""
        return {"shift": self.shift.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_dict(cls, numbers: dict[str, Any]) -> Scaling:
        """Return what `to_dict` wrote, in float64."""
        return cls(**{name: torch.tensor(n, dtype=torch.float64) for name, n in numbers.items()})
