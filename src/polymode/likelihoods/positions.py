r"""Several observations per example: pixels of a picture, tokens of a text, labels of one input.

A network maps an example to outputs at each of its positions, and a target says what was observed
there. With a base likelihood :math:`p` of one observation, `P` the positions of an example and
:math:`w` the weight of an observation,

.. math:: \log p(y \mid f(x)) = \sum_{p \in P} w_p \log p(y_p \mid f_p(x)), \quad
          \mathrm{nll} = -\frac{\sum_{n,p} w_{np} \log p(y_{np} \mid f_p(x_n))}{\sum_{n,p} w_{np}}.

A weight of k stands for k equal observations, a weight of 0 for none. So N, which a prior is
weighed against, is the sum of all weights, and the posterior is that of the sum over observations,
while losses and learning rates keep their usual size. Batches whose weights add up differently
count alike in a stochastic gradient, as they do in other libraries; what passes over all data
weighs them.

Shapes: `B` batch, `E` the position axes, `K` outputs and `C` classes or `D` targets at a position,
`P` observations in a row. Outputs are (..., B, K, *E), (..., B, *E, K) or (..., B, *E); targets are
labels (B, *E) or values (B, *E, D). A label of -100 and a value of NaN say that nothing was
observed, once `check` has seen the targets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import as_numbers, shown
from polymode.core.rows import Rows, as_rows
from polymode.likelihoods.base import Likelihood, Params
from polymode.likelihoods.components import (
    Categories,
    Components,
    Counts,
    Densities,
    Moments,
)
from polymode.likelihoods.kinds import LIKELIHOODS, Categorical, likelihood_from_config
from polymode.likelihoods.options import count, positive
from polymode.likelihoods.targets import NOT_OBSERVED

Targets = Tensor | Rows
_LAYOUTS = ("first", "last", "none")
_VOID = 255  # masks in bytes use it for pixels without a label


class Observed(NamedTuple):
    """What a base likelihood sees.

    Attributes:
        outputs: (..., P, K). targets: (..., P) or (..., P, D), any legal value where there is none.
        weights: (..., P), 0 where there is no target.
    """

    outputs: Tensor
    targets: Tensor
    weights: Tensor


@dataclasses.dataclass(frozen=True)
class Positions(Likelihood):
    """Observations at the positions of an example, independent given the network's outputs.

    `pm.Task(likelihood="categorical", ...)` with targets (N, H, W) makes one by itself.

    Args:
        base: the likelihood of one observation.
        axes: how many of the targets' axes are positions: 1 for tokens and labels, 2 for pixels.
        outputs: where the network's K outputs of a position are: "first" (B, K, *E), "last"
            (B, *E, K), or "none" (B, *E) with one output per position. None finds it from shapes
            when a network is fitted, and asks where several fit.
        ignore: the label, or value, that stands for "not observed"; by default -100 for labels and
            none for values. NaN is allowed for values.
        labels: for outputs="none", how many outputs the network has for one example.
        class_weights: C numbers >= 0, the weight of an observation of each class.
    """

    base: Likelihood
    axes: int = 1
    outputs: str | None = None
    ignore: int | float | None = None
    labels: int = 1
    class_weights: tuple[float, ...] | None = None
    name = "positions"

    def __post_init__(self) -> None:
        if not isinstance(self.base, Likelihood) or isinstance(self.base, Positions):
            raise ValueError(
                "`base` of Positions must be the likelihood of one observation, such as"
                f" Categorical(), got {shown(self.base)}"
            )
        object.__setattr__(self, "classification", self.base.classification)
        count("axes", self, self.axes, at_least=0)
        count("labels", self, self.labels, at_least=1)
        if self.outputs is not None and self.outputs not in _LAYOUTS:
            raise ValueError(
                "`outputs` of Positions must be 'first', 'last', 'none' or None, got"
                f" {shown(self.outputs)}"
            )
        number = isinstance(self.ignore, (int, float)) and not isinstance(self.ignore, bool)
        if self.ignore is not None and not number:
            raise ValueError(f"`ignore` of Positions must be a number, got {shown(self.ignore)}")
        if self.classification and isinstance(self.ignore, float):
            raise ValueError(
                f"`ignore` of Positions is {self.ignore}, but labels are integers: give a label"
            )
        self._check_class_weights()

    def _check_class_weights(self) -> None:
        if self.class_weights is None:
            return
        if not self.classification:
            raise ValueError("`class_weights` of Positions are for classes, not for values")
        weights = tuple(
            0.0 if number == 0 else positive("class_weights", self, number)
            for number in self.class_weights
        )
        if not any(weights):
            raise ValueError("`class_weights` of Positions must not all be 0")
        object.__setattr__(self, "class_weights", weights)

    # ------------------------------------------------------------------------ what is observed

    @property
    def num_axes(self) -> int:
        return self.axes

    @property
    def scales_targets(self) -> bool:  # type: ignore[override]
        return self.base.scales_targets

    @property
    def departure(self) -> str:
        return self.base.departure

    @property
    def batch_axis(self) -> int:
        return self.base.batch_axis - self.axes

    def num_outputs(self, target_size: int) -> int:
        """Return K at a position; the outputs for an example where that is one."""
        number = self.base.num_outputs(target_size)
        flat = self.outputs == "none" or (self.outputs, self.axes, number) == (None, 1, 1)
        if self.class_weights is not None and len(self.class_weights) != target_size:
            raise ValueError(
                f"`class_weights` of Positions has {len(self.class_weights)} numbers for"
                f" {target_size} classes"
            )
        return self.labels if flat else number

    def target_size(self, targets: Tensor) -> int:
        """Return C or D as seen in targets that `check` has returned."""
        if not self.classification:
            return targets.shape[-1]
        observed = targets[self._is_observed(targets)]
        if len(observed) == 0:
            raise ValueError("no target is observed: all of them are ignored")
        if int(observed.max()) == _VOID and not bool((observed == _VOID - 1).any()):
            raise ValueError(
                f"Labels go up to {_VOID}, which masks in bytes use for pixels without a label;"
                f" give ignore_index={_VOID} to Task, or `target_size` if it is a class"
            )
        return self.base.target_size(observed)

    def check(self, targets: Tensor, target_size: int | None = None) -> Tensor:
        """Return canonical targets, int64 labels (N, *E) or values (N, *E, D).

        What is not observed is -100 or NaN. Values may come as (N, D, *E), unless `outputs` says
        "last", and as (N, *E) where D is 1.

        Raises:
            ValueError: for a wrong type or shape, labels out of range, or values that are not
                finite, with the place of the first.
        """
        if target_size is not None:
            self.num_outputs(target_size)
        values = as_numbers("Targets", targets)
        if values.is_complex():
            raise ValueError(f"Targets must be real numbers, got {values.dtype}.")
        if len(values) == 0:
            raise ValueError(f"Targets are empty, shape {tuple(values.shape)}; need >= 1 example.")
        if self.classification:
            return self._checked_labels(values, target_size)
        return self._checked_values(values, target_size)

    def _checked_labels(self, labels: Tensor, target_size: int | None) -> Tensor:
        if labels.is_floating_point():
            raise ValueError(
                f"Labels must be integers, got {labels.dtype} of shape {tuple(labels.shape)}."
                " Convert masks and tags with `.long()`"
            )
        self._check_axes(labels, labels.dim() - 1)
        labels, size = labels.long(), target_size
        if self.base.name == "bernoulli":
            size = 2
        absent = labels == NOT_OBSERVED
        if self.ignore is not None:
            absent |= labels == self.ignore
        wrong = ~absent & ((labels < 0) if size is None else ((labels < 0) | (labels >= size)))
        if wrong.any():
            value = int(labels[wrong][0])
            legal = ">= 0" if size is None else f"in 0..{size - 1}"
            raise ValueError(
                f"Labels must be {legal}, got {value} {_first_place(wrong)}; if it stands for 'not"
                f" labelled', give ignore_index={value} to Task"
            )
        return labels.masked_fill(absent, NOT_OBSERVED)

    def _checked_values(self, values: Tensor, target_size: int | None) -> Tensor:
        if values.dtype == torch.bool:
            raise ValueError("Regression targets must be real numbers, got torch.bool.")
        if not values.is_floating_point():
            values = values.to(torch.get_default_dtype())
        if values.dim() == 1 + self.axes:
            values = values.unsqueeze(-1)
        elif self._has_outputs_first(values, target_size):
            values = values.movedim(1, -1)
        self._check_axes(values, values.dim() - 2)
        if target_size is not None and values.shape[-1] != target_size:
            raise ValueError(
                f"Regression targets must have {target_size} dimension(s) at each position, got"
                f" {values.shape[-1]} (shape {tuple(values.shape)})"
            )
        if self.ignore is not None:
            absent = values.isnan() | (values == self.ignore)
            values = values.masked_fill(absent.all(-1, keepdim=True), math.nan)
        observed = self._is_observed(values) if self.ignore is not None else True
        wrong = observed & ~values.isfinite().all(-1)
        if wrong.any():
            remedy = "" if self.ignore is not None else "; if it means 'not observed', ignore it"
            raise ValueError(
                f"Regression targets must be finite, got {values[wrong][0].tolist()}"
                f" {_first_place(wrong)}{remedy}: Positions(..., ignore=float('nan'))"
            )
        return values

    def _has_outputs_first(self, values: Tensor, target_size: int | None) -> bool:
        """Whether D is the second axis, as users have it, and not the last, as after `check`."""
        if values.dim() != 2 + self.axes or self.outputs == "last":
            return False
        if self.outputs is None and self.axes == 1:
            raise ValueError(
                f"Targets of shape {tuple(values.shape)} may be (N, D, T) or (N, T, D); say where"
                " the D values of a position are: Positions(..., axes=1, outputs='first') or 'last'"
            )
        return target_size in (None, values.shape[1]) or target_size != values.shape[-1]

    def _check_axes(self, targets: Tensor, axes: int) -> None:
        if axes == self.axes and targets.numel():
            return
        form = ", ".join(["N", *"HW"[: self.axes], *(() if self.classification else "D")])
        hint = " Take `.squeeze(1)`." if axes > self.axes and targets.shape[1] == 1 else ""
        raise ValueError(
            f"Targets must have shape ({form}), with {self.axes} axes of positions, got"
            f" {tuple(targets.shape)}.{hint}"
        )

    def _is_observed(self, targets: Tensor) -> Tensor:
        """Return which targets were observed, (..., B, *E)."""
        if self.classification:
            return targets != NOT_OBSERVED
        return ~targets.isnan().all(-1)

    def weighted(self, targets: Tensor, weights: Tensor) -> Any:
        """Return `Rows` of targets and weights (B,) or (B, *E), which take the place of targets."""
        sizes = targets.shape if self.classification else targets.shape[:-1]
        weights = weights.view(*weights.shape, *[1] * (len(sizes) - weights.dim())).expand(sizes)
        if not self.classification:
            weights = weights.unsqueeze(-1)  # so that batches lie along the same axis of both
        return as_rows({"target": targets, "weight": weights})

    def weights_of(self, targets: Targets) -> Tensor:
        """Return the weights of observations (..., B, *E), 0 where there is none."""
        targets, given = _apart(targets)
        weights = self._class_weights_of(targets)
        if given is None:
            return weights
        return weights * (given if self.classification else given.squeeze(-1))

    def _class_weights_of(self, targets: Tensor) -> Tensor:
        observed = self._is_observed(targets)
        if self.class_weights is None:
            return observed.to(torch.get_default_dtype() if self.classification else targets.dtype)
        table = torch.tensor(self.class_weights, device=targets.device)
        return table[targets.where(observed, 0)] * observed

    def num_observations(self, targets: Targets) -> float:
        """Return the sum of the weights."""
        return self.weights_of(targets).double().sum().item()

    def examples_per_observation(self, targets: Targets) -> Tensor | float:
        total = self.weights_of(targets).flatten(-1 - self.axes).sum(-1)
        targets = _apart(targets)[0]
        return targets.shape[self.batch_axis] / total.where(total > 0, 1.0)

    # ------------------------------------------------------------------------ likelihoods

    @property
    def learns(self) -> bool:
        return self.base.learns

    def init(
        self,
        num_modes: int,
        target_size: int,
        dtype: torch.dtype = torch.float32,
        spread: Tensor | None = None,
    ) -> dict[str, Tensor]:
        return self.base.init(num_modes, target_size, dtype, spread)

    def scaled(self, scale: Tensor, target_size: int) -> Likelihood:
        return dataclasses.replace(self, base=self.base.scaled(scale, target_size))

    def log_prob(self, outputs: Tensor, targets: Targets, params: Params) -> Tensor:
        """Return the weighted log-likelihood of each example, (..., B), summed over positions."""
        logs, weights = self._logs(outputs, targets, params)
        return self.by_example(logs * weights, targets)

    def by_example(self, values: Tensor, targets: Targets) -> Tensor:
        """Return numbers of observations (..., P) summed by example, (..., B)."""
        sizes = _apart(targets)[0].shape[self.batch_axis :][: 1 + self.axes]
        by_position = values.unflatten(-1, sizes)
        return by_position.flatten(-self.axes).sum(-1) if self.axes else by_position

    def nll(self, outputs: Tensor, targets: Targets, params: Params) -> Tensor:
        """Return the weighted mean of -log p over observations, (...); 0 if there is none."""
        if self.departure:
            rows, filled, weights = self.rows(outputs, targets)
            logs = -self.base.losses(rows, filled, params)
        else:
            logs, weights = self._logs(outputs, targets, params)
        total = weights.sum(-1)
        return -(logs * weights).sum(-1) / total.where(total > 0, 1.0)

    def squared_errors(self, outputs: Tensor, targets: Targets) -> Tensor:
        rows, values, weights = self.rows(outputs, targets)
        means = rows[..., : values.shape[-1]]
        return ((means - values).double().square() * weights.unsqueeze(-1)).sum(-2)

    def components(self, outputs: Tensor, params: Params) -> Categories | Densities:
        """Return the distribution predicted at each position, (..., B, *E, C) or (..., D)."""
        rows, sizes = self.output_rows(outputs)
        return _at_positions(self.base.components(rows, params), sizes)

    def components_from(
        self, moments: Moments, params: Params, draw: Callable[[Moments], Tensor]
    ) -> Categories | Densities:
        """Return what is predicted from outputs whose positions are independent of each other: of
        variances like the outputs, or of covariances with the K outputs of a position behind."""
        loc, sizes = self.output_rows(moments.loc)
        if moments.spread.dim() > moments.loc.dim():
            parts = [self.output_rows(part)[0] for part in moments.spread.unbind(-1)]
            spread = torch.stack(parts, -1)
        else:
            spread = self.output_rows(moments.spread)[0]
        return _at_positions(self.base.components_from(Moments(loc, spread), params, draw), sizes)

    def as_outputs(self, rows: Tensor, sizes: torch.Size) -> Tensor:
        """Return rows (..., P, K) as outputs at positions, which `output_rows` undoes."""
        outputs = rows.unflatten(-2, sizes)
        if self.outputs == "none":
            return outputs.squeeze(-1)
        return outputs.movedim(-1, -1 - self.axes) if self.outputs == "first" else outputs

    def _logs(self, outputs: Tensor, targets: Targets, params: Params) -> tuple[Tensor, Tensor]:
        """Return the log-likelihood and the weight of each observation, (..., P) both."""
        if isinstance(self.base, Categorical) and self.outputs == "first" and self.axes:
            logs, weights = self._class_logs(outputs, targets), self.weights_of(targets)
            return logs, weights.flatten(-1 - self.axes).to(logs.dtype)
        rows, filled, weights = self.rows(outputs, targets)
        return self.base.log_prob(rows, filled, params), weights.to(rows.dtype)

    def _class_logs(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Return the same of classes with outputs (..., B, C, *E): softmax where C lies, no copy.

        Rows of a few classes would take up to ten times as long on a processor.
        """
        labels, place = _apart(targets)[0], outputs.dim() - 1 - self.axes
        shape = outputs.shape[:place] + outputs.shape[place + 1 :]
        self._require_places(labels, shape[place - 1 :])
        labels = labels.masked_fill(labels == NOT_OBSERVED, 0).expand(shape)
        costs = F.cross_entropy(
            outputs.flatten(0, place - 1), labels.flatten(0, place - 1), reduction="none"
        )
        return -costs.view(shape).flatten(-1 - self.axes)

    def rows(self, outputs: Tensor, targets: Targets) -> Observed:
        """Return outputs and targets as rows, one for each position of each example."""
        rows, sizes = self.output_rows(outputs)
        weights = self.weights_of(targets).flatten(-1 - self.axes)
        targets = _apart(targets)[0]
        self._require_places(targets, sizes)
        observed = self._is_observed(targets)
        if self.classification:
            return Observed(rows, targets.where(observed, 0).flatten(-1 - self.axes), weights)
        values = targets.where(observed.unsqueeze(-1), 0.0)
        return Observed(rows, values.flatten(-2 - self.axes, -2), weights)

    def _require_places(self, targets: Tensor, sizes: torch.Size) -> None:
        """Refuse targets at other positions than outputs, (B, *E)."""
        axis = self.batch_axis
        if targets.shape[axis : axis + 1 + self.axes or None] != sizes:
            need, got = tuple(sizes), tuple(targets.shape)
            raise ValueError(f"Outputs at positions {need} need targets there, got {got}.")

    def output_rows(self, outputs: Tensor) -> tuple[Tensor, torch.Size]:
        """Return outputs as rows (..., P, K), and the sizes (B, *E) of what they were."""
        if self.outputs is None:
            raise ValueError(
                "`outputs` of Positions is None: say where the network's outputs of a position"
                " are, 'first', 'last' or 'none'"
            )
        if self.outputs == "first" and self.axes:
            outputs = outputs.movedim(-1 - self.axes, -1)
        elif self.outputs == "none":
            outputs = outputs.unsqueeze(-1)
        sizes = outputs.shape[-2 - self.axes : -1]
        return outputs.flatten(-2 - self.axes, -2), sizes

    # ------------------------------------------------------------------------ networks, files

    def placed(self, outputs: Tensor, targets: Targets, target_size: int) -> Positions:
        """Return the likelihood with the layout that a network's outputs (B, ...) have.

        Raises:
            ValueError: if no layout fits, or several do and none was named.
        """
        number, targets = self.base.num_outputs(target_size), _apart(targets)[0]
        sizes, shape = tuple(targets.shape[1 : 1 + self.axes]), tuple(outputs.shape[1:])
        more = isinstance(self.base, Categorical)  # a network may have classes that data lack
        fits = {
            "first": len(shape) == 1 + self.axes and shape[1:] == sizes
            and (shape[0] == number or more and shape[0] > number),
            "last": len(shape) == 1 + self.axes and shape[:-1] == sizes
            and (shape[-1] == number or more and shape[-1] > number),
            "none": shape == sizes and number == 1,
        }  # fmt: skip
        exact = {"first": shape[:1] == (number,), "last": shape[-1:] == (number,), "none": True}
        named = [layout for layout in _LAYOUTS if fits[layout] and self.outputs in (None, layout)]
        named = [layout for layout in named if exact[layout]] or named
        if self.axes == 0:
            named = named and ["last"]
        forms = f"(B, {number}, *E), (B, *E, {number})" + (" or (B, *E)" if number == 1 else "")
        if len(named) > 1:
            raise ValueError(
                f"the network's outputs {tuple(outputs.shape)} may be {' or '.join(named)} for"
                f" positions E = {sizes}: say which, Positions(..., outputs='{named[0]}')"
            )
        if not named:
            raise ValueError(
                f"the network maps {len(outputs)} examples to outputs of shape"
                f" {tuple(outputs.shape)}; targets at positions E = {sizes} need {forms}"
                + (f" with outputs='{self.outputs}'" if self.outputs else "")
            )
        labels = math.prod(sizes) if named == ["none"] and self.axes == 1 else self.labels
        return dataclasses.replace(self, outputs=named[0], labels=labels)

    def to_config(self) -> dict[str, Any]:
        config = super().to_config() | {"base": self.base.to_config()}
        absent = isinstance(self.ignore, float) and math.isnan(self.ignore)
        return config | {"ignore": "nan" if absent else self.ignore}

    @classmethod
    def from_config(cls, fields: Mapping[str, Any]) -> Likelihood:
        base, ignore, weights = (fields.get(key) for key in ("base", "ignore", "class_weights"))
        if not isinstance(base, Mapping):
            raise ValueError(f"`base` of positions must be an object, got {shown(base)}")
        changed = {
            "base": likelihood_from_config(base),
            "ignore": math.nan if ignore == "nan" else ignore,
            "class_weights": tuple(weights) if isinstance(weights, list) else weights,
        }
        return cls(**{**fields, **changed})


