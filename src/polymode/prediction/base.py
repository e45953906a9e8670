"""What predictions of classes and of densities have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import Count, Seed, is_number, shown
from polymode.core.html import html_block, html_table
from polymode.likelihoods.components import Categories, Densities
from polymode.likelihoods.targets import NOT_OBSERVED
from polymode.prediction.decisions import Decision, abstentions, best_actions_for_values

SHOWN = 8  # inputs that a notebook shows


class Observations(NamedTuple):
    """Predictions and targets as rows, one for each observation.

    Attributes:
        prediction: (S, n, C) or (S, n, D).
        targets: labels (n,) or values (n, D).
        examples: (n,) number of the example in its batch that each observation belongs to.
    """

    prediction: Prediction
    targets: Tensor
    examples: Tensor


class Prediction(ABC):
    """What every prediction can do; `predict_from` makes one from a likelihood's components.

    Attributes:
        num_modes: M. The S samples lie mode by mode, sample l of mode m at m L + l, L = S / M.
    """

    num_modes: int
    _kind: ClassVar[str]
    _axes: ClassVar[str]
    _summarised: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """Predictive mean: class probabilities (B, C), or the mean of y (B, D)."""

    @property
    @abstractmethod
    def aleatoric_variance(self) -> Tensor:
        """Mean of the networks' variances, (B, C) or (B, D)."""

    @property
    @abstractmethod
    def epistemic_variance(self) -> Tensor:
        """Variance of the networks' means, (B, C) or (B, D)."""

    @property
    @abstractmethod
    def predictive_entropy(self) -> Tensor:
        """Entropy of the mixture in nats: (B,) of the class, or (B, D) of each output."""

    @property
    @abstractmethod
    def expected_entropy(self) -> Tensor:
        """Mean of the networks' entropies in nats, (B,) or (B, D)."""

    @property
    @abstractmethod
    def mutual_information(self) -> Tensor:
        """Information that y carries about which network is right, in nats, (B,) or (B, D).

        In [0, log S], unless densities have an epistemic share.
        """

    @property
    @abstractmethod
    def by_mode(self) -> Categories | Densities:
        """The samples by mode, (M, L, B, C) or (M, L, B, D), views; see `predict_from`."""

    @abstractmethod
    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the log-probability of targets under the mixture, (B, *E), jointly over outputs.

        NaN at positions without a target.
        """

    def joint_log_prob(self, targets: Tensor) -> Tensor:
        r"""Return the log-probability of all targets of each example together, (B,).

        .. math:: \log \frac1S \sum_s \prod_{p \in P} p_s(y_p \mid x)

        Members agree on a whole example or do not: this is no product of the mixtures that
        `log_prob` looks at position by position. Without positions the two are the same.
        """
        if self.num_axes:
            raise ValueError(f"{type(self).__name__} has no joint density of several positions.")
        return self.log_prob(targets)

    @abstractmethod
    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors, of axes (S, B, ...), and JSON-safe metadata."""

    @abstractmethod
    def _columns(self) -> dict[str, list[str]]:
        """Return the columns that a notebook shows, by heading."""

    @cached_property
    def variance(self) -> Tensor:
        """Predictive variance: aleatoric + epistemic, (B, C) or (B, D)."""
        return self.aleatoric_variance + self.epistemic_variance

    @cached_property
    def std(self) -> Tensor:
        """Predictive standard deviation, the root of `variance`."""
        return self.variance.sqrt()

    @cached_property
    def within_modes(self) -> Tensor:
        r"""Mutual information within modes in nats, (B,) or (B, D).

        Averaged over modes: information that y carries about the network within a given mode. By
        the chain rule :math:`I[y; w] = I[y; m] + I[y; w \mid m]`, `mutual_information` is
        `between_modes` + `within_modes`.
        """
        modes = [self.take_modes([number]) for number in range(self.num_modes)]
        return torch.stack([mode.mutual_information for mode in modes]).mean(0)

    @cached_property
    def between_modes(self) -> Tensor:
        """Mutual information between modes in nats, in [0, log M], (B,) or (B, D).

        Information that y carries about which mode is right: `mutual_information` less
        `within_modes`.
        """
        return (self.mutual_information - self.within_modes).clamp(min=0.0)

    @property
    def disagreement(self) -> Tensor:
        """Fraction of the pairs of samples that name different classes, (B,)."""
        raise ValueError("Only classes disagree; use `epistemic_variance`, `mutual_information`.")

    def quantile(self, q: float | Tensor) -> Tensor:
        """Return the quantile of each output at q in (0, 1): (B, D), or (Q, B, D) for Q of them."""
        raise ValueError("Classes have no quantiles; use `mean`, their probabilities.")

    @abstractmethod
    def sample(self, num_samples: Count, *, seed: Seed = 0) -> Tensor:
        """Return draws of the target: labels (num_samples, B), or values (num_samples, B, D)."""

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Return the ends, (B, D) each, of the central interval of probability `level`."""
        if not is_number(level) or not 0.0 < level < 1.0:
            raise ValueError(f"`level` of an interval must be in (0, 1), got {shown(level)}")
        return self.quantile(0.5 * (1.0 - level)), self.quantile(0.5 * (1.0 + level))

    def abstain(self, cost: float) -> Tensor:
        """Return where abstaining at `cost` is better than the best answer, bool (B,).

        A wrong class costs 1, a value its squared error, summed over the outputs.
        """
        return abstentions(self._expected_loss(), cost)

    def act(self, utility: Any) -> Decision:
        """Return the actions of highest expected utility.

        Args:
            utility: of classes an (A, C) table of what action a gives if the class is c; of values
                a function of y (N, B) that returns the utilities of A actions, (N, B) each. Costs
                are negative. Expectations of values are means over 200 quantiles.
        """
        return best_actions_for_values(self, utility)

    def _expected_loss(self) -> Tensor:
        """Return the expected loss of the best answer: squared error of the mean, (B,)."""
        return self.variance.sum(-1)

    @property
    def num_outputs(self) -> int:
        """Classes C, or outputs D."""
        return self._shape[-1]

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        return next(iter(self._parts()[0].values())).device

    @property
    def nbytes(self) -> int:
        """Bytes of the samples, or of what is held in their place."""
        return sum(tensor.nbytes for tensor in self._parts()[0].values())

    @property
    def num_samples(self) -> int:
        """S, the posterior samples in the mixture."""
        return self._shape[0]

    @property
    def samples_per_mode(self) -> int:
        """L, the samples of each mode."""
        return self.num_samples // self.num_modes

    @property
    def has_epistemic(self) -> bool:
        """Whether the epistemic part is defined: from two samples on."""
        return self.num_samples > 1

    def __len__(self) -> int:
        return self._shape[1]

    @property
    def num_axes(self) -> int:
        """How many axes of positions there are behind B, 0 for one observation per input."""
        return len(self._shape) - 3

    def observations(self, targets: Tensor) -> Observations:
        """Return the positions that have a target as rows, with the targets as rows.

        Args:
            targets: as the task holds them: labels (B, *E), where -100 is no target, or values (B,
                *E, D), where NaN is none. Nothing changes where all inputs have one target.
        """
        sizes = self._shape[1:-1]
        places, flat = observed_places(targets, sizes)
        if self.num_axes == 0 and len(places) == len(self):
            return Observations(self, targets, places)
        tensors, metadata = self._parts()
        rows = {
            key: tensor.flatten(1, self.num_axes + 1).index_select(1, places.to(tensor.device))
            for key, tensor in tensors.items()
        }
        examples = places // math.prod(sizes[1:])
        return Observations(Prediction.from_arrays(rows, metadata), flat[places], examples)

    def as_rows(self) -> Prediction:
        """Return all positions as rows, (S, B |E|, ...)."""
        if self.num_axes == 0:
            return self
        tensors, metadata = self._parts()
        last = self.num_axes + 1
        return Prediction.from_arrays({k: t.flatten(1, last) for k, t in tensors.items()}, metadata)

    def at_positions(self, sizes: Sequence[int]) -> Prediction:
        """Return rows as positions of examples, sizes (B, *E): what `as_rows` undoes."""
        if len(sizes) == 1:
            return self
        tensors, metadata = self._parts()
        rows = {k: t.unflatten(1, tuple(sizes)) for k, t in tensors.items()}
        return Prediction.from_arrays(rows, metadata)

    @property
    def _shape(self) -> torch.Size:
        return next(iter(self._parts()[0].values())).shape

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Prediction:
        """Return the prediction of some inputs: a slice, indices or a mask; one index keeps B."""
        which = chosen_inputs(index)
        tensors, metadata = self._parts()
        return Prediction.from_arrays({key: t[:, which] for key, t in tensors.items()}, metadata)

    def take_modes(self, modes: slice | Sequence[int]) -> Prediction:
        """Return the prediction of some modes, with all their samples: `take_modes(slice(3))`."""
        numbers = range(self.num_modes)
        which = numbers[modes] if isinstance(modes, slice) else [numbers[m] for m in modes]
        if not which:
            raise IndexError(f"No mode of the {self.num_modes} is taken by {modes!r}.")
        return self._take_samples(
            [
                mode * self.samples_per_mode + k
                for mode in which
                for k in range(self.samples_per_mode)
            ],
            len(which),
        )

    def _take_samples(self, samples: list[int], num_modes: int) -> Prediction:
        tensors, metadata = self._parts()
        selected = {key: tensor[samples] for key, tensor in tensors.items()}
        return Prediction.from_arrays(selected, {**metadata, "num_modes": num_modes})

    @staticmethod
    def cat(predictions: Sequence[Prediction]) -> Prediction:
        """Return the predictions of several batches as one, joined along B."""
        if len(predictions) == 1:
            return predictions[0]
        tensors, metadata = _joined(predictions, along=1)
        return type(predictions[0])._of_batches(predictions, tensors, metadata)

    @classmethod
    def _of_batches(
        cls, predictions: Sequence[Prediction], tensors: dict[str, Tensor], facts: dict[str, Any]
    ) -> Prediction:
        """Return the prediction of joined tensors; what batches have computed may be joined too."""
        return Prediction.from_arrays(tensors, facts)

    @staticmethod
    def join(predictions: Sequence[Prediction]) -> Prediction:
        """Return the predictions of several posteriors at the same inputs as one, joined along S.

        Their modes add up; all must have equally many samples per mode, so that they weigh alike.
        """
        tensors, metadata = _joined(predictions, along=0)
        num_modes = sum(prediction.num_modes for prediction in predictions)
        return Prediction.from_arrays(tensors, {**metadata, "num_modes": num_modes})

    def to_arrays(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return contiguous tensors and JSON-safe metadata, for storage."""
        tensors, metadata = self._parts()
        return {key: tensor.detach().contiguous() for key, tensor in tensors.items()}, metadata

    @staticmethod
    def from_arrays(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Prediction:
        """Restore a prediction from the result of `to_arrays`."""
        kinds = _kinds(Prediction)  # type: ignore[type-abstract]
        if metadata.get("kind") not in kinds:
            raise ValueError(f"Not a stored prediction: its kind is {metadata.get('kind')!r}.")
        return kinds[metadata["kind"]](
            **tensors, **{k: v for k, v in metadata.items() if k != "kind"}
        )

    def _repr_html_(self) -> str:
        """Return the first predictions as a table, for notebooks."""
        columns = self[:SHOWN]._columns() if len(self) else {}
        rows = enumerate(zip(*columns.values(), strict=True))
        table = html_table(["input", *columns], [[number, *row] for number, row in rows])
        remaining = len(self) - SHOWN
        more = f"and {remaining:,} more; " if remaining > 0 else ""
        axes = ", ".join(f"{axis} = {size:,}" for axis, size in self._sizes().items())
        return html_block(type(self).__name__, table, note=more + axes)

    def __repr__(self) -> str:
        facts = [f"{axis}={size}" for axis, size in self._sizes().items()]
        if len(self):
            facts += [
                f"{name}={getattr(self, name).mean().item():.4g}" for name in self._summarised
            ]
        return f"{type(self).__name__}({', '.join(facts)})"

    def _sizes(self) -> dict[str, int]:
        """Return the sizes by axis; M only where modes have several samples."""
        first, last = self._axes[:2], self._axes[2:]
        axes = [*first, *(f"E{number + 1}" for number in range(self.num_axes)), *last]
        sizes = dict(zip(axes, self._shape, strict=True))
        return sizes if self.samples_per_mode == 1 else {"M": self.num_modes, **sizes}


def _kinds(parent: type[Prediction]) -> dict[str, type[Prediction]]:
    """Return all kinds of predictions that can be stored, by name; averages are none."""
    kinds: dict[str, type[Prediction]] = {}
    for child in parent.__subclasses__():
        if "_kind" in vars(child):
            kinds[child._kind] = child
        kinds |= _kinds(child)
    return kinds


def _joined(
    predictions: Sequence[Prediction], along: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of predictions joined along S or B, and the metadata of the first."""
    if not predictions:
        raise ValueError("`predictions` is empty; there is nothing to join.")
    first = predictions[0]

    def kind_of(prediction: Prediction) -> tuple[Any, ...]:
        tensors, metadata = prediction._parts()
        shape = prediction._shape[:along] + prediction._shape[along + 1 :]
        num_modes = prediction.num_modes if along else prediction.samples_per_mode
        return tensors.keys(), shape, {**metadata, "num_modes": num_modes}

    for second in predictions:
        if kind_of(second) != kind_of(first):
            per_mode = f"{first.samples_per_mode} and {second.samples_per_mode} samples per mode"
            raise ValueError(
                f"Only predictions of the same kind can be joined, got {first} and {second},"
                f" {per_mode}."
            )
    parts = [prediction._parts()[0] for prediction in predictions]
    joined = {key: torch.cat([part[key] for part in parts], along) for key in parts[0]}
    return joined, first._parts()[1]


def observed_places(targets: Tensor, sizes: torch.Size) -> tuple[Tensor, Tensor]:
    """Return which of the positions `sizes` (B, *E) have a target, and all targets as rows."""
    if targets.shape[: len(sizes)] != sizes:
        need, got = tuple(sizes), tuple(targets.shape)
        raise ValueError(f"Predictions at positions {need} need targets there, got {got}.")
    flat = targets.flatten(0, len(sizes) - 1)
    observed = flat != NOT_OBSERVED
    if flat.is_floating_point():
        observed = ~flat.isnan().flatten(1).all(1) if flat.dim() > 1 else ~flat.isnan()
    return observed.nonzero().squeeze(1), flat


def chosen_inputs(index: int | slice | Sequence[int] | Tensor) -> slice | Tensor:
    """Return an index of inputs as a slice, indices or a mask (B,)."""
    if isinstance(index, slice):
        return index
    which = torch.atleast_1d(torch.as_tensor(index))
    which = which if which.numel() else which.long()  # an empty list is float
    if which.dim() != 1 or which.is_floating_point():
        raise IndexError("A prediction is indexed by input: a slice, indices or a mask.")
    return which


def spread(samples: Tensor) -> Tensor:
    """Return the variance over S; unlike `var`, without a warning for an empty batch."""
    return (samples - samples.mean(0)).square().mean(0)


def check_samples(name: str, tensor: Tensor, at_least: int) -> None:
    kind = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor)
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() < 3:
        raise ValueError(f"`{name}` must be floats of axes (samples, batch, outputs), got {kind}")
    if len(tensor) == 0 or tensor.shape[-1] < at_least:
        raise ValueError(f"`{name}` needs >= 1 sample and >= {at_least} output(s), got {kind}")


def check_modes(num_modes: int | None, num_samples: int) -> int:
    """Return the number of modes, by default one per sample; it must divide the samples evenly."""
    if num_modes is None:
        return num_samples
    if not isinstance(num_modes, int) or num_modes < 1 or num_samples % num_modes:
        raise ValueError(
            f"`num_modes` must divide the number of samples, {num_samples}, got {shown(num_modes)}"
        )
    return num_modes


def first_wrong(legal: Tensor) -> str:
    """Return the position of the first False and their number, or an empty string."""
    if legal.all():
        return ""
    sample, row = (~legal).nonzero()[0, :2].tolist()
    return f"sample {sample}, input {row} ({int((~legal).sum())} of {legal.numel()} in all)"
