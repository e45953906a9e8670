"""One display of each kind, small and made once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import polymode as pm
from polymode import plots
from polymode.metrics import evaluate
from polymode.metrics.diversity.pairwise import (
    pairwise_disagreement,
    pairwise_mutual_information,
)
from polymode.metrics.diversity.size import ensemble_size_curve
from polymode.metrics.results import Cost, Kept, Results
from polymode.prediction import CategoricalPrediction, MixturePrediction

COMPARISONS = [
    plots.Comparison("deep ensemble, accuracy", 95.2, 0.1, 95.0, 0.08, 0.5, "%", "up"),
    plots.Comparison("MAP, NLL", 0.25, None, 0.31, 0.012, 0.02, "nats", "down"),
    plots.Comparison("SWAG, ECE", 0.032, 0.002, 0.018, 0.003, 0.01, "", "down"),
    plots.Comparison("HMC, accuracy", 90.7, 0.3, None, None, 1.0, "%", "up"),
    plots.Comparison("Laplace, NLL", -0.2, 0.4, 2.5, 0.067, 0.4, "nats", "down"),
]


@pytest.fixture(scope="session")
def moons_results():
    task = pm.task("two_moons")
    options = {"epochs": 3, "progress": "silent", "net": pm.nets.mlp, "task": task}
    more = {"map": {}, "deep_ensemble": {"num_modes": 4}}
    return [evaluate(pm.fit(name, **options, **more[name]), task) for name in more]


def attack_arrays(stream: np.random.Generator) -> dict[str, np.ndarray]:
    """Return made-up arrays of the examination "attack"."""
    curves = ("accuracy", "predictive_entropy", "mutual_information", "accepted wrong",
              "auroc predictive_entropy", "auroc mutual_information")  # fmt: skip
    return {name: stream.random(6) for name in curves} | {
        "eps": np.linspace(0, 0.5, 6),
        "examples": np.array([200]),
        "flags": np.array(["noise: random noise succeeds"]),
        "images": stream.random((2, 3, 1, 8, 8)),
        "image step": np.array([0, 5, 10]),
        "image class": np.array([[3, 3, 0], [1, 4, 0]]),
        "image entropy": stream.random((2, 3)),
        "image label": np.array([3, 1]),
    }


@pytest.fixture(scope="session")
def displays(digits_results, digits_board, gap_results, moons_results):
    """One display of every function of the package, by its name."""
    ensemble = digits_results[1]
    test, ood = (ensemble.kept[key].prediction for key in ("test", "ood:scrambled"))
    labels = ensemble.kept["test"].targets
    hits = (test.log_probs.argmax(-1) == labels).double().mean(1)
    stream = np.random.default_rng(0)
    theta = np.arange(0.0, 360.0, 5.0)
    orbit = 0.6 + 0.2 * np.cos(np.radians(theta)) + 0.02 * stream.normal(size=(20, 72))
    grid = [0.0, 1e-3, 1e-2, 1e-1, 1.0]
    curve = ensemble_size_curve(test, labels)
    attacked = attack_arrays(stream)
    return {
        "attack_curves": plots.attack_curves({"e": attacked, "x": attacked}),
        "attack_trajectory": plots.attack_trajectory(attacked, label="e"),
        "detection_curves": plots.detection_curves({"e": attacked}),
        "reliability": plots.reliability(ensemble),
        "confidence_gap": plots.confidence_gap(digits_board),
        "risk_coverage": plots.risk_coverage(digits_board),
        "confusion": plots.confusion(digits_results[:1]),
        "example_pictures": plots.example_pictures(ensemble),
        "map_pictures": plots.map_pictures(map_results()),
        "pixel_reliability": plots.pixel_reliability(map_results()),
        "ood_histogram": plots.ood_histogram(ensemble),
        "entropy_scatter": plots.entropy_scatter(ensemble),
        "uncertainty_maps": plots.uncertainty_maps(moons_results[1]),
        "regression_band": plots.regression_band(gap_results),
        "regression_calibration": plots.regression_calibration(gap_results),
        "diversity_heat_map": plots.diversity_heat_map(stream.random((130, 130))),
        "diversity_plane": plots.diversity_plane({"e": (hits, pairwise_disagreement(test))}),
        "pair_density": plots.pair_density(
            pairwise_mutual_information(test), pairwise_mutual_information(ood)
        ),
        "size_curve": plots.size_curve({"e": curve, "x": curve}, reference="e"),
        "cost_pareto": plots.cost_pareto(digits_board),
        "forest": plots.forest(COMPARISONS),
        "dots": plots.dots(
            {"a": [0.1, 0.2], "b": [0.4]},
            groups={"a": "one", "b": "many"},
            label="two",
            axis="distance",
            caption="Two methods, a point per seed.",
        ),
        "reconstruction_pictures": plots.reconstruction_pictures(
            *stream.random((3, 1, 28, 28)), others={"FBP": stream.random((28, 28))}
        ),
        "error_calibration": plots.error_calibration(
            {"e": (np.geomspace(0.01, 0.1, 5), np.geomspace(0.02, 0.09, 5)), "x": ([0.05], [0.06])}
        ),
        "orbit_curve": plots.orbit_curve(theta, orbit, control=orbit[0]),
        "sweep": plots.sweep(grid, {"nll": stream.random((5, 3))}, name="lengthscale", chosen=0.1),
        "severity": plots.severity(digits_board, "rotation"),
        "severity_spread": plots.severity_spread(digits_board),
        "panels": plots.panels(
            {k: plots.regression_band(gap_results, label=k) for k in "abcde"},
            label="five bands",
            caption="Five times the same bands.",
        ),
    }


@pytest.fixture(scope="session")
def made():
    """Make results out of probabilities or of normal distributions."""
    return SimpleNamespace(results=_results, classes=_classes, normals=_normals)


def map_results() -> Results:
    """Return results of three images of 6 × 8 pixels, with bins of confidence in 4 groups."""
    stream = np.random.default_rng(1)
    logits = torch.as_tensor(stream.normal(size=(3, 3, 6, 8, 3)))
    masks = torch.as_tensor(stream.integers(0, 3, (3, 6, 8)))
    images = torch.as_tensor(stream.random((3, 3, 6, 8)))
    kept = {"maps": Kept(CategoricalPrediction.from_logits(logits), masks, images)}
    counts = stream.integers(20, 90, (4, 3, 15))
    shares = (np.arange(15) + 0.5) / 15
    bins = np.stack([counts, counts * shares, np.floor(counts * shares)], -1)
    return _results(kept).replace(arrays={"pixels": {"bins": bins}})


def _results(kept: dict[str, Kept], method: str = "made_up", seed: int = 0) -> Results:
    """Return results that keep these predictions and have no numbers."""
    return Results("made_up", method, "mlp", seed, {}, (), Cost(1, 1, 1, 1.0, 1), kept=kept)


def _classes(probs: np.ndarray, labels: np.ndarray | None = None) -> Kept:
    """Return a kept prediction of probabilities (S, B, C) or (B, C)."""
    prediction = CategoricalPrediction.from_probs(torch.as_tensor(probs))
    return Kept(prediction, None if labels is None else torch.as_tensor(labels))


def _normals(loc: np.ndarray, scale: float, targets: np.ndarray) -> Kept:
    """Return a kept prediction of one normal distribution for each target."""
    mean = torch.as_tensor(loc)[None, :, None]
    prediction = MixturePrediction(mean, torch.full_like(mean, scale))
    return Kept(prediction, torch.as_tensor(targets)[:, None])
