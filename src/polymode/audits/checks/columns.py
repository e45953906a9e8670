"""Inputs as flat columns with names, for checks that look at single features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polymode.audits.checks.registry import NotApplicable
from polymode.core.rows import Inputs, Rows

MOST = 2000  # columns that are looked at one by one


@dataclass(frozen=True)
class Columns:
    """Numbers (N, D) and the names of their columns."""

    values: np.ndarray
    names: list[str]


def columns_of(inputs: Inputs) -> Columns:
    """Return the columns of tables: leaves (N,) and (N, D) of any number type.

    >>> import torch
    >>> columns_of(torch.zeros(5, 2)).names
    ['x0', 'x1']
    """
    leaves = inputs.named() if isinstance(inputs, Rows) else {"": inputs}
    parts, names = [], []
    for name, leaf in leaves.items():
        if leaf.dim() > 2 or leaf.is_complex():
            continue
        numbers = leaf.detach().cpu().numpy()
        if leaf.dim() == 1:
            parts.append(numbers[:, None])
            names.append(name or "x")
        else:
            parts.append(numbers)
            names += [f"{name}[{k}]" if name else f"x{k}" for k in range(numbers.shape[1])]
    if not names:
        raise NotApplicable("the inputs are no table of columns")
    if len(names) > MOST:
        raise NotApplicable(f"{len(names):,} columns are more than {MOST:,}")
    return Columns(np.concatenate(parts, axis=1), names)
