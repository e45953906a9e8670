"""Curves of one variable, each seen on one or more stretches of the line.

Between the stretches lies the OOD set `gap` (near), around them `outside` (far). Sources:
- F. D'Angelo, V. Fortuin, "Repulsive Deep Ensembles are Bayesian" (NeurIPS 2021): `x_sin_x` and
  `curve`. Numbers as in the authors' code, where the noise level (0.25 for x sin x) is a standard
  deviation, the `scale` of a NumPy normal.
- J. Antoran, J. U. Allingham, J. M. Hernandez-Lobato, "Depth Uncertainty in Neural Networks"
  (NeurIPS 2020): `three_clusters` ("my_1d" in the authors' code) and `wiggle`, standardised.
Their test sets are noise-free grids over the whole stretch; here the test set has the law of the
training set, and the grid is the shift `grid`. `gap_regression`, the smallest of them, is ours.
`N` examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor

from polymode.core.checks import Count, Positive
from polymode.core.registry import suggest
from polymode.core.rng import generator
from polymode.likelihoods.kinds import Gaussian
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task
from polymode.tasks.toy.functions import (
    Function,
    Inputs,
    Interval,
    NoiseKind,
    by_length,
    evenly,
    noisy_function,
)

RDE = "own code after D'Angelo and Fortuin (2021)"
DUN = "own code after Antoran, Allingham and Hernandez-Lobato (2020)"


@dataclass(frozen=True)
class Curve:
    """A function, where it is seen, and the interval around on which it is tested.

    Attributes:
        formula: for descriptions. function: f, elementwise.
        seen: stretches of the inputs, from left to right; each has its equal share of the examples.
        around: interval that holds them all. noise_std: standard deviation of the noise, published.
    """

    formula: str
    function: Function
    seen: tuple[Interval, ...]
    around: Interval
    noise_std: float

    def inputs(self) -> dict[str, Inputs]:
        """Return the laws of the inputs: `seen`, `gap` if there is one, `outside`."""
        (left, right), edges = self.around, [x for stretch in self.seen for x in stretch]
        laws = {"seen": evenly(self.seen)}
        gaps = list(zip(edges[1:-1:2], edges[2:-1:2], strict=True))
        if gaps:
            laws["gap"] = by_length(gaps)
        return laws | {"outside": by_length([(left, edges[0]), (edges[-1], right)])}

    def task(
        self,
        name: str,
        seed: int,
        sizes: tuple[int, int, int],
        noise: str,
        noise_std: float | None,
        *,
        standardise: bool = False,
    ) -> Task:
        """Return the task; without a `noise_std` of the caller's the published one is taken."""
        laws = self.inputs()
        return noisy_function(
            name,
            self.function,
            laws,
            seed=seed,
            sizes=sizes,
            noise=noise,
            noise_std=self.noise_std if noise_std is None else noise_std,
            near_ood=("gap",) if "gap" in laws else (),
            grid=torch.linspace(*self.around, 100)[:, None],
            standardise=standardise,
            description=self.formula,
        )


X_SIN_X = Curve("x sin x", lambda x: x * x.sin(), ((1.5, 2.5), (4.5, 6.0)), (0.0, 7.0), 0.25)
CURVES = {
    "cubic": Curve("x^3", lambda x: x**3, ((-3.5, 3.5),), (-5.0, 5.0), 3.0),
    "linear": Curve("3 x", lambda x: 3 * x, ((-2.0, 2.0),), (-3.0, 3.0), 0.05),
    "quadratic": Curve("2 x^2 - 1", lambda x: 2 * x**2 - 1, ((-1.0, 1.0),), (-2.5, 2.5), 0.05),
    "shifted_cubic": Curve("(x - 3)^3", lambda x: (x - 3) ** 3, ((2.0, 4.0),), (0.5, 4.1), 0.05),
    "rising_sine": Curve(
        "x (1 + sin x)",
        lambda x: x * (1 + x.sin()),
        ((4.5, 5.0), (7.5, 8.5), (10.0, 11.0)),
        (2.0, 13.0),
        0.6,
    ),
}
THREE_CLUSTERS = Curve(
    "x - x^2 / 10 + cos(pi x / 2)",
    lambda x: x - 0.1 * x**2 + torch.cos(math.pi / 2 * x),
    ((-1.0, 0.0), (1.7, 2.5), (4.0, 5.0)),
    (-3.0, 7.0),
    0.25,
)
WIGGLE_MEAN, WIGGLE_STD = 5.0, 2.5
TAILS = ((-6.0, -4.0), (4.0, 6.0))  # of the wiggle, in standard deviations from the mean


