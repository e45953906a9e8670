"""What arrays and loaders share: batches, their sizes, their types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from polymode.core.rows import map_leaves

Pair = tuple[Any, Tensor]  # inputs, a tensor or `Rows`, and targets


def spans(num_examples: int, batch_size: int) -> list[tuple[int, int]]:
    """Return the (start, stop) of each batch; a last batch of one example joins the one before it.

    A batch of one has no batch statistics, so it would break networks with BatchNorm at N = k B +
    1.

    >>> spans(5, 2)
    [(0, 2), (2, 5)]
    """
    edges = list(range(0, num_examples, batch_size)) + [num_examples]
    if len(edges) > 2 and edges[-1] - edges[-2] == 1 and batch_size > 1:
        del edges[-2]
    return list(zip(edges, edges[1:], strict=False))


def listed(names: Iterable[Any]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def cast(x: Any, dtype: torch.dtype | None, device: torch.device | str) -> Any:
    """Return tensors on a device, floating-point ones as `dtype`."""
    return map_leaves(
        x, lambda t: t.to(device=device, dtype=dtype) if t.is_floating_point() else t.to(device)
    )


def as_leaf(array: Any, name: str) -> Tensor:
    """Return one of several inputs as a tensor."""
    return as_tensor(array, f"inputs '{name}'")


def as_tensor(array: Any, what: str) -> Tensor:
    """Return a tensor; NumPy's float64 becomes torch's default type, tensors keep theirs."""
    if array is None:
        raise ValueError(f"{what} are missing, got None; give (inputs, targets)")
    try:
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what} cannot be read as an array of numbers: {error}") from None
    if tensor.dim() == 0:
        raise ValueError(
            f"{what} must be an array with one row per example, got the number {tensor}"
        )
    if isinstance(array, Tensor):
        return tensor
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
