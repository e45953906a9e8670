"""A last layer at positions: curvature and variances in closed form, against dense Jacobians."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

import polymode as pm
from polymode.methods.laplace import gaussian, last_layer

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(4, 2, 5, 4, generator=STREAM, dtype=torch.float64)
Y = torch.randint(3, (4, 5, 4), generator=STREAM)
Y[0, 1] = -100
DEPTHS = torch.randn(4, 1, 5, 4, generator=STREAM, dtype=torch.float64)
OPTIONS = {
    "epochs": 1, "dtype": torch.float64, "prior_precision": 1.0, "progress": "silent",
    "output_covariance": "diagonal",
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:doubtful posterior")


class Last(nn.Module):
    """Channels to the last axis, and perhaps a linear layer there."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = layer or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.movedim(1, -1))


HEADS = {
    "1x1": lambda: nn.Conv2d(4, 3, 1),
    "3x3": lambda: nn.Conv2d(4, 3, 3, padding=1),
    "no bias": lambda: nn.Conv2d(4, 3, (3, 1), padding="same", bias=False),
    "dilated, moved": lambda: nn.Sequential(nn.Conv2d(4, 3, 3, padding=2, dilation=2), Last()),
    "linear": lambda: Last(nn.Linear(4, 3)),
    "cut off": lambda: nn.Sequential(nn.Conv2d(4, 3, 3, padding=2), nn.ZeroPad2d(-1)),
}
OTHERS = {  # what comes after the layer changes its numbers, or mixes positions
    "tanh": lambda: nn.Sequential(nn.Conv2d(4, 3, 1), nn.Tanh()),
    "upsampled": lambda: nn.Sequential(
        nn.Conv2d(4, 3, 1, stride=2), nn.Upsample((5, 4), mode="bilinear")
    ),
    "pixels from channels": lambda: nn.Sequential(
        nn.Conv2d(4, 12, 2, stride=2, padding=1), nn.PixelShuffle(2), nn.ZeroPad2d((0, -2, 0, -1))
    ),
    "transposed": lambda: nn.ConvTranspose2d(4, 3, 3, padding=1),
}


def net(head) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), head())


def fitted(head, targets=Y, likelihood="categorical", **options) -> pm.Posterior:
    task = pm.Task(train=(X, targets), likelihood=likelihood)
    return pm.fit("laplace", net=lambda: net(head), task=task, **OPTIONS, **options)


def dense(post: pm.Posterior, curvatures, whole: bool = False) -> torch.Tensor:
    """diag J H⁻¹ Jᵀ over the parameters of the last layer, H = Σ Jᵀ Λ J + 1 with Λ written out.

    Args:
        curvatures: outputs of one position (K,) -> Λ (K, K).
        whole: whether the blocks (positions, K, K) of positions are wanted.
    """
    module = post.members[0].eval()
    params = {n: t[0].detach() for n, t in post.stack.params.items() if n.startswith("3.")}
    outputs = module(X).detach()
    columns = jacrev(lambda values: functional_call(module, values, (X,)).flatten())(params)
    jacobian = torch.cat([columns[name].flatten(1) for name in params], 1)
    places = torch.arange(outputs.numel()).view(outputs.shape)
    rows, numbers = (post.likelihood.output_rows(t)[0] for t in (outputs, places))
    precision = torch.eye(jacobian.shape[1]).double()
    for row, number, observed in zip(rows, numbers, Y.flatten() >= 0, strict=True):
        if observed or not post.likelihood.classification:
            part = jacobian[number]
            precision += part.mT @ curvatures(row) @ part
    if whole:
        blocks = jacobian[numbers]  # (positions, K, P)
        return blocks @ precision.inverse() @ blocks.mT
    return ((jacobian @ precision.inverse()) * jacobian).sum(1).view(outputs.shape)


def softmax_curvature(row: torch.Tensor) -> torch.Tensor:
    probs = row.softmax(-1)
    return probs.diag() - probs.outer(probs)