@toy_task(
    "x_sin_x",
    description="x sin x on two stretches of the line; OOD between and around them",
    source=RDE,
    size="90 / 90 / 200",
)
def x_sin_x(
    *,
    seed: int = 0,
    noise: NoiseKind = "known",
    noise_std: Positive = 0.25,
    num_train: Count = 90,
    num_val: Count = 90,
    num_test: Count = 200,
) -> Task:
    """Return y = x sin x + noise, half of the inputs uniform on [1.5, 2.5], half on [4.5, 6].

    OOD sets with targets of the same law, 200 examples each: `gap`, x in [2.5, 4.5] (near), and
    `outside`, x in [0, 1.5] or [6, 7] (far). Shift `grid`: 100 even inputs on [0, 7].

    Args:
        noise: "known" (the likelihood is told the true standard deviation) or "learned".
        noise_std: standard deviation of the noise in y, > 0. The paper's 0.25 is one, no variance.
    """
    return X_SIN_X.task("x_sin_x", seed, (num_train, num_val, num_test), noise, noise_std)


@toy_task(
    "curve",
    description="five more curves of one variable: cubic, linear, quadratic, shifted_cubic,"
    " rising_sine",
    source=RDE + "; the cubic is of Hernandez-Lobato and Adams (2015)",
    size="90 / 90 / 200",
)
def curve(
    *,
    seed: int = 0,
    function: str = "cubic",
    noise: NoiseKind = "known",
    noise_std: Positive | None = None,
    num_train: Count = 90,
    num_val: Count = 90,
    num_test: Count = 200,
) -> Task:
    """Return y = f(x) + noise for one of five functions.

    | `function` | f(x) | inputs uniform on | up to | standard deviation of the noise |
    |---|---|---|---|---|
    | cubic | x^3 | [-3.5, 3.5] | [-5, 5] | 3 |
    | linear | 3 x | [-2, 2] | [-3, 3] | 0.05 |
    | quadratic | 2 x^2 - 1 | [-1, 1] | [-2.5, 2.5] | 0.05 |
    | shifted_cubic | (x - 3)^3 | [2, 4] | [0.5, 4.1] | 0.05 |
    | rising_sine | x (1 + sin x) | [4.5, 5], [7.5, 8.5], [10, 11], a third each | [2, 13] | 0.6 |

    OOD set `outside` (far): inputs up to the outer interval but not among those seen; for
    rising_sine also `gap` (near). Shift `grid`: 100 even inputs on the outer interval.

    Args:
        function: name of f.
        noise: "known" (the likelihood is told the true standard deviation) or "learned".
        noise_std: standard deviation of the noise in y, > 0; None takes that of the table.
    """
    if function not in CURVES:
        raise ValueError(
            f"`function` of curve is unknown: {function!r}.{suggest(function, CURVES)}"
            f" Known: {', '.join(CURVES)}; x sin x is a task of its own, x_sin_x."
        )
    sizes = (num_train, num_val, num_test)
    return CURVES[function].task("curve", seed, sizes, noise, noise_std)


@toy_task(
    "three_clusters",
    description="a bent cosine of one variable, seen in three clusters, standardised; OOD between"
    " and around them",
    source=DUN + ", there my_1d",
    size="501 / 150 / 501",
)
def three_clusters(
    *,
    seed: int = 0,
    noise: NoiseKind = "known",
    noise_std: Positive = 0.25,
    num_train: Count = 501,
    num_val: Count = 150,
    num_test: Count = 501,
) -> Task:
    """Return y = x - x^2 / 10 + cos(pi x / 2) + noise with a third of the inputs in each cluster.

    Inputs are uniform on [-1, 0], [1.7, 2.5] and [4, 5], then standardised with the statistics of
    the training set, as the targets are for training. OOD sets with targets, 200 examples each:
    `gap` between the clusters (near), `outside`, [-3, -1] and [5, 7] (far). Shift `grid`: 100 even
    inputs on [-3, 7]. How far `outside` and `grid` reach is our choice; the paper has no such sets.

    Args:
        noise: "known" (the likelihood is told the true standard deviation) or "learned".
        noise_std: standard deviation of the noise in y, > 0, before standardising.
    """
    sizes = (num_train, num_val, num_test)
    return THREE_CLUSTERS.task("three_clusters", seed, sizes, noise, noise_std, standardise=True)


