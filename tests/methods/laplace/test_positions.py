"""Laplace at positions: the curvature of rows, drawn targets, and variances of maps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

import polymode as pm
from polymode.likelihoods import Categorical, Positions
from polymode.methods.laplace.curvature import MOST_OUTPUTS, roots
from polymode.methods.laplace.subnetwork import diagonals

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(8, 3, 4, generator=STREAM, dtype=torch.float64)
Y = torch.randint(3, (8, 3), generator=STREAM)
Y[0, 1] = Y[3, 2] = -100
IMAGES = torch.randn(4, 2, 3, 3, generator=STREAM, dtype=torch.float64)
MASKS = (IMAGES.sum(1) > 0).long()
OPTIONS = {"epochs": 10, "dtype": torch.float64, "prior_precision": 1.0, "progress": "silent"}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 1))


def posts(**options) -> tuple[pm.Posterior, pm.Posterior]:
    """Of positions, and of the same networks on rows."""
    likelihood = Positions(Categorical(), axes=1, outputs="last")
    post = pm.fit("laplace", net=net, task=pm.Task(train=(X, Y), likelihood=likelihood),
                  **OPTIONS, **options)  # fmt: skip
    flat = (X.flatten(0, 1)[Y.flatten() >= 0], Y.flatten()[Y.flatten() >= 0])
    rows = pm.fit("laplace", net=post.members, task=pm.Task(train=flat, likelihood="categorical"),
                  **{k: v for k, v in OPTIONS.items() if k != "epochs"}, **options)  # fmt: skip
    return post, rows


def root_of(post: pm.Posterior) -> torch.Tensor:
    """A root of the posterior's covariance, by the deviations of unit noise."""
    shapes = {n: t[0].shape for n, t in post.stack.params.items()}
    sizes = [shape.numel() for shape in shapes.values()]
    columns = []
    for unit in torch.eye(sum(sizes), dtype=torch.float64):
        parts = zip(shapes, unit.split(sizes), strict=True)
        noise = {name: part.view(shapes[name]) for name, part in parts}
        drawn = post.weights.posteriors[0].deviation(noise)  # type: ignore[attr-defined]
        columns.append(
            torch.cat(
                [drawn[n].flatten() if n in drawn else 0 * noise[n].flatten() for n in shapes]
            )
        )
    return torch.stack(columns, 1)


@pytest.mark.parametrize("structure", ["full", "kron", "diag", "last_layer"])
@pytest.mark.parametrize("fisher", ["exact", "empirical"])
def test_curvature_is_that_of_rows(structure, fisher) -> None:
    """Positions without a target have no part in it, not in the factors of inputs either."""
    post, rows = posts(structure=structure, fisher=fisher)
    covariances = [root_of(p) @ root_of(p).mT for p in (post, rows)]
    torch.testing.assert_close(*covariances)


def test_drawn_targets_have_the_exact_curvature_on_average() -> None:
    """Products between positions vanish: 4,000 draws, within 5 standard errors in each entry.

    False alarms: 5 s.e. of 36 entries, under 1e-4.
    """
    outputs = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(2)).double()
    targets = torch.tensor([[0, 1, -100, 2]])
    likelihood = Positions(Categorical(), axes=1, outputs="last")
    exact = roots(likelihood, outputs, targets, {}).flatten(1)
    drawn = torch.stack(
        [
            roots(likelihood, outputs, targets, {}, fisher="mc",
                  stream=torch.Generator().manual_seed(seed)).flatten(1)
            for seed in range(4000)
        ]
    )  # fmt: skip
    products = drawn.mT @ drawn
    error = products.std(0) / 4000**0.5 + 1e-12
    assert ((products.mean(0) - exact.mT @ exact).abs() <= 5 * error).all()
    assert (drawn[:, 0, 6:9] == 0).all()  # nothing is observed there


def test_maps_of_many_outputs_draw_their_targets() -> None:
    """The default: exact for few labels, one draw for a picture."""
    likelihood = Positions(Categorical(), axes=1, outputs="last")
    for positions, number in ((4, 4 * 3), (MOST_OUTPUTS, 1)):
        outputs, y = torch.randn(2, positions, 3), torch.zeros(2, positions).long()
        cotangents = roots(likelihood, outputs, y, {}, fisher=None, stream=torch.Generator())
        assert cotangents.shape == (number, *outputs.shape)


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_linearised_maps_against_a_dense_jacobian(structure) -> None:
    """Variances of all 2 × 3 × 3 outputs of each image: diag J H⁻¹ Jᵀ, in float64."""
    task = pm.Task(train=(IMAGES, MASKS), likelihood="categorical")
    post = pm.fit(
        "laplace", net=conv, task=task, structure=structure, output_covariance="diagonal", **OPTIONS
    )
    moments = post.weights.moments(IMAGES)
    assert moments is not None
    module, params = post.members[0], {n: t[0].detach() for n, t in post.stack.params.items()}

    def outputs(values):
        return functional_call(module, values, (IMAGES,)).flatten()

    columns = [part.flatten(1) for part in jacrev(outputs)(params).values()]
    root = root_of(post)
    variances = (torch.cat(columns, 1) @ root).square().sum(1).view(moments.loc.shape)
    torch.testing.assert_close(moments.spread, variances)
    prediction = post.predict(IMAGES, samples_per_mode=4)
    assert prediction.mean.shape == (4, 3, 3, 2)


def test_full_covariances_of_maps_are_refused() -> None:
    task = pm.Task(train=(IMAGES, MASKS), likelihood="categorical")
    with pytest.raises(ValueError, match="output_covariance='diagonal'.*predictive='sampled'"):
        pm.fit("laplace", net=conv, task=task, predictive="linearised", **OPTIONS)


def test_subnetworks_of_maps_are_chosen_by_all_outputs() -> None:
    """Energies Σ (∂f/∂θ)² over every output at every position, by a dense Jacobian."""
    task = pm.Task(train=(IMAGES, MASKS), likelihood="categorical")
    post = pm.fit("map", net=conv, task=task, epochs=1, dtype=torch.float64, progress="silent")
    likelihood = post.likelihood
    problem = pm.methods.Problem(likelihood, 36, 2, 1, task.train.to(torch.float64, "cpu"))
    energy = diagonals(problem, post.stack).energy
    params = {n: t[0].detach() for n, t in post.stack.params.items()}
    module = post.members[0]
    columns = jacrev(lambda values: functional_call(module, values, (IMAGES,)).flatten())(params)
    expected = torch.cat([part.flatten(1).square().sum(0) for part in columns.values()])
    torch.testing.assert_close(energy, expected)
