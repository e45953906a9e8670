"""LSTMs and PReLU of simple operations, instead of torch's own kernels.

On a processor `nn.LSTM` runs a kernel of oneDNN. Its derivative needs a workspace that `torch.func`
does not hand on, and it has none in forward mode. The derivative of `F.prelu` under `vmap` mixes up
the axes of several cotangents. Within `plain_operations` both are made of operations that have all
derivatives. The context is of one thread, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class plain_operations(TorchFunctionMode):
    """A context in which PReLU, and LSTMs that drop nothing, are computed in steps."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "prelu":
            return _prelu(*args, **kwargs)
        # packed sequences have the sizes of their batches in the second place
        if name != "lstm" or kwargs or isinstance(args[1], Tensor):
            return func(*args, **kwargs)
        dropout, training = args[5:7]
        return func(*args) if training and dropout else _lstm(*args[:5], *args[7:])


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    if weight.numel() > 1:
        weight = weight.view(-1, *(1,) * (input.dim() - 2))
    return torch.where(input > 0, input, weight * input)


def _lstm(
    x: Tensor,
    start: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs, last states and last cells as `torch.lstm` does."""
    ways = 2 if bidirectional else 1
    each = len(weights) // (layers * ways)
    below = x.transpose(0, 1) if batch_first else x  # (T, B, I)
    states, cells = [], []
    for layer in range(layers):
        above = []
        for way in range(ways):
            number = layer * ways + way
            own = weights[number * each : (number + 1) * each]
            steps = below.flip(0) if way else below
            made, state, cell = _direction(steps, start[0][number], start[1][number], own, biases)
            above.append(made.flip(0) if way else made)
            states.append(state)
            cells.append(cell)
        below = torch.cat(above, -1)
    outputs = below.transpose(0, 1) if batch_first else below
    return outputs, torch.stack(states), torch.stack(cells)


def _direction(
    steps: Tensor, state: Tensor, cell: Tensor, weights: Sequence[Tensor], biases: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what one direction of one layer gives at each step, its last state and its cell."""
    into, back = weights[:2]
    bias = weights[2] + weights[3] if biases else None
    projection = weights[-1] if len(weights) % 2 else None
    made = []
    for gates in F.linear(steps, into, bias):
        enter, forget, new, leave = (gates + F.linear(state, back)).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        state = leave.sigmoid() * cell.tanh()
        state = state if projection is None else F.linear(state, projection)
        made.append(state)
    return torch.stack(made), state, cell