def wiggle_truth(x: Tensor) -> Tensor:
    """Return f(x) = sin(pi x) + cos(4 pi x) / 5 - 3 x / 10, elementwise, of inputs not scaled."""
    return torch.sin(math.pi * x) + 0.2 * torch.cos(4 * math.pi * x) - 0.3 * x


@toy_task(
    "wiggle",
    description="a fast wiggle on a falling line, inputs normal, standardised; OOD in the tails",
    source=DUN,
    size="300 / 100 / 300",
)
def wiggle(
    *,
    seed: int = 0,
    noise: NoiseKind = "known",
    noise_std: Positive = 0.25,
    num_train: Count = 300,
    num_val: Count = 100,
    num_test: Count = 300,
) -> Task:
    """Return y = sin(pi x) + cos(4 pi x) / 5 - 3 x / 10 + noise with x ~ N(5, 2.5^2).

    Inputs are standardised with the statistics of the training set, as the targets are for
    training. OOD set `outside` (far), 200 examples with targets: 4 to 6 standard deviations from
    the mean on either side, where 0.006 % of the inputs lie.

    Args:
        noise: "known" (the likelihood is told the true standard deviation) or "learned".
        noise_std: standard deviation of the noise in y, > 0, before standardising.
    """

    def seen(num: int, stream: Generator) -> Tensor:
        return WIGGLE_MEAN + WIGGLE_STD * torch.randn(num, 1, generator=stream)

    tails = [(WIGGLE_MEAN + a * WIGGLE_STD, WIGGLE_MEAN + b * WIGGLE_STD) for a, b in TAILS]
    return noisy_function(
        "wiggle",
        wiggle_truth,
        {"seen": seen, "outside": by_length(tails)},
        seed=seed,
        sizes=(num_train, num_val, num_test),
        noise=noise,
        noise_std=noise_std,
        standardise=True,
        description="sin(pi x) + cos(4 pi x) / 5 - 3 x / 10",
    )


GAP, EDGE, BEYOND = 0.7, 2.0, 3.5  # |x| in [GAP, EDGE] is seen; OOD lies below and above


def gap_truth(x: Tensor) -> Tensor:
    """Return f(x) = sin(3 x) + x / 2, elementwise: the truth of `gap_regression`."""
    return torch.sin(3 * x) + x / 2


@toy_task(
    "gap_regression",
    description="a curve of one variable, seen on both sides of a gap; OOD in the gap and outside",
    size="100 / 50 / 200",
)
def gap_regression(
    *,
    seed: int = 0,
    noise: NoiseKind = "known",
    noise_std: Positive = 0.1,
    num_train: Count = 100,
    num_val: Count = 50,
    num_test: Count = 200,
) -> Task:
    """Return y = sin(3 x) + x / 2 + noise, with no training inputs in the middle.

    Train, val and test have |x| uniform on [0.7, 2] with either sign. OOD sets with targets of the
    same law, 200 examples each: `gap`, |x| < 0.7 (near), and `outside`, 2 < |x| < 3.5 (far). The
    curve is `task.truth`.

    Args:
        noise: "known" (the likelihood is told the true standard deviation) or "learned".
        noise_std: standard deviation of the noise in y, > 0.
    """

    def draw(split: str, num: int, low: float, high: float) -> tuple[Tensor, Tensor]:
        stream = generator(seed, "gap_regression", split)
        x = low + (high - low) * torch.rand(num, 1, generator=stream)
        x = torch.where(torch.rand(num, 1, generator=stream) < 0.5, -x, x)
        return x, gap_truth(x) + noise_std * torch.randn(num, 1, generator=stream)

    draw_seen = partial(draw, low=GAP, high=EDGE)
    return Task(
        name="gap_regression",
        train=draw_seen("train", num_train),
        val=draw_seen("val", num_val),
        test=draw_seen("test", num_test),
        ood={"gap": draw("gap", 200, 0.0, GAP), "outside": draw("outside", 200, EDGE, BEYOND)},
        near_ood=("gap",),
        likelihood=Gaussian(noise=noise_std if noise == "known" else "learned"),
        target_scaling=None,
        description=f"sin(3x) + x/2 with noise of standard deviation {noise_std:g}, {noise}",
        truth=gap_truth,
    )
