"""A function drawn from the prior of a wide network: data for comparing posteriors with HMC.

Inputs are the features (x, x^2) of one variable; the function is a network of three hidden layers
of 100 ReLU units whose weights and biases are all drawn from N(0, 0.1^2); the noise has standard
deviation 0.02.

Source: P. Izmailov, S. Vikram, M. D. Hoffman, A. G. Wilson, "What Are Bayesian Neural Network
Posteriors Really Like?" (ICML 2021), synthetic regression; numbers as in the authors' code. Their
function is one draw of a chosen key, and a rare one: its largest value on [-14, 22] is 0.34, where
the median of the law is 11 and most draws are close to a parabola, which x^2 dominates; 1 % are so
small. Here the seed draws the function. `N` examples.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Generator, Tensor

from polymode.core.checks import Count, Positive
from polymode.core.rng import generator
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task
from polymode.tasks.toy.functions import Inputs, Interval, NoiseKind, by_length, noisy_function

SEEN: tuple[Interval, ...] = ((-10.0, -6.0), (6.0, 10.0), (14.0, 18.0))
AROUND: Interval = (-14.0, 22.0)
WIDTHS = (2, 100, 100, 100, 1)
LARGEST, MAX_DRAWS = (0.2, 0.5), 3000

Layers = list[tuple[Tensor, Tensor]]


def features(x: Tensor) -> Tensor:
    """Return (x, x^2), (N, 2), of one variable (N, 1)."""
    return torch.cat([x, x.square()], dim=1)


def featured(law: Inputs) -> Inputs:
    """Return the law of the features of inputs that have `law`."""
    return lambda num, stream: features(law(num, stream))


@toy_task(
    "synthetic_regression",
    description="a draw from the prior of a 2-100-100-100-1 network on three stretches, inputs (x,"
    " x^2); OOD between and around them",
    source="own code after Izmailov, Vikram, Hoffman and Wilson (2021)",
    size="120 / 60 / 240",
)
def synthetic_regression(
    *,
    seed: int = 0,
    noise: NoiseKind = "known",
    noise_std: Positive = 0.02,
    prior_precision: Positive = 100.0,
    like_published: bool = True,
    num_train: Count = 120,
    num_val: Count = 60,
    num_test: Count = 240,
) -> Task:
    """Return y = f(x, x^2) + noise, where f is a network drawn from its prior.

    A third of the training inputs each lies evenly spaced on [-10, -6], [6, 10] and [14, 18], the
    same for every seed; val and test are uniform there. The features are not scaled, as in the
    study. OOD sets with targets, 200 examples each: `gap`, x in [-6, 6] or [10, 14] (near), and
    `outside`, x in [-14, -10] or [18, 22] (far). Shift `grid`: 120 even inputs on [-14, 22].

    The network that the data come from is `nets.mlp((2,), 1, hidden=(100, 100, 100))`; the study
    infers it with the prior of precision 100, and the noise known.

    Args:
        noise: "known" (the likelihood is told the true standard deviation) or "learned".
        noise_std: standard deviation of the noise in y, > 0.
        prior_precision: of the normal law of the network's weights and biases, > 0.
        like_published: draw again until the largest |f| on [-14, 22] lies in [0.2, 0.5], as that of
            the published function does. Without it the first draw is taken, and over seeds the
            posterior under the prior is calibrated.
    """
    grid = features(torch.linspace(*AROUND, 120)[:, None])
    stream = generator(seed, "synthetic_regression", "network")
    layers = _draw_network(prior_precision, stream)
    if like_published:
        layers = _draw_small(layers, prior_precision, stream, grid.double())

    def evenly_spaced(num: int, stream: Generator) -> Tensor:
        del stream  # the design is fixed
        counts = [len(range(first, num, len(SEEN))) for first in range(len(SEEN))]
        stretches = [torch.linspace(*ends, count) for ends, count in zip(SEEN, counts, strict=True)]
        return features(torch.cat(stretches)[:, None])

    (a, b), edges = AROUND, [x for stretch in SEEN for x in stretch]
    gaps = [(edges[1], edges[2]), (edges[3], edges[4])]
    return noisy_function(
        "synthetic_regression",
        partial(_network, layers),
        {
            "train": evenly_spaced,
            "seen": featured(by_length(SEEN)),
            "gap": featured(by_length(gaps)),
            "outside": featured(by_length([(a, edges[0]), (edges[-1], b)])),
        },
        seed=seed,
        sizes=(num_train, num_val, num_test),
        noise=noise,
        noise_std=noise_std,
        near_ood=("gap",),
        grid=grid,
        description="a draw of a 2-100-100-100-1 ReLU network",
    )


def _network(layers: Layers, x: Tensor) -> Tensor:
    """Return f (N, 1) at features (N, 2)."""
    for weight, bias in layers[:-1]:
        x = torch.relu(x @ weight.T + bias)
    weight, bias = layers[-1]
    return x @ weight.T + bias


def _draw_small(layers: Layers, prior_precision: float, stream: Generator, grid: Tensor) -> Layers:
    """Return `layers`, or else the next draw whose largest value on the grid is as published."""
    for _ in range(MAX_DRAWS):
        if LARGEST[0] <= _network(layers, grid).abs().max() <= LARGEST[1]:
            return layers
        layers = _draw_network(prior_precision, stream)
    raise ValueError(
        f"none of {MAX_DRAWS:,} functions with `prior_precision` {prior_precision:g} of"
        f" synthetic_regression has its largest value in {LARGEST}; like_published=False takes the"
        " first one"
    )


def _draw_network(prior_precision: float, stream: Generator) -> Layers:
    """Return weight (m, n) and bias (m,) of each layer, in float64."""
    std = 1 / math.sqrt(prior_precision)

    def normal(*shape: int) -> Tensor:
        return std * torch.randn(*shape, generator=stream, dtype=torch.float64)

    return [(normal(m, n), normal(m)) for n, m in zip(WIDTHS, WIDTHS[1:], strict=False)]
