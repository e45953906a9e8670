r"""Conversion "random_features": a last linear layer becomes one on random Fourier features.

.. math:: f(h) = W \sqrt{2 / D}\, \cos(\Omega h / \ell + b), \quad
          \Omega_{ij} \sim N(0, 1), \; b_i \sim U(0, 2\pi)

With W ~ N(0, I / λ) its outputs are a Gaussian process that tends, with D, to the one of the kernel
:math:`\exp(-\|h - h'\|^2 / 2 \ell^2) / \lambda`.

Reference: A. Rahimi, B. Recht, Random features for large-scale kernel machines, NeurIPS 2007.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from polymode.core.rng import fold, generator
from polymode.core.rows import map_leaves
from polymode.nets.conversion.conversion import Conversion, Sample, private


class RandomFeatures(nn.Module):
    """Random Fourier features of the rows of a batch."""

    def __init__(self, layer: nn.Linear, size: int, lengthscale: float) -> None:
        super().__init__()
        like = layer.weight.detach()
        self.scale = math.sqrt(2 / size)
        frequencies, phases = like.new_zeros(size, like.shape[1]), like.new_zeros(size)
        if not like.is_meta:  # a stream of each network's own, which its first weights number
            stream = generator(fold(0, "random features", str(like.flatten()[:8].tolist())))
            drawn = torch.randn(frequencies.shape, generator=stream, dtype=torch.float64)
            frequencies.copy_(drawn / lengthscale)
            uniform = torch.rand(phases.shape, generator=stream, dtype=torch.float64)
            phases.copy_(2 * math.pi * uniform)
        self.frequencies: Tensor
        self.phases: Tensor
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("phases", phases)

    def forward(self, h: Tensor) -> Tensor:
        return self.scale * torch.cos(nn.functional.linear(h, self.frequencies, self.phases))


class RandomFeatureHead(nn.Module):
    """A linear layer on random features, which begins at 0."""

    def __init__(self, layer: nn.Linear, size: int, lengthscale: float) -> None:
        super().__init__()
        self.features = RandomFeatures(layer, size, lengthscale)
        weight = layer.weight
        self.linear = nn.Linear(
            size, layer.out_features, bias=False, device=weight.device, dtype=weight.dtype
        )
        nn.init.zeros_(self.linear.weight)

    def forward(self, h: Tensor) -> Tensor:
        return self.linear(self.features(h))


def plan(sample: Sample, size: int, lengthscale: float) -> Conversion | None:
    """Return how the last linear layer is replaced, None where there is none."""
    results: dict[str, Tensor] = {}
    x, types = sample.x, {p.dtype for p in sample.module.parameters() if p.is_floating_point()}
    if len(types) > 1:  # `fit` will bring them to one
        sample.module.double()
        x = map_leaves(x, lambda leaf: leaf.double() if leaf.is_floating_point() else leaf)
    with private(sample) as module:
        hooks = [
            layer.register_forward_hook(lambda _, args, out, path=path: results.update({path: out}))
            for path, layer in module.named_modules()
            if isinstance(layer, nn.Linear)
        ]
        try:
            output = module(x.clone())
        finally:
            for hook in hooks:
                hook.remove()
    for path, out in results.items():
        if out is output and path:
            numbers = {"head": path, "size": size, "length": float(lengthscale)}
            return Conversion("random_features", numbers)
    return None


def apply(module: nn.Module, numbers: Mapping[str, Any]) -> None:
    """Replace the last layer of a network."""
    layer = module.get_submodule(numbers["head"])
    if not isinstance(layer, nn.Linear):
        raise ValueError(f"'{numbers['head']}' of the network is no linear layer")
    head = RandomFeatureHead(layer, numbers["size"], numbers["length"])
    head.train(layer.training)
    module.set_submodule(numbers["head"], head)
