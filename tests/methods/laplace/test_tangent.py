"""The tangent of a network: its Jacobian, statistics inside it, and what scaling weights does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polymode import nets
from polymode.likelihoods.kinds import Gaussian
from polymode.methods.laplace.evidence import Search, maximise, starting_precision
from polymode.methods.laplace.evidence_dual import DualEvidence, kernels_between, kernels_of
from polymode.methods.laplace.linear_model import Tangent, observed
from polymode.methods.laplace.prior_groups import prior_groups
from polymode.stack.stack import Stack

from ...curvature.cases import CASES

STREAM = torch.Generator().manual_seed(0)
X = torch.linspace(-1.5, 1.5, 40, dtype=torch.float64)[:, None]
Y = (3 * X).sin() + 0.1 * torch.randn(40, 1, generator=STREAM).double()


def batch_normed(seed: int = 0) -> Stack:
    make = lambda: nets.mlp((1,), 1, hidden=(12, 12), norm="batch")  # noqa: E731
    stack = Stack(make, seed=seed, dtype=torch.float64)
    stack.recompute_statistics([X])
    return stack


@pytest.mark.parametrize("name", CASES)
def test_products_of_every_kind_of_layer(name) -> None:
    """J v, Jᵀ c and J against gradients of single examples."""
    make, x = CASES[name]
    stack = Stack(make, dtype=torch.float64)
    tangent = Tangent(stack)
    module = stack.members()[0].eval()
    named = dict(module.named_parameters())
    leaves = [named[key] for key in tangent.names]
    rows = []
    for example in x:
        outputs = module(example[None])[0]
        for k in range(len(outputs)):
            found = torch.autograd.grad(
                outputs[k], leaves, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            rows.append(torch.cat([part.flatten() for part in found]))
    expected = torch.stack(rows).view(len(x), -1, len(tangent.point))
    stream = torch.Generator().manual_seed(1)
    vector = torch.randn(len(tangent.point), generator=stream, dtype=torch.float64)
    cotangent = torch.randn(expected.shape[:2], generator=stream, dtype=torch.float64)
    close = {"rtol": 1e-8, "atol": 1e-10}
    torch.testing.assert_close(tangent.jvp(vector, x), expected @ vector, **close)
    pulled = torch.einsum("nkp,nk->p", expected, cotangent)
    torch.testing.assert_close(tangent.vjp(cotangent, x), pulled, **close)
    torch.testing.assert_close(tangent.jacobian(x, chunk=4), expected, **close)


class Sampled(nn.Module):
    """A layer of one's own on images, then distances; `cdist` has no derivative in forward mode."""

    def __init__(self, distances: bool) -> None:
        super().__init__()
        self.distances, self.first, self.last = distances, nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        if self.distances:
            return self.last(torch.cdist(h, h.detach()[:4].tanh())[:, :1].expand(-1, 4))
        images = h.view(-1, 1, 2, 2)
        places = images.expand(-1, 2, 2, 2).movedim(1, -1).tanh()
        moved = nn.functional.grid_sample(images, places, align_corners=False)
        return self.last(moved.flatten(1))


def test_operations_without_a_forward_derivative() -> None:
    """Jᵀ c is differentiated instead where torch can, and refused with the way out where not."""
    x = torch.randn(3, 2, generator=STREAM, dtype=torch.float64)
    tangent = Tangent(Stack(lambda: Sampled(False), dtype=torch.float64))
    vector = torch.randn(len(tangent.point), generator=STREAM, dtype=torch.float64)
    torch.testing.assert_close(tangent.jvp(vector, x), tangent.jacobian(x) @ vector)
    other = Tangent(Stack(lambda: Sampled(True), dtype=torch.float64))
    with pytest.raises(ValueError, match="cdist.*take evidence='trained' or give"):
        other.jvp(torch.ones_like(other.point), x)


