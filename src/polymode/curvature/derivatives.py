"""Which operations of a forward pass are known, and what their parameters' derivatives are made of.

Operations are met as functions (`F.linear`, not `nn.Linear`), so that residual blocks, modules of
one's own, tied weights and attention need nothing special. What combines two tensors entry by entry
is named in the table of operations (`tracing/operations.py`). For each parameter of a call there is
a function from the gradients of its result, (R, ...), to a `Record`.

==========================  ==============================================================
`F.linear`                  matrix: inputs and gradients at each position
`F.conv1d`, 2d, 3d          matrix, grouped: windows of the inputs
`F.conv_transpose1d`, ...   matrix, grouped: the inputs, and windows of the gradients
`F.embedding`               matrix: one-hot rows, never written out
batch, layer, group, RMS    scale and shift, element by element
norm
p x, p + x, x / p,          any parameter that enters element by element: FilterResponseNorm,
max(p, x), x += p,          positions, tokens, FixUp's scalars
p.expand(B, ...)
`F.prelu`                   slopes, one or one per channel
==========================  ==============================================================

Shapes: `R` cotangents, `B` batch, `T` positions, `G` groups, `O` and `I` features.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from polymode.curvature.records import Record
from polymode.tracing.operations import Operation, operation


class Geometry(NamedTuple):
    """How a convolution moves over its input, one number per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Geometry:
        """Return the geometry of the arguments of a `torch.conv*` function."""
        kernel = tuple(weight.shape[2:])
        number = len(kernel)
        dilations = _each(dilation, number)
        if padding == "same":  # as torch: the odd one goes to the end
            totals = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
            sides = tuple((total // 2, total - total // 2) for total in totals)
        elif padding == "valid":
            sides = ((0, 0),) * number
        else:
            sides = tuple((p, p) for p in _each(padding, number))
        return cls(kernel, _each(stride, number), sides, dilations, groups)


def _each(value: Any, number: int) -> tuple[int, ...]:
    values = (value,) * number if isinstance(value, int) else tuple(value)
    return values * number if len(values) == 1 else values


def windows(images: Tensor, geometry: Geometry) -> Tensor:
    """Return (..., C, *spatial) as (..., groups, T, C / groups * kernel), T positions."""
    lead, number = images.shape[: -1 - len(geometry.kernel)], len(geometry.kernel)
    x = images.flatten(0, len(lead) - 1) if len(lead) > 1 else images
    if number == 2 and all(a == b for a, b in geometry.padding):
        pads = tuple(a for a, _ in geometry.padding)
        columns = F.unfold(x, geometry.kernel, geometry.dilation, pads, geometry.stride)
    else:
        sides = [side for pair in reversed(geometry.padding) for side in pair]
        x = F.pad(x, sides)
        for axis, (k, s, d) in enumerate(
            zip(geometry.kernel, geometry.stride, geometry.dilation, strict=True)
        ):
            x = x.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
        # (N, C, *positions, *kernel) -> (N, C kernel, T)
        axes = (0, 1, *range(2 + number, 2 + 2 * number), *range(2, 2 + number))
        x = x.permute(axes)
        columns = x.reshape(x.shape[0], x.shape[1] * _product(geometry.kernel), -1)
    grouped = columns.unflatten(1, (geometry.groups, -1)).mT  # (N, G, T, I)
    return grouped.unflatten(0, lead)


def _product(numbers: tuple[int, ...]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


Build = Callable[[Tensor], Record]


class Entry(NamedTuple):
    """How one parameter enters a call.

    Attributes:
        parameter: the tensor itself. kind: "matrix", "bias" or "element".
        build: gradients of the result (R, ...) -> record.
    """

    parameter: Tensor
    kind: str
    build: Build


class Call(NamedTuple):
    """A call whose parameters are known.

    Attributes:
        result: of the call. entries: how the parameters enter it.
        layer: of a matrix whose rows make one output each, the same call with other weights and
            biases (or None), of any number of rows.
        outputs_axis: where the result has one number for each row. groups: of a convolution.
    """

    result: Tensor
    entries: list[Entry]
    layer: Callable[[Tensor, Tensor | None], Tensor] | None = None
    outputs_axis: int = -1
    groups: int = 1


class Layout(NamedTuple):
    """Where the examples are in the tensors of a call.

    Attributes:
        kind: "first": along axis 0, alone or with frames after it; "second": along axis 1.
        batch: B.
        is_parameter: whether a tensor is a parameter of the network.
    """

    kind: str
    batch: int
    is_parameter: Callable[[Tensor], bool]


def known(function: Callable[..., Any]) -> Callable[..., Call] | None:
    """Return what makes a `Call` of (function, args, kwargs, layout); None if not known.

    It raises `NotImplementedError` where the arguments are beyond it. The result of a function that
    writes into its first argument is a new tensor, which the caller has to copy there.
    """
    make, entry = _OPERATIONS.get(getattr(function, "__name__", "")), operation(function)
    return _pointwise if make is None and entry is not None and entry.kind in _COMBINES else make


def writes_into_input(function: Callable[..., Any]) -> bool:
    """Whether a function is one that is known, and changes its first argument."""
    entry = operation(function)
    return entry is not None and entry.in_place and known(function) is not None


def _named(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; builtins do not tell theirs."""
    return dict(zip(names.split(), args, strict=False)) | kwargs


def by_example(x: Tensor, layout: str, batch: int, lead: int = 0) -> Tensor:
    """Return (..., F) with `lead` axes in front as (lead..., B, T, F)."""
    if layout == "second":
        x = x.transpose(lead, lead + 1)
    return x.reshape(*x.shape[:lead], batch, -1, x.shape[-1])


def _ones(g: Tensor) -> Tensor:
    """The fixed part of what is added: one, at each position of g (R, G, B, T, O)."""
    return g.new_ones(1, 1, 1, 1).expand(g.shape[1], g.shape[2], g.shape[3], 1)


def _linear(function: Any, args: Any, kwargs: Any, layout: Layout) -> Call:
    named = _named("input weight bias", args, kwargs)
    x, weight, bias = named["input"], named["weight"], named.get("bias")
    result = function(*args, **kwargs)
    rows = partial(by_example, layout=layout.kind, batch=layout.batch)

    def of_weight(g: Tensor) -> Record:
        return Record(rows(g, lead=1).unsqueeze(1), rows(x).unsqueeze(0), x.shape[-1])

    entries = [Entry(weight, "matrix", of_weight), *_bias(bias, rows)]
    return Call(result, entries, partial(function, x))


def _bias(bias: Tensor | None, rows: Callable[..., Tensor]) -> list[Entry]:
    if bias is None:
        return []

    def of_bias(g: Tensor) -> Record:
        moving = rows(g, lead=1).unsqueeze(1)
        return Record(moving, _ones(moving), 1)

    return [Entry(bias, "bias", of_bias)]


def _channels_last(g: Tensor, lead: int = 0, *, batch: int) -> Tensor:
    """Return images (lead..., N, C, *spatial) as (lead..., B, T, C), N = B times frames."""
    flat = g.flatten(lead + 2) if g.dim() > lead + 2 else g.unsqueeze(-1)
    flat = flat.unflatten(lead, (batch, -1))  # (..., B, frames, C, T)
    if flat.shape[lead + 1] == 1:
        return flat.squeeze(lead + 1).mT
    return flat.mT.flatten(lead + 1, lead + 2)


def _by_group(x: Tensor, batch: int, lead: int = 0) -> Tensor:
    """Return windows (lead..., N, G, T, F) as (lead..., G, B, T', F)."""
    x = x.movedim(lead + 1, lead).unflatten(lead + 1, (batch, -1))
    return x.squeeze(lead + 2) if x.shape[lead + 2] == 1 else x.flatten(lead + 2, lead + 3)


def _grouped_channels(g: Tensor, groups: int, batch: int, lead: int) -> Tensor:
    """Return images (lead..., N, C, *spatial) as (lead..., G, B, T, C / G)."""
    moved = _channels_last(g, lead, batch=batch).unflatten(-1, (groups, -1))
    return moved.movedim(-2, lead)


def _convolution(function: Any, args: Any, kwargs: Any, layout: Layout) -> Call:
    """A convolution, or its adjoint, which multiplies each input and spreads it over a window."""
    transposed = "transpose" in function.__name__
    order = "output_padding groups dilation" if transposed else "dilation groups"
    usual = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    named = usual | _named(f"input weight bias stride padding {order}", args, kwargs)
    x, weight, bias = named["input"], named["weight"], named["bias"]
    result = function(*args, **kwargs)
    geometry = Geometry.of(
        weight, named["stride"], named["padding"], named["dilation"], named["groups"]
    )
    batch, spatial = layout.batch, x.shape[2:]

    def of_weight(g: Tensor) -> Record:
        if transposed:
            columns = windows(g, geometry)  # one window per input position, and perhaps some more
            columns_of_inputs = _first_windows(columns, g.shape[3:], spatial, geometry)
            moving = _by_group(columns_of_inputs, batch, 1)
            fixed = _grouped_channels(x, geometry.groups, batch, 0)
        else:
            fixed = _by_group(windows(x, geometry), batch)
            moving = _grouped_channels(g, geometry.groups, batch, 1)
        return Record(moving, fixed, fixed.shape[-1], fixed_first=transposed)

    def again(weight: Tensor, bias: Tensor | None) -> Tensor:
        return function(**{**named, "weight": weight, "bias": bias})  # type: ignore[no-any-return]

    entries = [Entry(weight, "matrix", of_weight)]
    entries += _bias(bias, partial(_channels_last, batch=batch))
    return Call(result, entries, None if transposed else again, 1, geometry.groups)


def _first_windows(columns: Tensor, big: Any, small: Any, geometry: Geometry) -> Tensor:
    """Return the windows that belong to inputs: `output_padding` may leave further ones."""
    counts = [
        (size + a + b - d * (k - 1) - 1) // s + 1
        for size, (a, b), d, k, s in zip(
            big, geometry.padding, geometry.dilation, geometry.kernel, geometry.stride, strict=True
        )
    ]
    if tuple(counts) == tuple(small):
        return columns
    shaped = columns.unflatten(-2, counts)
    for axis, size in enumerate(small):
        shaped = shaped.narrow(axis - len(small) - 1, 0, size)
    return shaped.flatten(-1 - len(small), -2)


def _embedding(function: Any, args: Any, kwargs: Any, layout: Layout) -> Call:
    names = "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse"
    named = _named(names, args, kwargs)
    ids, weight, padding = named["input"], named["weight"], named.get("padding_idx")
    if named.get("max_norm") is not None:
        raise NotImplementedError  # it rewrites the weights
    result = function(*args, **kwargs)

    def of_weight(g: Tensor) -> Record:
        labels = by_example(ids.unsqueeze(-1), layout.kind, layout.batch).squeeze(-1)
        moving = by_example(g, layout.kind, layout.batch, 1)
        if padding is not None and padding >= 0:  # its row has no gradient
            moving = moving * (labels != padding).unsqueeze(-1)
        return Record(moving.unsqueeze(1), labels.unsqueeze(0), len(weight), fixed_first=True)

    return Call(result, [Entry(weight, "matrix", of_weight)])


def _element(factor: Tensor | float, shape: tuple[int, ...], batch: int, g: Tensor) -> Record:
    """Return the record of a parameter whose derivative is g · factor, summed over where it is
    shared: `shape` is the parameter's, aligned with the last axes of g (R, N, ...)."""
    product = (g * factor).unflatten(1, (batch, -1))  # (R, B, frames, ...)
    trailing = g.dim() - 2
    sizes = ((1,) * (trailing - len(shape)) + tuple(shape))[-trailing:] if trailing else ()
    axes = [2, *(3 + k for k, size in enumerate(sizes) if size == 1)]
    moving = product.sum(axes).reshape(g.shape[0], 1, batch, 1, -1)
    return Record(moving, _ones(moving), 1)


def _norm(function: Any, args: Any, kwargs: Any, layout: Layout) -> Call:
    name = function.__name__
    named = _named(_NORMS[name], args, kwargs)
    trailing = name in ("layer_norm", "rms_norm")
    if named.get("training") or (layout.kind == "second" and not trailing):
        raise NotImplementedError  # statistics of the batch would tie its examples to each other
    result = function(*args, **kwargs)
    affine = {key: named[key] for key in ("weight", "bias") if named.get(key) is not None}
    normalised = function(**{**named, **dict.fromkeys(affine)})
    if trailing:
        shape = tuple(named["normalized_shape"])
    else:
        shape = (result.shape[1], *(1,) * (result.dim() - 2))
    if layout.kind == "second":
        normalised = normalised.transpose(0, 1)
    factors = {"weight": normalised, "bias": 1.0}

    def build(key: str, g: Tensor) -> Record:
        g = g.transpose(1, 2) if layout.kind == "second" else g
        return _element(factors[key], shape, layout.batch, g)

    return Call(result, [Entry(t, "element", partial(build, key)) for key, t in affine.items()])


def _pointwise(function: Any, args: Any, kwargs: Any, layout: Layout) -> Call:
    if len(args) != 2 or kwargs or layout.kind == "second":
        raise NotImplementedError
    first, second = (
        isinstance(argument, Tensor) and layout.is_parameter(argument) for argument in args
    )
    entry = operation(function, args)
    beyond = entry is None or (entry.in_place and first)  # a parameter that is changed
    if first == second or beyond or not all(isinstance(x, Tensor) for x in args):
        raise NotImplementedError
    assert entry is not None
    result = getattr(Tensor, entry.name)(*args) if entry.in_place else function(*args)
    parameter, other = args if first else args[::-1]
    _require_shared(parameter, result)
    factor = _slope(entry, parameter, other, first)
    build = partial(_element, factor, tuple(parameter.shape), layout.batch)
    return Call(result, [Entry(parameter, "element", build)])


def _slope(entry: Operation, parameter: Tensor, other: Tensor, first: bool) -> Tensor | float:
    """Return the derivative of an operation with respect to the one of two inputs that is a
    parameter: the `first`, or the second."""
    if entry.kind == "product":
        return other
    if entry.kind == "quotient":
        return other.reciprocal() if first else -other / parameter.square()
    if entry.name in ("maximum", "max", "minimum", "min"):
        larger = entry.name in ("maximum", "max")
        taken = parameter > other if larger else parameter < other
        # where both are equal, each gets half, as in torch
        return taken.to(other.dtype) + 0.5 * (parameter == other).to(other.dtype)
    # x - p and rsub(p, x) are the ones that take the parameter off
    subtracted = "sub" in entry.name and first == (entry.name == "rsub")
    return -1.0 if subtracted else 1.0


def _prelu(function: Any, args: Any, kwargs: Any, layout: Layout) -> Call:
    named = _named("input weight", args, kwargs)
    x, weight = named["input"], named["weight"]
    result, second = function(*args, **kwargs), layout.kind == "second"
    factor = x.clamp_max(0)
    if second:
        if weight.numel() > 1:
            raise NotImplementedError  # its channels would be the examples
        factor = factor.transpose(0, 1)
    shape = (weight.numel(), *(1,) * (x.dim() - 2)) if weight.numel() > 1 else ()

    def build(g: Tensor) -> Record:
        return _element(factor, shape, layout.batch, g.transpose(1, 2) if second else g)

    return Call(result, [Entry(weight, "element", build)])


def _expanded(function: Any, args: Any, kwargs: Any, layout: Layout) -> Call:
    result, parameter = function(*args, **kwargs), args[0]
    if not layout.is_parameter(parameter):  # `x.expand_as(p)` takes the shape of p only
        return Call(result.clone(), [])
    _require_shared(parameter, result)
    build = partial(_element, 1.0, tuple(parameter.shape), layout.batch)
    return Call(result.clone(), [Entry(parameter, "element", build)])


def _require_shared(parameter: Tensor, result: Tensor) -> None:
    """Refuse a parameter that has the axis of examples itself."""
    if parameter.dim() > result.dim() or (
        parameter.dim() == result.dim() and parameter.shape[0] != 1
    ):
        raise NotImplementedError


_NORMS = {
    "batch_norm": "input running_mean running_var weight bias training momentum eps",
    "layer_norm": "input normalized_shape weight bias eps",
    "group_norm": "input num_groups weight bias eps",
    "rms_norm": "input normalized_shape weight eps",
}
_COMBINES = ("sum", "product", "quotient", "extremum")  # two inputs, entry by entry
_OPERATIONS: dict[str, Callable[..., Call]] = {
    "linear": _linear,
    **{f"conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _convolution for n in (1, 2, 3)},
    "embedding": _embedding,
    **dict.fromkeys(_NORMS, _norm),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expanded),
    "prelu": _prelu,
}  # fmt: skip
