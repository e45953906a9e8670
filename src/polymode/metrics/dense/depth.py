r"""Scores of maps of values, such as depths, accumulated image by image.

Pixels without a target (NaN) have no part. Sums over pixels are exact; standard errors are over
images (`sums`), by the jackknife where a score is no mean. Of several values at a pixel, scores
are means over them, and the log-density is joint; scores of depths need one value, above 0.

With a target y > 0, the predictive mean ŷ and :math:`d = \log ŷ - \log y`, for depths:

.. math:: \text{AbsRel} = \overline{|ŷ - y| / y},\quad
          \delta_k = P\big(\max(ŷ/y, y/ŷ) < 1.25^k\big),\quad
          \text{SILog} = \sqrt{\overline{d^2} - \bar d^2},

the last for each image, as in the KITTI benchmark, and averaged over images (some libraries pool
all pixels instead, so that the error of scale counts between images). A mean below 0.001 counts as
0.001.

`B` images, `n` observed pixels, `D` values at a pixel.

Reference: D. Eigen, C. Puhrsch, R. Fergus, Depth map prediction from a single image using a
multi-scale deep network, NeurIPS 2014.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from polymode.metrics.crps import crps
from polymode.metrics.dense.image_scores import AGGREGATES
from polymode.metrics.dense.sums import MapSums, Sums, by_group, jackknife
from polymode.metrics.intervals import CALIBRATION_LEVELS, pit
from polymode.metrics.ood import MEASURES, measure_facts
from polymode.metrics.score import DEPTH, OOD_DEPTH, NotDefined, Score, mean_score, register
from polymode.metrics.selective import area_over_best
from polymode.prediction import MixturePrediction, Prediction

LEAST = 1e-3  # units of y: a depth predicted below counts as this
LEVELS = (50, 90, 95)
_DELTAS = (1, 2, 3)
UNIT = "units of y"
_SUMMARIES = {
    "variance": ("variance", "predictive variance", False),
    "epistemic_variance": ("epistemic variance", "epistemic variance", True),
}


class DepthSums(MapSums):
    """Accumulates the predictions of a set of images.

    Of each image it keeps "pixels", sums over them by the names of the scores, "joint" (the
    log-density of all values together), and its uncertainties, of all pixels.

    Attributes:
        positive: whether all targets so far are single values above 0, as depths are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.positive = True

    def add(self, prediction: Prediction, targets: Tensor | None) -> None:
        """Add the predictions of some images, (S, B, H, W, D), with targets (B, H, W, D)."""
        assert isinstance(prediction, MixturePrediction)
        self.num_samples, self.has_epistemic = prediction.num_samples, prediction.has_epistemic
        maps = {"variance": prediction.variance.sum(-1)}
        if prediction.has_epistemic:
            maps["epistemic_variance"] = prediction.epistemic_variance.sum(-1)
        self.keep_uncertainty(maps)
        if targets is None:
            return
        self.keep("joint", prediction.joint_log_prob(targets))
        rows, number = prediction.observations(targets), len(prediction)
        images = rows.examples
        self.keep("pixels", torch.bincount(images, minlength=number))
        self.keep("targets", targets.nan_to_num(nan=0.0).flatten(1).double().sum(1))
        self.positive &= targets.shape[-1] == 1 and bool((rows.targets > 0).all())
        weight = float(len(images) > 0)
        if not weight:  # sums of no pixel: zeros, of the names and shapes that others have
            rows = prediction.observations(prediction.mean.clamp(min=LEAST))
        assert isinstance(rows.prediction, MixturePrediction)
        for name, values in self._contributions(rows.prediction, rows.targets).items():
            sums = torch.zeros(number, *values.shape[1:], dtype=torch.float64)
            values = weight * values.detach().double().cpu()
            self.keep(name, sums.index_add_(0, rows.examples, values))

    def _contributions(self, prediction: MixturePrediction, targets: Tensor) -> dict[str, Tensor]:
        """Return what each pixel adds, (n, ...)."""
        error = prediction.mean.double() - targets.double()
        central = pit(prediction, targets).mul_(2.0).sub_(1.0).abs_().unsqueeze(-1)
        levels = torch.tensor([level / 100 for level in LEVELS] + list(CALIBRATION_LEVELS))
        values = {
            "nll": -prediction.log_prob(targets),
            "squared": error.square().mean(-1),
            "mae": error.abs().mean(-1),
            "crps": crps(prediction, targets).each,
            "inside": (central <= levels.double()).double().mean(-2),
            "variance_sums": prediction.variance.mean(-1),
        }
        if prediction.has_epistemic:
            values["epistemic"] = prediction.epistemic_variance.mean(-1)
        if self.positive:
            values |= _of_depths(prediction.mean[:, 0].double(), targets[:, 0].double())
        return {name: part for name, part in values.items() if part is not None}


