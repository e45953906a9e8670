"""Blocks of a precision, against their matrices written out."""

from __future__ import annotations

import pytest
import torch

from polymode.curvature.blocks import Dense


@pytest.mark.parametrize("chosen", [None, [0, 2, 3, 6]])
def test_a_block_prepared_for_unequal_precisions_has_their_determinant(chosen) -> None:
    """Also under precisions in the same relation, and in another one, for which it is not."""
    lengths = {"a": 3, "b": 4}
    index = torch.arange(7) if chosen is None else torch.tensor(chosen)
    root = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = (root @ root.mT)[index][:, index]
    block = Dense.of(lengths, matrix, None if chosen is None else index)
    unlike = {"a": torch.tensor(0.3).double(), "b": torch.tensor(5.0).double()}
    ready = block.prepared(unlike)
    assert ready is not block
    for factor, first in ((1.0, 1.0), (2.5, 1.0), (1.0, 7.0)):
        precision = {"a": factor * first * unlike["a"], "b": factor * unlike["b"]}
        each = torch.cat([precision["a"].expand(3), precision["b"].expand(4)])[index]
        expected = torch.logdet(matrix + each.diag())
        for made in (block, ready, ready.scaled(1.0)):
            torch.testing.assert_close(made.logdet(precision), expected)
