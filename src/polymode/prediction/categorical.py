"""Predictions of classes: S categorical distributions, kept as log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import Count, OnlyTensor, Seed, as_numbers, check_call
from polymode.core.rng import generator
from polymode.likelihoods.components import Categories
from polymode.likelihoods.targets import NOT_OBSERVED, check_labels
from polymode.prediction.base import Prediction, check_modes, check_samples, first_wrong
from polymode.prediction.decisions import Decision, best_actions

_BLOCK = 1 << 17  # numbers processed at a time
_SATURATED = 0.99  # above it, 1 - confidence in float32 has lost two digits or more


class CategoricalPrediction(Prediction):
    """A mixture of S categorical distributions over C classes.

    Variances are those of the one-hot outcome, in total p (1 - p) for each class.

    Args:
        log_probs: (S, B, C) log-probabilities of each sample, normalised over classes; -inf is a
            probability of zero. See also `from_probs` and `from_logits`. At positions of an input
            (S, B, *E, C); what is (B, ...) otherwise is then (B, *E, ...).
        log_normalizer: (S, B) log-sum-exp over classes of the network's outputs, for `energy`;
            None where the outputs are not known.
        num_modes: M, with S / M samples each, mode by mode; by default each sample is a mode.
    """

    _kind = "categorical"
    _axes = "SBC"
    _summarised = ("predictive_entropy", "mutual_information")

    def __init__(
        self,
        log_probs: Tensor,
        log_normalizer: OnlyTensor | None = None,
        *,
        num_modes: int | None = None,
    ) -> None:
        check_call(CategoricalPrediction.__init__, locals(), but=("num_modes",))
        check_samples("log_probs", log_probs, at_least=2)
        self.num_modes = check_modes(num_modes, len(log_probs))
        self._mean, self._expected_entropy, totals = _summary(log_probs)
        if where := first_wrong((totals - 1).abs() <= _slack(log_probs)):
            raise ValueError(
                f"`log_probs` must be normalised, but is not at {where}; probabilities add up to"
                f" {totals.min():.4g} ... {totals.max():.4g}, nan if a sample diverged"
                " (drop it). Use `CategoricalPrediction.from_logits` or `.from_probs`."
            )
        if log_normalizer is not None and log_normalizer.shape != log_probs.shape[:-1]:
            need, got = tuple(log_probs.shape[:-1]), tuple(log_normalizer.shape)
            raise ValueError(f"`log_normalizer` must have shape (S, B) = {need}, got {got}")
        self.log_probs, self.log_normalizer = log_probs, log_normalizer

    @classmethod
    def _of_batches(
        cls, predictions: Sequence[Prediction], tensors: dict[str, Tensor], facts: dict[str, Any]
    ) -> Prediction:
        whole = cls.__new__(cls)
        whole.num_modes = facts["num_modes"]
        whole.log_probs, whole.log_normalizer = tensors["log_probs"], tensors.get("log_normalizer")
        whole._mean = torch.cat([part.mean for part in predictions])
        whole._expected_entropy = torch.cat([part.expected_entropy for part in predictions])
        return whole

    @classmethod
    def from_probs(cls, probs: Any) -> CategoricalPrediction:
        """Return the prediction of probabilities (S, B, C), or (B, C) of one sample.

        >>> CategoricalPrediction.from_probs([[0.5, 0.5], [0.9, 0.1]]).confidence
        tensor([0.5000, 0.9000])
        """
        values = _samples_of(probs, "probs")
        totals = values.sum(-1)
        if where := first_wrong((values >= 0).all(-1) & ((totals - 1).abs() <= _slack(values))):
            raise ValueError(
                f"`probs` must be >= 0 and add up to 1, but do not at {where}; the least is"
                f" {values.min():.4g}, sums are {totals.min():.4g} ... {totals.max():.4g}, nan if a"
                " sample diverged (drop it). If these are logits, use `from_logits`."
            )
        return cls(values.log())

    @classmethod
    def from_logits(cls, logits: Any) -> CategoricalPrediction:
        """Return the prediction of network outputs (S, B, C), or (B, C) of one network."""
        values = _samples_of(logits, "logits")
        if where := first_wrong(values.isfinite().all(-1)):
            raise ValueError(f"`logits` must be finite, but are not at {where}. Drop the sample.")
        return cls(values.log_softmax(-1), values.logsumexp(-1))

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities of each sample, (S, B, C)."""
        return self.log_probs.exp()

    @property
    def by_mode(self) -> Categories:
        """Log-probabilities (M, L, B, C) and their normalisers (M, L, B), views."""
        split = (self.num_modes, self.samples_per_mode)
        log_probs, log_normalizer = self.log_probs.unflatten(0, split), self.log_normalizer
        if log_normalizer is not None:
            log_normalizer = log_normalizer.unflatten(0, split)
        return Categories(log_probs, log_normalizer)

    @property
    def mean(self) -> Tensor:
        return self._mean

    @cached_property
    def log_mean(self) -> Tensor:
        """Log of `mean`, (B, C): -inf only where all samples are exactly zero."""
        if self.num_samples == 1:
            return self.log_probs[0]
        info = torch.finfo(self.log_probs.dtype)
        if info.bits < 32:
            return self._log_of_mean(self.log_probs)
        small = self.mean < info.tiny / info.eps  # an exponential there has lost digits
        if not small.any():
            return self.mean.log()
        repaired = self._log_of_mean(self.log_probs[:, small])
        return self.mean.masked_fill(small, 1.0).log().masked_scatter(small, repaired)

    def _log_of_mean(self, log_probs: Tensor) -> Tensor:
        return log_probs.logsumexp(0) - math.log(self.num_samples)

    @cached_property
    def classes(self) -> Tensor:
        """Most probable class under the mixture, int64 (B,); the first one of equals."""
        return first_argmax(self.mean)

    @cached_property
    def confidence(self) -> Tensor:
        """Probability of the most probable class, (B,), in [1/C, 1]."""
        return self.mean.amax(-1)

    @cached_property
    def one_minus_confidence(self) -> Tensor:
        """Probability of all but the most probable class, (B,) float64 in [0, 1).

        Where confidence is high it is added up from the other classes' own probabilities: 1 - 1e-9
        and 1 - 1e-12 are the same number in float32, and here are still told apart.
        """
        others = self.mean.scatter(-1, self.classes[..., None], 0.0).sum(-1, dtype=torch.float64)
        return torch.where(self.confidence > _SATURATED, others, 1 - self.confidence.double())

    @cached_property
    def aleatoric_variance(self) -> Tensor:
        return (self.mean * (1.0 - self.mean) - self.epistemic_variance).clamp(min=0.0)

    @cached_property
    def epistemic_variance(self) -> Tensor:
        means = self.mean.flatten(0, -2).split(_rows(self.log_probs))
        parts = zip(_blocks(self.log_probs), means, strict=True)
        if self.log_probs.requires_grad:
            spread = [(logs.exp() - mean).square().mean(0) for logs, mean in parts]
        else:  # the same in place
            spread = [logs.exp().sub_(mean).square_().mean(0) for logs, mean in parts]
        return torch.cat(spread).to(self.log_probs.dtype).view(self.mean.shape)

    @cached_property
    def total_epistemic_variance(self) -> Tensor:
        """Sum of `epistemic_variance` over classes, (B,)."""
        return self.epistemic_variance.sum(-1)

    @cached_property
    def predictive_entropy(self) -> Tensor:
        return entropy_of(self.log_mean, self.mean)

    @property
    def expected_entropy(self) -> Tensor:
        return self._expected_entropy

    @cached_property
    def mutual_information(self) -> Tensor:
        return (self.predictive_entropy - self.expected_entropy).clamp(min=0.0)

    @cached_property
    def disagreement(self) -> Tensor:
        samples = self.num_samples
        if samples < 2:
            raise ValueError(f"`disagreement` needs at least 2 samples, got {samples}")
        votes = first_argmax(self.log_probs).movedim(0, -1)
        ones = torch.ones_like(votes, dtype=self.mean.dtype)
        counts = torch.zeros_like(self.mean).scatter_add(-1, votes, ones)
        return 1.0 - (counts * (counts - 1.0)).sum(-1) / (samples * (samples - 1))

    @property
    def has_energy(self) -> bool:
        """Whether the networks' outputs are known."""
        return self.log_normalizer is not None

    @property
    def energy(self) -> Tensor:
        r"""Mean over samples of :math:`-\log\sum_k e^{z_{sk}}`, z the network's outputs, (B,).

        High for inputs unlike the training data; needs outputs, not probabilities alone.
        """
        if self.log_normalizer is None:
            raise ValueError(
                "`energy` needs the network's outputs, and this prediction was made of"
                " probabilities; use `from_logits`, or another score"
            )
        return -self.log_normalizer.mean(0)

    def act(self, utility: Any) -> Decision:
        return best_actions(self.mean, utility)

    def _expected_loss(self) -> Tensor:
        return 1.0 - self.mean.amax(-1)

    def sample(self, num_samples: Count, *, seed: Seed = 0) -> Tensor:
        """Return drawn labels, int64 (num_samples, B, *E).

        All positions of an example in a draw are of the same sample of the posterior.
        """
        check_call(CategoricalPrediction.sample, locals())
        random = generator(seed, "prediction", "sample")
        shape = (num_samples, *self.mean.shape[:-1])
        draws = torch.rand(shape, generator=random, dtype=torch.float64)
        probs = self.mean
        if self.num_axes:
            which = torch.randint(self.num_samples, shape[:2], generator=random)
            probs = self.probs[which.to(probs.device), torch.arange(len(self))]
        below = probs.double().cumsum(-1)[..., :-1]
        return (draws.to(below).unsqueeze(-1) >= below).sum(-1)

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the log-probability of labels (B, *E) under the mixture, (B, *E)."""
        labels = self._labels(targets)
        if self.num_axes == 0:
            return self.log_mean.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        absent = labels == NOT_OBSERVED
        logs = self.log_mean.gather(-1, labels.masked_fill(absent, 0).unsqueeze(-1)).squeeze(-1)
        return logs.masked_fill(absent, math.nan)

    def sample_log_probs(self, targets: Tensor) -> Tensor:
        """Return the log-probability of labels (B,) under each sample, (S, B)."""
        places = self._labels(targets).expand(self.log_probs.shape[:-1])
        return self.log_probs.gather(-1, places.unsqueeze(-1)).squeeze(-1)

    def joint_log_prob(self, targets: Tensor) -> Tensor:
        if self.num_axes == 0:
            return self.log_prob(targets)
        labels = self._labels(targets)
        absent = labels == NOT_OBSERVED
        places = labels.masked_fill(absent, 0).expand(self.log_probs.shape[:-1]).unsqueeze(-1)
        logs = self.log_probs.gather(-1, places).squeeze(-1).masked_fill(absent, 0.0)
        return self._log_of_mean(logs.flatten(2).sum(-1))

    def _labels(self, targets: Tensor) -> Tensor:
        """Return labels as int64 (B, *E); -100 is allowed at positions."""
        number, shape = self.num_outputs, self.mean.shape[:-1]
        if self.num_axes == 0:
            labels = check_labels(targets, number)
            if len(labels) != len(self):
                raise ValueError(f"Got {len(labels)} label(s) for {len(self)} input(s).")
            return labels.to(self.mean.device)
        labels = as_numbers("Labels", targets).to(self.mean.device)
        if labels.shape != shape or labels.is_floating_point():
            need, got = tuple(shape), f"{labels.dtype} {tuple(labels.shape)}"
            raise ValueError(f"Labels must be integers of shape (B, *E) = {need}, got {got}.")
        labels = labels.long()
        check_labels(labels[labels != NOT_OBSERVED], number)
        return labels

    def _columns(self) -> dict[str, list[str]]:
        means = {
            "confidence": self.confidence,
            "predictive entropy [nats]": self.predictive_entropy,
        }
        if self.num_samples > 1:
            means["mutual information [nats]"] = self.mutual_information
        columns = {"class": [str(number) for number in self.classes.flatten().tolist()]}
        if self.num_axes:
            columns, means = {}, {f"mean {title}": values for title, values in means.items()}
        return columns | {
            title: [f"{number:.3f}" for number in values.flatten(1).mean(1).tolist()]
            if self.num_axes
            else [f"{number:.3f}" for number in values.tolist()]
            for title, values in means.items()
        }

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"log_probs": self.log_probs}
        if self.log_normalizer is not None:
            tensors["log_normalizer"] = self.log_normalizer
        return tensors, {"kind": self._kind, "num_modes": self.num_modes}


def _samples_of(values: Any, name: str) -> Tensor:
    """Return values of axes (S, B, C); one sample may come as (B, C)."""
    tensor = torch.as_tensor(values)
    if tensor.dim() == 2:
        tensor = tensor.unsqueeze(0)
    check_samples(name, tensor, at_least=2)
    return tensor


def _slack(probs: Tensor) -> float:
    """Return how far sums of probabilities may be from 1 by rounding."""
    return 1e-3 if torch.finfo(probs.dtype).eps < 1e-6 else 0.1


def first_argmax(values: Tensor) -> Tensor:
    """Return the first argmax over the last axis; NumPy is faster at it on CPU."""
    if values.device.type != "cpu" or values.dtype.itemsize < 4:
        return values.argmax(-1)
    return torch.from_numpy(values.detach().numpy().argmax(-1))


def _summary(log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (B, C), expected entropy (B,) and sums of probabilities (S, B), in one pass."""
    means, products, totals = [], [], []
    for logs in _blocks(log_probs):
        probs = logs.exp()
        means.append(probs.mean(0))
        totals.append(probs.detach().sum(-1))
        products.append((probs * logs).sum(-1).mean(0))
    entropy = -torch.cat(products)
    if entropy.isnan().any():  # 0 log 0
        parts = (entropy_of(logs, logs.exp()).mean(0) for logs in _blocks(log_probs))
        entropy = torch.cat(list(parts))
    sizes = log_probs.shape[1:-1]
    mean = torch.cat(means).to(log_probs.dtype).unflatten(0, sizes)
    sums = torch.cat(totals, 1).unflatten(1, sizes)
    return mean, entropy.to(log_probs.dtype).unflatten(0, sizes), sums


def _blocks(log_probs: Tensor) -> Iterator[Tensor]:
    """Yield parts (S, b, C) that stay in a processor's cache, half precision as float32; positions
    are rows."""
    for part in log_probs.flatten(1, -2).split(_rows(log_probs), 1):
        yield part if part.dtype.itemsize > 2 else part.float()


def _rows(log_probs: Tensor) -> int:
    """Return b, the number of rows per block."""
    numbers = len(log_probs) * log_probs.shape[-1]
    return max(1, _BLOCK // max(1, numbers))


def entropy_of(log_probs: Tensor, probs: Tensor) -> Tensor:
    """Return the entropy over the last axis; the bound keeps 0 log 0 and its gradient at 0."""
    return -(probs * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)
