"""Embeddings as inputs: tokens have no gradient, but what they become in the network has one.

A table of embeddings turns identifiers, taken from the inputs as they are, into real numbers e.
With `shifted` a network takes (inputs, shifts) and computes with e + shift, so that the derivative
with respect to a shift of zeros is that with respect to e, in any execution.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polymode.core.rows import Inputs, Rows, copies_of_first, leaves_of

Shapes = dict[str, tuple[int, ...]]

_at_work = threading.local()  # the shifts of the pass that this thread is in


def embedded_shapes(module: nn.Module, x: Inputs) -> Shapes:
    """Return the shape of one example behind each embedding that takes identifiers of the inputs.

    Embeddings that a pass calls twice are left out, as are those of identifiers that the network
    makes itself, such as positions.
    """
    x = copies_of_first(x, 2).clone()
    storages = {leaf.untyped_storage().data_ptr() for leaf in leaves_of(x) if _are_ids(leaf)}
    calls: list[tuple[str, Tensor, Any]] = []

    def note(path: str, _: nn.Module, args: Any, out: Any) -> None:
        if args and isinstance(args[0], Tensor):
            calls.append((path, args[0], out))

    layers = {p: layer for p, layer in module.named_modules() if isinstance(layer, nn.Embedding)}
    hooks = [layer.register_forward_hook(partial(note, p)) for p, layer in layers.items()]
    try:
        with torch.no_grad():
            module(x)
    finally:
        for hook in hooks:
            hook.remove()
    paths = [path for path, _, _ in calls]
    return {
        path: tuple(out.shape[1:])
        for path, ids, out in calls
        if paths.count(path) == 1 and len(out) == 2 and ids.untyped_storage().data_ptr() in storages
    }


def _are_ids(leaf: Tensor) -> bool:
    return not leaf.is_floating_point() and leaf.dtype != torch.bool


def shifted(paths: list[str], module: nn.Module) -> nn.Module:
    """Let a network take (inputs, shifts by name of the embedding); changes the module."""
    module.register_forward_pre_hook(_take_shifts, with_kwargs=True, prepend=True)
    for number, path in enumerate(paths):
        module.get_submodule(path).register_forward_hook(_AddShift(number))
    return module


def with_zero_shifts(x: Inputs, shapes: Shapes, like: Tensor) -> Rows:
    """Return inputs of a `shifted` network, in the order of `shapes`."""
    return beside_shifts(x, [like.new_zeros(len(x), *shape) for shape in shapes.values()])


def beside_shifts(x: Inputs, shifts: Sequence[Tensor]) -> Rows:
    """Return inputs and shifts as a `shifted` network takes them."""
    structure = x.structure if isinstance(x, Rows) else None
    return Rows((*leaves_of(x), *shifts), (structure, (None,) * len(shifts)))


def _take_shifts(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Keep the shifts for the embeddings, and hand the inputs on."""
    held: Rows = args[0]
    structure, shifts = held.structure
    inputs, _at_work.shifts = held.leaves[: -len(shifts)], held.leaves[-len(shifts) :]
    return (inputs[0] if structure is None else Rows(inputs, structure),), {}


class _AddShift:
    """After an embedding: its result, shifted."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out + _at_work.shifts[self.number]  # type: ignore[no-any-return]
