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
from polymode.tracing.modules import keeps_statistics, normalisation_layers

if TYPE_CHECKING:
    from polymode.stack.stack import Stack

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


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
        for k in range(stack.num_modes):
            _take_batch(stack, k, x, number, len(x) / count)
    stack.set_mode(mode, pinned)


@torch.no_grad()
def set_batch_statistics(stack: Stack, k: int, x: Tensor, number: int) -> None:
    """Set the running statistics of member k to those by which it normalises a batch x (B, ...) in
    training mode: its means, and its variances without Bessel's correction.

    Args:
        number: of the random stream of layers that draw.
    """
    mode, pinned = stack.mode, stack.pinned
    stack.set_mode("train")
    counts: dict[str, int] = {}
    module = stack.module(k)
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, path=path: counts.update({path: args[0][:, 0].numel()})
        )
        for path, layer in module.named_modules()
        if isinstance(layer, BATCH_NORMS)
    ]
    try:
        _take_batch(stack, k, x, number, 1.0)
    finally:
        for hook in hooks:
            hook.remove()
    for path, count in counts.items():
        name = f"{path}.running_var" if path else "running_var"
        if name in stack.buffers and not keeps_statistics(stack.template.get_submodule(path)):
            stack.buffers[name][k] *= (count - 1) / count
    stack.set_mode(mode, pinned)


def _take_batch(stack: Stack, k: int, x: Tensor, number: int, weight: float) -> None:
    """Run member k on a batch in training mode, which has this weight in running statistics."""
    streams = execution.streams_of(stack, x, False, number)
    x = execution.formatted(x, bool(stack.channels_last))
    module = stack.module(k)
    noise = execution.noise_of(streams and streams[k : k + 1], stacked=False)
    with _momentum(module, weight), noise:
        module(x)
    stack.write_back_buffers(k)


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
