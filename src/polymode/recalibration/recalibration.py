"""The public interface: a recalibration is fitted on data the user names, and maps predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.core.memory import require_free
from polymode.core.options import Config, build
from polymode.core.registry import Registry
from polymode.core.warn import warn
from polymode.likelihoods.targets import NOT_OBSERVED, check_as_many, check_labels, check_values
from polymode.prediction import (
    CategoricalPrediction,
    CountPrediction,
    MappedPrediction,
    MixturePrediction,
    Prediction,
    QuantilePrediction,
)
from polymode.recalibration import affine, cdf_map, one_vs_rest, scale, temperature


class Map(NamedTuple):
    """One method: its fit to log-probabilities (S, n, C) and labels, to densities and values, or to
    what `reduce` makes of these; and its application."""

    fit: Callable[..., dict[str, Any]]
    apply: Callable[..., Any]
    reduce: Callable[[MixturePrediction, Tensor], Any] | None = None


METHODS: Registry[Map] = Registry("recalibration")
"""Methods by name; `samples`: whether each sample can be mapped, `options`: their class,
`densities`: whether it corrects regressions."""


@dataclass(frozen=True, kw_only=True)
class NoOptions(Config):
    """The options of a recalibration that has none."""


def _enter(
    name: str,
    fit: Any,
    apply: Any,
    *,
    samples: bool = False,
    options: type[Config] = NoOptions,
    densities: bool = False,
    reduce: Any = None,
) -> None:
    metadata: dict[str, Any] = {"samples": samples, "options": options, "densities": densities}
    METHODS.register(name, **metadata)(Map(fit, apply, reduce))


_enter("temperature", temperature.fit, temperature.apply, samples=True)
for _kind in ("vector", "matrix", "dirichlet"):
    _fit = partial(affine.fit, kind=_kind)
    _enter(_kind, _fit, affine.apply, samples=True, options=affine.Affine)
_enter("isotonic", one_vs_rest.fit_isotonic, one_vs_rest.apply_isotonic)
_enter(
    "histogram_binning",
    one_vs_rest.fit_histogram,
    one_vs_rest.apply_histogram,
    options=one_vs_rest.Histogram,
)
_enter("scale", scale.fit, scale.apply, densities=True)
_enter(
    "isotonic_cdf",
    cdf_map.fit_isotonic,
    cdf_map.apply,
    densities=True,
    reduce=cdf_map.levels_of,
)
_enter(
    "quantile_cdf",
    cdf_map.fit_quantile,
    cdf_map.apply,
    densities=True,
    options=cdf_map.Quantiles,
    reduce=cdf_map.levels_of,
)


@dataclass(frozen=True)
class Recalibration:
    """A fitted correction: call it on a prediction to get the corrected prediction.

    Args:
        method: one of `METHODS`.
        apply_to: "mean" or "samples", the part of a prediction of classes that is mapped.
        num_outputs: classes or outputs of the predictions it was fitted on.
        n: examples it was fitted on.
        parameters: fitted numbers and lists of numbers.
    """

    method: str
    apply_to: str
    num_outputs: int
    n: int
    parameters: dict[str, Any] = field(repr=False)

    def __call__(self, prediction: Prediction) -> Prediction:
        """Return the corrected prediction, S = 1 if the mean was mapped; its energy is unknown."""
        if prediction.num_axes:
            sizes = prediction.mean.shape[:-1]
            return self(prediction.as_rows()).at_positions(sizes)
        apply = METHODS.get(self.method).value.apply
        _check_kind(prediction, self.method)
        outputs = prediction.num_outputs
        if outputs != self.num_outputs:
            raise ValueError(
                f"Fitted on {self.num_outputs} classes or outputs, got a prediction of {outputs};"
                " fit a recalibration on predictions of the same kind."
            )
        if isinstance(prediction, MixturePrediction):
            return apply(self.parameters, prediction)
        log_probs = apply(self.parameters, _log_probs(prediction, self.apply_to))
        num_modes = prediction.num_modes if self.apply_to == "samples" else 1
        return CategoricalPrediction(log_probs.to(prediction.mean.dtype), num_modes=num_modes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, JSON-safe."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Recalibration:
        """Restore a recalibration from `to_dict`."""
        names = {entry.name for entry in fields(cls)}
        if set(stored) != names:
            raise ValueError(f"Not a stored recalibration: needs {sorted(names)}, got {[*stored]}.")
        METHODS.get(stored["method"])
        return cls(**stored)

    def __repr__(self) -> str:
        facts = [self.method, *(["samples"] if self.apply_to == "samples" else []), f"n={self.n}"]
        facts += [f"{k}={v:.4g}" for k, v in self.parameters.items() if isinstance(v, float)]
        return f"Recalibration({', '.join(facts)})"


def recalibrate(
    prediction: Prediction | Iterable[Prediction],
    targets: Tensor,
    method: str = "temperature",
    *,
    apply_to: str = "mean",
    **options: Any,
) -> Recalibration:
    r"""Return a correction of predictions, fitted on these: labelled, and neither train nor test.

    ===================  ====================================  ==========================
    temperature          softmax(l / T), the top class stays
    vector, matrix       softmax(W l + b), W diagonal or full  penalty=1.0
    dirichlet            the same with ODIR regularisation     penalty=1.0
    isotonic             one rising function per class
    histogram_binning    frequencies in bins, per class        num_bins=15, equal="mass"
    scale                regression: one factor on the width
    isotonic_cdf         regression: the distribution function
    quantile_cdf         the same, by quantiles                num_levels=20
    ===================  ====================================  ==========================

    The modules `temperature`, `affine`, `one_vs_rest`, `scale` and `cdf_map` have formulas.
    Fitted in float64 to a gradient of zero, deterministically. Classes without labels are allowed;
    a warning tells what happens to them.

    At positions of an input (pixels, tokens) each position with a target is an observation, as if
    it were a row. Of a stream only what the method needs is held: of classes the mean, n C numbers
    instead of S n C; for a map of the distribution function n D.

    Args:
        prediction: of n >= 1 examples that the user sets aside for this, or its parts one after
            another: `post.stream(x)`.
        targets: their labels (n,), or values (n, D) of regressions; of positions (n, *E) or
            (n, *E, D), as a task holds them: -100 or NaN where there is none.
        method: as above.
        apply_to: "mean" maps the log of the mean prediction: S = 1 afterwards, and the split into
            aleatoric and epistemic is lost. "samples" (temperature, vector, matrix, dirichlet)
            applies one map to every sample, fitted to the NLL of the mixture; S and the split stay.
        **options: as above; `penalty` may be several, to choose from by cross-validation.
    """
    check_call(recalibrate, locals(), but=("prediction",))
    entry = METHODS.get(method)
    kind = entry.metadata["options"]
    chosen = build(kind, f"recalibration '{method}'", options)
    arguments = [chosen] if kind.declared else []
    if apply_to not in ("mean", "samples"):
        raise ValueError(f"`apply_to` must be 'mean' or 'samples', got {apply_to!r}")
    if apply_to == "samples" and not entry.metadata["samples"]:
        able = [name for name in METHODS.names() if METHODS.get(name).metadata["samples"]]
        raise ValueError(f"{method} cannot map samples; one of {', '.join(able)} can.")
    rows = _gather(prediction, targets, entry, apply_to)
    if not entry.metadata["densities"]:
        _warn_of_missing(rows.targets, rows.outputs, method)
    parameters = entry.value.fit(rows.predicted, rows.targets, *arguments)
    return Recalibration(method, apply_to, rows.outputs, len(rows.targets), parameters)


class Rows(NamedTuple):
    """What a correction is fitted to.

    Attributes:
        predicted: log-probabilities (S, n, C), densities, or what they were reduced to.
        targets: (n,) or (n, D). outputs: C or D.
    """

    predicted: Any
    targets: Tensor
    outputs: int


def _gather(
    prediction: Prediction | Iterable[Prediction], targets: Tensor, entry: Any, apply_to: str
) -> Rows:
    """Return the observations of a prediction, or of its parts one after another."""
    single = prediction if isinstance(prediction, Prediction) else None
    values: list[Any] = []
    rows: list[Tensor] = []
    start = outputs = 0
    for part in _parts(prediction):
        _check_kind(part, entry.name)
        of_part = targets if part is single else targets[start : start + len(part)]
        if part is not single and not start:
            _require_room(part, targets, entry, apply_to)
        start, outputs = start + len(part), part.num_outputs
        observed = _observations(part, of_part)
        if observed is None:
            continue
        predicted, checked = observed
        rows.append(checked)
        if entry.value.reduce is not None:
            values.append(entry.value.reduce(predicted, checked))
        else:
            mixture = entry.metadata["densities"]
            values.append(predicted if mixture else _log_probs(predicted, apply_to))
    check_as_many(len(targets), start, "target(s)")
    if not rows:
        raise ValueError("there is no observed target to fit a recalibration to: all are ignored")
    if isinstance(values[0], Prediction):
        return Rows(Prediction.cat(values), torch.cat(rows), outputs)
    along = 0 if entry.metadata["densities"] else 1
    return Rows(torch.cat(values, along), torch.cat(rows), outputs)


def _observations(prediction: Prediction, targets: Tensor) -> tuple[Prediction, Tensor] | None:
    """Return the rows of a prediction that have a target, and these, checked; None without any."""
    if prediction.num_axes:
        absent = targets.isnan() if targets.is_floating_point() else targets == NOT_OBSERVED
        if absent.all():
            return None
        prediction, targets, _ = prediction.observations(targets)
    outputs = prediction.num_outputs
    classes = isinstance(prediction, CategoricalPrediction)
    checked = check_labels(targets, outputs) if classes else check_values(targets, outputs)
    check_as_many(len(checked), len(prediction), "target(s)")
    return prediction, checked.to(prediction.device)


def _require_room(part: Prediction, targets: Tensor, entry: Any, apply_to: str) -> None:
    """Refuse a stream whose log-probabilities or densities do not fit into memory, at its start."""
    size = part.mean.shape[1:].numel() * len(targets)
    if entry.value.reduce is None and (entry.metadata["densities"] or apply_to == "samples"):
        size *= part.num_samples
    what = f"{entry.name} holds {size:,} numbers of {len(targets):,} examples, which"
    require_free(3 * 8 * size, what, "Give fewer examples: a map has few parameters", part.device)


def _parts(predictions: Any) -> Iterable[Prediction]:
    """Return the parts of a stream, or a prediction as the one part."""
    if isinstance(predictions, Prediction):
        return [predictions]
    if not hasattr(predictions, "__iter__"):
        raise ValueError(f"Need a Prediction, got {type(predictions).__name__}: `post.predict(x)`.")
    return predictions  # type: ignore[no-any-return]


def _log_probs(prediction: Prediction, apply_to: str) -> Tensor:
    """Return the log-probabilities to map, in float64: (S, B, C), or (1, B, C) of the mean."""
    assert isinstance(prediction, CategoricalPrediction)
    log_probs = prediction.log_probs.detach().double()
    if apply_to == "samples":
        return log_probs
    return log_probs.logsumexp(0, keepdim=True) - log(len(log_probs))


def _check_kind(prediction: Prediction, method: str) -> None:
    if not isinstance(prediction, Prediction):
        raise ValueError(f"Need a Prediction, got {type(prediction).__name__}: `post.predict(x)`.")
    classes = isinstance(prediction, CategoricalPrediction)
    if classes == METHODS.get(method).metadata["densities"]:
        kind, remedy = ("classes", "'temperature'") if classes else ("regression", "'scale'")
        raise ValueError(f"{method} cannot recalibrate a prediction of {kind}; take {remedy}.")
    if isinstance(prediction, CountPrediction | QuantilePrediction):
        raise ValueError(
            f"{method} recalibrates densities by location and scale, got a"
            f" {type(prediction).__name__}; conformal intervals correct any prediction of values"
        )
    if isinstance(prediction, MappedPrediction):
        raise ValueError("This prediction was mapped already; recalibrate the one before it.")


def _warn_of_missing(labels: Tensor, num_classes: int, method: str) -> None:
    """Warn of classes without labels, which only the prior determines, or nothing."""
    missing = (labels.bincount(minlength=num_classes) == 0).nonzero().flatten().tolist()
    if missing and method != "temperature":
        parametric = METHODS.get(method).metadata["samples"]
        fate = "are placed by the regulariser" if parametric else "keep their probabilities"
        warn(
            f"{len(missing)} of {num_classes} classes have no label among {len(labels)} examples"
            f" (first: {missing[0]}) and {fate}."
        )
