"""What predictions of numbers have in common: mixtures of S laws of D outputs, weighted alike."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from polymode.core.checks import shown
from polymode.likelihoods.densities import Shape
from polymode.prediction.base import Prediction, spread

_Law = TypeVar("_Law", bound="DensityPrediction")


class DensityPrediction(Prediction):
    """A mixture of S laws of D outputs; within one sample the outputs are independent.

    A kind of law says its moments and entropy, its density or probabilities, its distribution
    function, quantiles and draws; all that mixtures make of them is here.

    Attributes:
        loc: (S, B, *E, D) a location of each sample, its mean where that is cheap.
        df: shape of location-scale densities, None for all others.
        epistemic: share of a sample's variance that comes from the weights; None for 0.
    """

    _axes = "SBD"
    _summarised = ("aleatoric_variance", "epistemic_variance")
    loc: Tensor
    df: Shape = None
    epistemic: Tensor | None = None

    @property
    @abstractmethod
    def sample_means(self) -> Tensor:
        """Mean of each sample, (S, B, *E, D)."""

    @property
    @abstractmethod
    def sample_variances(self) -> Tensor:
        """Variance of each sample without an epistemic share, (S, B, *E, D)."""

    @abstractmethod
    def sample_log_densities(self, values: Tensor) -> Tensor:
        """Return the log-density, or log-probability, of each output under each sample.

        (S, B, *E, D), at values as `_values` gives them.
        """

    @abstractmethod
    def sample_cdf(self, values: Tensor) -> Tensor:
        """Return P(y <= values) of each output under each sample, (S, B, *E, D)."""

    @abstractmethod
    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> DensityPrediction:
        """Return the prediction of shift + scale * y: each one number or D of them, scale > 0."""

    @abstractmethod
    def quantile(self, q: float | Tensor) -> Tensor:
        """Return the y with cdf(y) = q, (B, D), or (Q, B, D) for Q of them."""

    @cached_property
    def mean(self) -> Tensor:
        return self.sample_means.mean(0)

    @cached_property
    def aleatoric_variance(self) -> Tensor:
        return self.sample_variances.mean(0)

    @cached_property
    def epistemic_variance(self) -> Tensor:
        return spread(self.sample_means)

    @cached_property
    def predictive_entropy(self) -> Tensor:
        return self.expected_entropy + self.mutual_information

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the joint log-density of targets (B, *E, D), or (B, *E) if D = 1, as (B, *E)."""
        return self.sample_log_probs(targets).logsumexp(0) - math.log(self.num_samples)

    def joint_log_prob(self, targets: Tensor) -> Tensor:
        logs = self.sample_log_probs(targets)
        if self.num_axes:
            logs = logs.nan_to_num(nan=0.0).flatten(2).sum(-1)
        return logs.logsumexp(0) - math.log(self.num_samples)

    def sample_log_probs(self, targets: Tensor) -> Tensor:
        """Return the joint log-density of targets under each sample, (S, B, *E)."""
        return self.sample_log_densities(self._values(targets)).sum(-1)

    def cdf(self, values: Tensor | float) -> Tensor:
        """Return P(y <= values) of each output, (B, D), for values (B, D) or one number."""
        return self.sample_cdf(self._values(values)).mean(0)

    def pit(self, values: Tensor) -> Tensor:
        """Return numbers that are uniform in [0, 1] if the prediction is right, (B, D)."""
        return self.cdf(values)

    def density(self, values: Tensor | float) -> Tensor:
        """Return the density of each output, (B, D), at values (B, D) or one number.

        Outputs are taken one by one; `log_prob` is the joint density of all of them.
        """
        return self.log_density(values).exp()

    def log_density(self, values: Tensor | float) -> Tensor:
        """Return the log-density of each output, (B, D), at values (B, D) or one number."""
        logs = self.sample_log_densities(self._values(values))
        return logs.logsumexp(0) - math.log(self.num_samples)

    def double(self: _Law) -> _Law:
        """Return the prediction in float64, without gradients."""
        tensors, metadata = self.to_arrays()
        wide = {key: tensor.double() for key, tensor in tensors.items()}
        return Prediction.from_arrays(wide, metadata)  # type: ignore[return-value]

    def _values(self, values: Tensor | float) -> Tensor:
        """Return values as a tensor (B, *E, D), or one number for all inputs."""
        y = like(values, self.loc)
        if y.dim() == self.loc.dim() - 2 and self.loc.shape[-1] == 1:
            y = y.unsqueeze(-1)
        if y.dim() and y.shape != self.loc.shape[1:]:
            need = tuple(self.loc.shape[1:])
            form = "(B, *E, D)" if self.num_axes else "(B, D)"
            raise ValueError(f"Values must have shape {form} = {need}, got {tuple(y.shape)}.")
        if self.num_axes == 0 and y.isnan().any():
            raise ValueError(f"Values must be numbers, got {int(y.isnan().sum())} NaN.")
        return y

    def _columns(self) -> dict[str, list[str]]:
        parts = {"mean": self.mean, "s.d.": self.std}
        if self.has_epistemic:
            parts["epistemic s.d."] = self.epistemic_variance.sqrt()
        if self.num_axes:
            parts = {f"mean {title}": v.flatten(1, -2).mean(1) for title, v in parts.items()}
        return columns_by_output(parts)


def checked_levels(q: Any) -> Tensor:
    """Return levels of quantiles in float64, () or (Q,), or say what is wrong with them."""
    try:
        probs = torch.as_tensor(q, dtype=torch.float64)
        legal = probs.dim() <= 1 and probs.numel() > 0 and bool(((probs > 0) & (probs < 1)).all())
    except (TypeError, ValueError, RuntimeError):
        legal = False
    if not legal:
        raise ValueError(f"`q` must be one number or a list of numbers in (0, 1), got {shown(q)}")
    return probs


def like(values: Any, tensor: Tensor) -> Tensor:
    """Return `values` with dtype and device of `tensor`; Python numbers are not rounded twice."""
    try:
        return torch.as_tensor(values, dtype=tensor.dtype, device=tensor.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"Values must be numbers, got {shown(values)}") from None


def columns_by_output(parts: dict[str, Tensor]) -> dict[str, list[str]]:
    """Return the columns of a table, by heading, from values (B, D) of up to three outputs."""
    size = next(iter(parts.values())).shape[-1]
    return {
        title if size == 1 else f"{title}, output {place}": [
            f"{number:.4g}" for number in values[:, place].tolist()
        ]
        for place in range(min(size, 3))
        for title, values in parts.items()
    }