LIKELIHOODS[Positions.name] = Positions


def _apart(targets: Targets) -> tuple[Tensor, Tensor | None]:
    """Return targets without their weights, and the weights, None where each weighs 1."""
    if isinstance(targets, Tensor):
        return targets, None
    named = targets.named()
    return named["target"], named["weight"]


def _at_positions(parts: Categories | Densities, sizes: torch.Size) -> Categories | Densities:
    """Return what is predicted for rows (..., P, C) or (..., P, D) at positions (..., B, *E)."""
    if isinstance(parts, Categories):
        log_probs, normalizer = parts
        normalizer = None if normalizer is None else normalizer.unflatten(-1, sizes)
        return Categories(log_probs.unflatten(-2, sizes), normalizer)
    if isinstance(parts, Counts):
        dispersion = parts.dispersion
        if dispersion is not None:
            dispersion = dispersion.unflatten(-2, sizes)
        return Counts(parts.rate.unflatten(-2, sizes), dispersion)
    if not isinstance(parts, Components):
        return parts._replace(values=parts.values.unflatten(-3, sizes))
    loc, scale, df, share = parts
    share = None if share is None else share.unflatten(-2, sizes)
    return Components(loc.unflatten(-2, sizes), scale.unflatten(-2, sizes), df, share)


def _first_place(wrong: Tensor) -> str:
    """Return where the first wrong target is, and how many there are."""
    place = tuple(wrong.nonzero()[0].tolist())
    where = f"in row {place[0]}" if len(place) == 1 else f"at {place}"
    return f"{where} ({int(wrong.sum()):,} of {wrong.numel():,})"
