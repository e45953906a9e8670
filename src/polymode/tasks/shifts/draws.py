"""Random numbers of shifts: one stream per block of examples, in bounded memory, and nothing moves.

A set is worked on in blocks of a size that depends on the shape of one image only. Block k draws
from the stream (seed, kind, severity, k), always for a whole block, and keeps as many rows as it
has images. Therefore image i gets the same numbers in a set of 1,000 and of 10,000. `n` images in
this block, `C` channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.rng import generator

BLOCK_VALUES, BLOCK_IMAGES = 2**20, 512


def block_size(values: int) -> int:
    """Return the images per block, a power of 2 up to 512, for images of so many values each.

    >>> block_size(1 * 8 * 8), block_size(3 * 32 * 32), block_size(3 * 224 * 224)
    (512, 256, 4)
    """
    fitting = max(BLOCK_VALUES // values, 1)
    return min(2 ** (fitting.bit_length() - 1), BLOCK_IMAGES)


@dataclass(frozen=True)
class Draws:
    """The stream of one block; draws come in the type and on the device of the images `like`."""

    stream: torch.Generator
    size: int
    like: Tensor

    @classmethod
    def of(
        cls, images: Tensor, size: int, seed: int, kind: str, severity: int, block: int
    ) -> Draws:
        """Return the stream of block number `block`; the first has the plain address."""
        path = (kind, severity, block) if block else (kind, severity)
        return cls(generator(seed, *path), size, images)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers (n, *shape)."""
        return self._keep(torch.randn(self.size, *shape, generator=self.stream))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return numbers (n, *shape) uniform on [low, high)."""
        return self._keep(torch.rand(self.size, *shape, generator=self.stream)) * (high - low) + low

    def poisson(self, rates: Tensor) -> Tensor:
        """Return Poisson numbers of the given rates (n, ...)."""
        return self._keep(torch.poisson(rates.to("cpu", torch.float32), generator=self.stream))

    def _keep(self, numbers: Tensor) -> Tensor:
        return numbers[: len(self.like)].to(self.like)
