r"""A last layer at positions of an example: variances of maps in closed form.

Where only a convolution, or a linear layer at each token, has a posterior, and its result is the
network's output, output c at position p is linear in the weights with the layer's window φ as its
Jacobian,

.. math:: f_{cp} = w_c^\top \varphi_p, \qquad
          \mathrm{Var}[f_{cp}] = \varphi_p^\top \Sigma_{cc} \varphi_p
          = \sum_j (r_{cj}^\top \varphi_p)^2, \qquad \Sigma_{cc} = \sum_j r_{cj} r_{cj}^\top,

with 1 in φ for the bias. The last sum is the layer itself with r_j as its weights, I times instead
of a backward pass for each output at each position; windows are never written out. Σ is that of any
structure.

Shapes: `B` batch, `T` positions, `G` groups, `O` outputs, `I` numbers of a window and of the bias,
`J` columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.curvature.blocks import eigen
from polymode.curvature.derivatives import Call
from polymode.curvature.records import Record
from polymode.curvature.tangent import Tangent
from polymode.likelihoods.positions import Positions
from polymode.tracing.modules import Tensors

_NUMBERS = 2**23  # results of the layer that are held at a time, 32 MB in float32
_BASE = 2**12  # digits of numbers that a gradient in float32 carries exactly


class LastLayer(NamedTuple):
    """The last layer of a network at some inputs.

    Attributes:
        outputs: (B, ...) of the network. call: of the layer.
        places: for each number of an example's result its place among the outputs, -1 for none.
        weight, bias: names of what has a posterior; a bias of None is known, or there is none.
    """

    outputs: Tensor
    call: Call
    places: Tensor
    weight: str
    bias: str | None


def last_layer_of(tangent: Tangent, outputs: Tensor, calls: list[Call]) -> LastLayer | None:
    """Return the layer where it alone has a posterior and each output of the network is one number
    of its result: the same, moved, or cut off. None elsewhere.

    Args:
        outputs, calls: of `Tangent.watched`.
    """
    kinds = {tangent.survey.kinds[name]: name for name in tangent.wanted}
    alone = set(tangent.wanted) <= set(tangent.survey.last) and "matrix" in kinds
    if not alone or len(calls) != 1 or calls[0].layer is None or outputs.dim() < 3:
        return None
    places = _places(outputs, calls[0].result)
    if places is None:
        return None
    return LastLayer(outputs, calls[0], places, kinds["matrix"], kinds.get("bias"))


def _places(outputs: Tensor, result: Tensor) -> Tensor | None:
    """Return which output each number of the result is, if each output is one, by the gradients of
    numbered outputs; nothing but moving leaves them as they are."""
    batch, size = len(outputs), outputs[0].numel()
    numbers = torch.arange(1, size + 1, device=outputs.device)
    codes: Tensor | int = 0
    for digit, base in ((numbers % _BASE, 1), (numbers // _BASE, _BASE)):
        cotangent = digit.to(outputs).expand(batch, -1).reshape(outputs.shape)
        grad = torch.autograd.grad(
            outputs, result, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )[0].reshape(batch, -1)
        if not bool((grad == grad.round()).all()):
            return None
        codes = codes + grad.long() * base
    assert isinstance(codes, Tensor)
    first = codes[0]
    ordered = first[first != 0].sort().values
    same = bool((codes == first).all()) and torch.equal(ordered, numbers)
    return first - 1 if same else None


def sees_one_position(layer: LastLayer, likelihood: Positions) -> bool:
    """Whether all numbers that the layer gives at one of its positions are of one position of the
    likelihood: not so where channels become pixels."""
    rows, sizes = likelihood.output_rows(layer.outputs[:1])
    numbers = torch.arange(len(rows), device=rows.device).unsqueeze(-1).expand(rows.shape)
    positions = likelihood.as_outputs(numbers, sizes).flatten()
    result = layer.call.result
    seen = positions[layer.places.clamp_min(0)].view(-1, *result.shape[1:])
    first = seen.select(layer.call.outputs_axis, 0).unsqueeze(layer.call.outputs_axis)
    return bool((seen == first).all())


def roots_by_output(
    between: Callable[[Iterable[tuple[str, Record]]], Tensor],
    layer: LastLayer,
    params: Tensors,
) -> Tensor:
    """Return r of each output, (O, J, I): weights of its window, then of its bias.

    Args:
        between: gives covariances of the outputs that records are of. params: of the network, by
            name.
    """
    number = layer.call.result.shape[layer.call.outputs_axis]
    weight = params[layer.weight]
    covariances = [
        between(_units(layer, output, number, weight))[:, 0, :, 0].double()
        for output in range(number)
    ]
    values, vectors = eigen(torch.stack(covariances))
    return (vectors * values.sqrt().unsqueeze(-2)).mT.to(weight.dtype)


def joint_roots(
    between: Callable[[Iterable[tuple[str, Record]]], Tensor], layer: LastLayer, params: Tensors
) -> Tensor:
    """Return a root of the covariance of all outputs' weights, (O, J, I), J = O I; arguments as of
    `roots_by_output`."""
    number = layer.call.result.shape[layer.call.outputs_axis]
    weight = params[layer.weight]
    every = [list(_units(layer, output, number, weight)) for output in range(number)]
    together = [
        (parts[0][0], parts[0][1]._replace(moving=torch.cat([part.moving for _, part in parts])))
        for parts in zip(*every, strict=True)
    ]
    covariance = between(together)  # (I, O, I, O)
    size = covariance.shape[0]
    matrix = covariance.permute(1, 0, 3, 2).reshape(number * size, number * size)
    values, vectors = eigen(matrix.double())
    root = (vectors * values.sqrt()).to(weight.dtype)
    return root.view(number, size, -1).mT.contiguous()


def _units(
    layer: LastLayer, output: int, number: int, weight: Tensor
) -> Iterator[tuple[str, Record]]:
    """Yield the records of one output whose windows are the unit vectors: of each number of its
    weights, then of its bias, as examples."""
    groups, width = layer.call.groups, weight[0].numel()
    share = number // groups
    size = width + (layer.bias is not None)
    moving = weight.new_zeros(1, groups, size, 1, share)
    moving[0, output // share, :width, 0, output % share] = 1
    fixed = torch.eye(size, width).to(weight).view(1, size, 1, width).expand(groups, -1, -1, -1)
    yield layer.weight, Record(moving, fixed, width)
    if layer.bias is not None:
        moving = weight.new_zeros(1, 1, size, 1, number)
        moving[0, 0, -1, 0, output] = 1
        yield layer.bias, Record(moving, moving.new_ones(1, size, 1, 1), 1)


def variances(layer: LastLayer, roots: Tensor, weight: Tensor) -> Tensor:
    """Return the variance of each output, (B, ...).

    Args:
        roots: see `roots_by_output`. weight: of the layer, whose shape counts.
    """
    axis, size = layer.call.outputs_axis, roots.shape[-1]
    total = torch.zeros_like(layer.call.result)
    for part in roots.split(max(1, _NUMBERS // total.numel()), 1):
        columns = _passed(layer, part, weight, size)
        total = total + columns.square().sum(axis % total.dim() + 1)
    return _ordered(layer, total.reshape(len(layer.outputs), -1))


def _passed(layer: LastLayer, roots: Tensor, weight: Tensor, size: int) -> Tensor:
    """Return what the layer gives with some columns as its weights: its result with an axis (J,)
    behind that of the outputs."""
    call = layer.call
    assert call.layer is not None
    flat = roots.reshape(-1, size)
    weights = flat[:, : weight[0].numel()].reshape(-1, *weight.shape[1:])
    result = call.layer(weights, flat[:, -1].contiguous() if layer.bias is not None else None)
    return result.unflatten(call.outputs_axis, (len(roots), -1))


def _ordered(layer: LastLayer, values: Tensor) -> Tensor:
    """Return numbers of the layer's result (B, n) as those of the network's outputs, (B, ...)."""
    used = layer.places >= 0
    ordered = values.new_zeros(len(values), layer.outputs[0].numel())
    return ordered.index_copy(1, layer.places[used], values[:, used]).view(layer.outputs.shape)


def covariances(layer: LastLayer, roots: Tensor, weight: Tensor) -> Tensor:
    """Return the covariance of each output with those of the same position, (B, ..., K).

    Args:
        roots: see `joint_roots`: a column has weights of all outputs. weight: see `variances`.
    """
    axis, (number, _, size) = layer.call.outputs_axis, roots.shape
    result = layer.call.result
    if not _keeps_outputs(layer):
        raise ValueError(
            "covariances of the outputs of a position need a last layer that gives all of these at"
            " each of its positions, in their order; take output_covariance='diagonal'"
        )
    total = result.new_zeros(number, *result.movedim(axis, 0).shape)
    for part in roots.split(max(1, _NUMBERS // result.numel()), 1):
        columns = _passed(layer, part, weight, size).movedim(axis % result.dim(), 0)
        columns = columns.movedim(axis % result.dim() + 1, 1)  # (O, J, B, ...)
        total = total + torch.einsum("aj...,bj...->ab...", columns, columns)
    rows = total.movedim(1, axis % result.dim() + 1)  # (K, B, ..., with O where it was)
    ordered = [_ordered(layer, row.reshape(len(layer.outputs), -1)) for row in rows]
    return torch.stack(ordered, -1)


def _keeps_outputs(layer: LastLayer) -> bool:
    """Whether output o of the layer is output o of its position, first or last of their axes."""
    result, axis = layer.call.result, layer.call.outputs_axis
    number, total = result.shape[axis], layer.outputs[0].numel()
    places = layer.places.view(-1, *result.shape[1:]).movedim(axis, -1)
    places = places[(places >= 0).all(-1)]
    numbers = torch.arange(number, device=places.device)
    orders = places // (total // number), places % number
    return any(bool((order == numbers).all()) for order in orders)
