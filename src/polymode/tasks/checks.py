"""What inputs and targets must be like: the checks at the border, for whole sets and for one batch.

Every message says which set, how many values, the first row, and what to do about it.
`B` batch, `N` examples, `D` target dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.likelihoods.kinds import Likelihood
from polymode.training.data import Pair

Shape = tuple[int, ...]


def check_batch(
    likelihood: Likelihood,
    target_size: int,
    input_shape: Shape,
    x: OnlyTensor,
    y: OnlyTensor,
    *,
    what: str = "batch",
) -> Pair:
    """Return inputs and canonical targets of one batch, or say what is wrong with them.

    Cheap enough for every step: one sum over the inputs, and the likelihood's check of the targets.
    On an accelerator each call waits for the device.

    Args:
        likelihood, target_size, input_shape: those of the task.
        x: inputs (B, *input_shape), finite; floating-point, or integer identifiers.
        y: targets (B,) or (B, D).
        what: name of the set in messages ("train", "ood set 'svhn'").

    Returns:
        x as it is, and y as `likelihood.check` returns it: int64 (B,) labels or floating-point (B,
        D).
    """
    check_call(check_batch, locals())
    check_inputs(x, input_shape, what)
    if len(x) != len(y):
        raise ValueError(f"{what} has {len(x):,} inputs and {len(y):,} targets")
    return x, check_targets(likelihood, target_size, y, what)


def check_inputs(x: Tensor, input_shape: Shape | None, what: str) -> None:
    """Refuse inputs of another shape than the task's, of a type no network takes, or not finite.

    With `input_shape` None any shape of at least one axis an example will do.
    """
    if x.dtype == torch.uint8:
        raise ValueError(
            f"{what} inputs are uint8; images must be scaled to floating point, such as x / 255"
        )
    if x.dtype == torch.bool or x.is_complex():
        raise ValueError(
            f"{what} inputs are {x.dtype}; give floating-point numbers (x.float()) or integers"
        )
    if x.ndim < 2 or x.nelement() == 0:
        remedy = ": one number per example is x[:, None]" if x.ndim == 1 else ""
        raise ValueError(
            f"{what} inputs have shape {tuple(x.shape)}; an example must have at least one axis and"
            f" one value{remedy}"
        )
    shape = tuple(x.shape[1:])
    if input_shape is not None and shape != input_shape:
        raise ValueError(
            f"{what} has input shape {shape} but the task's inputs have shape {input_shape}"
        )
    check_finite(x, f"{what} inputs")


def check_targets(likelihood: Likelihood, target_size: int | None, y: Tensor, what: str) -> Tensor:
    """Return canonical targets as `likelihood.check` does; its message gets the name of the set."""
    try:
        return likelihood.check(y, target_size)
    except ValueError as error:
        remedy = ""
        if likelihood.classification and target_size and not y.is_floating_point():
            if y.nelement() and int(y.max()) >= target_size:
                remedy = " Classes that train has not need `target_size` of Task."
        raise ValueError(f"{what} targets: {error}{remedy}") from None


def check_finite(values: Tensor, what: str) -> None:
    """Refuse NaN and infinity; one sum where all is well, as each of them makes the sum one."""
    if not values.is_floating_point() or math.isfinite(values.sum().item()):
        return
    bad = ~values.isfinite().flatten(1)
    count, rows = int(bad.sum()), bad.any(1).nonzero()
    if count:  # none: finite values whose sum overflows
        raise ValueError(
            f"{what} have {count:,} of {values.nelement():,} values NaN or infinite, the first in"
            f" row {int(rows[0])} ({len(rows):,} of {len(values):,} rows); drop or impute them"
        )
