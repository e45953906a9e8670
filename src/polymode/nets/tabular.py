"""MLP on the inputs of tables, with an embedding for each column of category codes.

    e_j = E_j[code_j],    outputs = MLP(numbers, e_1, ..., e_J)

A table with columns of many categories is encoded with `large_categories="codes"`: such a column is
then one number, the place of its category, and this network looks it up in a table of vectors. An
embedding is a dense layer on columns of 0 and 1 without their memory. Embeddings start as N(0, 1),
as torch's `nn.Embedding` does.

Source: C. Guo, F. Berkhahn, "Entity embeddings of categorical variables", arXiv 1604.06737 (2016).
`B` batch, `F` inputs, `J` coded columns, `K` outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polymode.core.checks import Shape, Sizes, check_call, shown
from polymode.nets.mlp import mlp
from polymode.tracing.modules import not_too_large

_WIDEST = 16  # numbers in an embedding


@not_too_large()
def tabular(
    input_shape: Shape,
    num_outputs: int,
    *,
    codes: Sequence[Sequence[int]] = (),
    hidden: Sizes = (64, 64),
    **options: Any,
) -> nn.Module:
    """Return an MLP with embeddings of coded columns; without any it is `mlp`.

    A column of k categories gets vectors of min(16, (k + 1) // 2) numbers.

    Args:
        input_shape: (F,). num_outputs: K >= 1, `task.num_outputs`.
        codes: `task.encoder.codes`: position and number of categories of each coded column.
        hidden: units of each hidden layer.
        **options: those of `mlp`, such as `norm` and `dropout`.

    Returns:
        module from (B, F) to (B, K).

    >>> sum(p.numel() for p in tabular((3,), 1, codes=[(1, 100)], hidden=()).parameters())
    1619
    """
    check_call(tabular, locals(), but=("codes",))
    size = input_shape[0] if len(input_shape) == 1 else 0
    pairs = _pairs(codes, size)
    if not pairs:
        return mlp(input_shape, num_outputs, hidden=hidden, **options)
    return Tabular(size, num_outputs, pairs, tuple(hidden), options)


def _pairs(codes: Sequence[Sequence[int]], size: int) -> list[tuple[int, int]]:
    """Return positions and numbers of categories, or refuse what cannot be these."""
    try:
        pairs = [(int(place), int(count)) for place, count in codes]
    except (TypeError, ValueError):
        pairs = [(-1, 0)]
    places = {place for place, _ in pairs}
    fit = all(0 <= place < size and count >= 1 for place, count in pairs)
    if not fit or len(places) < len(pairs):
        raise ValueError(
            f"`codes` of tabular must be (position, number of categories), positions below"
            f" {size} and different, got {shown(codes)}"
        )
    return pairs


class Tabular(nn.Module):
    """See `tabular`."""

    def __init__(
        self,
        size: int,
        num_outputs: int,
        codes: list[tuple[int, int]],
        hidden: tuple[int, ...],
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        coded = {place for place, _ in codes}
        self.codes = codes
        self.numbers = [place for place in range(size) if place not in coded]
        widths = [min(_WIDEST, (count + 1) // 2) for _, count in codes]
        self.embeddings = nn.ModuleList(
            nn.Embedding(count, width) for (_, count), width in zip(codes, widths, strict=True)
        )
        self.mlp = mlp((len(self.numbers) + sum(widths),), num_outputs, hidden=hidden, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, K) of inputs (B, F)."""
        parts = [x[:, place : place + 1] for place in self.numbers]
        for (place, count), embedding in zip(self.codes, self.embeddings, strict=True):
            parts.append(embedding(x[:, place].round().long().clamp(0, count - 1)))
        return self.mlp(torch.cat(parts, 1))
