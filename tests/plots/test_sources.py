"""What figures are made of: labels of any source, and what cannot be drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polymode import plots
from polymode.metrics.diversity.size import SizeCurve
from polymode.metrics.results import Kept
from polymode.plots import Comparison
from polymode.plots.sources import by_label
from polymode.prediction import CategoricalPrediction

from .planes import plane


def test_labels_of_any_source(digits_results, digits_board):
    assert list(by_label(digits_board)) == digits_board.labels
    assert by_label(digits_results) == by_label(digits_board)
    assert by_label(digits_results[0]) == {"map": [digits_results[0]]}
    assert by_label({"mine": digits_results[:2]}) == {"mine": digits_results[:2]}


def test_what_cannot_be_compared_is_refused(digits_board):
    with pytest.raises(ValueError, match="Did you mean 'nll'"):
        plots.cost_pareto(digits_board, metric="nlll")
    with pytest.raises(ValueError, match="does not score"):
        plots.cost_pareto(digits_board, metric="mutual_information")
    with pytest.raises(ValueError, match="Did you mean 'map'"):
        plots.cost_pareto(digits_board, baseline="mapp")
    with pytest.raises(ValueError, match="at least one Comparison"):
        plots.forest([])
    row = Comparison("x", 1.0, None, 1.0, None, 0.0)
    with pytest.raises(ValueError, match="`tolerance` of 'x' must be > 0, got 0"):
        plots.forest([row])
    with pytest.raises(ValueError, match="must be finite"):
        plots.forest([row._replace(tolerance=1.0, ours=math.nan)])
    with pytest.raises(ValueError, match="`theta` of orbit_curve must increase"):
        plots.orbit_curve([0, 0], [[1, 1]])
    with pytest.raises(ValueError, match=r"\(S, 2\), one value for each theta, got \(1, 3\)"):
        plots.orbit_curve([0, 1], [1, 2, 3])
    with pytest.raises(ValueError, match=r"`control` of orbit_curve must be \(2,\), got \(3,\)"):
        plots.orbit_curve([0, 1], [1, 2], control=[1, 2, 3])
    with pytest.raises(ValueError, match="finite numbers, got 1 that are not"):
        plots.orbit_curve([0, 1], [1, np.nan])
    with pytest.raises(ValueError, match="increase from 0 or more"):
        plots.sweep([-1, 1], {"nll": [1, 2]}, name="x")
    with pytest.raises(ValueError, match=r"\(2, R\) or \(2,\), got \(3, 1\)"):
        plots.sweep([1, 2], {"nll": [1, 2, 3]}, name="x")
    with pytest.raises(ValueError, match="no finite number"):
        plots.sweep([1, 2], {"nll": [np.nan, np.nan]}, name="x")
    with pytest.raises(ValueError, match="must be finite and >= 0, got -1"):
        plots.sweep([1, 2], {"nll": [1, 2]}, name="x", chosen=-1)
    with pytest.raises(ValueError, match="at least one panel"):
        plots.sweep([1, 2], {}, name="x")
    with pytest.raises(ValueError, match="no shift 'fog'; it has"):
        plots.severity(digits_board, "fog")
    with pytest.raises(ValueError, match="no metric 'nlll' of the test set. Did you mean 'nll'"):
        plots.severity(digits_board, "rotation", metrics=["nlll"])
    with pytest.raises(ValueError, match="no metric 'rmse'"):
        plots.severity_spread(digits_board, metrics=["rmse"])


def test_maps_and_bands_that_cannot_be_drawn_are_refused(made, digits_results, gap_results):
    with pytest.raises(ValueError, match="keep no plane"):
        plots.uncertainty_maps(digits_results[1])
    with pytest.raises(ValueError, match="first input fastest"):
        plots.uncertainty_maps(made.results(plane(made, order="yx")))
    wrong = plane(made)
    short = wrong["plane"].prediction[:24]
    wrong["plane"] = Kept(short, None, wrong["plane"].inputs[:24])
    with pytest.raises(ValueError, match=r"n × n inputs of 2 numbers, n >= 2, got \(24, 2\)"):
        plots.uncertainty_maps(made.results(wrong))
    with pytest.raises(ValueError, match="0 results"):
        plots.map_limits([])
    with pytest.raises(ValueError, match="keep no curve"):
        plots.regression_band(digits_results[0])
    with pytest.raises(ValueError, match="is for regressions"):
        plots.regression_calibration(digits_results[0])
    with pytest.raises(ValueError, match="at least 1, got 0"):
        plots.regression_calibration(gap_results, num_bins=0)


DEEP = SizeCurve("nll", "down", (1, 2, 4), (0.5, 0.3, 0.2), (0.0, 0.01, 0.0), (4, 6, 1))


def test_members_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match=r"\(S, S\) with S >= 2, got \(2, 3\)"):
        plots.diversity_heat_map(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="2 NaN or infinite"):
        plots.diversity_heat_map([[0, math.inf], [math.nan, 0]])
    with pytest.raises(ValueError, match="must be 2, got 1"):
        plots.diversity_heat_map(np.ones((2, 2)), names=["a"])
    with pytest.raises(ValueError, match=r"2 numbers in \[0, 1\]"):
        plots.diversity_plane({"m": ([97.0, 98.0], np.ones((2, 2)))})
    with pytest.raises(ValueError, match="not for KL"):
        plots.diversity_plane({"m": ([0.9, 0.9], np.ones((2, 2)))}, measure="KL", num_classes=3)
    with pytest.raises(ValueError, match="at least 2, got 1"):
        plots.diversity_plane({"m": ([0.9, 0.9], np.ones((2, 2)))}, num_classes=1)
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.diversity_plane({})
    with pytest.raises(ValueError, match=r"in \[0, log 2\], got 0.9"):
        plots.pair_density([0.9], [0.1])
    with pytest.raises(ValueError, match="same pairs, got 2 and 1"):
        plots.pair_density([0.1, 0.2], [0.1])
    with pytest.raises(ValueError, match="1 to 100, got 0"):
        plots.pair_density([0.1], [0.1], num_bins=0)
    with pytest.raises(ValueError, match="Did you mean 'deep'"):
        plots.size_curve({"deep": DEEP}, reference="depe")
    with pytest.raises(ValueError, match="must increase"):
        plots.size_curve({"m": ([2, 1], [0.1, 0.1], [0, 0])})
    with pytest.raises(ValueError, match="equally many, got 2, 1 and 1"):
        plots.size_curve({"m": ([1, 2], [0.1], [0])})
    with pytest.raises(ValueError, match="must be numbers"):
        plots.size_curve({"m": ([1], [math.nan], [0])})
    with pytest.raises(ValueError, match="one metric, got accuracy, nll"):
        plots.size_curve({"a": DEEP, "b": DEEP._replace(metric="accuracy")})


def examples(shape=(3, 1, 4, 4)) -> Kept:
    """Return a sure mistake, a sure success and an unsure success."""
    probs = torch.tensor([[0.95, 0.05], [0.9, 0.1], [0.45, 0.55]])
    inputs = torch.arange(3.0).view(3, 1, 1, 1).expand(shape) / 2
    return Kept(CategoricalPrediction.from_probs(probs), torch.tensor([1, 0, 1]), inputs)


def test_mistakes_that_cannot_be_drawn_are_refused(made):
    with pytest.raises(ValueError, match="keep no prediction of 'examples'"):
        plots.example_pictures(made.results({}))
    flat = examples()._replace(inputs=torch.ones(3, 5))
    with pytest.raises(ValueError, match="is for images"):
        plots.example_pictures(made.results({"examples": flat}))
    with pytest.raises(ValueError, match="`most` of example_pictures must be from 1 to 6, got 9"):
        plots.example_pictures(made.results({"examples": examples()}), most=9)


def test_scores_that_cannot_be_drawn_are_refused(digits_results, gap_results):
    bare = digits_results[0].replace(kept={})
    with pytest.raises(ValueError, match="keep no predictions"):
        plots.ood_histogram(bare)
    with pytest.raises(ValueError, match="Did you mean 'mutual_information'"):
        plots.ood_histogram(digits_results[0], score="mutual_info")
    with pytest.raises(ValueError, match="no prediction of an OOD set"):
        plots.entropy_scatter(bare)
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        plots.entropy_scatter(digits_results[0])
    with pytest.raises(ValueError, match="keep no prediction of 'ood:mars'"):
        plots.entropy_scatter(digits_results[1], ood="mars")
    with pytest.raises(ValueError, match="is for classes"):
        plots.entropy_scatter(gap_results)
    with pytest.raises(ValueError, match=r"in \[0, 1\], got 2"):
        plots.risk_coverage(digits_results[0], risk=2)
