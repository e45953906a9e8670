r"""Risk control for masks: a threshold that misses at most a share of a structure on average.

A structure is one class of a segmentation, or several together. A pixel is named if the structure's
probability there is at least the threshold :math:`\lambda`. The loss of an image is the share of
its pixels of the structure that are not named, the false-negative rate: in [0, 1], and it only
grows with the threshold. The largest threshold with

.. math:: \frac{n}{n + 1}\hat R_n(\lambda) + \frac{1}{n + 1} \le risk,

for the mean loss :math:`\hat R_n` of n calibration images, bounds the expected loss of a new image
by `risk`. What must be exchangeable is *images*: the pixels of an image need not be independent, n
counts images, and several images of one patient are not exchangeable with those of another. Only
images in which the structure occurs have a loss; they are the ones that calibrate, and the bound is
for a new one of these.

Reference: A. Angelopoulos, S. Bates, A. Fisch, L. Lei, T. Schuster, Conformal risk control, ICLR
2024, theorem 1 and section 3.1. `n`, `B` images, `E` positions, `C` classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from polymode.conformal.risk import largest_threshold
from polymode.core.checks import Share, as_numbers, check_call, shown
from polymode.core.warn import warn
from polymode.likelihoods.targets import NOT_OBSERVED
from polymode.prediction import CategoricalPrediction, Prediction


@dataclass(frozen=True)
class MaskRule:
    """A rule for masks: call it on a prediction of B images to get the pixels that it names.

    Attributes:
        threshold: pixels of at least this probability are named; -inf names all, inf none.
        structure: the classes that make up the structure. risk: bound on the expected share missed.
        n: calibration images with the structure. num_classes: C.
    """

    threshold: float
    structure: tuple[int, ...]
    risk: float
    n: int
    num_classes: int

    @property
    def vacuous(self) -> bool:
        """Whether all pixels are named, because n is too small for the risk."""
        return self.threshold == -torch.inf

    def __call__(self, prediction: Prediction) -> Tensor:
        """Return the pixels named, bool (B, *E)."""
        return _probability(prediction, self.structure, self.num_classes) >= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, JSON-safe."""
        return {**asdict(self), "threshold": str(self.threshold), "structure": list(self.structure)}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> MaskRule:
        """Restore a rule from `to_dict`."""
        fields = dict(stored)
        fields["threshold"] = float(fields["threshold"])
        fields["structure"] = tuple(fields["structure"])
        return cls(**fields)


def control_missed_share(
    prediction: Prediction | Iterable[Prediction],
    masks: Tensor,
    structure: int | Sequence[int] = 1,
    risk: Share = 0.1,
) -> MaskRule:
    """Return a rule whose masks miss at most the share `risk` of a structure, on average.

    Args:
        prediction: of images that the user sets aside for this, or its parts one after another:
            `post.stream(x)`.
        masks: their labels (n, *E), -100 where there is none.
        structure: the label of the structure, or several that count as one.
        risk: bound on the expected share of an image's pixels of the structure that are missed.
    """
    check_call(control_missed_share, locals(), but=("prediction", "masks", "structure"))
    places: list[Tensor] = []
    weights: list[Tensor] = []
    start = num_classes = images = 0
    parts = [prediction] if isinstance(prediction, Prediction) else prediction
    for part in parts:
        _check_prediction(part)
        classes = _structure(structure, part.num_outputs)
        labels = _labels(masks if part is prediction else masks[start : start + len(part)], part)
        start, num_classes = start + len(part), part.num_outputs
        inside = _inside(labels, classes)
        sizes = inside.flatten(1).sum(1)
        shares = (1.0 / sizes.clamp(min=1).double()).view(-1, *[1] * (inside.dim() - 1))
        places.append(_probability(part, classes, num_classes)[inside])
        weights.append(shares.expand(inside.shape)[inside])
        images += int((sizes > 0).sum())
    if start != len(masks):
        raise ValueError(f"{len(masks):,} masks need as many predicted images, got {start:,}")
    if not images:
        raise ValueError(
            f"no mask has a pixel of the structure {shown(structure)}: there is nothing to miss;"
            " is it the right label?"
        )
    threshold = largest_threshold(torch.cat(places), torch.cat(weights), images, float(risk))
    rule = MaskRule(threshold, _structure(structure, num_classes), float(risk), images, num_classes)
    if rule.vacuous:
        warn(
            f"{images} images with the structure are too few for a risk of {risk:g}: the rule names"
            f" all pixels; it needs at least {_least(float(risk))} images"
        )
    return rule


def missed_share(named: Tensor, masks: Tensor, structure: int | Sequence[int] = 1) -> Tensor:
    """Return the share of each image's pixels of a structure that are not named, (B,) float64; NaN
    for images without the structure.

    Args:
        named: (B, *E) bool, as a `MaskRule` gives. masks: (B, *E) labels.
        structure: as of `control_missed_share`.
    """
    if named.dtype != torch.bool or named.shape != masks.shape:
        raise ValueError(
            f"`named` must be bool of the shape of `masks`, {tuple(masks.shape)}, got"
            f" {named.dtype} of shape {tuple(named.shape)}"
        )
    classes = (structure,) if isinstance(structure, int) else tuple(structure)
    inside = _inside(masks.to(named.device), classes)
    missed = (inside & ~named).flatten(1).sum(1).double()
    return missed / inside.flatten(1).sum(1).double()


def _least(risk: float) -> int:
    """Return the fewest images with which a risk can be controlled: 1 / (n + 1) <= risk."""
    return max(1, -int(-(1 / risk - 1 - 1e-9) // 1))


def _inside(labels: Tensor, classes: Sequence[int]) -> Tensor:
    return torch.isin(labels, torch.tensor(classes, device=labels.device))


def _structure(structure: Any, num_classes: int) -> tuple[int, ...]:
    classes = [structure] if isinstance(structure, int) else list(structure)
    legal = all(type(label) is int and 0 <= label < num_classes for label in classes)
    if not classes or not legal or len(set(classes)) < len(classes):
        raise ValueError(
            f"`structure` must be a label in 0..{num_classes - 1}, or several, got"
            f" {shown(structure)}"
        )
    return tuple(classes)


def _check_prediction(prediction: Any) -> None:
    if not isinstance(prediction, CategoricalPrediction) or not prediction.num_axes:
        raise ValueError(
            "masks need a prediction of classes at positions, post.predict(images) of a"
            f" segmentation, got {shown(prediction)}"
        )


def _labels(masks: Any, prediction: Prediction) -> Tensor:
    labels = as_numbers("`masks`", masks)
    sizes = prediction.mean.shape[:-1]
    if labels.is_floating_point() or labels.shape != sizes:
        raise ValueError(
            f"`masks` must be integer labels of shape {tuple(sizes)}, got {labels.dtype} of shape"
            f" {tuple(labels.shape)}"
        )
    wrong = (labels != NOT_OBSERVED) & ((labels < 0) | (labels >= prediction.num_outputs))
    if wrong.any():
        raise ValueError(
            f"`masks` must hold labels in 0..{prediction.num_outputs - 1}, or -100 where there is"
            f" none, got {int(labels[wrong][0])}"
        )
    return labels.to(prediction.device)


def _probability(prediction: Prediction, classes: Sequence[int], num_classes: int) -> Tensor:
    """Return the probability of the structure, (B, *E) float64."""
    _check_prediction(prediction)
    if prediction.num_outputs != num_classes:
        raise ValueError(f"Calibrated on {num_classes} classes, got {prediction.num_outputs}")
    return prediction.mean[..., list(classes)].detach().double().sum(-1)
