"""The linear model and its evidence, against dense matrices in float64 and finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from polymode import nets
from polymode.likelihoods.kinds import Bernoulli, Categorical, Gaussian
from polymode.methods.laplace.evidence import Search, maximise, starting_precision
from polymode.methods.laplace.evidence_dual import (
    DualEvidence,
    check_rows,
    kernels_between,
    kernels_of,
)
from polymode.methods.laplace.linear_model import Tangent, observed
from polymode.methods.laplace.linear_model_solve import (
    Products,
    solve_dual,
    solve_iterative,
    solve_primal,
)
from polymode.methods.laplace.prior_groups import prior_groups
from polymode.stack.stack import Stack

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(24, 2, generator=STREAM, dtype=torch.float64)
WEIGHTS = torch.randn(2, 3, generator=STREAM, dtype=torch.float64)
VALUES = (X @ WEIGHTS[:, :2]).sin() + 0.1 * torch.randn(24, 2, generator=STREAM).double()
LABELS = (X @ WEIGHTS).argmax(1)
CASES = {
    "gaussian": (Gaussian(noise=0.3), VALUES, 2),
    "noise of each output": (Gaussian(noise=(0.3, 0.7)), VALUES, 2),
    "categorical": (Categorical(), LABELS, 3),
    "bernoulli": (Bernoulli(), (LABELS > 0).long(), 1),
}
BETA = torch.tensor([9.0], dtype=torch.float64)
BETAS = {"gaussian": BETA, "noise of each output": torch.tensor([9.0, 2.0], dtype=torch.float64)}
NONE = BETA[:0]


class Problem:
    """A small network with its linear model, kernels and dense twin."""

    def __init__(self, kind: str, form: str = "jacobian", groups: str = "per_layer") -> None:
        likelihood, targets, size = CASES[kind]
        make = lambda: nets.mlp((2,), size, hidden=(5,), norm="layer")  # noqa: E731
        self.stack = Stack(make, seed=1, dtype=torch.float64)
        self.tangent = Tangent(self.stack, form=form)
        self.beta = BETAS.get(kind, NONE)
        self.data = observed(likelihood, targets, self.beta.rsqrt() if len(self.beta) else 1 / 3)
        self.data = self.data._replace(precision=self.data.precision.double())
        self.index = self.tangent.index(prior_groups(self.stack, groups))
        self.jacobian, self.shift = self.tangent.jacobian(X), self.tangent.shift(X)
        self.kernels = kernels_between(self.jacobian, self.jacobian, self.index)
        self.outputs = self.tangent.outputs(X)
        number = len(self.index)
        self.precision = torch.linspace(0.4, 2.0, number, dtype=torch.float64)

    def evidence(self, mean: str = "linear") -> DualEvidence:
        return DualEvidence(
            self.tangent, self.kernels, self.index, self.outputs, self.shift, self.data, mean=mean
        )

    def full(self, precision: torch.Tensor) -> torch.Tensor:
        full = torch.empty_like(self.tangent.point)
        for value, places in zip(precision, self.index.values(), strict=True):
            full[places] = value
        return full

    def products(self) -> Products:
        batches = [(x, self.tangent.shift(x)) for x in X.split(10)]
        return Products(self.tangent.jvp, self.tangent.vjp, batches, self.data)

    def dense(self, precision: torch.Tensor, beta: torch.Tensor, mean: str = "linear") -> float:
        """The twin: θ* by Newton, H written out."""
        data = self.data._replace(precision=beta) if len(beta) else self.data
        full, theta = self.full(precision), self.tangent.point
        outputs = self.outputs
        if mean == "linear":
            theta = solve_primal(self.jacobian, self.shift, data, full, tolerance=1e-15)
            outputs = self.shift + self.jacobian @ theta
        rows = (data.root(self.outputs).mT @ self.jacobian).flatten(0, 1)
        matrix = rows.T @ rows + full.diag()
        fit = data.log_likelihood(outputs) - 0.5 * (full * theta.square()).sum()
        return (fit - 0.5 * matrix.logdet() + 0.5 * full.log().sum()).item()


@pytest.mark.parametrize("form", ["jacobian", "offset"])
@pytest.mark.parametrize("kind", CASES)
def test_primal_dual_and_optimiser_find_one_optimum(kind, form) -> None:
    """And it is one: the gradient of the loss, by autograd through h written out, is zero there."""
    p = Problem(kind, form)
    full = p.full(p.precision)
    primal = solve_primal(p.jacobian, p.shift, p.data, full)
    dual = solve_dual(p.kernels.combined(p.precision), p.shift, p.data)
    theta = (p.jacobian.flatten(0, 1).T @ dual.alpha.flatten()) / full
    iterative = solve_iterative(p.products(), full, tolerance=1e-16, steps=50, inner=500)
    if kind in BETAS:  # its conjugate gradients stop at 1e-5; go on from there
        iterative = solve_iterative(p.products(), full, start=iterative, tolerance=1e-16, inner=500)
    torch.testing.assert_close(theta, primal, rtol=0, atol=1e-8)
    torch.testing.assert_close(iterative, primal, rtol=0, atol=1e-6)
    point = primal.clone().requires_grad_()
    outputs = p.jacobian @ point
    if form == "offset":
        outputs = p.outputs + p.jacobian @ (point - p.tangent.point)
    loss = 0.5 * (full * point.square()).sum() - p.data.log_likelihood(outputs)
    (gradient,) = torch.autograd.grad(loss, point)
    assert gradient.abs().max() < 1e-5


@pytest.mark.parametrize("mean", ["trained", "linear"])
@pytest.mark.parametrize("kind", CASES)
def test_value_and_gradients_of_the_evidence(kind, mean) -> None:
    """The value against H written out; gradients with respect to every λ and the noise against
    central differences of it."""
    p = Problem(kind)
    terms = p.evidence(mean)(p.precision, p.beta)
    assert terms.value == pytest.approx(p.dense(p.precision, p.beta, mean), abs=1e-8)
    by_precision, by_beta = terms.gradient(p.precision, p.beta)
    both = torch.cat([p.precision, p.beta]).log()
    for k, expected in enumerate(torch.cat([by_precision, by_beta])):
        ends = []
        for sign in (1, -1):
            moved = both.clone()
            moved[k] += sign * 1e-4
            groups = len(p.precision)
            ends.append(p.dense(moved[:groups].exp(), moved[groups:].exp(), mean))
        assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", CASES)
def test_the_gradient_is_zero_at_mackays_fixed_point(kind) -> None:
    """Of the groups that are not at the end of their range; finite differences, not the formula."""
    p = Problem(kind, groups="per_group")
    evidence = p.evidence()
    start = starting_precision(evidence.sizes, evidence.point_squares)
    found = maximise(evidence, start, p.beta, Search(learn_noise=True, tolerance=1e-9, steps=2000))
    assert found.converged
    both, groups = torch.cat([found.precision, found.beta]).log(), len(start)
    for k in range(len(both)):
        if k < groups and found.pruned[k]:
            continue
        ends = []
        for sign in (1, -1):
            moved = both.clone()
            moved[k] += sign * 1e-3
            ends.append(p.dense(moved[:groups].exp(), moved[groups:].exp()))
        assert abs(ends[0] - ends[1]) / 2e-3 < 1e-4
    assert found.path[-1] == pytest.approx(found.terms.value)


def test_ascent_climbs_to_the_same_point_and_known_noise_stays() -> None:
    p = Problem("gaussian", groups="single")
    evidence = p.evidence()
    start = starting_precision(evidence.sizes, evidence.point_squares)
    mackay = maximise(evidence, start, p.beta, Search(learn_noise=True))
    ascent = maximise(evidence, start, p.beta, Search("ascent", learn_noise=True, steps=300))
    assert ascent.terms.value == pytest.approx(mackay.terms.value, abs=1e-3)
    assert float(ascent.precision) == pytest.approx(float(mackay.precision), rel=0.05)
    known = maximise(evidence, start, p.beta, Search())
    assert known.beta.equal(p.beta) and known.terms.value < mackay.terms.value


def test_a_group_that_data_do_not_need_is_pruned_and_reported() -> None:
    """Targets of pure noise: the evidence holds the weights at zero."""
    p = Problem("categorical", groups="per_group")
    noise = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(3))
    p.data = p.data._replace(targets=noise)
    evidence = p.evidence()
    start = starting_precision(evidence.sizes, evidence.point_squares)
    found = maximise(evidence, start, NONE)
    assert found.pruned.any()
    assert (found.precision[found.pruned] <= start[found.pruned] * 1e8).all()
    assert found.terms.value == pytest.approx(-24 * math.log(3), abs=1.0)


def test_covariance_of_predictions_is_that_of_the_weights() -> None:
    for kind in CASES:
        p = Problem(kind)
        new = X[:5] + 0.3
        features = p.tangent.jacobian(new)
        cross = kernels_between(features, p.jacobian, p.index)
        own = kernels_of(features, p.index)
        found = p.evidence().covariance(p.precision, p.beta, cross, own)
        data = p.data._replace(precision=p.beta) if len(p.beta) else p.data
        rows = (data.root(p.outputs).mT @ p.jacobian).flatten(0, 1)
        inverse = torch.linalg.inv(rows.T @ rows + p.full(p.precision).diag())
        torch.testing.assert_close(found, features @ inverse @ features.mT, rtol=0, atol=1e-9)


def test_kernels_that_do_not_fit_are_refused_with_numbers() -> None:
    check_rows(100, 3)
    with pytest.raises(ValueError, match=r"10 matrices of 600,000 × 600,000.*use fewer"):
        check_rows(600_000, 6)
    with pytest.raises(ValueError, match="gaussian, categorical, bernoulli, got 'student_t'"):
        from polymode.likelihoods.kinds import StudentT

        observed(StudentT(df=4.0, scale=1.0), VALUES)
