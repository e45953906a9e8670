"""What every likelihood can do; the likelihoods themselves are in `likelihoods/kinds.py`."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from polymode.likelihoods.components import Categories, Components, Densities, Moments
from polymode.likelihoods.options import count
from polymode.likelihoods.targets import check_labels, check_values

Params = Mapping[str, Tensor]


class Likelihood(ABC):
    """What every likelihood can do; the formulas are in the table of `likelihoods/kinds.py`."""

    name: ClassVar[str]
    classification: bool
    scales_targets: ClassVar[bool] = True  # whether values may be shifted and scaled for training

    @property
    def departure(self) -> str:
        """What is minimised instead of -log p, in a few words; "" for the likelihood itself.

        Methods that approximate a posterior by its density ask for it: see `likelihoods/losses.py`.
        """
        return ""

    @property
    def num_axes(self) -> int:
        """How many axes of positions a target has, 0 where each example is one observation."""
        return 0

    @property
    def batch_axis(self) -> int:
        """The axis of targets, counted from the last, along which the examples of a batch lie."""
        return -1 if self.classification else -2

    @abstractmethod
    def num_outputs(self, target_size: int) -> int:
        """Return K, the outputs needed for `target_size` classes C or target dimensions D."""

    @abstractmethod
    def target_size(self, targets: Tensor) -> int:
        """Return C (largest label + 1, at least 2) or D as seen in the data."""

    def check(self, targets: Tensor, target_size: int | None = None) -> Tensor:
        """Return canonical targets, int64 (N,) labels or float (N, D) values.

        Raises:
            ValueError: for no targets at all, a wrong type or shape (float labels, one-hot rows),
                NaN or infinity, labels out of range: with the first wrong row and how many.
        """
        checked = (check_labels if self.classification else check_values)(targets, target_size)
        if len(checked) == 0:
            raise ValueError(f"Targets are empty, shape {tuple(checked.shape)}; need >= 1 example.")
        return checked

    def num_observations(self, targets: Tensor) -> float:
        """Return how many observations a batch of targets (B, ...) has, by default one each."""
        return len(targets)

    def examples_per_observation(self, targets: Tensor) -> Tensor | float:
        """Return the examples of a batch over its observations, (...): from means to means."""
        return 1.0

    def squared_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return sums over a batch of squared errors of the means, (..., D) in float64."""
        return (outputs - targets).double().square().sum(-2)

    @property
    def learns(self) -> bool:
        """Whether it has parameters of its own, see `init`."""
        return False

    def init(
        self,
        num_modes: int,
        target_size: int,
        dtype: torch.dtype = torch.float32,
        spread: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return what the likelihood itself learns, with a leading axis M; {} if nothing.

        Args:
            spread: root mean square (M, D) of the members' errors at the start, from which learned
                noise begins; None is 1, fit for standardised targets.
        """
        count("num_modes", self, num_modes, at_least=1)
        self.num_outputs(target_size)
        return {}

    def scaled(self, scale: Tensor, target_size: int) -> Likelihood:
        """Return the likelihood of targets that are divided by `scale`, () or (D,)."""
        return self

    @abstractmethod
    def log_prob(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        """Return the log-likelihood of each example, (..., B), summed over target dimensions."""

    def losses(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        """Return what training minimises for each example, (..., B): -log_prob, unless `departure`
        says what else."""
        return -self.log_prob(outputs, targets, params)

    def nll(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        """Return the batch mean of `losses`, (...), in nats per example; NaN if B = 0."""
        return self.losses(outputs, targets, params).mean(-1)

    def nll_gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return `nll` (...) and its gradient with respect to the outputs (..., B, K).

        Both are without a graph. For likelihoods that learn nothing themselves.
        """
        outputs = outputs.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.nll(outputs, targets, {})
        (gradient,) = torch.autograd.grad(losses, outputs, torch.ones_like(losses))
        return losses.detach(), gradient

    @abstractmethod
    def components(self, outputs: Tensor, params: Params) -> Categories | Densities:
        """Return the distribution predicted for each example."""

    def closed(self, moments: Moments, params: Params) -> Components | None:
        """Return the distribution predicted from Gaussian outputs, (M, B, D), in closed form.

        None where there is no closed form; `components` of `moments.draw` then tends to it. That is
        so for classes, and for the convolution of a Student-t with a Gaussian. It is also so for
        noise that is an output itself: at the mean of that output it would be too small on average
        (Jensen), and nothing would tell that the noise is not known either.
        """
        return None

    def components_from(
        self, moments: Moments, params: Params, draw: Callable[[Moments], Tensor]
    ) -> Categories | Densities:
        """Return the distribution predicted from Gaussian outputs, in closed form where there is
        one.

        Args:
            moments: of M modes.
            params: (M, L, ...), what the likelihood has learned itself.
            draw: from moments to outputs (M, L, B, K) that stand for them.
        """
        fixed = {name: tensor[:, 0] for name, tensor in params.items()}
        closed = self.closed(moments, fixed)
        return self.components(draw(moments), params) if closed is None else closed

    def to_config(self) -> dict[str, Any]:
        """Return a JSON-safe description for `likelihood_from_config`."""
        fields = {field: getattr(self, field) for field in field_names(type(self))}
        return {"name": self.name} | {
            key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()
        }

    @classmethod
    def from_config(cls, fields: Mapping[str, Any]) -> Likelihood:
        """Return the likelihood with these fields of `to_config`."""
        return cls(**fields)


def field_names(cls: type[Likelihood]) -> list[str]:
    """Return the names of a likelihood's options."""
    return [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
