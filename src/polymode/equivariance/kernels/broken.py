"""Which layers break a symmetry: where Θ(g x, g x') = Θ(x, x') does not hold.

Kernels of dense networks depend on inner products only, so every orthogonal action is a symmetry.
With convolutions, windows, padding and strides have to be symmetric too.
"""

from __future__ import annotations

from polymode.core.checks import check_call
from polymode.core.warn import warn
from polymode.equivariance.groups import Group
from polymode.equivariance.kernels.layers import AvgPool, Conv, Layer
from polymode.equivariance.kernels.serial import Residual, Serial
from polymode.equivariance.planar import QuarterTurns, Translations
from polymode.equivariance.vectors import Sign


def broken_by(kernel: Serial, input_shape: tuple[int, ...], group: Group) -> list[str]:
    """Return a sentence for each layer, or action, that breaks the symmetry of the kernel.

    Args:
        input_shape: (d,) or (C, H, W). group: acting on inputs.

    >>> from polymode.equivariance.groups import group
    >>> kernel = Serial(Conv(3, stride=2, padding="valid"))
    >>> broken_by(kernel, (1, 8, 8), group("C4"))
    ["layer 0, Conv(size=3, ...): a stride of 2 does not fit 8 pixels and a window of 3, ..."]
    """
    check_call(broken_by, locals())
    if not group.exact:
        return [
            f"{group.name} is interpolated: its action is not orthogonal, and kernels are symmetric"
            " only as far as interpolation is"
        ]
    if len(input_shape) < 3 or len(group) == 1 or isinstance(group, Sign):
        return []
    return _walk(kernel, input_shape, group, "layer ")[0]


def warn_if_broken(kernel: Serial, input_shape: tuple[int, ...], group: Group) -> bool:
    """Warn about each layer that breaks the symmetry; return whether any does."""
    check_call(warn_if_broken, locals())
    reasons = broken_by(kernel, input_shape, group)
    for reason in reasons:
        warn(f"{group.name} is not a symmetry of the kernel: {reason}")
    return bool(reasons)


def _walk(
    layer: Layer, shape: tuple[int, ...], group: Group, name: str
) -> tuple[list[str], tuple[int, ...]]:
    """Return what breaks the symmetry from here on, and the shape behind."""
    if isinstance(layer, Residual):
        walked = [
            _walk(branch, shape, group, f"{name}, branch {number}, layer ")
            for number, branch in enumerate(layer.branches)
        ]
        return [reason for reasons, _ in walked for reason in reasons], walked[-1][1]
    if isinstance(layer, Serial):
        all_reasons: list[str] = []
        for number, part in enumerate(layer.parts):
            reasons, shape = _walk(part, shape, group, f"{name}{number}")
            all_reasons += reasons
        return all_reasons, shape
    why = _reasons(layer, shape, group) if len(shape) == 3 else []
    return [f"{name}, {layer!r}: {reason}" for reason in why], layer.shape_after(shape)


def _reasons(layer: Layer, shape: tuple[int, ...], group: Group) -> list[str]:
    if not isinstance(layer, (Conv, AvgPool)):
        return []
    sizes = layer.sides if isinstance(layer, Conv) else (layer.size, layer.size)
    pads = layer.pads if isinstance(layer, Conv) else (0, 0)
    stride = layer.stride if isinstance(layer, Conv) else layer.steps
    if isinstance(group, Translations):
        reasons = [f"a stride of {stride} is not moved with the image"] if stride > 1 else []
        if isinstance(layer, AvgPool) or layer.padding != "circular":
            reasons.append("its borders stay where they are; take padding='circular'")
        return reasons
    if not isinstance(group, QuarterTurns):
        return [f"{group.name} does not move windows onto windows"]
    reasons = []
    if group.order == 4 and sizes[0] != sizes[1]:
        reasons.append(f"a window of {sizes[0]}x{sizes[1]} is not square")
    for side, size, pad in zip(shape[1:], sizes, pads, strict=True):
        left = (side + 2 * pad - size) % stride
        if left:
            reasons.append(
                f"a stride of {stride} does not fit {side} pixels and a window of {size},"
                f" {left} of them {'is' if left == 1 else 'are'} left over at one end"
            )
            break
    return reasons
