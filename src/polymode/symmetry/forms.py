"""Networks as they are compared: as they are, sorted, or aligned with one of the reference.

The two canonical forms are those of `canonical` (scaled, then sorted by the first weight) and
`align` (scaled, then matched to a network). What is returned are weights by name, and the names are
those of the stack that is given: a network with dropout layers has other names than one without.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from polymode.stack.stack import Stack
from polymode.symmetry.align import align
from polymode.symmetry.canonical import canonical
from polymode.symmetry.cost import representation_cost
from polymode.symmetry.find import find
from polymode.symmetry.unit_groups import Symmetries
from polymode.tracing.modules import Tensors
from polymode.tracing.network import Network

FORMS = {
    "sorted": "units scaled to norm 1 and sorted by their first weight",
    "aligned": "units scaled to norm 1 and matched to the reference's first network",
}


@lru_cache(maxsize=8)
def _found(network: Network, input_shape: tuple[int, ...]) -> Symmetries:
    return find(network.template, input_shape)


def symmetries_for(stack: Stack, input_shape: tuple[int, ...]) -> Symmetries:
    """Return the symmetries of a stack's architecture, found once."""
    return _found(stack.network, tuple(input_shape))


def in_form(form: str, stack: Stack, first: Stack, input_shape: tuple[int, ...]) -> Tensors:
    """Return the weights (S, ...) of networks: "" as they are, "sorted", or "aligned" with `first`.

    Args:
        first: one network of the same shapes, whatever the names of its tensors.
    """
    if form == "":
        return {name: tensor.detach() for name, tensor in stack.params.items()}
    symmetries = symmetries_for(stack, input_shape)
    if form == "sorted":
        return _params(canonical(stack, symmetries))
    assert form == "aligned", form
    theirs = zip(stack.params, first.params.values(), strict=True)
    reference = {name: tensor.detach().to(stack.dtype) for name, tensor in theirs}
    return _params(align(stack, stack[[0]].with_tensors(reference), symmetries))


def scaled_form(stack: Stack, input_shape: tuple[int, ...]) -> Tensors:
    """Return the weights with scalings removed, units in their places."""
    return _params(canonical(stack, symmetries_for(stack, input_shape), sort=None))


def hidden_layers(stack: Stack, input_shape: tuple[int, ...]) -> list[str]:
    """Return the names of weights whose rows are hidden units that may change places."""
    symmetries = symmetries_for(stack, input_shape)
    rows = [
        place.name
        for place in symmetries.places
        if place.part == "out" and place.axis == 0 and (place.label > 0).all()
    ]
    names = dict.fromkeys(name for name in rows if symmetries.roles[name] == "weight")
    return [name for name in names if name in stack.params]


def masses(stack: Stack, input_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the mass of each network, and its minimum over scalings, (S,) each; biases do not
    count. What scalings can make vanish is left out of both."""
    cost = representation_cost(stack, symmetries_for(stack, input_shape))
    return (cost.mass - cost.vanishing).detach(), cost.minimum.detach()


def _params(stack: Stack) -> Tensors:
    with torch.no_grad():
        return {name: tensor.detach() for name, tensor in stack.params.items()}
