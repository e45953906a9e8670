"""Infinite-width kernels, NNGP and NTK, in closed form, and the finite networks they belong to.

Read `serial` first: a description of a network, and how its kernels are evaluated. `layers` and
`nonlinearities` say what each layer does to a `covariance`; `finite` has the layers of finite width
and their tangent kernel; `broken` names the layers that break a symmetry.
"""

from __future__ import annotations

from polymode.equivariance.kernels.broken import broken_by, warn_if_broken
from polymode.equivariance.kernels.finite import empirical_ntk
from polymode.equivariance.kernels.layers import (
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    LayerNorm,
)
from polymode.equivariance.kernels.nonlinearities import ABReLU, Activation, Erf, LeakyReLU, ReLU
from polymode.equivariance.kernels.serial import Kernels, Residual, Serial

__all__ = [
    "ABReLU", "Activation", "AvgPool", "Conv", "Dense", "Erf", "Flatten", "GlobalAvgPool",
    "Kernels", "LayerNorm", "LeakyReLU", "ReLU", "Residual", "Serial", "broken_by",
    "empirical_ntk", "warn_if_broken",
]  # fmt: skip
