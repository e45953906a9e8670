r"""The numbers of a segmentation, from sums over its images; see `segmentation` for the sums.

With the pixels :math:`n_{cy}` of class c that were called y, class c has the recall
:math:`n_{cc} / \sum_y n_{cy}` and the IoU
:math:`n_{cc} / (\sum_y n_{cy} + \sum_y n_{yc} - n_{cc})`, over all images together. A class that is
neither in the labels nor in the predictions has none, and is left out of means.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from polymode.metrics.dense import histogram as fine
from polymode.metrics.dense.image_scores import AGGREGATES
from polymode.metrics.dense.segmentation import NUM_BINS, PATCH, SegmentationSums
from polymode.metrics.dense.sums import Sums, by_group, jackknife
from polymode.metrics.ood import MEASURES, measure_facts
from polymode.metrics.score import (
    OOD_SEGMENTATION,
    SEGMENTATION,
    NotDefined,
    Score,
    register,
)
from polymode.metrics.selective import area_over_best

_score = partial(register, SEGMENTATION)
_SUMMARIES = {
    "predictive_entropy": ("entropy", "predictive entropy", False),
    "mutual_information": ("MI", "mutual information", True),
}


def _mean_over_pixels(name: str, sums: SegmentationSums) -> Score:
    return sums.mean_over_pixels(name)


for _name, _title, _unit, _direction, _summary in (
    ("nll", "NLL", "nats/pixel", "down",
     "mean negative log-probability of a pixel's label under the averaged prediction"),
    ("brier", "Brier", "probability²", "down",
     "squared distance of a pixel's class probabilities from the one-hot label: 0 to 2"),
    ("accuracy", "pixel accuracy", "fraction", "up",
     "share of pixels whose most probable class is the label"),
):  # fmt: skip
    _score(_name, title=_title, unit=_unit, direction=_direction, summary=_summary,
           family="quality", headline=True)(partial(_mean_over_pixels, _name))  # fmt: skip


@_score(
    "joint_nll",
    title="joint NLL",
    unit="nats/image",
    direction="down",
    family="quality",
    summary="mean negative log-probability of all labels of an image together: −log of the mean"
    " over samples of the product over pixels",
)
def joint_nll(sums: SegmentationSums) -> Score:
    return sums.joint_nll()


def ious(sums: Sums) -> Tensor:
    """Return the IoU of each class, (R, C), NaN where there is nothing of it."""
    union = sums["labels"] + sums["predicted"] - sums["hits"]
    return sums["hits"] / union.where(union > 0, torch.nan)


def recalls(sums: Sums) -> Tensor:
    """Return the share of each class's pixels that are right, (R, C), NaN without any."""
    return sums["hits"] / sums["labels"].where(sums["labels"] > 0, torch.nan)


def _over_classes(by_class: Callable[[Sums], Tensor], sums: SegmentationSums) -> Score:
    groups = {name: by_group(values) for name, values in _counts(sums).items()}
    return jackknife(lambda totals: by_class(totals).nanmean(-1), groups, sums.num_pixels)


def _counts(sums: SegmentationSums) -> dict[str, Tensor]:
    return {name: sums.of_images(name) for name in ("labels", "predicted", "hits")}


_score(
    "miou", title="mIoU", unit="fraction", direction="up", family="quality", headline=True,
    summary="pixels of a class that are right over those that are or were called it, mean over"
    " classes",
)(partial(_over_classes, ious))  # fmt: skip
_score(
    "mean_accuracy", title="mean accuracy", unit="fraction", direction="up", family="quality",
    summary="share of a class's pixels that are right, mean over classes",
)(partial(_over_classes, recalls))  # fmt: skip


@_score(
    "boundary_iou",
    title="boundary IoU",
    unit="fraction",
    direction="up",
    family="quality",
    summary="IoU of the pixels within 2 % of the image's diagonal of a class's border, mean over"
    " classes",
)
def boundary_iou(sums: SegmentationSums) -> Score:
    def mean_iou(totals: Sums) -> Tensor:
        shared, union = totals["borders"].unbind(-2)
        return (shared / union.where(union > 0, torch.nan)).nanmean(-1)

    return sums.groups.score(mean_iou, ("borders",), sums.num_pixels)


# ------------------------------------------------------------------------------- calibration


def binned_error(bins: Tensor) -> Tensor:
    """Return the mean gap of confidence and accuracy from (..., bins, 3): (...)."""
    count, confidence, hits = bins.unbind(-1)
    return (confidence - hits).abs().sum(-1) / count.sum(-1)


