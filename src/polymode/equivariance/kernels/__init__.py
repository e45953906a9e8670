"""Infinite-width kernels, NNGP and NTK, in closed form, and the finite networks they belong to."""

from __future__ import annotations

from polymode.equivariance.kernels.activations import ABReLU, Activation, Erf, LeakyReLU, ReLU
from polymode.equivariance.kernels.blocks import Kernels
from polymode.equivariance.kernels.broken import broken_by, warn_if_broken
from polymode.equivariance.kernels.empirical import empirical_ntk
from polymode.equivariance.kernels.layers import (
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    LayerNorm,
)
from polymode.equivariance.kernels.serial import Residual, Serial

__all__ = [
    "ABReLU",
    "Activation",
    "AvgPool",
    "Conv",
    "Dense",
    "Erf",
    "Flatten",
    "GlobalAvgPool",
    "Kernels",
    "LayerNorm",
    "LeakyReLU",
    "ReLU",
    "Residual",
    "Serial",
    "broken_by",
    "empirical_ntk",
    "warn_if_broken",
]
