"""The examination `evidence`: what is known of Laplace posteriors, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.methods.laplace.linear_model import Tangent

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=STREAM, dtype=torch.float64)
TASK = pm.Task(train=(X, (X[:, 0] > 0).long()), likelihood="categorical")


def network() -> nn.Module:
    """Two of six hidden units are dead: 12 of 38 weights have no effect."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    with torch.no_grad():
        module[0].bias[:2] = -100.0
    return module


def examined(**options):
    post = pm.fit("laplace", net=network(), task=TASK, progress="silent", **options)
    return pm.examine(post, TASK, "evidence"), post


def test_numbers_are_those_of_the_dense_posterior() -> None:
    found, post = examined(structure="full", evidence="trained", prior="per_layer")
    posterior = post.weights.posteriors[0]
    curvature = posterior.blocks[0].matrix().double()
    sizes = posterior.blocks[0].sizes
    prior = torch.cat([
        torch.full((size,), float(posterior.precision[name]), dtype=torch.float64)
        for name, size in zip(posterior.blocks[0].names, sizes, strict=True)
    ])  # fmt: skip
    shares = 1 - prior * torch.linalg.inv(curvature + prior.diag()).diagonal()
    assert found["weights"].value == 38 and found["groups"].value == 2
    assert found["effective_weights"].value == pytest.approx(shares.sum().item(), rel=1e-4)
    assert found["no_curvature"].value == pytest.approx((shares < 1e-5).double().mean().item())
    assert found["no_curvature"].value >= 12 / 38 - 1e-9
    assert found["log_evidence"].value == pytest.approx(post.weights.log_evidence[0])
    assert found["largest_change"].value > 0
    tangent = Tangent(post.weights.stack)
    apart = tangent.jacobian(X) @ tangent.point - tangent.outputs(X)
    assert found["closeness"].value == pytest.approx(
        (apart.norm() / tangent.outputs(X).norm()).item()
    )
    assert found.arrays["effective"].shape == (1, 2)


def test_a_subnetwork_without_effect_shows() -> None:
    with pytest.warns(UserWarning, match="zero curvature"):
        found, _ = examined(
            structure="subnetwork", subnetwork="largest_variance", subnetwork_size=9,
            prior_precision=1.0,
        )  # fmt: skip
    assert found["no_curvature"].value == 1.0 and found["largest_change"].value == 0.0
    assert found["pruned_groups"].value == found["groups"].value == 1
    assert "log_evidence" not in [row.metric for row in found.rows]  # none was asked for


def test_closeness_is_of_the_weights_that_are_free() -> None:
    """A subnetwork of the first layer gives little of the outputs, and the evidence knows it."""
    chosen = list(range(6, 18))
    found, post = examined(structure="subnetwork", subnetwork=chosen)
    tangent = Tangent(post.weights.stack)
    outputs = tangent.outputs(X)
    apart = tangent.jacobian(X)[..., chosen] @ tangent.point[chosen] - outputs
    assert found["closeness"].value == pytest.approx((apart.norm() / outputs.norm()).item())
    assert 0.1 < found["span_distance"].value < 2
    whole, _ = examined(structure="last_layer")
    assert whole["closeness"].value < 1e-6 and whole["span_distance"].value < 1e-3


def test_other_posteriors_have_no_evidence() -> None:
    post = pm.fit("map", net=network(), task=TASK, epochs=0, progress="silent")
    with pytest.raises(ValueError, match=r"\(map\) is not a Laplace approximation"):
        pm.examine(post, TASK, "evidence")
