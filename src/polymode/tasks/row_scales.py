"""Whether the columns of a table are on scales that networks do not learn from."""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.likelihoods.scaling import Scaling
from polymode.training.data import Arrays, Data

LARGE, SMALL = 10.0, 0.1  # root mean square of a column: networks start from inputs around 1


def standardisation_of_rows(data: Data) -> Scaling | None:
    """Return mean and standard deviation of the columns of rows (N, D) on odd scales, else None."""
    first = data.head(1)[0] if isinstance(data, Arrays) else None
    rows = isinstance(first, Tensor) and first.dim() == 2 and first.is_floating_point()
    if not isinstance(data, Arrays) or not rows or len(data) < 2:
        return None
    x: Tensor = data.x
    size = x.double().square().mean(0).sqrt()
    if size.max() <= LARGE and (size.max() >= SMALL or size.max() == 0):
        return None
    return Scaling.of(x)


def scales_text(scaling: Scaling) -> str:
    """Return what to tell of inputs that networks standardise themselves."""
    scale, shift = scaling.scale, scaling.shift.abs()
    low, high = int(scale.argmin()), int(torch.maximum(scale, shift).argmax())
    return (
        f"inputs are on scales that networks do not learn from (column {high} has mean"
        f" {scaling.shift[high].item():.3g} and standard deviation {scale[high].item():.3g}, column"
        f" {low} has standard deviation {scale[low].item():.3g}), so the networks standardise them"
        " inside; inputs of predictions stay as they are. Give pm.Task(input_scaling=None) to leave"
        " that out"
    )
