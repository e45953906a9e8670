"""Targets in canonical form, int64 labels (N,) or float values (N, D), or an error with the row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import as_numbers

NOT_OBSERVED = -100  # torch's and Hugging Face's label for "no target here"


def check_labels(targets: Any, num_classes: int | None = None) -> Tensor:
    """Return class labels as int64 (N,), or say what is wrong with them; N may be zero.

    Integers of any width and booleans are labels. Floats, one-hot rows and columns (N, 1) are
    refused with the remedy: guessing what was meant is how a loss comes to train on nonsense.

    Args:
        targets: tensor or array of N labels.
        num_classes: labels must be below it; None allows any label >= 0.
    """
    labels = _as_tensor(targets)
    _refuse_multi_label(labels)
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"Labels must be integers, got {labels.dtype} of shape {tuple(labels.shape)}."
            " Convert class indices with `.long()`, one-hot rows or class probabilities with"
            " `.argmax(-1)`; for real-valued targets choose a regression likelihood."
        )
    if labels.dim() != 1:
        remedy = "`.squeeze(-1)`" if labels.shape[-1:] == (1,) else "`.argmax(-1)` if one-hot"
        raise ValueError(f"Labels must have shape (N,), got {tuple(labels.shape)}. Take {remedy}.")
    labels = labels.long()
    wrong = labels < 0 if num_classes is None else (labels < 0) | (labels >= num_classes)
    if wrong.any():
        row = int(wrong.int().argmax())
        legal = ">= 0" if num_classes is None else f"in 0..{num_classes - 1}"
        raise ValueError(
            f"Labels must be {legal}, got {int(labels[row])} in row {row}"
            f" ({int(wrong.sum())} of {len(labels)} labels are out of range)."
        )
    return labels


def _refuse_multi_label(targets: Tensor) -> None:
    """Refuse rows of zeros and ones of which some have no one or several."""
    if targets.dim() != 2 or targets.shape[1] < 2 or targets.is_complex():
        return
    if not ((targets == 0) | (targets == 1)).all():
        return
    ones = targets.long().sum(1)
    odd = (ones != 1).nonzero().flatten()
    if len(odd):
        row = int(odd[0])
        raise ValueError(
            f"Targets of shape {tuple(targets.shape)} are multi-label: row {row} has"
            f" {int(ones[row])} labels ({len(odd)} of {len(targets)} rows do not have one). Several"
            " labels per example are likelihood='bernoulli' with integer targets, y.long(); tags of"
            " two classes are Positions(Categorical(), axes=1)"
        )


def check_values(targets: Any, target_size: int | None = None) -> Tensor:
    """Return regression targets as finite floats (N, D), or say what is wrong with them.

    Shape (N,) becomes (N, 1); integers become the default float type; N may be zero.

    Args:
        targets: tensor or array of N values or N rows of D values.
        target_size: the D that is expected; None allows any D >= 1.
    """
    values = _as_tensor(targets)
    if values.dtype == torch.bool or values.is_complex():
        raise ValueError(f"Regression targets must be real numbers, got {values.dtype}.")
    if not values.is_floating_point():
        values = values.to(torch.get_default_dtype())
    if values.dim() == 1:
        values = values.unsqueeze(-1)
    if values.dim() != 2 or values.shape[-1] == 0:
        shape = tuple(values.shape)
        raise ValueError(f"Regression targets must have shape (N,) or (N, D), got {shape}.")
    if target_size is not None and values.shape[-1] != target_size:
        raise ValueError(
            f"Regression targets must have {target_size} dimension(s), got {values.shape[-1]}."
        )
    wrong = ~values.isfinite().all(-1)
    if wrong.any():
        row = int(wrong.int().argmax())
        raise ValueError(
            f"Regression targets must be finite, got {values[row].tolist()} in row {row}"
            f" ({int(wrong.sum())} of {len(values)} rows are not). Drop or impute these rows."
        )
    return values


def check_as_many(targets: int, predictions: int, what: str, of: str = "prediction(s)") -> None:
    """Refuse numbers of targets and predictions that differ, and none at all."""
    if targets != predictions or not targets:
        raise ValueError(f"Got {targets} {what} for {predictions} {of}; need as many, >= 1.")


def _as_tensor(targets: Any) -> Tensor:
    return as_numbers("Targets", targets)


def align(targets: Tensor, shape: torch.Size, trailing: int) -> Tensor:
    """Return targets in this shape; the last `trailing` axes, B or (B, D), never broadcast.

    Else values (B,) against outputs (M, B, 1) would become (M, B, B) and train on wrong pairs.
    """
    if targets.shape == shape:
        return targets
    if trailing == 2 and targets.dim() == 1 and shape[-1] == 1:
        targets = targets.unsqueeze(-1)
    if targets.dim() > len(shape) or targets.shape[-trailing:] != shape[-trailing:]:
        need, got = tuple(shape[-trailing:]), tuple(targets.shape)
        raise ValueError(f"Outputs need targets of shape (..., {str(need)[1:]}, got {got}.")
    return targets.expand(shape)