@pytest.mark.parametrize("reference", [None, X])
def test_products_are_those_of_the_jacobian_by_finite_differences(reference) -> None:
    """Statistics of the reference inputs move with the weights; frozen ones do not."""
    stack = batch_normed()
    tangent = Tangent(stack, reference=reference)
    jacobian = tangent.jacobian(X[::7])
    direction = torch.randn(len(tangent.point), generator=STREAM, dtype=torch.float64)
    ends = []
    for sign in (1, -1):
        module = stack.members()[0]
        values = tangent.point + sign * 1e-6 * direction
        named = dict(module.named_parameters())
        with torch.no_grad():
            for name, where in tangent.slices.items():
                named[name].copy_(values[where].view_as(named[name]))
            if reference is not None:  # biased variances, as the tangent has them
                module.train()
                for layer in module:
                    if isinstance(layer, nn.BatchNorm1d):
                        layer.momentum = 1.0
                module(reference)
                module.eval()
                for layer in module:
                    if isinstance(layer, nn.BatchNorm1d):
                        layer.running_var.mul_((len(X) - 1) / len(X))
            ends.append(module(X[::7]))
    expected = (ends[0] - ends[1]) / 2e-6
    torch.testing.assert_close(tangent.jvp(direction, X[::7]), expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(jacobian @ direction, expected, rtol=1e-5, atol=1e-7)
    cotangent = torch.randn(6, 1, generator=STREAM, dtype=torch.float64)
    pulled = torch.einsum("bkp,bk->p", jacobian, cotangent)
    torch.testing.assert_close(tangent.vjp(cotangent, X[::7]), pulled, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["lenet", "vit"])
def test_both_products_are_of_one_matrix(name) -> None:
    """⟨J v, c⟩ = ⟨v, Jᵀ c⟩ with white noise, which hides nothing, in float32."""
    stack = Stack(lambda: getattr(nets, name)((1, 8, 8), 3), seed=0)
    tangent = Tangent(stack)
    x, c, v = (
        torch.randn(shape, generator=STREAM)
        for shape in ((5, 1, 8, 8), (5, 3), (len(tangent.point),))
    )
    image, pulled = tangent.jvp(v, x).double(), tangent.vjp(c, x).double()
    apart = (image * c).sum() - (v * pulled).sum()
    assert apart.abs() < 1e-5 * image.norm() * c.norm()


def test_frozen_statistics_make_the_tangent_of_another_network() -> None:
    """Normalised weights times their derivatives are 0 with statistics inside the tangent (Euler),
    and as large as the outputs with frozen ones."""
    stack = batch_normed()
    names = ["0.weight", "3.weight", "6.weight", "6.bias"]
    inside = Tangent(stack, names=names, reference=X)
    frozen = Tangent(stack, names=names)
    assert inside.closeness([X]) < 0.01  # J θ̃ = f: the two forms are one model
    assert frozen.closeness([X]) > 0.5
    for name, least, most in (("3.weight", 0.0, 0.01), ("6.weight", 0.1, 10.0)):
        where = inside.slices[name]
        size = (inside.jacobian(X)[..., where] @ inside.point[where]).norm()
        assert least <= size / inside.outputs(X).norm() < most
    assert (frozen.shift(X) == 0).all()
    offset = Tangent(stack, names=names, form="offset")
    both = offset.shift(X) + offset.jvp(offset.point, X)
    torch.testing.assert_close(both, offset.outputs(X))


def scaled(stack: Stack, names: list[str], k: float) -> Stack:
    """The network with some weights times k, eps of the norms behind them times k², and the
    statistics that then belong to it: the same function."""
    module = stack.members()[0]
    with torch.no_grad():
        for name in names:
            module.get_parameter(name).mul_(k)
    for layer in module:
        if isinstance(layer, nn.BatchNorm1d):
            layer.eps *= k**2
    changed = Stack(module, dtype=torch.float64)
    changed.recompute_statistics([X])
    return changed


def spread(stack: Stack, kind: str, form: str, reference: torch.Tensor | None) -> torch.Tensor:
    """Standard deviations of predictions at the evidence's maximum."""
    names = ["0.weight", "3.weight", "6.weight", "6.bias"]
    tangent = Tangent(stack, names=names, form=form, reference=reference)
    index = tangent.index(prior_groups(stack, kind))
    grid = torch.linspace(-3, 3, 13, dtype=torch.float64)[:, None]
    jacobian, features = tangent.jacobian(X), tangent.jacobian(grid)
    kernels, cross = (kernels_between(each, jacobian, index) for each in (jacobian, features))
    data = observed(Gaussian(noise=0.1), Y, 0.1)
    evidence = DualEvidence(tangent, kernels, index, tangent.outputs(X), tangent.shift(X), data)
    start = starting_precision(evidence.sizes, evidence.point_squares)
    beta = torch.tensor([100.0], dtype=torch.float64)
    found = maximise(evidence, start, beta, Search(learn_noise=True, steps=100))
    covariance = evidence.covariance(
        found.precision, found.beta, cross, kernels_of(features, index)
    )
    return covariance.flatten().clamp_min(0).sqrt()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("k", [1 / 3, 3.0, 10.0])
def test_the_predictive_does_not_depend_on_the_scale_of_normalised_weights(seed, k) -> None:
    """Proposition 3 with a precision per group, whichever form and statistics; not with one."""
    names = ["0.weight", "3.weight"]
    stack = batch_normed(seed)
    other = scaled(stack, names, k)
    torch.testing.assert_close(other(X), stack(X), rtol=0, atol=1e-9)
    for form, reference in (("jacobian", None), ("offset", None), ("jacobian", X)):
        before, after = (spread(each, "per_group", form, reference) for each in (stack, other))
        assert ((after / before).log().abs() < 1e-5).all()  # the start of λ scales, too
    before, after = (spread(each, "single", "jacobian", None) for each in (stack, other))
    assert (after / before).log().abs().max() > 0.02