@_score(
    "ece",
    title="ECE",
    unit="probability",
    direction="down",
    family="calibration",
    headline=True,
    summary="mean gap between confidence and accuracy over 15 equal-width bins of confidence",
)
def ece(sums: SegmentationSums) -> Score:
    return sums.groups.score(
        lambda totals: binned_error(totals["bins"].sum(-3)), ("bins",), sums.num_pixels
    )


@_score(
    "mce",
    title="MCE",
    unit="probability",
    direction="down",
    family="calibration",
    summary="largest gap between confidence and accuracy in any of 15 equal-width bins",
)
def mce(sums: SegmentationSums) -> Score:
    count, confidence, hits = sums.groups.total("bins").sum(0).unbind(-1)
    gaps = (confidence - hits).abs() / count.clamp(min=1)
    return Score(gaps.max().item(), sums.num_pixels)


@_score(
    "class_ece",
    title="ECE by class",
    unit="probability",
    direction="down",
    family="calibration",
    summary="ECE of the pixels that were called a class, mean over classes: rare ones weigh as much"
    " as others",
)
def class_ece(sums: SegmentationSums) -> Score:
    return sums.groups.score(
        lambda totals: errors_by_class(totals["bins"]).nanmean(-1), ("bins",), sums.num_pixels
    )


def errors_by_class(bins: Tensor) -> Tensor:
    """Return the ECE of the pixels called each class, (..., C), NaN where there are none."""
    number = bins[..., 0].sum(-1)
    return binned_error(bins).where(number > 0, torch.nan)


@_score(
    "adaptive_ece",
    title="adaptive ECE",
    unit="probability",
    direction="down",
    family="calibration",
    summary="mean gap between confidence and accuracy over 15 bins of equally many pixels, whose"
    " edges are those of bins 0.2 % wide in 1 − confidence",
)
def adaptive_ece(sums: SegmentationSums) -> Score:
    def error(totals: Sums) -> Tensor:
        counts, doubt = totals["wrong:doubt"], totals["doubt_sums"]
        places = fine.mass_bins(counts, NUM_BINS)
        gaps = counts[..., 1] - doubt  # wrong pixels, less those that confidence allows
        by_bin = gaps.new_zeros((len(gaps), NUM_BINS)).scatter_add_(1, places, gaps)
        return by_bin.abs().sum(-1) / counts.sum((-1, -2))

    return sums.groups.score(error, ("wrong:doubt", "doubt_sums"), sums.num_pixels)


@_score(
    "pavpu",
    title="PAvPU",
    unit="fraction",
    direction="up",
    family="calibration",
    summary=f"share of {PATCH} × {PATCH} patches that are accurate and certain, or inaccurate and"
    " uncertain, by more than half of the pixels and a mean confidence of one half",
)
def pavpu(sums: SegmentationSums) -> Score:
    def share(totals: Sums) -> Tensor:
        counts = totals["patches"]
        return (counts[..., 0] + counts[..., 3]) / counts.sum(-1)

    return sums.groups.score(share, ("patches",), int(sums.groups.total("patches").sum()))


# ------------------------------------------------------------------------------- errors of pixels

_selective = partial(_score, unit="error rate", direction="down", family="selective")


@_selective(
    "aurc",
    title="AURC",
    headline=True,
    summary="error rate among the accepted pixels, averaged over coverages, when the least"
    " confident are declined first",
)
def aurc(sums: SegmentationSums) -> Score:
    return sums.groups.score(
        lambda totals: fine.aurc(totals["wrong:doubt"]), ("wrong:doubt",), sums.num_pixels
    )


@_selective(
    "e_aurc",
    title="E-AURC",
    summary="AURC above that of the best possible order of the same errors",
)
def e_aurc(sums: SegmentationSums) -> Score:
    def excess(totals: Sums) -> Tensor:
        return fine.aurc(totals["wrong:doubt"]) - fine.best_aurc(totals["wrong:doubt"])

    return sums.groups.score(excess, ("wrong:doubt",), sums.num_pixels)


def _error_auroc(name: str, sums: SegmentationSums) -> Score:
    """Return the probability that a wrong pixel has more of it than a right one."""
    return _auroc(sums, f"wrong:{name}", "pixels are all right, or all wrong")


