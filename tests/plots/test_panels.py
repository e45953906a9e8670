"""Several displays in one figure."""

from __future__ import annotations

import numpy as np
import pytest

from polymode import plots


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
