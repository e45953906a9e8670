r"""Calibration: do events predicted with probability p happen with frequency p?

With the confidence :math:`c_n` of the mixture's top class and :math:`a_n = 1` if it is the label,
else 0, a set of bins has counts :math:`n_b`, mean confidences :math:`conf_b` and accuracies
:math:`acc_b`. Every error here except the smooth one sees only these averages: a predictor that is
wrong in opposite directions within one bin looks right.

Bins are closed on the right. The bin of a confidence depends only on its value, so equal
confidences share a bin and the order of the examples does not matter:

- of equal width, :math:`(\frac{b-1}{15}, \frac{b}{15}]`; exactly 1 is in the last, 0 in the first;
- of equal mass, :math:`(e_{b-1}, e_b]` with :math:`e_b` the confidence of rank
  :math:`\lceil b B / 15 \rceil`; with many ties, some bins stay empty.

None of these is a proper score: a predictor that always gives the class frequencies has error zero.
Read them together with the NLL. `B` batch, `C` classes, `R` resamples.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import Many, check_call
from polymode.core.rng import fold
from polymode.metrics.classification import classes_and_labels
from polymode.metrics.score import CLASSIFICATION, Interval, NotDefined, Score, register
from polymode.prediction import Prediction

RESAMPLES = 500  # bootstrap resamples: the standard error is then accurate to 3 %
_BLOCK = 2**22  # probabilities that are sorted at a time
GRID = 4096  # steps from 0 to 1 of the smooth error
HALVINGS = 30  # of the bracket of the smooth error's width: to 1e-9
_calibration_error = partial(
    register, CLASSIFICATION, unit="probability", direction="down", family="calibration"
)


class Bins(NamedTuple):
    """Confidence against accuracy, one entry per bin, in float64.

    An empty bin has count 0 and its centre as both means, so it has no gap.

    Attributes:
        count: examples, int64. confidence, accuracy: their means.
        lower, upper: (lower, upper] is the bin; the bins tile [0, 1].
    """

    count: Tensor  # type: ignore[assignment]  # hides the method of tuples
    confidence: Tensor
    accuracy: Tensor
    lower: Tensor
    upper: Tensor


def reliability_bins(
    confidence: Tensor, correct: Tensor, num_bins: Many = 15, equal: str = "width"
) -> Bins:
    """Return counts, mean confidence and accuracy in bins of equal width or equal mass.

    Args:
        confidence: (B,) in [0, 1], B >= 1. correct: (B,) booleans, or 0 and 1.
        num_bins: at least 1. equal: "width" or "mass", see the module docstring.

    >>> bins = reliability_bins(torch.tensor([0.6, 0.8, 1.0]), torch.tensor([1, 0, 1]), num_bins=2)
    >>> bins.count.tolist(), [round(a, 3) for a in bins.accuracy.tolist()]
    ([0, 3], [0.25, 0.667])
    """
    check_call(reliability_bins, locals())
    confidence, correct = _check(confidence, correct)
    edges, index = _assign(confidence, num_bins, equal)
    count = torch.bincount(index, minlength=num_bins)
    full, centre = count > 0, 0.5 * (edges[1:] + edges[:-1])
    divisor = count.clamp(min=1)

    def mean(values: Tensor) -> Tensor:
        return torch.where(full, torch.bincount(index, values, num_bins) / divisor, centre)

    return Bins(count, mean(confidence.double()), mean(correct), edges[:-1], edges[1:])


@_calibration_error(
    "ece",
    title="ECE",
    headline=True,
    summary="mean gap between confidence and accuracy over 15 equal-width bins of confidence",
)
def ece(prediction: Prediction, targets: Tensor, num_bins: Many = 15) -> Score:
    r"""Return the expected calibration error, :math:`\sum_b \frac{n_b}{B} |acc_b - conf_b|`.

    For the top class, in bins of equal width; in [0, 1]. The standard error comes from 500
    bootstrap resamples of the examples, the same at each call.

    Traps: biased upwards, more so with fewer examples per bin: a perfectly calibrated predictor
    has about 0.04 on 1,000 examples and 0.017 on 5,000 if its confidences are spread evenly; see
    `ece_interval` and `debiased_ece`. It looks at the top class only, and most bins of a confident
    network are nearly empty. Some libraries drop a confidence of exactly 1 or give it an extra bin.

    Args:
        num_bins: at least 1; 15 is what the literature reports.

    Reference: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger, On calibration of modern neural
    networks, ICML 2017.
    """
    check_call(ece, locals())
    return _binned_error(*_top(prediction, targets, "ece"), num_bins, "width")


@_calibration_error(
    "adaptive_ece",
    title="adaptive ECE",
    summary="mean gap between confidence and accuracy over 15 bins of equally many examples",
)
def adaptive_ece(prediction: Prediction, targets: Tensor, num_bins: Many = 15) -> Score:
    r"""Return :math:`\sum_b \frac{n_b}{B} |acc_b - conf_b|` over bins of equal mass, in [0, 1].

    For the top class, like `ece`; each bin has about B / 15 examples, so all gaps are equally
    noisy. Equal confidences share a bin: if all are equal, the error is :math:`|acc - conf|` over
    all examples. The standard error is a bootstrap over the examples with the bins held fixed.

    Traps: not the class-wise ACE of Nixon et al., which is `classwise_ace`. Biased upwards, like
    `ece`. Libraries that cut a sorted list into equal parts split ties arbitrarily.

    Args:
        num_bins: at least 1.

    Reference: K. Nguyen, B. O'Connor, Posterior calibration and exploratory analysis for natural
    language processing models, EMNLP 2015.
    """
    check_call(adaptive_ece, locals())
    return _binned_error(*_top(prediction, targets, "adaptive_ece"), num_bins, "mass")


@_calibration_error(
    "classwise_ace",
    title="class-wise ACE",
    summary="gap between the probability of a class and its frequency, over 15 bins of equally many"
    " examples for each class, mean over classes",
)
def classwise_ace(prediction: Prediction, targets: Tensor, num_bins: Many = 15) -> Score:
    r"""Return :math:`\frac1C\sum_k\sum_b \frac{n_{kb}}{B} |freq_{kb} - prob_{kb}|`, in [0, 1].

    For each class k, the examples are put in bins of equal mass by :math:`\bar p_{nk}`;
    :math:`prob_{kb}` is its mean in a bin and :math:`freq_{kb}` the share of labels k. Bins without
    ties all weigh 1/15, which is the paper's mean over ranges. Classes without a label count, too.

    Traps: with many classes most probabilities are near 0, and so is the error: compare at equal C
    only. Biased upwards. No threshold is applied, which would make it the paper's TACE.

    Args:
        num_bins: at least 1.

    Reference: J. Nixon, M. W. Dusenberry, L. Zhang, G. Jerfel, D. Tran, Measuring calibration in
    deep learning, CVPR workshops 2019 (arXiv:1904.01685).
    """
    check_call(classwise_ace, locals())
    classes, labels = classes_and_labels(prediction, targets, "classwise_ace")
    probs = classes.mean.detach()
    probs = probs.to(torch.promote_types(probs.dtype, torch.float32))  # NumPy has no bfloat16
    size, num_classes = probs.shape
    few = max(1, _BLOCK // size)  # classes at a time, in bounded memory
    pairs = [_mass_bins(part, num_bins) for part in probs.split(few, 1)]
    inner, sums = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    label_probs = probs.gather(1, labels[:, None])
    bins = torch.searchsorted(inner[labels], label_probs)[:, 0]
    hits = torch.bincount(labels * num_bins + bins, minlength=num_classes * num_bins)
    gaps = hits.view(num_classes, num_bins) - sums
    return Score(gaps.abs().sum().item() / (size * num_classes), size)


def _mass_bins(probs: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """Return inner edges (C, num_bins - 1) and sums (C, num_bins) of bins of equal mass."""
    size = len(probs)
    ordered = torch.from_numpy(np.sort(probs.T.contiguous().cpu().numpy())).to(probs.device)
    inner = ordered[:, _ranks(size, num_bins)]
    ends = torch.searchsorted(ordered, inner, right=True)
    ends = F.pad(F.pad(ends, (1, 0)), (0, 1), value=size)
    return inner, F.pad(ordered.double().cumsum(1), (1, 0)).gather(1, ends).diff()


@_calibration_error(
    "mce",
    title="MCE",
    summary="largest gap between confidence and accuracy in any of 15 equal-width bins",
)
def mce(prediction: Prediction, targets: Tensor, num_bins: Many = 15) -> Score:
    r"""Return the maximum calibration error, :math:`\max_b |acc_b - conf_b|`, in [0, 1].

    Over the bins of `ece` that hold an example, so it is never below the ECE.

    Traps: one bin with one example can decide it, and on real data usually does, so it hardly
    distinguishes methods. No standard error: resampling does not estimate that of a maximum.

    Args:
        num_bins: at least 1.

    Reference: M. P. Naeini, G. F. Cooper, M. Hauskrecht, Obtaining well calibrated probabilities
    using Bayesian binning, AAAI 2015.
    """
    check_call(mce, locals())
    confidence, correct = _top(prediction, targets, "mce")
    bins = reliability_bins(confidence, correct, num_bins)
    return Score((bins.accuracy - bins.confidence).abs().max().item(), len(correct))


@_calibration_error(
    "smooth_ece",
    title="smooth ECE",
    summary="gap between confidence and accuracy, smoothed by a kernel as wide as the gap itself"
    " instead of binned",
)
def smooth_ece(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the width :math:`\sigma^*` of the kernel at which the smoothed error equals it.

    In [0, 1], for the top class. With confidences :math:`c_n` and hits :math:`a_n \in \{0, 1\}`,
    the residual at t and the error at width :math:`\sigma` are

    .. math:: r_\sigma(t) = \frac1B\sum_n K_\sigma(t, c_n)\,(a_n - c_n),\qquad
        smECE_\sigma = \int_0^1 |r_\sigma(t)|\,dt,

    where :math:`K_\sigma` is the Gaussian kernel reflected at 0 and 1, so that no mass leaves
    [0, 1]. :math:`smECE_\sigma` never grows with :math:`\sigma`, so exactly one width equals its
    error. There are no bins to choose, and the error is continuous in the probabilities. If the gap
    is the same everywhere, the error is that gap.

    Traps: gaps of opposite signs closer together than :math:`\sigma^*` cancel, so it is below the
    ECE of fine bins. Biased upwards on few examples, less than the ECE. Smoothing in log-odds
    instead, as some libraries do, gives different numbers.

    Reference: J. Błasiok, P. Nakkiran, Smooth ECE: principled reliability diagrams via kernel
    smoothing, ICLR 2024 (arXiv:2309.12236).
    """
    check_call(smooth_ece, locals())
    confidence, correct = _top(prediction, targets, "smooth_ece")
    return Score(smooth_calibration_error(confidence.double(), correct), len(correct))


