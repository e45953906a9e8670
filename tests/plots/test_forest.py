"""Paper versus ours: verdicts, and axes in units of the tolerance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from polymode import plots
from polymode.plots import Comparison


def test_verdicts():
    row = Comparison("x", 1.0, None, 1.05, 0.01, 0.1)
    assert row.verdict == "reproduced"
    assert row.deviation == pytest.approx(0.5)
    assert row._replace(ours=1.2).verdict == "outside"
    assert row._replace(ours=1.2, direction="up").verdict == "better"
    assert row._replace(ours=1.2, direction="down").verdict == "outside"
    assert row._replace(ours=0.8, direction="down").verdict == "better"
    assert row._replace(ours=None).verdict == "n/a"
    assert math.isnan(row._replace(ours=None).deviation)


def test_forest_is_in_units_of_the_tolerance(displays):
    display = displays["forest"]
    np.testing.assert_allclose(display.data["deviation"], [-0.4, 3, -1.4, np.nan, 6.75])
    np.testing.assert_allclose(display.data["s.e."][0], 0.16)
    verdicts = ["reproduced", "outside", "better", "n/a", "outside"]
    assert list(display.data["verdict"]) == verdicts
    assert "1 of 4 within tolerance" in display.alt
    assert "outside: MAP, NLL, Laplace, NLL" in display.alt
    ax = display.figure().axes[0]
    signs = [text.get_text() for text in ax.texts]
    assert signs == ["✓", "✗", "↗", "–", "✗"]


def test_forest_grows_with_its_rows():
    row = Comparison("x", 1.0, None, 1.05, 0.01, 0.1)
    few, many = plots.forest([row] * 2), plots.forest([row] * 20)
    assert many.size[1] - few.size[1] == pytest.approx(18 * 0.25)
    assert few.size[0] == many.size[0]
