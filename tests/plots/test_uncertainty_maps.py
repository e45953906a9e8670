"""Maps over two inputs: numbers against oracles."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from polymode import plots

from .planes import plane


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


def test_a_panel_can_be_drawn_alone(made, gap_results):
    maps = plots.uncertainty_maps(made.results(plane(made)))
    assert maps.plot(Figure().add_subplot(), "epistemic").images
    band = plots.regression_band(gap_results)
    assert len(band.plot(Figure().add_subplot(), "epistemic").collections) == 3
