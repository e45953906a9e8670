r"""Predictions: what S posterior samples say about B inputs, kept apart and mixed on demand.

The posterior predictive is the mixture :math:`p(y \mid x) = \frac1S\sum_s p_s(y \mid x)` of the
samples' own predictions: log-probabilities of C classes (`CategoricalPrediction`), or Gaussian or
Student-t densities of D outputs (`MixturePrediction`). Parameters are never averaged: two members
N(-5, 0.1) and N(5, 0.1) predict with a standard deviation of 5.001, not 0.1.

Both tell apart what would remain if the network were known (aleatoric) and what comes from not
knowing it (epistemic), once in nats and once by the law of total variance:

=========  =========================================================  ====================
all        `predictive_entropy`, :math:`H[\frac1S\sum_s p_s]`         `variance`
aleatoric  `expected_entropy`, :math:`\frac1S\sum_s H[p_s]`           `aleatoric_variance`
epistemic  `mutual_information`, their difference, :math:`\ge 0`      `epistemic_variance`
=========  =========================================================  ====================

Everything is computed when first asked for and then kept, in the dtype and on the device of the
samples. Variances over samples divide by S. `S` samples, `B` batch, `C` classes, `D` outputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from polymode.core import densities
from polymode.core.likelihoods import Categories, Components
from polymode.core.targets import check_labels


class Prediction(ABC):
    """What every prediction can do; `predict_from` makes one from a likelihood's components."""

    _axes: ClassVar[str]
    _shown: ClassVar[tuple[str, str]]

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """Predictive mean: class probabilities (B, C), or the mean of y (B, D)."""

    @property
    @abstractmethod
    def aleatoric_variance(self) -> Tensor:
        """Mean over samples of their own variances, (B, C) or (B, D)."""

    @property
    @abstractmethod
    def epistemic_variance(self) -> Tensor:
        """Variance over samples of their own means, (B, C) or (B, D)."""

    @property
    @abstractmethod
    def predictive_entropy(self) -> Tensor:
        """Entropy of the mixture in nats: (B,) of the class, or (B, D) of each output."""

    @property
    @abstractmethod
    def expected_entropy(self) -> Tensor:
        """Mean over samples of their own entropies in nats, (B,) or (B, D)."""

    @property
    @abstractmethod
    def mutual_information(self) -> Tensor:
        """What y tells about which sample is right, in nats, in [0, log S], (B,) or (B, D)."""

    @abstractmethod
    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the log-probability of targets under the mixture, (B,), jointly over outputs."""

    @abstractmethod
    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors, of axes (S, B, ...), and a JSON-safe rest."""

    @cached_property
    def variance(self) -> Tensor:
        """Predictive variance: aleatoric + epistemic, (B, C) or (B, D)."""
        return self.aleatoric_variance + self.epistemic_variance

    @cached_property
    def std(self) -> Tensor:
        """Predictive standard deviation, the root of `variance`."""
        return self.variance.sqrt()

    @property
    def disagreement(self) -> Tensor:
        """Fraction of the pairs of samples that name different classes, (B,)."""
        raise ValueError("Only classes disagree; use `epistemic_variance`, `mutual_information`.")

    def quantile(self, q: float | Tensor) -> Tensor:
        """Return the quantile of each output at q in (0, 1): (B, D), or (Q, B, D) for Q of them."""
        raise ValueError("Classes have no quantiles; use `mean`, their probabilities.")

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Return the ends, (B, D) each, of the central interval of probability `level`."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"`level` of an interval must be in (0, 1), got {level}")
        return self.quantile(0.5 * (1.0 - level)), self.quantile(0.5 * (1.0 + level))

    @property
    def num_samples(self) -> int:
        """S, the posterior samples in the mixture."""
        return self._shape[0]

    def __len__(self) -> int:
        return self._shape[1]

    @property
    def _shape(self) -> torch.Size:
        return next(iter(self._parts()[0].values())).shape

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Prediction:
        """Return the prediction of some inputs: a slice, indices or a mask; one index keeps B."""
        which = index if isinstance(index, slice) else torch.atleast_1d(torch.as_tensor(index))
        if isinstance(which, Tensor):
            which = which if which.numel() else which.long()  # an empty list is float
            if which.dim() != 1 or which.is_floating_point():
                raise IndexError("A prediction is indexed by input: a slice, indices or a mask.")
        tensors, rest = self._parts()
        return Prediction.from_arrays({key: t[:, which] for key, t in tensors.items()}, rest)

    @staticmethod
    def cat(predictions: Sequence[Prediction]) -> Prediction:
        """Return the predictions of several batches as one, joined along B."""
        if not predictions:
            raise ValueError("`predictions` is empty; there is nothing to join.")
        parts = [prediction._parts() for prediction in predictions]
        (tensors, rest), first = parts[0], predictions[0]
        for (_, other_rest), other in zip(parts, predictions, strict=True):
            if other_rest != rest or other._shape[::2] != first._shape[::2]:
                raise ValueError(f"Only predictions alike can be joined, got {first} and {other}.")
        joined = {key: torch.cat([each[key] for each, _ in parts], 1) for key in tensors}
        return Prediction.from_arrays(joined, rest)

    def to_arrays(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what is to be stored: contiguous tensors, and a JSON-safe rest."""
        tensors, rest = self._parts()
        return {key: tensor.detach().contiguous() for key, tensor in tensors.items()}, rest

    @staticmethod
    def from_arrays(tensors: dict[str, Tensor], rest: dict[str, Any]) -> Prediction:
        """Return the prediction that `to_arrays` gave."""
        if rest.get("kind") == "categorical":
            return CategoricalPrediction(**tensors)
        if rest.get("kind") == "mixture":
            return MixturePrediction(**tensors, df=rest.get("df"))
        raise ValueError(f"Not a stored prediction: its kind is {rest.get('kind')!r}.")

    def __repr__(self) -> str:
        facts = [f"{axis}={size}" for axis, size in zip(self._axes, self._shape, strict=True)]
        if len(self):
            facts += [f"{name}={getattr(self, name).mean().item():.4g}" for name in self._shown]
        return f"{type(self).__name__}({', '.join(facts)})"


class CategoricalPrediction(Prediction):
    """A mixture of S categorical distributions over C classes.

    Variances are those of the one-hot outcome, p (1 - p) in all for each class.

    Args:
        log_probs: (S, B, C) log-probabilities of each sample, normalised over classes; -inf is a
            probability of zero. Take `logits.log_softmax(-1)` or `probs.log()`.
    """

    _axes = "SBC"
    _shown = ("predictive_entropy", "mutual_information")

    def __init__(self, log_probs: Tensor) -> None:
        _check_samples("log_probs", log_probs, at_least=2)
        totals = log_probs.detach().logsumexp(-1)
        tolerance = 1e-3 if torch.finfo(log_probs.dtype).eps < 1e-6 else 0.1
        if where := _first_wrong(totals.abs() <= tolerance):
            raise ValueError(
                f"`log_probs` must be normalised, but is not at {where}; probabilities add up to"
                f" {totals.exp().min():.4g} ... {totals.exp().max():.4g}, nan if a sample diverged"
                " (drop it). Take `logits.log_softmax(-1)` or `probs.log()`."
            )
        self.log_probs = log_probs

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of each sample, (S, B, C)."""
        return self.log_probs.exp()

    @cached_property
    def log_mean(self) -> Tensor:
        """Log of `mean`, (B, C), by log-sum-exp: -inf only where all samples say exactly zero."""
        return self.log_probs.logsumexp(0) - math.log(self.num_samples)

    @cached_property
    def mean(self) -> Tensor:
        return self.log_mean.exp()

    @cached_property
    def classes(self) -> Tensor:
        """Most probable class under the mixture, int64 (B,); the first one of equals."""
        return self.mean.argmax(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the most probable class, (B,), in [1/C, 1]."""
        return self.mean.amax(-1)

    @cached_property
    def aleatoric_variance(self) -> Tensor:
        return (self.probs * (1.0 - self.probs)).mean(0)

    @cached_property
    def epistemic_variance(self) -> Tensor:
        return _spread(self.probs)

    @cached_property
    def predictive_entropy(self) -> Tensor:
        return _entropy(self.log_mean)

    @cached_property
    def expected_entropy(self) -> Tensor:
        return _entropy(self.log_probs).mean(0)

    @cached_property
    def mutual_information(self) -> Tensor:
        return (self.predictive_entropy - self.expected_entropy).clamp(min=0.0)

    @cached_property
    def disagreement(self) -> Tensor:
        samples = self.num_samples
        if samples < 2:
            raise ValueError(f"`disagreement` needs at least 2 samples, got {samples}")
        votes = self.log_probs.argmax(-1).T
        ones = torch.ones_like(votes, dtype=self.mean.dtype)
        counts = torch.zeros_like(self.mean).scatter_add(1, votes, ones)
        return 1.0 - (counts * (counts - 1.0)).sum(-1) / (samples * (samples - 1))

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the log-probability of labels (B,) under the mixture, (B,)."""
        labels = check_labels(targets, self.log_mean.shape[-1]).to(self.log_mean.device)
        if len(labels) != len(self):
            raise ValueError(f"Got {len(labels)} label(s) for {len(self)} input(s).")
        return self.log_mean.gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"log_probs": self.log_probs}, {"kind": "categorical"}


class MixturePrediction(Prediction):
    """A mixture of S densities of D outputs; within one sample the outputs are independent.

    Few degrees of freedom leave no moments: `variance` is inf for df <= 2, and NaN like `mean` for
    df <= 1. Quantiles, intervals, entropies and `log_prob` exist always. Entropies are differential
    (they may be negative, and shift with the units of y) and belong to each output by itself.

    Args:
        loc: (S, B, D) locations, in units of y.
        scale: scales > 0 that broadcast to (S, B, D).
        df: degrees of freedom > 0 of Student-t densities; None for Gaussian ones.
    """

    _axes = "SBD"
    _shown = ("aleatoric_variance", "epistemic_variance")

    def __init__(self, loc: Tensor, scale: Tensor | float, df: float | None = None) -> None:
        _check_samples("loc", loc, at_least=1)
        scale = _like(scale, loc)
        try:
            scale = scale.expand_as(loc)
        except RuntimeError:
            need, got = tuple(loc.shape), tuple(scale.shape)
            raise ValueError(f"`scale` must broadcast to shape {need}, got {got}") from None
        if where := _first_wrong(loc.isfinite()):
            raise ValueError(f"`loc` must be finite, but is not at {where}. Drop diverged samples.")
        if where := _first_wrong((scale > 0) & scale.isfinite()):
            raise ValueError(f"`scale` must be finite and > 0, but is not at {where}.")
        if df is not None and not 0.0 < df < math.inf:
            raise ValueError(f"`df` must be a finite number > 0, or None for Gaussian, got {df}")
        self.loc, self.scale, self.df = loc, scale, None if df is None else float(df)

    @cached_property
    def mean(self) -> Tensor:
        return self.loc.mean(0) * _moments(self.df)[0]

    @cached_property
    def aleatoric_variance(self) -> Tensor:
        return self.scale.square().mean(0) * _moments(self.df)[1]

    @cached_property
    def epistemic_variance(self) -> Tensor:
        return _spread(self.loc) * _moments(self.df)[0]

    @cached_property
    def predictive_entropy(self) -> Tensor:
        return self.expected_entropy + self.mutual_information

    @cached_property
    def expected_entropy(self) -> Tensor:
        return self.scale.log().mean(0) + densities.standard_entropy(self.df)

    @cached_property
    def mutual_information(self) -> Tensor:
        """By quadrature, (B, D), to 1e-4 nats, at a cost of S^2 and without gradient."""
        return densities.mutual_information(self.loc, self.scale, self.df).to(self.loc.dtype)

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the joint log-density of targets (B, D), or (B,) if D = 1, as (B,)."""
        logs = densities.log_density(self._values(targets), self.loc, self.scale, self.df)
        return logs.sum(-1).logsumexp(0) - math.log(self.num_samples)

    def cdf(self, values: Tensor | float) -> Tensor:
        """Return P(y <= values) of each output, (B, D), for values (B, D) or one number."""
        return densities.cdf(self._values(values), self.loc, self.scale, self.df)

    def quantile(self, q: float | Tensor) -> Tensor:
        """Return the y with cdf(y) = q, (B, D) or (Q, B, D), to 1e-8 of the smallest scale."""
        probs = torch.as_tensor(q, dtype=torch.float64)
        if probs.dim() > 1 or probs.numel() == 0 or not ((probs > 0) & (probs < 1)).all():
            raise ValueError(f"`q` must be one number or a list of numbers in (0, 1), got {q}")
        args = self.loc, self.scale, self.df
        found = [densities.quantile(prob, *args) for prob in probs.reshape(-1).tolist()]
        return (torch.stack(found) if probs.dim() else found[0]).to(self.loc.dtype)

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> MixturePrediction:
        """Return the prediction of shift + scale * y: each one number or D of them, scale > 0."""
        shift, scale = _like(shift, self.loc), _like(scale, self.loc)
        if not (scale > 0).all():
            raise ValueError(f"`scale` of rescale must be > 0, got {scale.tolist()}")
        return MixturePrediction(shift + scale * self.loc, scale * self.scale, self.df)

    def _values(self, values: Tensor | float) -> Tensor:
        """Return values that belong to the inputs, (B, D), or one number for all."""
        y = _like(values, self.loc)
        if y.dim() == 1 and self.loc.shape[-1] == 1:
            y = y.unsqueeze(-1)
        if y.dim() and y.shape != self.loc.shape[1:]:
            need = tuple(self.loc.shape[1:])
            raise ValueError(f"Values must have shape (B, D) = {need}, got {tuple(y.shape)}.")
        if y.isnan().any():
            raise ValueError(f"Values must be numbers, got {int(y.isnan().sum())} NaN.")
        return y

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"loc": self.loc, "scale": self.scale}, {"kind": "mixture", "df": self.df}


def predict_from(components: Categories | Components) -> Prediction:
    """Return the prediction of S samples from what a likelihood made of their outputs.

    Args:
        components: (S, B, C) or (S, B, D); further leading axes, as in (M, S, B, C), are joined.
    """
    if isinstance(components, Categories):
        return CategoricalPrediction(_join_leading(components.log_probs))
    loc, scale, df = components
    return MixturePrediction(_join_leading(loc), _join_leading(scale), df)


def _join_leading(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, -3) if tensor.dim() > 3 else tensor


def _like(values: Any, other: Tensor) -> Tensor:
    """Return `values` as a tensor like `other`; a Python number is not rounded on the way."""
    return torch.as_tensor(values, dtype=other.dtype, device=other.device)


def _moments(df: float | None) -> tuple[float, float]:
    """Return 1 if the mean exists, and the variance at scale 1; NaN and inf where they do not."""
    if df is None:
        return 1.0, 1.0
    if df <= 1.0:
        return math.nan, math.nan
    return 1.0, df / (df - 2.0) if df > 2.0 else math.inf


def _spread(samples: Tensor) -> Tensor:
    """Return the variance over S; unlike `var`, without complaint about an empty batch."""
    return (samples - samples.mean(0)).square().mean(0)


def _entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy over the last axis; the bound keeps 0 log 0 and its gradient at 0."""
    bounded = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
    return -(log_probs.exp() * bounded).sum(-1)


def _check_samples(name: str, tensor: Tensor, at_least: int) -> None:
    kind = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor)
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() != 3:
        raise ValueError(f"`{name}` must be floats of axes (samples, batch, outputs), got {kind}")
    if len(tensor) == 0 or tensor.shape[-1] < at_least:
        raise ValueError(f"`{name}` needs >= 1 sample and >= {at_least} output(s), got {kind}")


def _first_wrong(legal: Tensor) -> str:
    """Return where the first False is and how many there are, or an empty string."""
    if legal.all():
        return ""
    sample, row = (~legal).nonzero()[0, :2].tolist()
    return f"sample {sample}, input {row} ({int((~legal).sum())} of {legal.numel()} in all)"
