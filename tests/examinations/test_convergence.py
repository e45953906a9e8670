"""The examination `convergence`: numbers of known curves, their figure, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest

import polymode as pm
from polymode.training.history import History


@pytest.fixture(scope="module")
def fitted():
    task = pm.task("two_moons")
    post = pm.fit("deep_ensemble", num_modes=2, net=pm.nets.mlp, task=task, epochs=0)
    return post, task


def with_curves(post, train, val=(), total=1000):
    """Give the posterior curves (T, M) at even steps."""
    steps = [np.linspace(0, total, len(c) + 1)[1:].astype(int).tolist() for c in (train, val)]
    curves = [tuple(map(tuple, np.asarray(c, float).tolist())) for c in (train, val)]
    post.history = History(
        tuple(steps[0]), curves[0], tuple(steps[1]), curves[1], 50 if len(val) else 0, total, 2.5
    )


def test_the_slope_is_that_of_a_line_with_its_standard_error(fitted):
    """Against numpy's least squares: a line that falls by 0.2 over the last fifth, with noise."""
    post, task = fitted
    line = 3.0 - 1.0 * np.arange(1, 101) / 100
    noise = 0.01 * np.random.default_rng(0).standard_normal((100, 2))
    with_curves(post, line[:, None] + noise)
    found = pm.examine(post, task, "convergence")
    steps, late = np.arange(810, 1001, 10), (line[:, None] + noise).mean(1)[80:]
    (slope, _), covariance = np.polyfit(steps, late, 1, cov=True)
    assert found["train_slope"].value == pytest.approx(200 * slope)
    # polyfit scales the covariance by n - 2 degrees of freedom, as we do
    assert found["train_slope"].standard_error == pytest.approx(200 * math.sqrt(covariance[0, 0]))
    assert found["train_slope"].value == pytest.approx(-0.2, abs=0.03)
    assert found["train_slope"].n == 20
    last = line[-1] + noise[-1]
    assert found["train_loss"].value == pytest.approx(last.mean())
    assert found["train_loss"].standard_error == pytest.approx(last.std(ddof=1) / math.sqrt(2))
    assert found["train_seconds"].value == 2.5
    assert [row.metric for row in found.rows if "val" in row.metric] == []


def test_the_best_validation_loss_and_where_it_was(fitted):
    post, task = fitted
    val = [[0.9, 1.1], [0.4, 0.6], [0.6, 0.8], [0.7, 1.1]]
    with_curves(post, np.ones((10, 2)), val)
    found = pm.examine(post, task, "convergence")
    numbers = {row.metric: (row.value, row.standard_error) for row in found.rows}
    assert numbers["best_val_nll"] == pytest.approx((0.5, 0.1))
    assert numbers["last_val_nll"] == pytest.approx((0.9, 0.2))
    assert numbers["val_rise"] == pytest.approx((0.4, 0.1))
    assert numbers["best_val_at"][0] == 0.5 and found["best_val_nll"].n == 50
    assert found["train_slope"].value is None and "fewer than 4 points" in found["train_slope"].note


def test_losses_that_were_not_finite_are_left_out(fitted):
    post, task = fitted
    with_curves(post, np.ones((10, 2)), [[0.5, 0.7], [0.4, 0.4]])
    post.history = post.history._replace(val_nll=((0.5, 0.7), (0.4, None)))
    found = pm.examine(post, task, "convergence")
    assert found["best_val_nll"].value == pytest.approx(0.6)
    assert found["last_val_nll"].value is None


def test_a_figure_is_made_of_the_curves(fitted):
    post, task = fitted
    with_curves(post, np.linspace(1, 0.1, 10)[:, None] * [1, 2], [[0.5, 0.7], [0.4, 0.4]])
    (display,) = pm.examine(post, task, "convergence").displays(label="mine").values()
    assert "mine" in display.caption and "0.4 at best" in display.caption
    svg = display.to_svg()
    assert svg.startswith("<?xml") and svg == display.to_svg()
    ax = display.figure().axes[0]
    assert ax.get_yscale() == "linear"
    assert len(ax.lines) == 2 + 2 + 2  # both members and their mean, of both curves
    assert ax.lines[2].get_ydata().tolist() == pytest.approx(
        (np.linspace(1, 0.1, 10) * 1.5).tolist()
    )


def test_losses_of_many_sizes_are_drawn_on_a_logarithmic_axis(fitted):
    post, task = fitted
    for least, scale in ((0.001, "log"), (-0.001, "linear")):
        with_curves(post, [[1.0], [least]])
        (display,) = pm.examine(post, task, "convergence").displays().values()
        assert display.figure().axes[0].get_yscale() == scale


def test_a_posterior_without_curves_is_refused(fitted):
    post, task = fitted
    post.history = History()
    with pytest.raises(ValueError, match="has no loss curves: it was not trained here"):
        pm.examine(post, task, "convergence")
    with pytest.raises(ValueError, match="Unknown option 'window' for examination 'convergence'"):
        pm.examine(post, task, "convergence", window=3)
