"""The most telling examples of a test set: the most uncertain, and the most confidently wrong.

They are kept with their inputs and predictions, so that a report can show them without the data.
Classes are ranked by predictive entropy and, among the wrong answers, by confidence; regressions by
predictive variance and by the error in predictive standard deviations, both the largest over the
targets. Images with a target at each pixel are ranked by the mean of their map: of the entropy or
variance, and of the confidence in pixels that are wrong, or of the error. Of large ones every k-th
pixel is kept. `B` examples, `E` positions, `D` targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polymode.likelihoods.targets import NOT_OBSERVED
from polymode.metrics.results import Kept
from polymode.prediction import CategoricalPrediction, DensityPrediction, Prediction

MOST = 6  # examples of each ranking
BYTES = 2**20  # of the inputs kept, at most
MAP_BYTES = 2**25  # of images with the samples of their maps
SIDE = 64  # pixels of an image; larger ones are averaged down to it
PARTS = 8  # batches after which the candidates of a loader are thinned out


def uncertainty(prediction: Prediction) -> Tensor:
    """Return the uncertainty of each prediction (B,): predictive entropy, or largest variance."""
    if isinstance(prediction, CategoricalPrediction):
        values = prediction.predictive_entropy
    else:
        values = prediction.variance.amax(-1)
    return values.flatten(1).mean(1) if prediction.num_axes else values


def surely_wrong(prediction: Prediction, targets: Tensor) -> Tensor:
    """Return the confidence in a wrong class (B,), −inf where the class is right.

    For regressions, the largest error in predictive standard deviations. For maps, the mean over
    the pixels that have a target, of the confidence in those that are wrong.
    """
    if prediction.num_axes:
        return _surely_wrong_maps(prediction, targets)
    if isinstance(prediction, CategoricalPrediction):
        wrong = prediction.classes != targets.to(prediction.classes.device)
        return torch.where(wrong, prediction.confidence, -torch.inf)
    assert isinstance(prediction, DensityPrediction)
    error = (targets.to(prediction.mean) - prediction.mean).abs()
    return (error / prediction.std).amax(-1)


def _surely_wrong_maps(prediction: Prediction, targets: Tensor) -> Tensor:
    targets = targets.to(prediction.mean.device)
    if isinstance(prediction, CategoricalPrediction):
        observed = (targets != NOT_OBSERVED).flatten(1)
        wrong = (prediction.classes != targets).flatten(1) & observed
        sums = (prediction.confidence.flatten(1).double() * wrong).sum(1)
        return (sums / observed.sum(1)).where(wrong.any(1), -torch.inf)
    assert isinstance(prediction, DensityPrediction)
    if targets.dim() < prediction.mean.dim():
        targets = targets.unsqueeze(-1)
    error = (targets.to(prediction.mean) - prediction.mean).abs() / prediction.std
    return error.amax(-1).flatten(1).nanmean(1)


def telling(prediction: Prediction, targets: Tensor, most: int = MOST) -> tuple[Tensor, Tensor]:
    """Return the indices of the most uncertain and of the most confidently wrong examples.

    At most `most` of each, in falling order; ties in the order of the examples.
    """
    orders = []
    for values in (uncertainty(prediction), surely_wrong(prediction, targets)):
        order = values.double().nan_to_num(nan=-torch.inf).argsort(descending=True, stable=True)
        ranked = values[order].isfinite()
        orders.append(order[ranked][:most].cpu())
    return orders[0], orders[1]


class Examples:
    """Collects the telling examples of one data set, batch by batch, in bounded memory.

    Args:
        decode: what gives inputs back as they were before they were scaled or encoded.
    """

    def __init__(self, decode: Callable[[Tensor], Tensor] | None = None) -> None:
        self._decode = decode or (lambda x: x)
        self._parts: list[Kept] = []

    def add(
        self, prediction: Prediction, targets: Tensor, inputs: Callable[[Tensor], Tensor]
    ) -> None:
        """Add the telling examples of a batch; `inputs` maps indices within it to inputs."""
        places = torch.cat(telling(prediction, targets)).unique()
        if len(places):
            x = pictured(self._decode(inputs(places)))
            chosen = Kept(prediction[places], targets[places.to(targets.device)], x)
            self._parts.append(thinned(chosen))
        if len(self._parts) > (1 if prediction.num_axes else PARTS):
            self._parts = [self._joined(MOST)]

    def kept(self) -> Kept | None:
        """Return the examples of all batches; None if there are none or none fit in `BYTES`."""
        if not self._parts:
            return None
        x = self._parts[0].inputs
        assert x is not None
        size, most_bytes = x[0].nbytes, BYTES
        first = self._parts[0].prediction
        if first.num_axes:
            size += sum(part[:, 0].nbytes for part in first.to_arrays()[0].values())
            most_bytes = MAP_BYTES
        most = min(MOST, most_bytes // max(size, 1) // 2)
        return self._joined(most) if most else None

    def _joined(self, most: int) -> Kept:
        prediction = Prediction.cat([part.prediction for part in self._parts])
        y = torch.cat([part.targets for part in self._parts if part.targets is not None])
        x = torch.cat([part.inputs for part in self._parts if part.inputs is not None])
        places = torch.cat(telling(prediction, y, most)).unique()
        return Kept(prediction[places], y[places], x[places])


def thinned(kept: Kept) -> Kept:
    """Return maps of at most 64 × 64 pixels, every k-th of larger ones; others as they are."""
    prediction, targets, inputs = kept
    if prediction.num_axes != 2:
        return kept
    step = -(-max(prediction.mean.shape[1:3]) // SIDE)
    if step == 1:
        return kept
    some = slice(step // 2, None, step)
    tensors, metadata = prediction.to_arrays()
    tensors = {name: part[:, :, some, some].contiguous() for name, part in tensors.items()}
    assert targets is not None
    return Kept(Prediction.from_arrays(tensors, metadata), targets[:, some, some], inputs)


def is_image(shape: Any) -> bool:
    """Return whether inputs of this shape are pictures: (C, H, W) with 1 or 3 channels."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 4


def pictured(x: Tensor) -> Tensor:
    """Return inputs (B, ...) as stored: float32 or integers, images of at most 64 × 64."""
    x = x.detach().cpu()
    x = x.float() if x.is_floating_point() else x
    if is_image(x.shape[1:]) and max(x.shape[2:]) > SIDE:
        size = min(x.shape[2], SIDE), min(x.shape[3], SIDE)
        x = torch.nn.functional.adaptive_avg_pool2d(x.float(), size)
    return x
