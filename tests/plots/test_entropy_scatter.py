"""Entropy against mutual information, example by example."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from polymode import plots


def test_scatter_has_equally_many_dots_and_margins_of_all(made):
    stream = np.random.default_rng(0)
    probs = stream.dirichlet(np.ones(3), (4, 50))
    kept = {"test": made.classes(probs), "ood:x": made.classes(probs[:, :20])}
    display = plots.entropy_scatter(made.results(kept))
    data = display.data
    assert len(data["test ee"]) == len(data["ood ee"]) == 20
    assert data["test mi share"].sum() == pytest.approx(1)
    assert data["ood ee share"].sum() == pytest.approx(1)
    total = kept["ood:x"].prediction.predictive_entropy.numpy()
    np.testing.assert_allclose(data["ood ee"] + data["ood mi"], total)
    assert data["most"][0] == pytest.approx(np.log(3))
    assert "test 50, x 20" in display.caption


def test_scatter_is_drawn_as_an_image(digits_results):
    ax = plots.entropy_scatter(digits_results[1]).plot(Figure().add_subplot())
    dots = [each for each in ax.collections if len(each.get_offsets())]
    assert len(dots) == 2
    assert all(each.get_rasterized() for each in dots)
