"""A look at every posterior before `fit` returns it: does it predict, learn, and spread?

Cheap: predictions at a few training examples, and the scores that members had on held-out ones.
What it finds is a list of concerns, each with its number, its likely cause and what to do. A
concern is no proof: thresholds are set so that fewer than one in a hundred healthy fits raises one
(`python -m benchmarks.look`), and failures that are planted there are each named.

Shapes: `S` samples, `B` examples, `C` classes, `D` target dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.warn import warn
from polymode.methods.method import METHODS
from polymode.posterior import Noisy, Posterior
from polymode.prediction import CategoricalPrediction, DensityPrediction, Prediction
from polymode.training.data import Data
from polymode.training.history import spread_rows

ROWS = 128  # training examples that are predicted
OBSERVATIONS = 20_000  # of them, where an example has many
SAMPLES = 5  # of each mode
SAME = 1e-5  # of the spread of targets, or in probability: what is nearer is equal
APART = 10.0  # a sample whose error is so many times the median one's has left the posterior
CONFIDENCE = 2.0  # standard errors by which a fit must be better than a constant
WEAK = 0.2  # nats, or share of the variance, gained on training data: held-out ones must confirm it
POINTS = ("map", "ema", "swa")  # methods that are meant to give a point
LEAST = 30  # examples: with fewer nothing is said of how well they are fitted


class Concern(NamedTuple):
    """Something that makes a posterior doubtful: what it is called, and number, cause, remedy."""

    name: str
    text: str


class DoubtfulPosterior(ValueError):
    """What `fit(strict=True)` raises for a posterior that the look is concerned about."""


class DoubtWarning(UserWarning):
    """The warning about a posterior that the look is concerned about."""


@dataclass(frozen=True)
class Seen:
    """What is looked at.

    Attributes:
        post: the posterior.
        values: what each sample predicts, (S, B, C or D): probabilities, or means in units of the
            targets' standard deviation.
        errors: of each sample, (S,): nats per example, or the root mean square in those units.
        gain: by how much the posterior is better than the best constant at each example, (B,): in
            nats, or in squared units.
        held_out: the same at examples that members left out, or None.
        targets: how many different targets there are.
        has_spread: whether the prediction knows of a spread that no sample shows.
        steps: of the training.
    """

    post: Posterior
    values: Tensor
    errors: Tensor
    gain: Tensor
    held_out: Tensor | None
    targets: int
    has_spread: bool
    steps: int


def look_at(
    post: Posterior, data: Data, steps: int, held_out: Tensor | None = None
) -> list[Concern]:
    """Return what is doubtful about a posterior.

    Args:
        data: the training data, as they were given.
        steps: that were taken.
        held_out: gain over a constant at examples that members left out.
    """
    x, y = next(iter(spread_rows(data, min(len(data), ROWS))))
    rows = max(2, OBSERVATIONS // max(1, y[0].numel()))
    samples = min(post.weights.samples_per_mode, SAMPLES)
    try:
        prediction = post.predict(x[:rows], samples_per_mode=samples)
    except ValueError as error:
        reason = str(error).split(". ")[0]
        return [Concern("not finite", f"it does not predict: {reason}. Try a smaller rate `lr`")]
    prediction, targets, _ = prediction.observations(y[:rows].to(post.weights.like.device))
    seen = _seen(post, prediction, targets, held_out, steps)
    concerns = (check(seen) for check in CHECKS)
    return [concern for concern in concerns if concern is not None]


def tell(concerns: list[Concern], strict: bool) -> None:
    """Warn of the concerns, in one warning; raise where that is asked for."""
    if not concerns:
        return
    names = ", ".join(concern.name for concern in concerns)
    text = f"doubtful posterior ({names}): {'; '.join(concern.text for concern in concerns)}"
    if strict:
        raise DoubtfulPosterior(text)
    warn(text, DoubtWarning)


def _seen(
    post: Posterior, prediction: Prediction, y: Tensor, held_out: Tensor | None, steps: int
) -> Seen:
    number, draws = len(y.unique(dim=0)), prediction.num_samples > 1
    spread = prediction.has_epistemic and not draws
    if isinstance(prediction, CategoricalPrediction):
        values = prediction.probs
        chosen = y.expand(len(values), -1)[..., None]
        errors = -prediction.log_probs.gather(-1, chosen)[..., 0].mean(1)
        shares = torch.bincount(y, minlength=values.shape[-1]) / len(y)
        gain = prediction.log_prob(y) - shares.log()[y]
        return Seen(post, values, errors, gain, held_out, number, spread, steps)
    assert isinstance(prediction, DensityPrediction)
    shift, scale = y.mean(0), y.std(0, correction=0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    values, targets = (prediction.loc - shift) / scale, (y - shift) / scale
    errors = (values - targets).square().mean((1, 2)).sqrt()
    gain = (targets.square() - (values.mean(0) - targets).square()).sum(-1)
    spread = spread or prediction.epistemic is not None
    return Seen(post, values, errors, gain, held_out, number, spread, steps)


def one_target(seen: Seen) -> Concern | None:
    """All targets are the same."""
    if seen.targets > 1:
        return None
    return Concern(
        "constant targets",
        f"all {len(seen.gain)} training targets that were looked at are the same, so there is"
        " nothing to learn: check how the targets were read",
    )


def apart(seen: Seen) -> Concern | None:
    """Some samples err orders of magnitude more than others."""
    worst, median = seen.errors.max().item(), seen.errors.median().item()
    if worst <= APART * median + 1:
        return None
    unit = " nats" if seen.post.likelihood.classification else " standard deviations of the targets"
    return Concern(
        "samples apart",
        f"sample {int(seen.errors.argmax())} of {len(seen.errors)} errs by {worst:.3g}{unit} on"
        f" training data, the median one by {median:.3g}: some have left the posterior, as too"
        " large a rate does. Try a smaller `lr`, or a longer burn-in",
    )


def same_output(seen: Seen) -> Concern | None:
    """Some samples give one output for all inputs."""
    ranges = seen.values.amax(1) - seen.values.amin(1)
    dead = int((ranges.amax(-1) < SAME).sum())
    if not dead or seen.targets == 1 or len(seen.gain) < 2:
        return None
    return Concern(
        "constant output",
        f"{dead} of {len(ranges)} samples give the same output for all inputs, as networks of dead"
        " ReLUs do, or those that a large prior_precision has set to 0. Try a smaller `lr` or"
        " prior_precision, and check the scale of the inputs",
    )


def no_better(seen: Seen) -> Concern | None:
    """The fit is no better than a constant: on the data it was trained on, or hardly better there
    and not clearly on held-out ones. Few held-out examples alone would accuse weak but real
    signals."""
    if seen.targets == 1 or len(seen.gain) < LEAST:
        return None
    mean, error = _mean(seen.gain)
    unit = "nats" if seen.post.likelihood.classification else "of the targets' variance"
    if mean <= CONFIDENCE * error:
        examples, why = f"{len(seen.gain)} training", f"nothing was learnt in {seen.steps:,} steps"
    else:
        if seen.held_out is None or len(seen.held_out) < LEAST or mean > WEAK:
            return None
        mean, error = _mean(seen.held_out)
        if mean > CONFIDENCE * error:
            return None
        examples = f"{len(seen.held_out)} held-out"
        why = "targets have little to do with inputs (are rows shuffled?)"
    return Concern(
        "no better than a constant",
        f"on {examples} examples it gains {mean:.3g} ± {error:.2g} {unit} over the best"
        f" constant: {why}, or the rate, the inputs' scale or the prior is far off",
    )


def _mean(gain: Tensor) -> tuple[float, float]:
    """Return a mean and its standard error."""
    return gain.double().mean().item(), gain.double().std().item() / len(gain) ** 0.5


def a_point(seen: Seen) -> Concern | None:
    """The posterior has no spread, though its method is one that gives a spread."""
    post = seen.post
    if METHODS.get(post.method).metadata["kind"] == "many modes" or post.method in POINTS:
        return None
    modes = seen.values.unflatten(0, (post.num_modes, -1))
    if seen.has_spread or (modes.amax(1) - modes.amin(1)).max() > SAME:
        return None
    number = post.weights.samples_per_mode
    how = "one sample" if number == 1 else f"{number} equal samples"
    return Concern(
        "a point",
        f"each mode has {how}, so this is a point estimate without epistemic uncertainty. Keep more"
        " samples (epochs, samples_per_mode, num_snapshots or num_cycles), or call it `map`",
    )


def untrained(seen: Seen) -> Concern | None:
    """The spread is that with which the method starts."""
    post = seen.post
    entry = METHODS.get(post.method)
    plain = entry.metadata["kind"] == "many modes" or post.method in POINTS
    if seen.steps or plain or entry.value.post_hoc or isinstance(post.weights, Noisy):
        return None
    return Concern(
        "not trained",
        f"epochs=0: the spread is that with which {post.method} starts, and the data have not been"
        " seen. Use epochs >= 1, or laplace, which works on trained networks",
    )


CHECKS: tuple[Callable[[Seen], Concern | None], ...] = (
    one_target, apart, same_output, no_better, a_point, untrained,
)  # fmt: skip