@pytest.mark.parametrize("name", [*HEADS, *OTHERS])
def test_maps_of_a_last_layer_against_a_dense_jacobian(name, monkeypatch) -> None:
    """Closed form where outputs are the layer's numbers; a backward pass each elsewhere."""
    post = fitted((HEADS | OTHERS)[name], structure="last_layer")
    ways = []
    monkeypatch.setattr(gaussian, "_map_variances", _noted(gaussian._map_variances, ways))
    moments = post.weights.moments(X)
    assert moments is not None
    assert (ways == []) == (name in HEADS or name == "pixels from channels")
    expected = dense(post, softmax_curvature)
    torch.testing.assert_close(moments.spread[0], expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", HEADS)
def test_covariances_of_the_outputs_of_a_position(name) -> None:
    """The blocks of J H⁻¹ Jᵀ that belong to one pixel."""
    options = {**OPTIONS, "output_covariance": "position"}
    task = pm.Task(train=(X, Y), likelihood="categorical")
    make = lambda: net(HEADS[name])  # noqa: E731
    post = pm.fit("laplace", net=make, task=task, structure="last_layer", **options)
    moments = post.weights.moments(X)
    assert moments.spread.shape == (*moments.loc.shape, 3)
    rows = [post.likelihood.output_rows(part)[0][0] for part in moments.spread.unbind(-1)]
    expected = dense(post, softmax_curvature, whole=True)
    torch.testing.assert_close(torch.stack(rows, -1), expected, rtol=1e-9, atol=1e-9)
    assert post.predict(X).mean.shape == (4, 5, 4, 3)


def test_what_covariances_of_a_position_need() -> None:
    """One line each: positions, and a last layer that keeps its outputs together."""
    labels = pm.Task(train=(X.flatten(1), torch.arange(4) % 3), likelihood="categorical")
    options = {**OPTIONS, "output_covariance": "position"}
    with pytest.raises(ValueError, match="'position' is for targets at positions"):
        pm.fit("laplace", net=lambda: nn.Linear(40, 3), task=labels, **options)
    for name, says in (("tanh", "need a last layer whose"), ("pixels from channels", "gives all")):
        task = pm.Task(train=(X, Y), likelihood="categorical")
        with pytest.raises(ValueError, match=says) as caught:
            pm.fit("laplace", net=lambda: net(OTHERS[name]), task=task,  # noqa: B023
                   structure="last_layer", **options).predict(X)  # fmt: skip
        assert "\n" not in str(caught.value)


def _noted(function, calls):
    def wrapped(*args):
        calls.append(function.__name__)
        return function(*args)

    return wrapped


@pytest.mark.parametrize("structure", ["full", "kron", "diag", "low_rank"])
@pytest.mark.parametrize("groups", [1, 2])
def test_every_structure_of_a_head_is_that_of_its_rows(structure, groups, monkeypatch) -> None:
    """The same curvature and variances as with a backward pass for each position or output."""
    head = lambda: nn.Conv2d(4, 4, 3, padding=1, groups=groups)  # noqa: E731
    options = {"structure": structure, "trainable": "head"}
    if structure == "low_rank":
        options["rank"] = 200
    labels = Y.where(X.sum(1) < 0.8, 3)
    post = fitted(head, labels, **options)
    assert post.weights.kind == "on_trunk/laplace"
    features = post.weights.prepare(X)
    closed = post.weights.moments(features).spread
    for module in (gaussian, pm.methods.laplace.curvature):
        monkeypatch.setattr(module, "last_layer_of", lambda *_: None)
    torch.testing.assert_close(post.weights.moments(features).spread, closed)
    again = fitted(head, labels, **options, fisher="exact")  # many outputs: the default would draw
    torch.testing.assert_close(again.weights.moments(features).spread, closed, rtol=1e-6, atol=0)


def test_maps_of_values_against_a_dense_jacobian() -> None:
    """Mean and scale heads: Λ = diag(1/σ², 2 (σ'/σ)²), and the noise stays what it is."""
    likelihood = pm.likelihoods.HeteroscedasticGaussian()
    post = fitted(lambda: nn.Conv2d(4, 2, 3, padding=1), DEPTHS, likelihood, structure="last_layer")

    def curvature(row: torch.Tensor) -> torch.Tensor:
        base = post.likelihood.base
        scale = base.components(row[None], {}).scale[0]
        slope = torch.sigmoid(row[1:])  # of softplus
        return torch.cat([scale**-2, 2 * (slope / scale) ** 2]).diag()

    moments = post.weights.moments(X)
    torch.testing.assert_close(moments.spread[0], dense(post, curvature), rtol=1e-9, atol=0)
    prediction = post.predict(X)
    assert prediction.epistemic_variance.shape == (4, 5, 4, 1)
    assert (prediction.epistemic_variance > 0).all()


def test_moments_of_the_closed_form_are_those_of_drawn_networks() -> None:
    """The layer is linear in its weights: 1,500 drawn networks have these variances.

    False alarms: relative s.e. of a variance is √(2/1500) = 0.037; 6 s.e. of 240, under 1e-6.
    """
    post = fitted(HEADS["3x3"], structure="last_layer", trainable="head")
    features = post.weights.prepare(X)
    moments = post.weights.moments(features)
    drawn = post.weights.outputs(1500, 0)(features)[0]
    error = 6 * math.sqrt(2 / 1500) * moments.spread[0]
    assert ((drawn.var(0) - moments.spread[0]).abs() < error).all()


def test_maps_are_made_in_parts(monkeypatch) -> None:
    post = fitted(HEADS["3x3"], structure="last_layer")
    whole = post.weights.moments(X).spread
    monkeypatch.setattr(last_layer, "_NUMBERS", 1)  # one column at a time
    torch.testing.assert_close(post.weights.moments(X).spread, whole)


def test_gradients_with_respect_to_inputs() -> None:
    post = fitted(HEADS["3x3"], structure="last_layer", link="probit")
    x = X[:1].clone().requires_grad_()

    def entropy(images):
        return post.predict_batch(images).predictive_entropy.sum()

    slope = torch.autograd.grad(entropy(x), x)[0][0, 0, 2, 2]
    step = torch.zeros_like(x.detach())
    step[0, 0, 2, 2] = 1e-5
    difference = (entropy(X[:1] + step) - entropy(X[:1] - step)) / 2e-5
    torch.testing.assert_close(slope, difference.detach(), rtol=1e-5, atol=1e-8)


def test_saved_and_loaded_maps(tmp_path) -> None:
    post = fitted(HEADS["3x3"], structure="last_layer")
    post.save(tmp_path / "post")
    again = pm.load(tmp_path / "post", net=lambda: net(HEADS["3x3"]))
    torch.testing.assert_close(again.weights.moments(X).spread, post.weights.moments(X).spread)


def test_a_last_layer_that_does_not_fit_is_refused_with_its_size(monkeypatch) -> None:
    monkeypatch.setattr(pm.methods.laplace.laplace, "free_bytes", lambda *_: 100_000)
    with pytest.raises(ValueError, match=r"111 × 111 matrix.*trainable='head'"):
        fitted(HEADS["3x3"], structure="last_layer")
