"""Streamed scores of maps of values against direct computation on all pixels at once."""

from __future__ import annotations

import math

import pytest
import torch

from polymode.metrics import intervals, regression
from polymode.metrics.clusters import clustered
from polymode.metrics.crps import crps
from polymode.metrics.dense.depth import DepthSums
from polymode.metrics.score import DEPTH, NotDefined, Score
from polymode.prediction import MixturePrediction

S, N, H, W = 3, 6, 8, 9


def made_up(outputs: int = 1, seed: int = 0) -> tuple[MixturePrediction, torch.Tensor]:
    """Return predictions and targets near them, a seventh of them missing, one image all."""
    stream = torch.Generator().manual_seed(seed)
    loc = 5 + torch.randn(S, N, H, W, outputs, generator=stream)
    scale = 0.3 + torch.rand(S, N, H, W, outputs, generator=stream)
    targets = loc[0] + scale[0] * torch.randn(N, H, W, outputs, generator=stream)
    targets[torch.rand(N, H, W, generator=stream) < 1 / 7] = math.nan
    targets[2] = math.nan
    return MixturePrediction(loc, scale), targets.clamp(min=0.1)


def scores_of(sums: DepthSums) -> dict[str, Score | None]:
    scores: dict[str, Score | None] = {}
    for name in DEPTH.names():
        try:
            scores[name] = DEPTH.get(name).value(sums)
        except NotDefined:
            scores[name] = None
    return scores


@pytest.fixture(scope="module")
def case():
    prediction, targets = made_up()
    sums = DepthSums()
    for start, stop in ((0, 2), (2, 3), (3, N)):
        sums.add(prediction[start:stop], targets[start:stop])
    return prediction, targets, scores_of(sums)


def test_scores_are_those_of_all_pixels(case) -> None:
    prediction, targets, scores = case
    rows = prediction.observations(targets)
    for name, metric in {"nll": regression.nll, "crps": crps}.items():
        expected = clustered(metric(rows.prediction, rows.targets), rows.examples)
        assert scores[name].value == pytest.approx(expected.value, rel=1e-6)
        # one image more, which has no pixels: 6 / 5 for 5 / 4
        error = expected.standard_error * math.sqrt((6 / 5) / (5 / 4))
        assert scores[name].standard_error == pytest.approx(error, rel=1e-5)
        assert scores[name].n == len(rows.targets)
    for name, metric in {
        "rmse": regression.rmse, "sharpness": regression.sharpness,
        "epistemic_std": regression.epistemic_std,
        "quantile_calibration": intervals.quantile_calibration,
    }.items():  # fmt: skip
        value = metric(rows.prediction, rows.targets).value
        assert scores[name].value == pytest.approx(value, rel=1e-5), name
    for level in (50, 90, 95):
        value = intervals.coverage(rows.prediction, rows.targets, level / 100).value
        assert scores[f"coverage_{level}"].value == pytest.approx(value, abs=1e-9)
    labelled = torch.tensor([0, 1, 3, 4, 5])
    joint = -prediction[labelled].joint_log_prob(targets[labelled]).double()
    assert scores["joint_nll"].value == pytest.approx(joint.mean().item(), rel=1e-6)
    assert scores["joint_nll"].n == 5


def test_scores_of_depths_are_their_formulas(case) -> None:
    prediction, targets, scores = case
    observed = ~targets.isnan()
    mean, depth = prediction.mean[observed].double(), targets[observed].double()
    logs = mean.log() - depth.log()
    assert scores["abs_rel"].value == pytest.approx(((mean - depth).abs() / depth).mean().item())
    assert scores["rmse_log"].value == pytest.approx(logs.square().mean().sqrt().item())
    for k in (1, 2, 3):
        near = torch.maximum(mean / depth, depth / mean) < 1.25**k
        assert scores[f"delta_{k}"].value == pytest.approx(near.double().mean().item())
    by_image = []
    for place in (0, 1, 3, 4, 5):
        seen = observed[place]
        log = (prediction.mean[place][seen].double() / targets[place][seen].double()).log()
        by_image.append((log.square().mean() - log.mean().square()).sqrt().item())
    assert scores["silog"].value == pytest.approx(sum(by_image) / 5)
    assert scores["silog"].n == 5


def test_scale_of_an_image_does_not_count_in_silog(case) -> None:
    prediction, targets, scores = case
    factors = torch.linspace(0.5, 2, N)[:, None, None, None]
    sums = DepthSums()
    sums.add(MixturePrediction(prediction.loc * factors, prediction.scale), targets)
    assert DEPTH.get("silog").value(sums).value == pytest.approx(scores["silog"].value, rel=1e-5)
    assert DEPTH.get("rmse_log").value(sums).value > 2 * scores["rmse_log"].value


def test_values_that_are_no_depths_say_so() -> None:
    for prediction, targets in (made_up(outputs=2), (made_up()[0], -made_up()[1])):
        sums = DepthSums()
        sums.add(prediction, targets)
        scores = scores_of(sums)
        assert scores["abs_rel"] is None and scores["delta_1"] is None
        assert scores["rmse"] is not None and scores["rmse"].value > 0


def test_a_set_without_targets_has_uncertainties() -> None:
    prediction, _ = made_up()
    sums = DepthSums()
    sums.add(prediction, None)
    mean = prediction.variance.flatten(1).mean(1).double()
    torch.testing.assert_close(sums.uncertainty("variance", "mean"), mean, rtol=1e-6, atol=1e-6)
    with pytest.raises(NotDefined, match="needs targets"):
        sums.require_pixels()
