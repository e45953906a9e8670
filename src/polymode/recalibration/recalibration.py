"""The front: a recalibration is fitted on data that the user names, and maps predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from math import log
from typing import Any, NamedTuple

from torch import Tensor

from polymode.core.checks import check_call
from polymode.core.registry import Registry, suggest
from polymode.core.warn import warn
from polymode.likelihoods.targets import check_labels, check_values
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction
from polymode.recalibration import affine, one_vs_rest, scale, temperature


class Map(NamedTuple):
    """How one method is fitted on log-probabilities (S, n, C) and labels, and how it is applied."""

    fit: Callable[..., dict[str, Any]]
    apply: Callable[..., Any]


METHODS: Registry[Map] = Registry("recalibration")
"""Methods by name; `samples` says whether each sample can be mapped, `options` what they take."""


def _enter(name: str, fit: Any, apply: Any, *, samples: bool, options: tuple[str, ...]) -> None:
    METHODS.register(name, samples=samples, options=options)(Map(fit, apply))


_enter("temperature", temperature.fit, temperature.apply, samples=True, options=())
for _kind in ("vector", "matrix", "dirichlet"):
    _fit = partial(affine.fit, kind=_kind)
    _enter(_kind, _fit, affine.apply, samples=True, options=("penalty",))
_enter("isotonic", one_vs_rest.fit_isotonic, one_vs_rest.apply_isotonic, samples=False, options=())
_enter(
    "histogram_binning",
    one_vs_rest.fit_histogram,
    one_vs_rest.apply_histogram,
    samples=False,
    options=("num_bins", "equal"),
)
_enter("scale", scale.fit, scale.apply, samples=False, options=())


@dataclass(frozen=True)
class Recalibration:
    """A fitted correction: call it on a prediction to get the corrected prediction.

    Args:
        method: one of `METHODS`.
        apply_to: "mean" or "samples", what of a prediction of classes is mapped.
        num_outputs: classes or outputs of the predictions it was fitted on.
        n: examples it was fitted on.
        parameters: what was fitted, numbers and lists of numbers.
    """

    method: str
    apply_to: str
    num_outputs: int
    n: int
    parameters: dict[str, Any] = field(repr=False)

    def __call__(self, prediction: Prediction) -> Prediction:
        """Return the corrected prediction, S = 1 if the mean was mapped; its energy is unknown."""
        apply = METHODS.get(self.method).value.apply
        _check_kind(prediction, self.method)
        outputs = prediction.mean.shape[-1]
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
        """Return everything as what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Recalibration:
        """Return the recalibration that `to_dict` gave."""
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
    prediction: Prediction,
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
    ===================  ====================================  ==========================

    The modules `temperature`, `affine`, `one_vs_rest` and `scale` have formulas and references.
    Fitted in float64, deterministic, and to a gradient of zero. Labels need not hold every class; a
    warning says what becomes of the others.

    Args:
        prediction: of n >= 1 examples that the user sets aside for this.
        targets: their labels (n,), or values (n, D) for `scale`.
        method: as above.
        apply_to: "mean" maps the log of the mean prediction: S = 1 afterwards, and the split into
            aleatoric and epistemic is gone. "samples" (temperature, vector, matrix, dirichlet) maps
            each sample alike, fitted so that the NLL of the mixture is least; S and the split stay.
        **options: as above; `penalty` may be several, to choose from by cross-validation.
    """
    check_call(recalibrate, locals(), but=("prediction",))
    entry = METHODS.get(method)
    for name in options:
        if name not in (known := entry.metadata["options"]):
            has = f"takes {', '.join(known)}" if known else "takes none"
            raise ValueError(
                f"`{name}` is not an option of {method}; it {has}.{suggest(name, known)}"
            )
    if apply_to not in ("mean", "samples"):
        raise ValueError(f"`apply_to` must be 'mean' or 'samples', got {apply_to!r}")
    if apply_to == "samples" and not entry.metadata["samples"]:
        able = [name for name in METHODS.names() if METHODS.get(name).metadata["samples"]]
        raise ValueError(f"{method} cannot map samples; one of {', '.join(able)} can.")
    _check_kind(prediction, method)
    outputs = prediction.mean.shape[-1]
    mixture = method == "scale"
    checked = check_values(targets, outputs) if mixture else check_labels(targets, outputs)
    checked = checked.to(prediction.mean.device)
    if len(checked) != len(prediction) or not len(checked):
        raise ValueError(
            f"Got {len(checked)} target(s) for {len(prediction)} prediction(s); need as many, >= 1."
        )
    if mixture:
        parameters = entry.value.fit(prediction, checked)
    else:
        _warn_of_missing(checked, outputs, method)
        parameters = entry.value.fit(_log_probs(prediction, apply_to), checked, **options)
    return Recalibration(method, apply_to, outputs, len(checked), parameters)


def _log_probs(prediction: Prediction, apply_to: str) -> Tensor:
    """Return what is mapped, in float64: (S, B, C), or (1, B, C) of the mean."""
    assert isinstance(prediction, CategoricalPrediction)
    log_probs = prediction.log_probs.detach().double()
    if apply_to == "samples":
        return log_probs
    return log_probs.logsumexp(0, keepdim=True) - log(len(log_probs))


def _check_kind(prediction: Prediction, method: str) -> None:
    if not isinstance(prediction, Prediction):
        raise ValueError(f"Need a Prediction, got {type(prediction).__name__}: `post.predict(x)`.")
    classes = isinstance(prediction, CategoricalPrediction)
    if classes == (method == "scale"):
        kind, other = ("classes", "'temperature'") if classes else ("regression", "'scale'")
        raise ValueError(f"{method} cannot recalibrate a prediction of {kind}; take {other}.")


def _warn_of_missing(labels: Tensor, num_classes: int, method: str) -> None:
    """Warn where classes without a label are mapped by a prior alone, or not at all."""
    missing = (labels.bincount(minlength=num_classes) == 0).nonzero().flatten().tolist()
    if missing and method != "temperature":
        parametric = METHODS.get(method).metadata["samples"]
        fate = "are placed by the regulariser" if parametric else "keep their probabilities"
        warn(
            f"{len(missing)} of {num_classes} classes have no label among {len(labels)} examples"
            f" (first: {missing[0]}) and {fate}.",
        )