def _auroc(sums: SegmentationSums, name: str, one_kind: str) -> Score:
    if name not in sums.groups:
        raise NotDefined("needs ≥ 2 samples" if name.endswith("n") else "needs labels of pixels")
    counts = sums.groups.total(name)
    if not bool((counts.sum(0) > 0).all()):
        raise NotDefined(one_kind)
    return sums.groups.score(lambda totals: fine.auroc(totals[name]), (name,), int(counts.sum()))


for _name, _short, _words in (
    ("doubt", "", "less confidence"),
    ("predictive_entropy", "_predictive_entropy", "more predictive entropy"),
    ("mutual_information", "_mutual_information", "more mutual information"),
):
    _score(f"error_auroc{_short}", title=f"AUROC of errors, {_words.split(' ', 1)[1]}",
           unit="probability", direction="up", family="selective",
           epistemic=_name == "mutual_information",
           summary=f"probability that a wrong pixel has {_words} than a right one",
           )(partial(_error_auroc, _name))  # fmt: skip


# ------------------------------------------------------------------------------- whole images


def image_errors(sums: SegmentationSums) -> Tensor:
    """Return 1 − the mean IoU of each image over the classes it has or was said to have, (N,)."""
    return 1 - ious(_counts(sums)).nanmean(-1)


def _failures(what: str, way: str, sums: SegmentationSums) -> Score:
    """Return the excess area of 1 − mean IoU if the most uncertain images are declined first."""
    errors, scores = image_errors(sums), sums.uncertainty(what, way)
    labelled = errors.isfinite()
    if not labelled.any():
        raise NotDefined("needs targets")
    return area_over_best(-scores[labelled], errors[labelled])


for _way, _words in AGGREGATES.items():
    for _name, (_short, _long, _epistemic) in _SUMMARIES.items():
        _score(
            f"image_e_aurc_{_name}_{_way}", title=f"E-AURC of images, {_way} {_short}",
            unit="1 − IoU", direction="down", family="selective", epistemic=_epistemic,
            summary=f"mean 1 − IoU of accepted images, averaged over coverages, above that of the"
            f" best order, when those of the highest {_long} ({_words}) are declined first",
        )(partial(_failures, _name, _way))  # fmt: skip


for _name, _title, _epistemic, _summary in (
    ("predictive_entropy", "predictive entropy", False, "mean entropy of the averaged prediction"),
    ("expected_entropy", "expected entropy", False, "mean entropy of the members' predictions"),
    ("mutual_information", "mutual information", True, "how much the members' predictions differ"),
):
    _score(_name, title=_title, unit="nats", direction="", family="uncertainty",
           epistemic=_epistemic, summary=f"{_summary} at a pixel; describes, does not score",
           )(partial(_mean_over_pixels, _name))  # fmt: skip


# ------------------------------------------------------------------------------- OOD


def _separation(
    measure: str, what: str, way: str, inside: SegmentationSums, outside: SegmentationSums
) -> Score:
    """Return how well a number for each image tells the images of two sets apart."""
    return MEASURES[measure](*(sums.uncertainty(what, way) for sums in (inside, outside)))


def _unseen(what: str, inside: SegmentationSums, outside: SegmentationSums) -> Score:
    return _auroc(outside, f"unseen:{what}", "pixels are all of unseen things, or none is")


HEADLINES = ("auroc_predictive_entropy", "auroc_mutual_information", "fpr95_predictive_entropy")
for _measure, (_title, _unit, _direction, _summary) in measure_facts().items():
    for _name, (_short, _long, _epistemic) in _SUMMARIES.items():
        for _way, _words in AGGREGATES.items():
            if _way != "mean" and _measure.startswith("aupr"):
                continue
            _metric = f"{_measure}_{_name}" + ("" if _way == "mean" else f"_{_way}")
            register(
                OOD_SEGMENTATION, _metric, unit=_unit, direction=_direction, family="ood",
                title=f"{_title}, {_short}" + ("" if _way == "mean" else f", {_way}"),
                headline=_metric in HEADLINES, epistemic=_epistemic,
                summary=f"of images: {_summary.format(f'{_long} ({_words})')}",
            )(partial(_separation, _measure, _name, _way))  # fmt: skip
for _name, (_short, _long, _epistemic) in _SUMMARIES.items():
    register(
        OOD_SEGMENTATION, f"pixel_auroc_{_name}", title=f"AUROC of pixels, {_short}",
        unit="probability", direction="up", family="ood", epistemic=_epistemic,
        summary=f"probability that a pixel of something unseen has a higher {_long} than a pixel of"
        " something seen in the same images",
    )(partial(_unseen, _name))  # fmt: skip