def _of_depths(mean: Tensor, depth: Tensor) -> dict[str, Tensor]:
    mean = mean.clamp(min=LEAST)
    logs = mean.log() - depth.log()
    within = [logs.abs() < k * torch.tensor(1.25).double().log() for k in _DELTAS]
    return {
        "abs_rel": (mean - depth).abs() / depth,
        "logs": torch.stack([logs, logs.square()], -1),
        "deltas": torch.stack(within, -1),
    }


_score = partial(register, DEPTH)


def _mean(name: str, sums: DepthSums) -> Score:
    return sums.mean_over_pixels(name)


for _name, _title, _unit, _headline, _summary in (
    ("nll", "NLL", "nats/pixel", True,
     "mean negative log-density of a pixel's target under the mixture of the members' densities"),
    ("crps", "CRPS", UNIT, False, "distance of the predicted distribution from a pixel's target"),
    ("mae", "MAE", UNIT, False, "mean distance of the predictive mean from a pixel's target"),
):  # fmt: skip
    _score(_name, title=_title, unit=_unit, direction="down", family="quality", summary=_summary,
           headline=_headline)(partial(_mean, _name))  # fmt: skip


@_score(
    "joint_nll",
    title="joint NLL",
    unit="nats/image",
    direction="down",
    family="quality",
    summary="mean negative log-density of all targets of an image together: −log of the mean over"
    " samples of the product over pixels",
)
def joint_nll(sums: DepthSums) -> Score:
    return sums.joint_nll()


def _functional(name: str, function: Callable[[Tensor, Tensor], Tensor], sums: DepthSums) -> Score:
    """Return a function of sums (R, ...) and of numbers of pixels (R,), by the jackknife."""
    if name not in sums:
        raise NotDefined("needs ≥ 2 samples")
    groups = {
        "sums": by_group(sums.of_images(name)),
        "pixels": by_group(sums.of_images("pixels")),
    }

    def value(totals: Sums) -> Tensor:
        return function(totals["sums"], totals["pixels"])

    return jackknife(value, groups, sums.num_pixels)


