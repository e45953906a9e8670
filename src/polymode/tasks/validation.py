"""The validation set under synthetic shifts, on which options that concern shifts are chosen.

Choosing them on the test set's shifts would be training on the test set. Images get the four
corruptions that Hendrycks and Dietterich set aside for this purpose, `speckle_noise`,
`gaussian_blur`, `spatter` and `saturate`, besides the fifteen of their benchmark; other inputs get
Gaussian noise. Nothing here looks at the test set. A mean over all nineteen corruptions of the test
set contains the four kinds that were chosen on; one over the fifteen does not.

Reference: D. Hendrycks, T. Dietterich, Benchmarking neural network robustness to common corruptions
    and perturbations, ICLR 2019, section 4.1.

`N` examples, `C` channels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from polymode.core.rng import fold, generator
from polymode.core.rows import is_one_shape, shapes_text
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.images.pixels import to_bytes, to_unit
from polymode.tasks.shifts import SEVERITIES, corrupt
from polymode.tasks.shifts.shift import SMALLEST_SIDE
from polymode.tasks.task import Task
from polymode.training.data import Arrays, Loader, Pixels

VALIDATION_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
NOISE_STDS = (0.1, 0.2, 0.4, 0.8, 1.6)  # in standard deviations of each feature

_ROUNDING = 1e-5  # of scaling pixels and back, far below the step 1/255 of a byte
_CHUNK = 512  # examples read from a loader at a time

Makers = dict[int, Callable[[], Arrays]]


def validation_shifts(task: Task, *, seed: int = 0) -> dict[str, Makers]:
    """Return the validation set under each shift and severity, made when it is asked for.

    Images are corrupted in pixel space, before normalisation: those kept as bytes (`Pixels`), whose
    corrupted pixels are rounded to bytes again, and floating-point images (N, C, H, W) with 1 or 3
    channels and sides of at least 8 that lie in [0, 1] once the task's `input_scaling` is undone.
    `saturate` is left out for one channel, which has no saturation. All other inputs get "noise":
    x + a std z with z standard normal, std of each feature over the validation inputs, and
    a = 0.1, 0.2, 0.4, 0.8, 1.6 for severities 1 to 5.

    Args:
        task: with a validation set of real-valued inputs. A loader is read once, here.
        seed: draws the random shifts.

    Returns:
        name -> severity (1 to 5) -> function without arguments that returns the shifted `Arrays`,
        with the targets as they are.

    >>> from polymode.tasks import task
    >>> shifts = validation_shifts(task("digits"))
    >>> {name: list(severities) for name, severities in shifts.items()}["spatter"]
    [1, 2, 3, 4, 5]
    >>> shifts["spatter"][5]().x.shape
    torch.Size([200, 1, 8, 8])
    """
    data = _validation_set(task)
    stream = fold(seed, "validation")
    scaling = data.scaling if isinstance(data, Pixels) else task.input_scaling
    if _are_images(data, scaling):
        make = partial(_corrupted, data, scaling, stream)
        return {
            kind: {severity: partial(make, kind, severity) for severity in SEVERITIES}
            for kind in VALIDATION_CORRUPTIONS
            if kind != "saturate" or task.input_shape[0] == 3
        }
    return {"noise": {s: partial(_noisy, data, stream, s) for s in SEVERITIES}}


def _validation_set(task: Task) -> Arrays:
    """Return the validation set in memory, or say why it cannot be shifted."""
    data = task.val
    if not is_one_shape(task.input_shape):
        raise ValueError(
            f"task '{task.name}' has several inputs ({shapes_text(task.input_shape)}), and"
            " synthetic shifts are of one; leave them out"
        )
    if data is None:
        raise ValueError(
            f"task '{task.name}' has no validation set to shift; give one, such as"
            " pm.Task(val=(x, y), ...)"
        )
    if isinstance(data, Loader):
        parts = list(data.epoch(_CHUNK, 0))  # its shuffling, if any, from a fixed seed
        x, y = (torch.cat(part) for part in zip(*parts, strict=True))
        data = Arrays(x, y)
    inputs = data.head(1)[0]
    if not inputs.is_floating_point():
        raise ValueError(
            f"the validation inputs of task '{task.name}' are {inputs.dtype}, which no noise can be"
            " added to; choose on a task with real-valued inputs"
        )
    return data


def _are_images(data: Arrays, scaling: Scaling | None) -> bool:
    """Whether the corruptions of images take these inputs."""
    shape = tuple(data.head(1)[0].shape[1:])
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < SMALLEST_SIDE:
        return False
    if isinstance(data, Pixels):
        return True
    pixels = data.x if scaling is None else scaling.inverse(data.x)
    return bool(pixels.min() >= -_ROUNDING) and bool(pixels.max() <= 1 + _ROUNDING)


def _corrupted(
    data: Arrays, scaling: Scaling | None, seed: int, kind: str, severity: int
) -> Arrays:
    """Return images under a corruption, normalised as they were."""
    if isinstance(data, Pixels):
        images = corrupt(to_unit(data.pixels), kind, severity, seed=seed)
        return Pixels(to_bytes(images), data.y, data.scaling)
    pixels = data.x if scaling is None else scaling.inverse(data.x)
    images = corrupt(pixels.clamp(0, 1), kind, severity, seed=seed)
    return Arrays(images if scaling is None else scaling(images), data.y)


def _noisy(data: Arrays, seed: int, severity: int) -> Arrays:
    """Return inputs with Gaussian noise in proportion to each feature's spread."""
    x = data.x
    spread = x.double().std(0, correction=0)
    noise = torch.randn(x.shape, generator=generator(seed, "noise", severity))
    return Arrays(x + (NOISE_STDS[severity - 1] * spread * noise.to(spread)).to(x.dtype), data.y)
