"""Checkpoints: what a state gets back from its file."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.checkpoint import load_checkpoint, save_checkpoint


class State(NamedTuple):
    step: int
    axes: Tensor


def test_tensors_come_back_in_the_layout_they_had(tmp_path):
    """Files hold tensors row by row; matrix products of another layout differ in their last bits,
    on some processors."""
    by_columns = torch.arange(12.0).view(3, 4).T
    save_checkpoint(tmp_path / "file", State(7, by_columns), {})
    found = load_checkpoint(tmp_path / "file", State(0, torch.zeros(3, 4).T), {})
    assert found.step == 7
    assert found.axes.equal(by_columns) and found.axes.stride() == by_columns.stride() == (1, 4)
