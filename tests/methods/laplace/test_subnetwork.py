"""Subnetworks: scores against the Jacobian written out, and the trap of weights without effect."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.likelihoods.kinds import Categorical
from polymode.methods.laplace.linear_model import Tangent
from polymode.methods.laplace.subnetwork import (
    SELECTIONS,
    diagonals,
    largest_change,
    scores,
    select,
)
from polymode.methods.method import Problem
from polymode.stack.stack import Stack

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, generator=STREAM, dtype=torch.float64)
Y = (X[:, 0] + X[:, 1] > 0).long()
DEAD = 2  # units of the hidden layer that no input reaches


def network() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    with torch.no_grad():
        module[0].bias[:DEAD] = -100.0
    return module


@pytest.fixture
def found():
    stack = Stack(network(), dtype=torch.float64)
    data = pm.Task(train=(X, Y), likelihood="categorical").train
    return diagonals(Problem(Categorical(), 30, 2, 1, data), stack, batch_size=7), stack


def test_diagonals_are_those_of_the_jacobian(found) -> None:
    found, stack = found
    jacobian = Tangent(stack).jacobian(X)
    probs = stack(X)[0].softmax(-1)
    curvature = torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)
    expected = torch.einsum("nkp,nkl,nlp->p", jacobian, curvature, jacobian)
    torch.testing.assert_close(found.curvature, expected, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(found.energy, jacobian.square().sum((0, 1)), rtol=1e-8, atol=1e-12)


def test_scores_are_the_formulas(found) -> None:
    found, _ = found
    c, e, w = found.curvature, found.energy, found.weights
    assert scores(found, "largest_variance", 2.0).equal(1 / (c + 2))
    assert scores(found, "jacobian_energy", 2.0).equal(e / (c + 2))
    assert scores(found, "obd", 2.0).equal(w.square() * c / 2)
    drawn = [scores(found, "random", 2.0, seed) for seed in (0, 0, 1)]
    assert drawn[0].equal(drawn[1]) and not drawn[0].equal(drawn[2])
    for name in SELECTIONS:
        places, report = select(found, name, 15, 2.0)
        kept = scores(found, name, 2.0)[places]
        assert len(places) == report.size == 15 and (places.diff() > 0).all()
        assert kept.min() >= scores(found, name, 2.0).sort(descending=True).values[14]
    with pytest.raises(ValueError, match="must keep 1 to 38 weights, got 39"):
        select(found, "obd", 39, 1.0)


def fit(**options) -> pm.Posterior:
    task = pm.Task(train=(X, Y), likelihood="categorical")
    how = {"structure": "subnetwork", "progress": "silent", "prior_precision": 1.0}
    return pm.fit("laplace", net=network(), task=task, **how, **options)


def change(places: torch.Tensor) -> float:
    moments = fit(subnetwork=places.tolist()).weights.moments(X)
    assert moments is not None
    return largest_change(moments)


def test_fit_chooses_by_name(found) -> None:
    for name in ("jacobian_energy", "obd"):
        places, _ = select(found[0], name, 8, 1.0)
        ours, named = fit(subnetwork=places.tolist()), fit(subnetwork=name, subnetwork_size=8)
        torch.testing.assert_close(ours.weights.moments(X).spread, named.weights.moments(X).spread)
    with pytest.raises(ValueError, match="`subnetwork_size` of Laplace must be an integer"):
        fit(subnetwork="obd")
    with pytest.raises(ValueError, match="`subnetwork_size` of Laplace belongs to"):
        fit(subnetwork=[1, 2], subnetwork_size=2)
    with pytest.raises(ValueError, match="one of largest_variance, jacobian_energy, obd, random"):
        fit(subnetwork="largest", subnetwork_size=2)


def test_largest_variance_may_keep_nothing_but_weights_without_effect(found) -> None:
    """Twelve weights hang on the dead units: a subnetwork of twelve is the trained network, and
    says so; weighed by energy it is not."""
    found, _ = found
    idle = DEAD * (3 + 1 + 2)
    with pytest.warns(UserWarning, match="all 12 weights of the subnetwork .* zero curvature"):
        places, report = select(found, "largest_variance", idle, 1.0)
    assert report.zero_curvature == 1.0
    assert report.zero_curvature_of_all == pytest.approx(idle / 38)
    assert change(places) == 0.0
    for name in ("jacobian_energy", "obd"):
        places, report = select(found, name, idle, 1.0)
        assert report.zero_curvature == 0.0
        assert change(places) > 0.01
