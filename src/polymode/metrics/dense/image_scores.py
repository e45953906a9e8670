"""From a map of uncertainty to one number for each image.

`B` images.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TOP_SHARE = 0.05
AGGREGATES = {
    "mean": "mean over its pixels",
    "top": "mean over its 5 % most uncertain pixels",
    "max": "largest of its pixels",
}


def aggregates(maps: Tensor) -> dict[str, Tensor]:
    """Return the numbers of images by how they were aggregated, (B,) float64 each.

    Args:
        maps: (B, H, W) of all pixels.
    """
    values = maps.detach().flatten(1).cpu()
    number = max(1, round(TOP_SHARE * values.shape[1]))
    parts = np.partition(values.float().numpy(), values.shape[1] - number, axis=1)
    highest = torch.from_numpy(parts[:, values.shape[1] - number :])
    return {
        "mean": values.double().mean(1),
        "top": highest.double().mean(1),
        "max": values.double().amax(1),
    }
