"""Maps over two inputs, bands over one, calibration of regressions: numbers against oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

from polymode import plots
from polymode.metrics.results import Kept
from polymode.plots.regression_band import _epistemic
from polymode.prediction import MixturePrediction


def plane(made, side=5, samples=2, order="xy"):
    """A plane whose class probability grows with the first input alone."""
    steps = np.linspace(-1, 1, side)
    y, x = np.meshgrid(steps, steps, indexing="ij")
    grid = np.stack([x, y] if order == "xy" else [y, x], -1).reshape(-1, 2)
    first = 1 / (1 + np.exp(-3 * grid[:, 0]))
    probs = np.stack([first, 1 - first], -1)[None].repeat(samples, 0)
    probs[1:] = probs[1:, :, ::-1]
    kept = made.classes(probs)._replace(inputs=torch.as_tensor(grid))
    train = made.classes(probs[:, :3], np.array([0, 1, 1]))
    return {"plane": kept, "train": train._replace(inputs=torch.as_tensor(grid[:3]))}


def test_maps_add_up_and_lie_the_right_way_round(made):
    data = plots.uncertainty_maps(made.results(plane(made))).data
    np.testing.assert_allclose(data["total"], data["aleatoric"] + data["epistemic"], atol=1e-12)
    np.testing.assert_allclose(data["total"], np.log(2))  # two opposite samples
    np.testing.assert_allclose(data["aleatoric"], data["aleatoric"][:1].repeat(5, 0))
    assert np.ptp(data["aleatoric"][0]) > 0.3  # it changes along the first input, in a row
    np.testing.assert_allclose(data["train x"], [-1, -0.5, 0])
    np.testing.assert_allclose(data["train y"], -1)


def test_maps_show_one_scale_in_every_panel(made):
    display = plots.uncertainty_maps(made.results(plane(made)), limits=(0.0, 2.0))
    images = [ax.images[0] for ax in display.figure().axes if ax.images]
    assert len(images) == 3
    assert {image.get_clim() for image in images} == {(0.0, 2.0)}
    np.testing.assert_allclose(images[1].get_array(), display.data["aleatoric"])
    assert images[0].origin == "lower"


def test_limits_are_shared_by_all_results(made):
    sure = np.tile([0.99, 0.01], (2, 25, 1))
    flat = plane(made) | {"plane": made.classes(sure)}
    flat["plane"] = flat["plane"]._replace(inputs=plane(made)["plane"].inputs)
    both = [made.results(flat), made.results(plane(made))]
    assert plots.map_limits(both) == (0.0, pytest.approx(np.log(2)))
    assert plots.map_limits(both[:1])[1] < 0.1


def test_one_sample_has_an_empty_epistemic_panel(made):
    display = plots.uncertainty_maps(made.results(plane(made, samples=1)))
    assert "epistemic" not in display.data
    panel = display.figure().axes[2]
    assert not panel.images
    assert "n/a" in panel.texts[0].get_text()
    assert "epistemic n/a" in display.alt


def test_what_evaluate_keeps_can_be_drawn(moons_results):
    single, several = map(plots.uncertainty_maps, moons_results)
    assert "epistemic" not in single.data
    assert several.data["epistemic"].shape == (100, 100)
    assert len(several.data["train x"]) == 200
    lower_left = moons_results[1].kept["plane"].inputs[0]
    assert (several.data["x"][0], several.data["y"][0]) == pytest.approx(lower_left.tolist())


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


def even_normals(made, scale, n=200):
    """Targets at the even quantiles of a standard normal distribution."""
    places = stats.norm.ppf((np.arange(n) + 0.5) / n)
    return made.results({"test": made.normals(np.zeros(n), scale, places)})


def test_right_predictions_are_uniform_and_on_the_diagonal(made):
    data = plots.regression_calibration(even_normals(made, 1.0)).data
    np.testing.assert_allclose(data["pit density"], 1.0)
    np.testing.assert_allclose(data["coverage"], data["level"], atol=1 / 200)
    assert data["sharpness"][0] == pytest.approx(1.0)
    low, high = data["pit band"] * 20
    assert (low, high) == tuple(stats.binom.ppf([0.05, 0.95], 200, 0.1))
    np.testing.assert_allclose(data["band high"] * 200, stats.binom.ppf(0.95, 200, data["level"]))


def test_too_sure_is_a_u_below_the_diagonal(made):
    data = plots.regression_calibration(even_normals(made, 0.5)).data
    assert data["pit density"][0] > data["pit band"][1]
    assert data["pit density"][5] < 1
    expected = 2 * stats.norm.cdf(0.5 * stats.norm.ppf(0.5 + data["level"] / 2)) - 1
    np.testing.assert_allclose(data["coverage"], expected, atol=1 / 200)
    assert (data["coverage"] < data["band low"])[3:].all()


def test_seeds_are_pooled_and_the_band_is_of_one(made):
    one, two = even_normals(made, 1.0), even_normals(made, 1.0)
    both = plots.regression_calibration([one, two])
    np.testing.assert_allclose(both.data["pit density"], 1.0)
    np.testing.assert_array_equal(
        both.data["pit band"], plots.regression_calibration(one).data["pit band"]
    )
    assert "2 seeds pooled" in both.caption


def test_what_cannot_be_drawn_is_refused(made, digits_results, gap_results):
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


def test_a_panel_can_be_drawn_alone(made, gap_results):
    maps = plots.uncertainty_maps(made.results(plane(made)))
    assert maps.plot(Figure().add_subplot(), "epistemic").images
    band = plots.regression_band(gap_results)
    assert len(band.plot(Figure().add_subplot(), "epistemic").collections) == 3


def test_panels_are_a_grid_of_one_panel_each(moons_results, gap_results):
    maps = [plots.uncertainty_maps(moons_results[1], label=k, limits=(0, 1)) for k in "abc"]
    display = plots.panels(maps, label="maps", caption="Maps.")
    figure = display.figure()
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["a", "b", "c", ""]  # the last is the colour bar
    assert {image.get_clim() for ax in figure.axes for image in ax.images} == {(0, 1)}
    np.testing.assert_array_equal(display.data["b: total"], maps[1].data["total"])
    assert "a: epistemic" not in display.data
    bands = {k: plots.regression_band(gap_results, label=k) for k in "abcde"}
    axes = plots.panels(bands, label="bands", caption="Bands.").figure().axes
    assert [ax.get_visible() for ax in axes] == [True] * 5 + [False] * 3


def test_panels_of_other_things_are_refused(displays):
    with pytest.raises(ValueError, match="at least one display"):
        plots.panels([], label="", caption="")
    with pytest.raises(ValueError, match="got Forest, RegressionBand"):
        plots.panels([displays["regression_band"], displays["forest"]], label="", caption="")


def test_the_epistemic_share_is_a_mean_of_shares():
    """0.8 of a small variance and 0.2 of one 100 times as large: 50 %, not 21 %."""
    std = np.array([1.0, 10.0])
    part = std * np.sqrt([0.8, 0.2])
    told = _epistemic({"std": std, "epistemic std": part, "x": np.array([0.0, 1.0])}, 2)
    assert "50 % of the predictive variance is epistemic" in told


def test_errors_and_widths_of_seeds_are_pooled_as_squares(made):
    n = 50
    several = [
        made.results({"test": made.normals(np.zeros(n), scale, np.full(n, error))})
        for scale, error in ((1.0, 3.0), (7.0, 4.0))
    ]
    data = plots.regression_calibration(several).data
    assert data["rmse"][0] == pytest.approx(math.sqrt((9 + 16) / 2))
    assert data["sharpness"][0] == pytest.approx(math.sqrt((1 + 49) / 2))
