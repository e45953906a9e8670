"""What two posteriors made of the same images, compared image by image.

One training run of each cannot tell how a method varies between runs, but it can tell whether these
two posteriors differ by more than the choice of test images explains: differences are taken image
by image, errors over images, as everywhere with maps.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polymode.metrics.paired import LEVEL, Difference
from polymode.metrics.score import Score

ByImage = Mapping[str, Tensor]
"""Numbers of a data set's images, (N, ...): "pixels", sums over pixels and, for mIoU, "labels",
"predicted" and "hits" (N, C); "joint" is of an image as a whole."""
MEANS = ("nll", "brier", "accuracy", "mae", "crps", "abs_rel")
CLASS_COUNTS = ("labels", "predicted", "hits")
STORED = ("pixels", "joint", *MEANS, *CLASS_COUNTS)


def difference_by_image(first: ByImage, second: ByImage, metric: str) -> Difference | None:
    """Return first − second with its 95 % t-interval over images; None where there is none.

    Defined for means over pixels, the joint NLL, mIoU and mean accuracy, of equally many images
    with the same number of observed pixels each.
    """
    if not first or not second or not torch.equal(first["pixels"], second["pixels"]):
        return None
    score, degrees = _difference(first, second, metric)
    if score is None or score.standard_error is None:
        return None
    from scipy.special import stdtr, stdtrit

    error = score.standard_error
    reach = float(stdtrit(degrees, 0.5 + LEVEL / 2)) * error
    low, high = score.value - reach, score.value + reach
    p_value = 2 * float(stdtr(degrees, -abs(score.value) / error)) if error else float(low == 0)
    return Difference(score.value, error, len(first["pixels"]), low, high, p_value)


def _difference(first: ByImage, second: ByImage, metric: str) -> tuple[Score | None, int]:
    """Return the difference with its error, and the degrees of freedom of that."""
    from polymode.metrics.dense.segmentation_scores import ious, recalls
    from polymode.metrics.dense.sums import by_group, jackknife, ratio_of_sums

    pixels = first["pixels"]
    degrees = len(pixels) - 1
    if metric == "joint_nll" and "joint" in first:
        gaps = second["joint"] - first["joint"]
        return ratio_of_sums(gaps, torch.ones_like(gaps)), degrees
    if metric in MEANS and metric in first and metric in second:
        return ratio_of_sums(first[metric] - second[metric], pixels), degrees
    if metric in ("miou", "mean_accuracy") and "hits" in first:
        by_class = ious if metric == "miou" else recalls
        counts = torch.stack([torch.stack([part[k] for k in CLASS_COUNTS], -1)
                              for part in (first, second)], -1)  # fmt: skip
        groups = {"counts": by_group(counts)}

        def value(totals: Mapping[str, Tensor]) -> Tensor:
            means = [
                by_class(dict(zip(CLASS_COUNTS, part.unbind(-1), strict=True))).nanmean(-1)
                for part in totals["counts"].unbind(-1)
            ]
            return means[0] - means[1]

        return jackknife(value, groups, len(pixels)), len(groups["counts"]) - 1
    return None, degrees
