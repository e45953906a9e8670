"""A made-up prediction on the plane of its inputs."""

from __future__ import annotations

import numpy as np
import torch


def plane(made, side=5, samples=2, order="xy"):
    """A plane whose class probability grows with the first input alone."""
    steps = np.linspace(-1, 1, side)
    y, x = np.meshgrid(steps, steps, indexing="ij")
    grid = np.stack([x, y] if order == "xy" else [y, x], -1).reshape(-1, 2)
    first = 1 / (1 + np.exp(-3 * grid[:, 0]))
    probs = np.stack([first, 1 - first], -1)[None].repeat(samples, 0)
    probs[1:] = probs[1:, :, ::-1]
    kept = made.classes(probs)._replace(inputs=torch.as_tensor(grid))
    train = made.classes(probs[:, :3], np.array([0, 1, 1]))
    return {"plane": kept, "train": train._replace(inputs=torch.as_tensor(grid[:3]))}