def _share(place: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function from sums of several kinds to the share of one of them."""
    return lambda total, pixels: total[:, place] / pixels


def _root(total: Tensor, pixels: Tensor) -> Tensor:
    return (total / pixels).sqrt()


_score(
    "rmse", title="RMSE", unit=UNIT, direction="down", family="quality", headline=True,
    summary="root of the mean squared distance of the predictive mean from a pixel's target",
)(partial(_functional, "squared", _root))  # fmt: skip
_score(
    "sharpness", title="sharpness", unit=UNIT, direction="", family="uncertainty",
    summary="root of the mean predictive variance, to be compared with the RMSE; describes, does"
    " not score",
)(partial(_functional, "variance_sums", _root))  # fmt: skip
_score(
    "epistemic_std", title="epistemic s.d.", unit=UNIT, direction="", family="uncertainty",
    epistemic=True, summary="root of the mean epistemic variance: how far apart the networks' means"
    " are; describes, does not score",
)(partial(_functional, "epistemic", _root))  # fmt: skip
for _place, _level in enumerate(LEVELS):
    _score(
        f"coverage_{_level}", title=f"coverage, {_level} %", unit="fraction", direction="",
        family="intervals", headline=_level == 90,
        summary=f"share of pixels whose target is inside the central {_level} % interval;"
        f" {_level / 100:g} is right",
    )(partial(_functional, "inside", _share(_place))
      )  # fmt: skip


def _calibration(total: Tensor, pixels: Tensor) -> Tensor:
    shares = total[:, len(LEVELS) :] / pixels.unsqueeze(-1)
    return (shares - torch.tensor(CALIBRATION_LEVELS).double()).abs().mean(-1)


_score(
    "quantile_calibration", title="quantile calibration error", unit="probability",
    direction="down", family="intervals", summary="mean gap between the level of a central interval"
    " and its coverage, over 15 levels from 5 to 95 %",
)(partial(_functional, "inside", _calibration))  # fmt: skip


# ------------------------------------------------------------------------------- depths


def _depths(sums: DepthSums) -> DepthSums:
    if not sums.positive:
        raise NotDefined("needs one target > 0 at each pixel")
    return sums


@_score(
    "abs_rel",
    title="AbsRel",
    unit="fraction",
    direction="down",
    family="quality",
    summary="mean distance of the predictive mean from the depth, as a share of the depth",
)
def abs_rel(sums: DepthSums) -> Score:
    return _depths(sums).mean_over_pixels("abs_rel")


@_score(
    "silog",
    title="SILog",
    unit="log units",
    direction="down",
    family="quality",
    summary="standard deviation of log depth errors within an image, mean over images: free of an"
    " image's scale",
)
def silog(sums: DepthSums) -> Score:
    pixels = _depths(sums).of_images("pixels")
    means = sums.of_images("logs")[pixels > 0] / pixels[pixels > 0].unsqueeze(-1)
    return mean_score((means[:, 1] - means[:, 0].square()).clamp(min=0).sqrt())


@_score(
    "rmse_log",
    title="RMSE, log",
    unit="log units",
    direction="down",
    family="quality",
    summary="root of the mean squared error of the logarithm of the depth",
)
def rmse_log(sums: DepthSums) -> Score:
    return _functional("logs", lambda total, pixels: _root(total[:, 1], pixels), _depths(sums))


def _delta(place: int, sums: DepthSums) -> Score:
    return _functional("deltas", _share(place), _depths(sums))


for _place, _k in enumerate(_DELTAS):
    _score(
        f"delta_{_k}", title=f"δ{_k}", unit="fraction", direction="up", family="quality",
        summary=f"share of pixels whose depth is off by a factor below {1.25**_k:.4g}",
    )(partial(_delta, _place))  # fmt: skip


# ------------------------------------------------------------------------------- whole images


def _failures(what: str, way: str, sums: DepthSums) -> Score:
    """Return the excess area of images' squared errors, the most uncertain declined first."""
    pixels = sums.of_images("pixels")
    errors = (sums.of_images("squared") / pixels)[pixels > 0]
    return area_over_best(-sums.uncertainty(what, way)[pixels > 0], errors)


def _separation(measure: str, what: str, way: str, inside: DepthSums, outside: DepthSums) -> Score:
    """Return how well a number for each image tells the images of two sets apart."""
    return MEASURES[measure](*(sums.uncertainty(what, way) for sums in (inside, outside)))


for _name, (_short, _long, _epistemic) in _SUMMARIES.items():
    for _way, _words in AGGREGATES.items():
        _score(
            f"image_e_aurc_{_name}_{_way}", title=f"E-AURC of images, {_way} {_short}",
            unit="(units of y)²", direction="down", family="selective", epistemic=_epistemic,
            summary=f"mean squared error of accepted images, averaged over coverages, above that of"
            f" the best order, when those of the highest {_long} ({_words}) are declined first",
        )(partial(_failures, _name, _way))  # fmt: skip
        for _measure, (_title, _unit, _direction, _summary) in measure_facts().items():
            if _way != "mean" and _measure.startswith("aupr"):
                continue
            _suffix = "" if _way == "mean" else f"_{_way}"
            register(
                OOD_DEPTH, f"{_measure}_{_name}{_suffix}", unit=_unit, direction=_direction,
                title=f"{_title}, {_short}" + ("" if _way == "mean" else f", {_way}"),
                family="ood", headline=_measure == "auroc" and _way == "mean",
                epistemic=_epistemic,
                summary=f"of images: {_summary.format(f'{_long} ({_words})')}",
            )(partial(_separation, _measure, _name, _way))  # fmt: skip
