"""Rules for layers with parameters: linear maps, convolutions, normalisations, embeddings.

Each takes the walk, a call and its input, writes down the places of units in the layer's tensors,
and returns the labelled result. `O` outputs, `I` inputs, `g` groups of a convolution, `E` features
of attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

from polymode.nets.filter_response import FilterResponseNorm2d
from polymode.symmetry.units import PINNED, ZERO, Label, Value
from polymode.symmetry.walk import Call, Walk


def along(label: Label, axis: int, ndim: int) -> Label:
    """Return a vector of units as a label along one axis."""
    return label.reshape([-1 if a == axis % ndim else 1 for a in range(ndim)])


@dataclass(frozen=True)
class LinearMap:
    """Where a linear map has its weights.

    Attributes:
        weight, bias: names of the tensors. shape: of the weight, (O, I / g, ...), transposed
            (I, O / g, ...).
        groups: g.
        transposed: whether the weight is laid out the other way round.
    """

    weight: str
    bias: str | None
    shape: tuple[int, ...]
    groups: int = 1
    transposed: bool = False


def contract(walk: Walk, token: str, x: Value, data: Tensor, axis: int, by: LinearMap) -> Value:
    """A linear map along one axis: x[i] -> sum_i W[o, i, ...] x[i] + b[o]."""
    groups, transposed = by.groups, by.transposed
    inputs, further = walk.channel(x, axis)
    scale_in = walk.scale_channel(x, axis)
    number, ndim = data.shape[axis], len(by.shape)
    outputs, scale_out = walk.moves.fresh(number), walk.scales.fresh(number)

    def labels(into: Label, out: Label) -> tuple[Label, Label]:
        """Labels of a weight: one vector follows axis 0, the other axis 1 within its group."""
        first, second = (into, out) if transposed else (out, into)
        inner = np.repeat(second.reshape(groups, -1), len(first) // groups, 0)
        second = (
            along(second, 1, ndim)
            if groups == 1
            else inner.reshape(*inner.shape, *[1] * (ndim - 2))
        )
        return (second, along(first, 0, ndim)) if transposed else (along(first, 0, ndim), second)

    out_axis, in_axis = (1, 0) if transposed else (0, 1)
    out, into = labels(inputs, outputs)
    scale_o, scale_i = labels(scale_in, scale_out)
    moves = {"out": (out, out_axis), "in": (into, in_axis)}
    if transposed:  # rows first: columns of a group depend on them
        moves = {"in": moves["in"], "out": moves["out"]}
    walk.place(by.weight, "weight", moves, {"out": (scale_o, 1), "in": (scale_i, -1)})
    if by.bias is not None:
        walk.place(by.bias, "bias", {"out": (outputs, 0)}, {"out": (scale_out, 1)})
    if groups > 1:
        walk.mark(token, inputs.reshape(groups, -1))
        walk.mark(token, outputs.reshape(groups, -1))
    dim = data.dim()
    return Value(data, [*further, along(outputs, axis, dim)], along(scale_out, axis, dim))


def linear(walk: Walk, call: Call, layer: nn.Linear, path: str, x: Value) -> Value:
    return contract(walk, call.token, x, call.data, -1, _map_of(layer, path))


def convolution(walk: Walk, call: Call, layer: Any, path: str, x: Value) -> Value:
    x = walk.pin_along(x, range(2, x.data.dim()))
    return contract(walk, call.token, x, call.data, 1, _map_of(layer, path))


def _map_of(layer: Any, path: str) -> LinearMap:
    return LinearMap(
        f"{path}.weight",
        f"{path}.bias" if layer.bias is not None else None,
        tuple(layer.weight.shape),
        getattr(layer, "groups", 1),
        isinstance(layer, _ConvTransposeNd),
    )


def batch_norm(walk: Walk, call: Call, layer: Any, path: str, x: Value) -> Value:
    """gain (x - mean) / sqrt(variance + eps) + bias, by channel; mean and variance follow x."""
    units, further = walk.channel(x, 1)
    scale_in, moved = walk.scale_channel(x, 1), {"out": (units, 0)}
    if layer.track_running_stats:
        walk.place(f"{path}.running_mean", "statistic", moved, {"in": (scale_in, 1)})
        walk.place(f"{path}.running_var", "statistic", moved, {"in": (scale_in, 1)}, layer.eps)
    else:
        undone(walk, path, layer.eps, np.asarray(scale_in))
    scale_out = _affine(walk, layer, path, moved, len(units))
    return _normalised(call.data, units, further, scale_out)


def _affine(walk: Walk, layer: Any, path: str, moved: Any, number: int) -> Label:
    """Place gain and bias, and return the units of scaling of what they give."""
    if getattr(layer, "weight", None) is None:
        return np.full(number, PINNED)
    scale_out = walk.scales.fresh(number)
    for name, role in (("weight", "gain"), ("bias", "bias")):
        if getattr(layer, name, None) is not None:
            walk.place(f"{path}.{name}", role, moved, {"out": (scale_out, 1)})
    return scale_out


def _normalised(data: Tensor, units: Label, further: list[Label], scale: Label) -> Value:
    units = np.where(units == ZERO, PINNED, units)  # normalised, a zero is no zero any more
    dim = data.dim()
    return Value(data, [*further, along(units, 1, dim)], along(scale, 1, dim))


def undone(walk: Walk, path: str, eps: float, scale: Label) -> None:
    """The scale of what is normalised is free where eps = 0; otherwise it is free up to eps."""
    if eps and not walk.ignore_eps:
        if not walk.scales.is_pinned(scale):
            walk.nearly.append(path)
        walk.scales.pin(scale)


def group_norm(walk: Walk, call: Call, layer: Any, path: str, x: Value) -> Value:
    """Normalised over groups of channels and all pixels, then scaled by channel."""
    x = walk.pin_along(x, range(2, x.data.dim()))
    units, further = walk.channel(x, 1)
    groups = layer.num_groups
    scale_in = walk.scale_channel(x, 1).reshape(groups, -1)
    walk.scales.tie(scale_in, scale_in[:, :1])
    undone(walk, path, layer.eps, scale_in)
    if 1 < groups < len(units):
        walk.mark(call.token, units.reshape(groups, -1))
    scale_out = _affine(walk, layer, path, {"out": (units, 0)}, len(units))
    return _normalised(call.data, units, further, scale_out)


def filter_response(walk: Walk, call: Call, layer: Any, path: str, x: Value) -> Value:
    x = walk.pin_along(x, range(2, x.data.dim()))
    units, further = walk.channel(x, 1)
    undone(walk, path, layer.eps, walk.scale_channel(x, 1))
    scale = walk.scales.fresh(len(units))
    for name, role in (("gamma", "gain"), ("beta", "bias"), ("tau", "bias")):
        label = {"out": (along(units, 1, 4), 1)}
        walk.place(f"{path}.{name}", role, label, {"out": (along(scale, 1, 4), 1)})
    return _normalised(call.data, units, further, scale)


def layer_norm(walk: Walk, call: Call, layer: Any, path: str, x: Value) -> Value:
    """Normalised over the last axes; every entry of these has its own gain and bias."""
    shape = tuple(layer.normalized_shape)
    dim, inner = call.data.dim(), range(call.data.dim() - len(shape), call.data.dim())
    scale_in = walk.regular(walk.scales, x.scale, ())
    undone(walk, path, layer.eps or 0.0, scale_in)
    moves = []
    parts: dict[str, tuple[Label, int]] = {}
    for label in x.moves:
        axes = [axis for axis in inner if label.shape[axis] > 1]
        if axes:
            label = walk.regular(walk.moves, label, axes[:1])
            label = np.where(label == ZERO, PINNED, label)
            inner_label = label.reshape(label.shape[dim - len(shape) :])
            parts[f"axis{axes[0]}"] = inner_label, axes[0] - dim + len(shape)
        moves.append(label)
    scale = np.zeros((1,) * dim, int)
    if getattr(layer, "weight", None) is not None:
        own_scale = walk.scales.fresh(int(np.prod(shape))).reshape(shape)
        for name, role in (("weight", "gain"), ("bias", "bias")):
            if getattr(layer, name, None) is not None:
                walk.place(f"{path}.{name}", role, parts, {"out": (own_scale, 1)})
        scale = own_scale.reshape((1,) * (dim - len(shape)) + shape)
    return Value(call.data, moves, scale)


def embedding(walk: Walk, call: Call, layer: Any, path: str, x: Value) -> Value:
    number = layer.embedding_dim
    units, scales = walk.moves.fresh(number), walk.scales.fresh(number)
    places = {"out": (along(units, 1, 2), 1)}, {"out": (along(scales, 1, 2), 1)}
    walk.place(f"{path}.weight", "weight", *places)
    return Value(call.data, [along(units, -1, call.data.dim())], along(scales, -1, call.data.dim()))


def prelu(walk: Walk, call: Call, layer: Any, path: str, x: Value) -> Value:
    """max(x, 0) + a min(x, 0): homogeneous, with one slope or one per channel."""
    if layer.weight.numel() > 1:
        units, further = walk.channel(x, 1)
        walk.place(f"{path}.weight", "slope", {"out": (units, 0)}, {})
        return Value(call.data, [*further, along(units, 1, call.data.dim())], x.scale, x.zero)
    return Value(call.data, x.moves, x.scale, x.zero)


def rule_for(layer: nn.Module) -> Callable[..., Value] | None:
    """Return the rule of a layer with parameters or normalisation, or None."""
    kind = type(layer)
    if kind in _RULES:
        return _RULES[kind]
    if kind.__module__.startswith("torch.nn.modules"):
        if isinstance(layer, _ConvNd):
            return convolution
        if isinstance(layer, _NormBase):
            per_example = isinstance(layer, _InstanceNorm) and not layer.track_running_stats
            return _instance_norm if per_example else batch_norm
    return None


def _instance_norm(walk: Walk, call: Call, layer: Any, path: str, x: Value) -> Value:
    return batch_norm(walk, call, layer, path, walk.pin_along(x, range(2, x.data.dim())))


_RULES: dict[type[nn.Module], Callable[..., Value]] = {
    nn.Linear: linear,
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: layer_norm,
    nn.Embedding: embedding,
    nn.PReLU: prelu,
    FilterResponseNorm2d: filter_response,
}


def attention(walk: Walk, call: Call, layer: nn.MultiheadAttention, path: str) -> Any:
    """`nn.MultiheadAttention`; NotImplemented for options that are not known.

        heads_h = softmax(Q_h K_h^T / sqrt(d)) V_h,    out = W_o [heads_1, ..., heads_g] + b_o

    Within a head, features of queries and keys change places together and scale inversely; features
    of values do so with the columns of W_o that read them. Heads change places as a whole.
    """
    inputs = [
        walk.adopt(call.kwargs.get(n, call.args[k] if len(call.args) > k else None))
        for k, n in enumerate(("query", "key", "value"))
    ]
    options = {"query", "key", "value", "need_weights", "average_attn_weights"}
    plain = layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn
    if not all(isinstance(x, Value) for x in inputs) or not plain or len(call.args) > 3:
        return NotImplemented
    if not set(call.kwargs) <= options or not call.kwargs.get("average_attn_weights", True):
        return NotImplemented
    size, heads = layer.embed_dim, layer.num_heads
    units, values = walk.moves.fresh(size), walk.moves.fresh(size)
    scales, value_scales = walk.scales.fresh(size), walk.scales.fresh(size)
    inverse = walk.scales.power(scales, -1)
    for features in (units, values):
        walk.mark(call.token, features.reshape(heads, -1))
    read = _rows([walk.channel(x, -1)[0] for x in inputs], size)
    read_scale = _rows([walk.scale_channel(x, -1) for x in inputs], size)
    written = np.concatenate([units, units, values])
    written_scale = np.concatenate([scales, inverse, value_scales])
    walk.place(
        f"{path}.in_proj_weight",
        "weight",
        {"out": (along(written, 0, 2), 0), "in": (read, 1)},
        {"out": (along(written_scale, 0, 2), 1), "in": (read_scale, -1)},
    )
    if layer.in_proj_bias is not None:
        walk.place(
            f"{path}.in_proj_bias", "bias", {"out": (written, 0)}, {"out": (written_scale, 1)}
        )
    out, out_scale = walk.moves.fresh(size), walk.scales.fresh(size)
    walk.place(
        f"{path}.out_proj.weight",
        "weight",
        {"out": (along(out, 0, 2), 0), "in": (along(values, 1, 2), 1)},
        {"out": (along(out_scale, 0, 2), 1), "in": (along(value_scales, 1, 2), -1)},
    )
    if layer.out_proj.bias is not None:
        walk.place(f"{path}.out_proj.bias", "bias", {"out": (out, 0)}, {"out": (out_scale, 1)})
    result, weights = call.data
    dim = result.dim()
    labelled = Value(result, [along(out, -1, dim)], along(out_scale, -1, dim))
    return labelled, None if weights is None else Value(weights)


def _rows(labels: list[Label], size: int) -> Label:
    """Return a label (3 E, E); each third of its rows reads other units."""
    return np.concatenate([np.broadcast_to(label, (size, size)) for label in labels])
