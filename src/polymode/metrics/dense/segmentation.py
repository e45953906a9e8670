r"""Scores of masks, accumulated image by image: nothing of a pixel is held.

Pixels that are ignored have no part, except in the uncertainty of an image as a image, for which no
label is needed. Proper scores, accuracies, IoUs, and errors of calibration in 15 fixed bins are
exact sums over all pixels; those that need ranks come from fine histograms (`histogram`). All
errors are over images (`sums`). With the confidence c of a pixel, its doubt is 1 - c.

`N` images, `P` observed pixels of one, `C` classes, `R` sets of sums.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polymode.likelihoods.targets import NOT_OBSERVED
from polymode.metrics.classification import surprise
from polymode.metrics.dense import histogram as fine
from polymode.metrics.dense.borders import border_counts, patch_counts
from polymode.metrics.dense.sums import MapSums
from polymode.prediction import CategoricalPrediction

NUM_BINS = 15
PATCH = 4


class SegmentationSums(MapSums):
    """Accumulates the predictions of a set of images.

    Of each image it keeps "pixels" (the number of observed ones), sums of "nll", "brier" and so on,
    "labels", "predicted" and "hits" (pixels of each class, and of those right), "joint" (the
    log-probability of all labels together), and its uncertainties, of all pixels.

    Args:
        num_classes: C.
        labelled: whether labels are of the task's classes; in OOD sets they mark what is unseen.
    """

    def __init__(self, num_classes: int, labelled: bool = True) -> None:
        super().__init__()
        self.num_classes, self.labelled = num_classes, labelled

    def add(self, prediction: CategoricalPrediction, targets: Tensor | None) -> None:
        """Add the predictions of some images, (S, B, H, W, C), with labels (B, H, W)."""
        self.num_samples, self.has_epistemic = prediction.num_samples, prediction.has_epistemic
        self.keep_uncertainty(_maps(prediction))
        if targets is None:
            return
        if not self.labelled:
            return self._add_unseen(prediction, targets)
        self.keep("joint", prediction.joint_log_prob(targets))
        nats = -prediction.log_prob(targets).detach()
        for place, labels in enumerate(targets):
            pixels = _Image.of(prediction, labels, nats[place], place)
            for name, values in pixels.rows(self.num_classes).items():
                self.keep(name, values.unsqueeze(0))
            self.groups.add(pixels.statistics(self.num_classes))

    def _add_unseen(self, prediction: CategoricalPrediction, targets: Tensor) -> None:
        """Add what sets unseen pixels, of a label that the task has not, against the others."""
        maps = _maps(prediction)
        for place, labels in enumerate(targets):
            observed = labels != NOT_OBSERVED
            unseen = labels[observed] >= self.num_classes
            self.groups.add(
                {
                    f"unseen:{name}": fine.histogram(values[place][observed], unseen)
                    for name, values in maps.items()
                }
            )


def _maps(prediction: CategoricalPrediction) -> dict[str, Tensor]:
    """Return the maps of uncertainty, (B, H, W) each."""
    maps = {"predictive_entropy": prediction.predictive_entropy.detach().clamp(min=0)}
    if prediction.has_epistemic:
        maps["mutual_information"] = prediction.mutual_information.detach()
    return maps


class _Image(NamedTuple):
    """One image at its observed pixels, (P,) each; `image` has maps (H, W) of labels, classes,
    doubt, and what is observed."""

    labels: Tensor
    classes: Tensor
    doubt: Tensor
    confidence: Tensor
    values: dict[str, Tensor]
    maps: dict[str, Tensor]
    image: tuple[Tensor, Tensor, Tensor, Tensor]

    @classmethod
    def of(
        cls, prediction: CategoricalPrediction, labels: Tensor, nats: Tensor, place: int
    ) -> _Image:
        observed = labels != NOT_OBSERVED
        classes, mean = prediction.classes[place], prediction.mean[place].detach()
        doubt = prediction.one_minus_confidence[place].detach()
        chosen = labels[observed]
        probs = mean[observed]
        of_label = probs.gather(1, chosen[:, None])[:, 0].double()
        maps = {name: values[place][observed] for name, values in _maps(prediction).items()}
        values = {
            "nll": surprise(nats[observed].double()),
            "brier": probs.square().sum(1).double() - 2 * of_label + 1,
            "accuracy": classes[observed] == chosen,
            **maps,
            "expected_entropy": prediction.expected_entropy[place][observed],
        }
        confidence = prediction.confidence[place][observed].detach().clamp(max=1)
        image = (labels, classes, doubt, observed)
        return cls(chosen, classes[observed], doubt[observed], confidence, values, maps, image)

    def rows(self, classes: int) -> dict[str, Tensor]:
        """Return what is held of this image by itself."""
        right = self.labels == self.classes
        counts = {
            "labels": self.labels,
            "predicted": self.classes,
            "hits": self.labels[right],
        }
        return {
            "pixels": torch.tensor(len(self.labels)),
            **{name: values.sum(dtype=torch.float64) for name, values in self.values.items()},
            **{k: torch.bincount(v, minlength=classes) for k, v in counts.items()},
        }

    def statistics(self, classes: int) -> dict[str, Tensor]:
        """Return what is added up over images."""
        right = self.labels == self.classes
        labels, predicted, doubt, observed = self.image
        correct = (labels == predicted) & observed
        ranked = {"doubt": self.doubt, **self.maps}
        return {
            "bins": _bins(self.classes, self.confidence, right, classes),
            "borders": border_counts(labels, predicted, observed, classes),
            "patches": patch_counts(correct, doubt, observed, PATCH),
            "doubt_sums": torch.bincount(
                fine.bins_of(self.doubt), self.doubt.double(), fine.NUM_BINS
            ),
            **{f"wrong:{name}": fine.histogram(v, ~right) for name, v in ranked.items()},
        }


def _bins(classes: Tensor, confidence: Tensor, right: Tensor, number: int) -> Tensor:
    """Return counts, confidences and hits in bins of each predicted class, (C, 15, 3)."""
    edges = torch.arange(1, NUM_BINS, dtype=torch.float64) / NUM_BINS
    inner = edges.to(confidence.dtype)  # as in `calibration`
    places = torch.bucketize(confidence, inner).add_(classes * NUM_BINS)
    sums = [torch.bincount(places, weights, number * NUM_BINS).double()
            for weights in (None, confidence.double(), right.double())]  # fmt: skip
    return torch.stack(sums, -1).view(number, NUM_BINS, 3)
