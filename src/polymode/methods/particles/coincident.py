"""Members that start at the same place: no repulsion can separate them."""

from __future__ import annotations

import warnings

import torch

from polymode.core.stack import Stack


def warn_of_coincident(stack: Stack) -> None:
    """Warn where two members start at the same weights."""
    equal = torch.ones(stack.num_modes, stack.num_modes, dtype=torch.bool, device=stack.device)
    for tensor in stack.params.values():
        rows = tensor.detach().flatten(1)
        for k in equal.tril(-1).any(1).nonzero().flatten().tolist():
            equal[k] &= (rows == rows[k]).all(1)
    pairs = equal.tril(-1).nonzero().tolist()
    if pairs and stack.params:
        second, first = pairs[0]
        warnings.warn(
            f"members {first} and {second} start at the same weights, and repulsion cannot separate"
            " them: the force between coincident particles is 0. Give members of different"
            " initialisations",
            stacklevel=3,
        )
