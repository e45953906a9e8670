"""Bands over one input: numbers against oracles."""

from __future__ import annotations

import numpy as np
import torch

from polymode import plots
from polymode.plots.regression_band import _epistemic
from polymode.prediction import MixturePrediction


def test_band_splits_the_variance(gap_results):
    display = plots.regression_band(gap_results)
    noise = display.data["std"] ** 2 - display.data["epistemic std"] ** 2
    np.testing.assert_allclose(noise, 0.01, rtol=1e-3)
    functions = [display.data[f"function {k}"] for k in range(3)]
    np.testing.assert_allclose(np.mean(functions, 0), display.data["mean"], atol=1e-6)


def test_band_draws_three_widths_and_every_function(gap_results):
    display = plots.regression_band(gap_results)
    epistemic, all_of = display.figure().axes
    assert len(epistemic.collections) == len(all_of.collections) == 3
    assert len(epistemic.get_lines()) == 3 + 2  # functions, mean and truth
    assert len(all_of.get_lines()) == 3  # points, mean and truth
    outer = all_of.collections[0].get_paths()[0].vertices[:, 1]
    edge = display.data["mean"] + 3 * display.data["std"]
    assert outer.max() <= edge.max() + 1e-9
    assert outer.max() > (display.data["mean"] + 2.5 * display.data["std"]).max()


def test_band_has_at_most_20_functions(made, gap_results):
    curve = gap_results.kept["curve"]
    many = type(curve.prediction)(
        curve.prediction.loc.repeat(10, 1, 1), curve.prediction.scale.repeat(10, 1, 1)
    )
    kept = dict(gap_results.kept) | {"curve": curve._replace(prediction=many)}
    display = plots.regression_band(gap_results.replace(kept=kept))
    assert sum(key.startswith("function ") for key in display.data) == 20
    assert "20 single functions" in display.caption


def test_band_shows_functions_of_all_modes_and_the_share_of_one(gap_results):
    """Functions of 40 samples are not the first 20, which are those of the first mode."""
    curve = gap_results.kept["curve"]
    grid = curve.prediction.loc[:1]
    places = torch.arange(40.0)[:, None, None] >= 20  # two modes: functions at 0 and at 1
    modes = MixturePrediction(places.float().expand(40, *grid.shape[1:]), 1.0, num_modes=2)

    def band(prediction):
        kept = dict(gap_results.kept) | {"curve": curve._replace(prediction=prediction)}
        return plots.regression_band(gap_results.replace(kept=kept))

    data = band(modes).data
    assert {data[f"function {k}"][0] for k in range(20)} == {0.0, 1.0}
    one = band(MixturePrediction(grid, 2.0, epistemic=0.25))
    np.testing.assert_allclose(one.data["epistemic std"], 1.0, rtol=1e-5)
    assert "25 % of the predictive variance is epistemic" in one.alt
    assert not one.figure().axes[0].texts
    bare = band(MixturePrediction(grid, 2.0))
    assert "no epistemic part" in bare.alt and bare.figure().axes[0].texts


def test_band_quotes_coverage_of_the_test_set_only(gap_results):
    row = gap_results["test", "coverage_90"]
    caption = plots.regression_band(gap_results).caption
    assert f"The 90 % interval contains {100 * row.value:.1f} % of" in caption


def test_the_epistemic_share_is_a_mean_of_shares():
    """0.8 of a small variance and 0.2 of one 100 times as large: 50 %, not 21 %."""
    std = np.array([1.0, 10.0])
    part = std * np.sqrt([0.8, 0.2])
    told = _epistemic({"std": std, "epistemic std": part, "x": np.array([0.0, 1.0])}, 2)
    assert "50 % of the predictive variance is epistemic" in told