@_calibration_error(
    "debiased_ece",
    title="debiased ECE",
    summary="root mean square gap between confidence and accuracy over 15 bins of equally many"
    " examples, minus what chance alone would give",
)
def debiased_ece(prediction: Prediction, targets: Tensor, num_bins: Many = 15) -> Score:
    r"""Return :math:`\sqrt{\max(0, E)}` with the error's square less its expected sampling noise,

    .. math:: E = \sum_b \frac{n_b}{B}
        \Big[(acc_b - conf_b)^2 - \frac{acc_b (1 - acc_b)}{n_b - 1}\Big],

    over bins of equal mass of the top class's confidence; a bin of one example adds nothing, as
    its noise cannot be estimated; if no bin has two it is not defined. In [0, 1].

    Given the bins, E is unbiased for the squared error; cut at zero, it is 0 for about half of all
    calibrated predictors.

    Traps: a root mean square, never below the mean absolute gap that `ece` estimates: compare how
    they rank methods, not their values. The root of an unbiased estimate is biased.

    Args:
        num_bins: at least 1.

    Reference: A. Kumar, P. Liang, T. Ma, Verified uncertainty calibration, NeurIPS 2019;
    R. Roelofs, N. Cain, J. Shlens, M. C. Mozer, Mitigating bias in calibration error estimation,
    AISTATS 2022.
    """
    check_call(debiased_ece, locals())
    confidence, correct = _top(prediction, targets, "debiased_ece")
    bins = reliability_bins(confidence, correct, num_bins, equal="mass")
    usable = bins.count > 1
    if not usable.any():
        raise NotDefined(f"needs a bin with >= 2 examples, got {len(correct)} in {num_bins} bins")
    noise = bins.accuracy * (1 - bins.accuracy) / (bins.count - 1).clamp(min=1)
    squares = ((bins.accuracy - bins.confidence).square() - noise) * usable
    total = (bins.count * squares).sum().item() / len(correct)
    return Score(max(0.0, total) ** 0.5, len(correct))


