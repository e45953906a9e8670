r"""Statistics of masks that depend on neighbours: borders of classes, and patches.

`C` classes, `d` the width of a border, -1 for what is ignored or outside.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

OUTSIDE = -1
DIAGONAL_SHARE = 0.02  # width of a border, as a share of the image's diagonal


def border_width(height: int, width: int) -> int:
    """Return d, 2 % of the diagonal of the image, at least one pixel."""
    return max(1, round(DIAGONAL_SHARE * math.hypot(height, width)))


def near_border(labels: Tensor, reach: int) -> Tensor:
    """Return where a square of side 2 reach + 1 around a pixel holds another label, bool (H, W).

    What lies outside the image is another label. Numbers of differing neighbours in each square
    come from cumulative sums, so that the cost does not depend on `reach`.
    """
    padded = F.pad(labels, (reach, reach, reach, reach), value=OUTSIDE - 1)
    size = 2 * reach + 1
    down = _sums_in((padded[1:] != padded[:-1]).int(), size - 1, size)
    across = _sums_in((padded[:, 1:] != padded[:, :-1]).int(), size, size - 1)
    return (down + across) > 0


def _sums_in(values: Tensor, rows: int, columns: int) -> Tensor:
    """Return sums over all windows of so many rows and columns."""
    sums = F.pad(values.cumsum(0).cumsum(1), (1, 0, 1, 0))
    tall = sums[rows:] - sums[:-rows]
    return tall[:, columns:] - tall[:, :-columns]


def border_counts(labels: Tensor, predicted: Tensor, observed: Tensor, classes: int) -> Tensor:
    r"""Return intersections and unions of borders by class, (2, C).

    The border of class c is what of its pixels lies within d of another label, of the truth
    :math:`G_c` and of the prediction :math:`P_c`; a class counts

    .. math:: |G_c \cap P_c| \quad\text{and}\quad |G_c \cup P_c|.

    Args:
        labels, predicted: (H, W), predicted at all pixels. observed: (H, W) bool.

    Reference: B. Cheng, R. Girshick, P. Dollár, A. C. Berg, A. Kirillov, Boundary IoU: improving
    object-centric image segmentation evaluation, CVPR 2021.
    """
    reach = border_width(*labels.shape)
    masks = [values.masked_fill(~observed, OUTSIDE) for values in (labels, predicted)]
    at = [near_border(values, reach) & observed for values in masks]
    truth, guess = (values[near] for values, near in zip(masks, at, strict=True))
    shared = masks[0][at[0] & at[1] & (masks[0] == masks[1])]
    of_each = [torch.bincount(part, minlength=classes) for part in (truth, guess, shared)]
    return torch.stack([of_each[2], of_each[0] + of_each[1] - of_each[2]])


def patch_counts(right: Tensor, doubt: Tensor, observed: Tensor, side: int) -> Tensor:
    """Return how many patches are accurate and certain, accurate and uncertain, and so for
    inaccurate ones, (4,).

    A patch of side x side pixels is accurate if more than half of its observed pixels are right,
    and uncertain if their mean doubt, 1 - confidence, is above one half.

    Args:
        right: (H, W) bool. doubt: (H, W). observed: (H, W) bool; patches without any do not count.
    """
    present = observed.double()
    layers = torch.stack([present, right * present, doubt.double() * present]).unsqueeze(0)
    pooled = F.avg_pool2d(layers, side, ceil_mode=True, count_include_pad=False)[0].flatten(1)
    pooled = pooled[:, pooled[0] > 0]
    accurate, uncertain = pooled[1] > 0.5 * pooled[0], pooled[2] > 0.5 * pooled[0]
    return torch.bincount(2 * (~accurate).long() + uncertain, minlength=4)
