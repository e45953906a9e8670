"""Running statistics of normalisation layers, computed again for weights that training did not see.

Weights that are averaged or drawn (SWAG, variational inference) meet statistics that belong to
other weights. One pass over training inputs gives them their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from polymode.stack import execution
from polymode.tracing.modules import normalisation_layers

if TYPE_CHECKING:
    from polymode.stack.stack import Stack


@torch.no_grad()
def recompute_statistics(stack: Stack, batches: Iterable[Tensor]) -> None:
    """Set running statistics to their averages over batches (B, ...) of inputs.

    Each batch weighs by its size. Members run in training mode, as where such statistics come from;
    parameters stay as they are. A network without running statistics is left alone.
    """
    if not stack.has_statistics:
        return
    mode, pinned = stack.mode, stack.pinned
    stack.set_mode("train")
    count = 0
    for number, x in enumerate(batches):
        count += len(x)
        streams = execution.streams_of(stack, x, False, number)
        x = execution.formatted(x, bool(stack.channels_last))
        for k in range(stack.num_modes):
            module = stack.module(k)
            noise = execution.noise_of(streams and streams[k : k + 1], stacked=False)
            with _momentum(module, len(x) / count), noise:
                module(x)
            stack.write_back_buffers(k)
    stack.set_mode(mode, pinned)


@contextmanager
def _momentum(module: nn.Module, weight: float) -> Iterator[None]:
    """Give the latest batch this weight in running statistics."""
    layers: list[Any] = [a for a in normalisation_layers(module) if hasattr(a, "momentum")]
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = weight
    yield
    for layer, value in zip(layers, before, strict=True):
        layer.momentum = value
