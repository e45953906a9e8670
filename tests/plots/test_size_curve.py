"""Scores against the size of an ensemble."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure

from polymode import plots
from polymode.metrics.diversity.size import SizeCurve

DEEP = SizeCurve("nll", "down", (1, 2, 4), (0.5, 0.3, 0.2), (0.0, 0.01, 0.0), (4, 6, 1))


def test_equivalents_are_read_off_the_reference():
    other = ([1, 8], [0.6, 0.25], [0.0, 0.0])
    better = ([1, 8], [0.6, 0.1], [0.0, 0.0])
    display = plots.size_curve({"de": DEEP, "a": other, "b": better}, reference="de")
    assert display.data["a equivalent"][0] == 3.0
    assert display.data["b equivalent"][0] == math.inf
    assert "de equivalent" not in display.data
    assert "≙ 3.0" in display.alt and "≙ more than 4" in display.alt


def test_curve_as_arrays_is_the_curve():
    arrays = (np.array(DEEP.sizes), torch.tensor(DEEP.mean), list(DEEP.standard_error))
    one, two = plots.size_curve({"m": DEEP}), plots.size_curve({"m": arrays})
    for key in ("m members", "m mean", "m s.e."):
        np.testing.assert_allclose(one.data[key], two.data[key], rtol=1e-6)
    assert one.data["title"] == two.data["title"]


def test_infinite_means_are_off_the_axis():
    curve = DEEP._replace(mean=(math.inf, 0.3, 0.2))
    display = plots.size_curve({"m": curve})
    assert math.isinf(display.data["m mean"][0])
    line = display.plot(Figure().add_subplot()).containers[0].lines[0]
    assert np.isnan(line.get_ydata()[0])
