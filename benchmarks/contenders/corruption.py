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
    """The same operations on single images, each with draws for itself alone."""
    from polymode.core.rng import generator
    from polymode.tasks.shifts import SHIFTS
    from polymode.tasks.shifts.shift import Draws

    x = images(case)[0][:SINGLE].float() / 255
    shift = SHIFTS.get(case.option).value
    constants = shift.colour[SEVERITY - 1]

    def run() -> None:
        torch.set_num_threads(1)
        for number, row in enumerate(x.split(1)):
            shift.kernel(row, constants, Draws(generator(0, number), 1, row)).clamp_(0, 1)

    return Job(run, 1, scale=case.num_examples / len(x))