def ece_interval(
    prediction: Prediction,
    targets: Tensor,
    level: float = 0.95,
    num_resamples: Many = 1000,
    seed: int = 0,
) -> Interval:
    r"""Return the ECE in 15 equal-width bins in the limit of infinite data, with an interval.

    The ECE is biased upwards and a resampled ECE even more, so bootstrap percentiles for a
    calibrated predictor never cover its true error, 0; percentiles corrected by the same amount
    cover it with probability 0.4 to 0.8. Therefore tests are inverted: with the bins' gaps
    :math:`g_b = \frac{n_b}{B}(acc_b - conf_b)` and their deviations :math:`\epsilon_r` in resample
    r, an error t belongs to the interval if the observed ECE, :math:`\sum_b |g_b|`, lies between
    the quantiles :math:`(1 \mp level) / 2` of :math:`\sum_b |t d_b + \epsilon_{rb}|`. The direction
    d, with :math:`\sum_b |d_b| = 1`, is parallel to g for the upper end, and for the lower end to g
    with its noise removed, :math:`g_b \max(0, 1 - var\,\epsilon_b / g_b^2)`. `value` is the t for
    which the observed ECE is the median: below `ece`, and 0 for about half of the calibrated
    predictors.

    Coverage by simulation at level 0.95, with 200 to 5,000 examples and 48 designs: 0.96 to 0.99 if
    calibrated, otherwise 0.89 to 0.97, lowest where the gaps of bins are as small as their noise.

    Traps: it concerns the binned error, which is below the true one; a sample that looks better
    than chance allows gives [0, 0].

    Args:
        level: in (0, 1). num_resamples: at least 100. seed: of the resamples.

    Reference: J. Carpenter, Test inversion bootstrap confidence intervals, J. R. Stat. Soc. B 61
    (1999).
    """
    check_call(ece_interval, locals())
    if not 0 < level < 1:
        raise ValueError(f"`level` of ece_interval must be in (0, 1), got {level}")
    if not isinstance(num_resamples, int) or num_resamples < 100:
        raise ValueError(f"`num_resamples` must be an integer of at least 100, got {num_resamples}")
    confidence, correct = _top(prediction, targets, "ece_interval")
    if len(correct) < 2:
        raise NotDefined("needs >= 2 examples to resample, got 1")
    _, index = _assign(confidence, 15, "width")
    gaps, resampled = _resample(confidence, correct, index, 15, num_resamples, seed)
    noise = resampled - gaps
    with np.errstate(divide="ignore", invalid="ignore"):
        less = gaps * np.nan_to_num(1 - noise.var(0) / gaps**2).clip(min=0)
    less = less if less.any() else gaps
    tail = 0.5 * (1 - level)
    low, value = _invert(gaps, less, noise, 1 - tail), _invert(gaps, gaps, noise, 0.5)
    high = _invert(gaps, gaps, noise, tail)
    return Interval(max(value, low), low, max(high, value, low), level, len(correct))


