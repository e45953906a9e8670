r"""Sums of m log m over the means m of all pairs of rows: the costly part of pairwise information.

A thousand rows of 20,000 numbers are half a million pairs and 10¹⁰ logarithms. They are computed in
tiles of a few rows by a few rows by some hundred columns, whose two buffers stay in a core's second
cache, with one thread a core; only pairs i <= j are visited. Memory is a copy of the rows and two
tiles a thread, whatever the number of pairs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.threads import for_each_member

ROWS = 16  # of each side of a tile
TILE_BYTES = 2**19  # of one of a tile's two buffers


def add_pair_sums(total: Tensor, rows: Tensor) -> None:
    r"""Add :math:`\sum_k m_k \log m_k` with :math:`m = (p_i + p_j) / 2` to total (S, S), i <= j.

    Args:
        total: (S, S) float64; what is below the diagonal is without meaning.
        rows: (S, K) numbers >= 0, float32 or float64; 0 log 0 is 0.
    """
    samples, width = rows.shape
    side, blocks = _even(samples, ROWS)
    columns, parts = _even(width, max(1, TILE_BYTES // (side * side * rows.element_size())))
    padded = F.pad(rows / 2, (0, columns * parts - width, 0, side * blocks - samples))
    padded.clamp_(min=torch.finfo(rows.dtype).tiny)  # m log m: 0 next to any probability
    tiles = padded.view(blocks, side, parts, columns).transpose(1, 2).contiguous()
    left = [[tile[:, None] for tile in block] for block in tiles]
    right = [[tile[None] for tile in block] for block in tiles]

    def work(i: int) -> None:
        mean = torch.empty(side, side, columns, dtype=rows.dtype)
        product = torch.empty_like(mean)
        sums = torch.empty(parts, side, side, dtype=rows.dtype)
        out = sums.unbind()
        for j in range(i, blocks):
            for mine, other, place in zip(left[i], right[j], out, strict=True):
                torch.add(mine, other, out=mean)
                torch.log(mean, out=product)
                torch.mul(mean, product, out=product)
                torch.sum(product, -1, out=place)
            where = total[i * side : (i + 1) * side, j * side : (j + 1) * side]
            where += sums.sum(0, dtype=torch.float64)[: where.shape[0], : where.shape[1]]

    for_each_member(blocks, work)  # the first ones have most to do, so the threads end together


def _even(size: int, most: int) -> tuple[int, int]:
    """Return the length of equal parts, not above `most`, that cover `size`, and their number."""
    parts = -(-size // most)
    return -(-size // parts), parts
