"""MNIST-1D: ten signals of 40 numbers instead of images, drawn when asked for.

A template of 12 numbers is padded with zeros, dilated, scaled and moved along the signal; the empty
places get smooth noise, all places white noise and a slope; then 72 places become 40:

    pad to 12 + p, p uniform on 36..60          -> interpolate linearly to 72 places
    times 1 + 0.4 u                             -> roll right by k, k uniform on 0..47
    where the padding is: 0.25 e smoothed by a Gaussian of 2 places
    plus 0.02 e everywhere, minus 0.75 u' (s - 1/2), s from 0 to 1 along the signal
    interpolate linearly to 40 places

with u, u' uniform on [-1/2, 1/2] and e standard normal.

Source: S. Greydanus, D. Kobak, "Scaling Down Deep Learning with MNIST-1D" (ICML 2024); templates
and constants as in the authors' package mnist1d. The random streams are ours, so the signals are
not theirs, but of the same law. `N` signals, `T` places.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from polymode.core.checks import Count
from polymode.core.rng import generator
from polymode.likelihoods.kinds import Categorical
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task

TEMPLATES = (
    (5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5),
    (5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5),
    (5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5),
    (5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5),
    (5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5),
    (5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5),
    (5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5),
    (5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5),
)
SHORT, LONG, LENGTH = 12, 72, 40  # places of a template, of a padded and of a final signal
PADDING = (36, 60)
SCALE, MAX_SHIFT, SLOPE = 0.4, 48, 0.75
SMOOTH_NOISE, SMOOTH_WIDTH, WHITE_NOISE = 0.25, 2.0, 0.02
NOISE_STD = (0.1, 0.2, 0.3, 0.4, 0.5)  # of the shift, in standard deviations of the inputs


class Draws(NamedTuple):
    """The random numbers of N signals: p, u, k, u' (N,), and e for both noises (N, T)."""

    padding: Tensor
    scale: Tensor
    shift: Tensor
    slope: Tensor
    smooth: Tensor
    white: Tensor


def draw(num: int, stream: Generator) -> Draws:
    """Return the random numbers of `num` signals."""
    padding = torch.randint(PADDING[0], PADDING[1] + 1, (num,), generator=stream)
    shift = torch.randint(MAX_SHIFT, (num,), generator=stream)
    scale, slope = torch.rand(2, num, generator=stream) - 0.5
    smooth, white = torch.randn(2, num, LONG, generator=stream)
    return Draws(padding, scale, shift, slope, smooth, white)


def templates() -> Tensor:
    """Return the templates (10, 12): of variance 1/36 each, starting and ending at zero."""
    x = torch.tensor(TEMPLATES)
    x = x / x.std(1, correction=0, keepdim=True)
    return (x - x[:, :1]) / 6


def signals(shapes: Tensor, draws: Draws) -> Tensor:
    """Return signals (N, 40), not standardised, of templates (N, 12) and random numbers.

    A template of NaN stands for none: the whole signal is noise.
    """
    num = len(shapes)
    padded = torch.cat([shapes, torch.zeros(num, LONG - SHORT + 1)], dim=1)
    place = torch.arange(LONG) * ((SHORT - 1 + draws.padding) / (LONG - 1))[:, None]
    before = place.floor().long().clamp(max=LONG - 1)
    share = place - before
    x = (1 - share) * padded.gather(1, before) + share * padded.gather(1, before + 1)
    empty = (place >= SHORT) | x.isnan()
    x = x * (1 + SCALE * draws.scale)[:, None]

    rolled = (torch.arange(LONG) - draws.shift[:, None]) % LONG
    x, empty = x.gather(1, rolled), empty.gather(1, rolled)
    x = torch.where(empty, SMOOTH_NOISE * draws.smooth @ smoothing().T, x)
    x = x + WHITE_NOISE * draws.white
    x = x - SLOPE * draws.slope[:, None] * torch.linspace(-0.5, 0.5, LONG)
    return x @ resampling().T


def smoothing() -> Tensor:
    """Return the matrix (72, 72) of a Gaussian filter cut at 4 widths; ends are mirrored."""
    radius = int(4 * SMOOTH_WIDTH + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    kernel = torch.exp(-offsets.double().square() / (2 * SMOOTH_WIDTH**2))
    source = torch.arange(LONG)[:, None] + offsets
    source = torch.where(source < 0, -1 - source, source)
    source = torch.where(source >= LONG, 2 * LONG - 1 - source, source)
    matrix = torch.zeros(LONG, LONG, dtype=torch.float64)
    return matrix.scatter_add(1, source, (kernel / kernel.sum()).expand(LONG, -1)).float()


def resampling() -> Tensor:
    """Return the matrix (40, 72) that interpolates linearly at even places."""
    place = torch.arange(LENGTH, dtype=torch.float64) * ((LONG - 1) / (LENGTH - 1))
    return (1 - (place[:, None] - torch.arange(LONG)).abs()).clamp(min=0).float()


@toy_task(
    "mnist1d",
    description="ten classes of signals of 40 numbers, a procedural stand-in for MNIST; OOD signals"
    " without a digit and with shuffled places, shift by noise",
    source="own code after Greydanus and Kobak (2024)",
    licence="Apache-2.0 (generated; templates of the package mnist1d, Apache-2.0)",
    size="4,000 / 500 / 1,000",
)
def mnist1d(
    *, seed: int = 0, num_train: Count = 4000, num_val: Count = 500, num_test: Count = 1000
) -> Task:
    """Return signals (40,) in ten classes, standardised by mean and deviation of the training set.

    Classes follow each other in turn, so they are balanced. Published are one set of 4,000 and
    1,000 signals, standardised over both together; here the seed draws train, val and test each
    from its own stream, and the statistics are those of train.

    OOD sets, 1,000 signals each: `no_digit`, the same law without a template (near); `shuffled`,
    signals of the task with their places in one other order (far). Shift `noise` of the test set,
    severities 1 to 5: white noise of 0.1 to 0.5 standard deviations of the inputs.
    """
    shapes = templates()

    def pairs(split: str, num: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(num) % len(shapes)
        return signals(shapes[labels], draw(num, generator(seed, "mnist1d", split))), labels

    x_train, y_train = pairs("train", num_train)
    x_val, y_val = pairs("val", num_val)
    x_test, y_test = pairs("test", num_test)
    scaling = Scaling.of(x_train, per="all")
    test = scaling(x_test)

    def noisy(severity: int) -> tuple[Tensor, Tensor]:
        stream = generator(seed, "mnist1d", "noise", severity)
        return test + NOISE_STD[severity - 1] * torch.randn(test.shape, generator=stream), y_test

    def no_digit() -> Tensor:
        stream = generator(seed, "mnist1d", "no_digit")
        return scaling(signals(torch.full((1000, SHORT), math.nan), draw(1000, stream)))

    def shuffled() -> Tensor:
        order = torch.randperm(LENGTH, generator=generator(0, "mnist1d", "order"))
        return scaling(pairs("shuffled", 1000)[0])[:, order]

    return Task(
        name="mnist1d",
        train=(scaling(x_train), y_train),
        val=(scaling(x_val), y_val),
        test=(test, y_test),
        ood={"no_digit": no_digit, "shuffled": shuffled},
        near_ood=("no_digit",),
        shifts={"noise": {s: partial(noisy, s) for s in range(1, len(NOISE_STD) + 1)}},
        likelihood=Categorical(),
        target_size=len(shapes),
        input_scaling=scaling,
        description=f"signals of 40 numbers; inputs are (x - {scaling.shift.item():.4f})"
        f" / {scaling.scale.item():.4f}",
    )