def _invert(gaps: np.ndarray, direction: np.ndarray, noise: np.ndarray, q: float) -> float:
    """Return the error t along `direction` whose q-quantile is the observed ECE; 0 if none."""
    observed, length = np.abs(gaps).sum(), np.abs(direction).sum()
    if length == 0:
        return 0.0
    unit, low, high = direction / length, 0.0, observed + np.abs(noise).sum(1).max()
    for _ in range(30):
        t = 0.5 * (low + high)
        below = (np.abs(t * unit + noise).sum(1) < observed).mean()
        low, high = (t, high) if below > q else (low, t)
    return float(low)


def _binned_error(confidence: Tensor, correct: Tensor, num_bins: Many, equal: str) -> Score:
    _, index = _assign(confidence, num_bins, equal)
    gaps, resampled = _resample(confidence, correct, index, num_bins, RESAMPLES, 0)
    error = np.abs(resampled).sum(1).std(ddof=1) if len(correct) > 1 else None
    return Score(float(np.abs(gaps).sum()), len(correct), None if error is None else float(error))


def _resample(
    confidence: Tensor,
    correct: Tensor,
    index: Tensor,
    num_bins: Many,
    num_resamples: Many,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gaps of the bins, (num_bins,), and of resampled examples, (R, num_bins).

    A bin's gap is its share of the examples times the difference of accuracy and confidence.

    Only the sums over bins are resampled: the counts of right and wrong examples in each bin are
    multinomial, and the sum of their gaps, which differ by at most the bin's width, is drawn from
    a normal distribution with the right mean and variance. The cost does not depend on B.
    """
    n, cells = len(correct), 2 * index + correct.long()
    gap = correct - confidence.double()
    parts = (torch.bincount(cells, w, 2 * num_bins) for w in (None, gap, gap.square()))
    count, total, squares = (part.cpu().numpy() for part in parts)
    filled = count.clip(min=1)
    mean = total / filled
    variance = (squares / filled - mean**2).clip(min=0)
    stream = np.random.default_rng(fold(seed, "calibration", "resample"))
    counts = stream.multinomial(n, count / n, size=num_resamples)
    sums = counts * mean + np.sqrt(counts * variance) * stream.standard_normal(counts.shape)
    return total.reshape(-1, 2).sum(1) / n, sums.reshape(num_resamples, -1, 2).sum(2) / n


def _assign(confidence: Tensor, num_bins: Many, equal: str) -> tuple[Tensor, Tensor]:
    """Return the edges, (num_bins + 1,) from 0 to 1, and the bin of each example."""
    if equal not in ("width", "mass"):
        raise ValueError(f"`equal` must be 'width' or 'mass', got {equal!r}")
    ranks = _ranks(len(confidence), num_bins)
    edges = torch.arange(num_bins + 1, dtype=torch.float64, device=confidence.device) / num_bins
    if equal == "mass":
        edges[1:-1] = confidence.sort().values[ranks].double()
    inner = edges[1:-1].to(confidence.dtype)  # float32's 0.6 is above float64's, and on this edge
    return edges, torch.bucketize(confidence.double(), inner.double())


def _ranks(size: int, num_bins: Many) -> Tensor:
    """Return the positions in a sorted list of the inner edges of bins of equal mass."""
    if not isinstance(num_bins, int) or num_bins < 1:
        raise ValueError(f"`num_bins` must be an integer of at least 1, got {num_bins!r}")
    return (torch.arange(1, num_bins) * size + num_bins - 1) // num_bins - 1


def _top(prediction: Prediction, targets: Tensor, metric: str) -> tuple[Tensor, Tensor]:
    """Return the confidence in the top class, (B,), and 1 where it is the label, else 0.

    The confidence keeps its dtype, at whose precision `_assign` places the edges of the bins.
    """
    classes, labels = classes_and_labels(prediction, targets, metric)
    confidence = classes.confidence.detach().clamp(max=1)  # float32 sums to 1 + 1e-7
    return confidence, (classes.classes == labels).double()


def _check(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as tensors (B,), `correct` in float64, or raise what is wrong."""
    confidence, correct = torch.as_tensor(confidence).detach(), torch.as_tensor(correct).detach()
    confidence = confidence if confidence.is_floating_point() else confidence.double()
    correct = correct.double()
    if confidence.dim() != 1 or confidence.shape != correct.shape or not len(confidence):
        shapes = f"{tuple(confidence.shape)} and {tuple(correct.shape)}"
        raise ValueError(f"`confidence` and `correct` must have one shape (B >= 1,), got {shapes}")
    wrong = ~((confidence >= 0) & (confidence <= 1))
    if wrong.any():
        worst = f"{confidence[wrong][0]:.4g} ({int(wrong.sum())} of {len(wrong)})"
        raise ValueError(f"`confidence` must be in [0, 1], got {worst}; pass probabilities")
    if not ((correct == 0) | (correct == 1)).all():
        raise ValueError("`correct` must be booleans, or 0 and 1; pass `classes == labels`")
    return confidence, correct


def smooth_calibration_error(confidence: Tensor, correct: Tensor) -> float:
    r"""Return :math:`\sigma^*` of `smooth_ece`, in [0, 1].

    The reflected kernel is the heat kernel of [0, 1], diagonal in cosines:

    .. math:: K_\sigma(t, c) =
        1 + 2\sum_{k \ge 1} e^{-\pi^2 k^2 \sigma^2 / 2} \cos(\pi k t) \cos(\pi k c).

    The examples are spread over a grid of spacing 1/4096, each shared by its two neighbours. One
    Fourier transform of the grid, and one back for each sigma tried, do the rest. Accurate to 1e-3
    of the value where that is above 0.0005; below, the grid adds up to 5e-6.

    Args:
        confidence: (B,) float64 in [0, 1]. correct: (B,) 0 or 1.
    """
    waves = _cosine_sums(confidence, (correct - confidence) / len(confidence))
    rates = 0.5 * (math.pi * torch.arange(GRID + 1, dtype=waves.dtype, device=waves.device)) ** 2
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        sigma = 0.5 * (low + high)
        low, high = (sigma, high) if _smoothed_error(waves, rates, sigma) > sigma else (low, sigma)
    return 0.5 * (low + high) if low else 0.0


def _cosine_sums(places: Tensor, weights: Tensor) -> Tensor:
    """Return the sums of weights * cos(pi k places), k = 0..GRID, by way of the grid."""
    scaled = places * GRID
    left = scaled.floor().clamp(max=GRID - 1)
    share, index = scaled - left, left.long()
    grid = torch.zeros(2 * GRID, dtype=weights.dtype, device=weights.device)
    grid.index_add_(0, index, weights * (1 - share)).index_add_(0, index + 1, weights * share)
    return torch.fft.rfft(grid).real


def _smoothed_error(waves: Tensor, rates: Tensor, sigma: float) -> float:
    """Return smECE of one sigma, by the trapezoid rule."""
    damped = waves * torch.exp(-rates * sigma**2)
    residual = torch.fft.irfft(torch.complex(damped, torch.zeros_like(damped)), n=2 * GRID)
    size = residual[: GRID + 1].abs() * 2  # 2 * GRID undoes irfft's factor, 1 / GRID is the step
    return (size.sum() - 0.5 * (size[0] + size[-1])).item()
