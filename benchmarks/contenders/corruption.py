"""Corruption of a set of images on one core: as a batch, and image by image."""

from __future__ import annotations

import torch

from ..cases import Case, images
from . import Job

SINGLE = 100  # images that are done one by one; times are scaled to all
SEVERITY = 3


def polymode(case: Case) -> Job:
    """All images in one call."""
    from polymode.tasks.shifts import corrupt

    x = images(case)[0].float() / 255

    def run() -> None:
        torch.set_num_threads(1)
        corrupt(x, case.option, SEVERITY)

    return Job(run, 1)


def image_by_image(case: Case) -> Job:
    """The same function on single images."""
    from polymode.tasks.shifts import corrupt

    x = images(case)[0][:SINGLE].float() / 255

    def run() -> None:
        torch.set_num_threads(1)
        for row in x.split(1):
            corrupt(row, case.option, SEVERITY)

    return Job(run, 1, scale=case.num_examples / len(x))
