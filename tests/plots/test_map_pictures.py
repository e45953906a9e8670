"""Pictures of maps and reliability over pixels, by hand; what evaluate keeps for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import polymode as pm
from polymode import plots
from polymode.metrics.examples import MOST, thinned
from polymode.metrics.results import Kept
from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.report.figures import figures


def class_maps(samples: int = 2) -> Kept:
    """Three images of 4 × 5 pixels: sure and right, unsure and right, sure and half wrong."""
    masks = torch.zeros(3, 4, 5).long()
    masks[2, 2:] = 1
    masks[:, 0, 0] = -100
    right = torch.tensor([0.95, 0.55, 0.9]).view(1, 3, 1, 1).expand(samples, 3, 4, 5).clone()
    right[0] -= 0.02
    probs = torch.stack([right, 1 - right], -1)
    images = torch.linspace(0, 1, 3).view(3, 1, 1, 1).expand(3, 3, 4, 5)
    return Kept(CategoricalPrediction.from_probs(probs), masks, images)


def value_maps() -> Kept:
    random = torch.Generator().manual_seed(0)
    loc = torch.randn(2, 3, 4, 5, 1, generator=random)
    y = loc.mean(0) + torch.tensor([0.1, 1.0, 3.0]).view(3, 1, 1, 1)
    y[0, 0, 0] = torch.nan
    return Kept(MixturePrediction(loc, 0.5), y, torch.zeros(3, 1, 4, 5))


def test_maps_of_classes_are_those_of_the_prediction(made) -> None:
    prediction, masks, _ = class_maps()
    display = plots.map_pictures(made.results({"maps": class_maps()}))
    data = display.data
    assert data["order"].tolist() == ["most uncertain"] * 2 + ["surely wrong"]
    np.testing.assert_array_equal(data["image"][:, 0, 0, 0], [0.5, 1.0, 1.0])
    entropy = prediction.predictive_entropy
    np.testing.assert_allclose(data["total"], entropy[[1, 2, 2]])
    np.testing.assert_allclose(data["epistemic"], prediction.mutual_information[[1, 2, 2]])
    np.testing.assert_allclose(data["value"][:2], entropy[[1, 2]].mean((1, 2)), rtol=1e-6)
    # 10 of 19 observed pixels are wrong, with a confidence of 0.89
    assert data["value"][2] == pytest.approx(0.89 * 10 / 19, rel=1e-5)
    error = data["error"][2]
    assert error[0, 0] == -1 and (error[2:] == 1).all() and (error[:2].ravel()[1:] == 0).all()
    assert data["truth"][0, 0, 0] == -1 and list(display.panels)[-1] == "epistemic"


def test_one_network_has_no_mutual_information(made) -> None:
    display = plots.map_pictures(made.results({"maps": class_maps(1)}), most=1)
    assert list(display.panels) == ["image", "truth", "predicted", "error", "total"]
    assert "mutual" not in display.caption + display.alt


def test_maps_of_values(made) -> None:
    """The largest errors in standard deviations; nothing is drawn where there is no target."""
    display = plots.map_pictures(made.results({"maps": value_maps()}), most=1)
    prediction, y, _ = value_maps()
    data = display.data
    assert display.panels.keys() == {
        "image", "truth", "predicted", "error", "aleatoric", "epistemic"
    }  # fmt: skip
    std = prediction.std[2, ..., 0]
    expected = ((y[2, ..., 0] - prediction.mean[2, ..., 0]).abs() / std).mean()
    assert data["value"][1] == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(data["error"][1], 3.0, rtol=1e-5)
    np.testing.assert_allclose(data["aleatoric"][1], 0.5, rtol=1e-6)
    assert len(display.to_svg()) > 1000


def test_reliability_over_pixels_by_hand(made) -> None:
    """Three groups of images: ratios of sums, and the jackknife of each, left out by hand."""
    random = np.random.default_rng(0)
    counts = random.integers(5, 50, (3, 2, 15)).astype(float)
    counts[..., :4] = 0
    bins = np.stack([counts, 0.7 * counts, 0.6 * counts], -1)
    bins[1, :, 10, 2] = 0
    results = made.results({}).replace(arrays={"pixels": {"bins": bins}})
    data = plots.pixel_reliability(results).data
    total = bins.sum((0, 1))
    np.testing.assert_allclose(data["accuracy"], total[4:, 2] / total[4:, 0])
    np.testing.assert_allclose(data["confidence"], 0.7)
    without = [(bins.sum(1).sum(0) - bins[g].sum(0))[10] for g in range(3)]
    shares = np.array([part[2] / part[0] for part in without])
    error = np.sqrt(2 / 3 * np.square(shares - shares.mean()).sum())
    assert data["standard error"][6] == pytest.approx(error)
    assert data["standard error"][0] == pytest.approx(0, abs=1e-12)
    pooled = plots.pixel_reliability([results, results])
    np.testing.assert_allclose(pooled.data["count"], 2 * data["count"])


def test_wrong_calls_are_refused_in_one_line(made) -> None:
    flat = class_maps()
    rows = Kept(flat.prediction, flat.targets, torch.zeros(3, 7))
    for call, says in (
        (lambda: plots.map_pictures(made.results({})), "keep no prediction of 'maps'"),
        (lambda: plots.map_pictures(made.results({"maps": rows})), r"images \(C, H, W\)"),
        (lambda: plots.map_pictures(made.results({"maps": flat}), most=9), "from 1 to 6, got 9"),
        (lambda: plots.pixel_reliability(made.results({})), "no bins of pixels"),
    ):
        with pytest.raises(ValueError, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_large_maps_are_thinned_alike() -> None:
    maps = torch.arange(2 * 130 * 70.0).view(1, 2, 130, 70, 1)
    kept = thinned(Kept(MixturePrediction(maps, 1.0), maps[0], torch.zeros(2, 1, 64, 64)))
    assert kept.prediction.mean.shape == (2, 43, 23, 1)  # every third, from the second
    torch.testing.assert_close(kept.prediction.loc[0], kept.targets)
    assert kept.targets[0, 0, 0] == 71


def test_evaluate_keeps_images_with_their_maps() -> None:
    """The telling ones of 20 images, with inputs as they were given; the report draws them."""
    random = torch.Generator().manual_seed(1)
    images = torch.rand(20, 1, 8, 8, generator=random)
    masks = (images[:, 0] > 0.5).long()
    masks[:, 0] = -100
    task = pm.Task(train=(images, masks), test=(images, masks), likelihood="categorical")
    net = lambda: nn.Conv2d(1, 2, 1)  # noqa: E731
    post = pm.fit("deep_ensemble", net=net, task=task, epochs=5, lr=0.1, progress="silent",
                  num_modes=2)  # fmt: skip
    results = pm.evaluate(post, task)
    kept = results.kept["maps"]
    assert len(kept.inputs) <= 2 * MOST and kept.prediction.num_axes == 2
    torch.testing.assert_close(kept.prediction.mean, post.predict(kept.inputs).mean)
    entropy = post.predict(images).predictive_entropy.mean((1, 2))
    shown = plots.map_pictures(results).data["value"]
    np.testing.assert_allclose(shown[:2], entropy.topk(2).values, rtol=1e-5)
    bins = results.arrays["pixels"]["bins"]
    assert bins.sum((0, 1, 2))[0] == 20 * 56
    hits = (post.predict(images).classes == masks)[:, 1:]
    assert bins[..., 2].sum() == hits.sum()
    drawn, reasons = figures(pm.compare([results]))
    assert "MapPictures" in [type(d).__name__ for d in drawn["mistakes"]]
    assert [type(d).__name__ for d in drawn["calibration"]] == ["PixelReliability"], reasons
    assert "maps" not in pm.evaluate(post, task, keep=("test",)).kept
