"""The matrix-free path against the exact one, within the error of the probes."""

from __future__ import annotations

import pytest
import torch

from polymode.core.rng import generator
from polymode.tomography.image_evidence import Evidence, assemble, exact_posterior, maximise
from polymode.tomography.matrix_free import (
    MatrixFreeEvidence,
    Solver,
    ascend,
    kernel_product,
    matheron,
    sampled_tv_predcp,
)
from polymode.tomography.tv_predcp import tv_predcp

SOLVER = Solver(rank=8, relative=1e-8, most=60)


@pytest.fixture(scope="module")
def kernels(model):
    return assemble(model)


def test_kernel_product_is_that_with_the_dense_kernel(model, hyper, kernels) -> None:
    rows = torch.randn(3, 24, generator=generator(0), dtype=torch.float64)
    dense = kernels.covariance(model.prior.coefficients(hyper))
    torch.testing.assert_close(kernel_product(model, hyper)(rows), rows @ dense)


@pytest.mark.parametrize("mean", ["linear", "trained"])
def test_evidence_and_gradient_are_those_of_the_exact_path(small, model, hyper, kernels, mean):
    """Five standard errors over 60 probes, 18 numbers: false alarms below 1e-4."""
    prior = tv_predcp(model, kernels, 0.7)
    value, gradient = Evidence(model, kernels, small[3], mean=mean, log_prior=prior)(hyper)
    free = MatrixFreeEvidence(model, small[3], mean=mean, log_prior=prior, probes=60, solver=SOLVER)
    found = free(hyper, lanczos=24)
    assert abs(found.value - value) < 5 * found.value_error + 1e-6
    assert found.value_error < 2.0
    off = (found.gradient - gradient).abs()
    assert (off <= 5 * found.gradient_error + 1e-6 * gradient.abs() + 1e-9).all()
    assert (found.gradient_error < 1.0).all()


def test_optimum_is_that_of_the_exact_path(small, model, hyper, kernels) -> None:
    exact = Evidence(model, kernels, small[3]).optimum(hyper)
    free = MatrixFreeEvidence(model, small[3], solver=SOLVER).optimum(hyper)
    torch.testing.assert_close(free, exact, atol=1e-6, rtol=0)


def test_samples_have_the_covariance_of_the_exact_posterior(small, model, hyper, kernels) -> None:
    """1,000 samples, six standard errors for 64² entries: false alarms below 1e-4."""
    exact = exact_posterior(Evidence(model, kernels, small[3]), hyper)
    found = matheron(model, hyper, 1000, solver=SOLVER)
    true = exact.covariance
    own = found.patch_covariance(torch.arange(64))
    spread = ((true.square() + true.diagonal().outer(true.diagonal())) / 1000).sqrt()
    assert ((own - true).abs() < 6 * spread).all()
    torch.testing.assert_close(found.mean, exact.mean)
    by_root = matheron(
        model, hyper, 20, inverse=lambda rows: torch.cholesky_solve(
            rows.T, Evidence(model, kernels, small[3]).factor(hyper)).T,
    )  # fmt: skip
    again = matheron(model, hyper, 20, solver=SOLVER)
    torch.testing.assert_close(by_root.deviations, again.deviations, atol=1e-6, rtol=0)


def test_sampled_predcp_comes_near_the_exact_one(model, hyper, kernels) -> None:
    exact = tv_predcp(model, kernels, 0.7)
    found = sampled_tv_predcp(model, 0.7, probes=60)
    single = [b.num_filters == 1 for b in model.prior.blocks]
    torch.testing.assert_close(found.kappa(hyper), exact.kappa(hyper), rtol=0.05, atol=0)
    assert not all(single)
    covariance = model.prior.coefficients(hyper)
    first = len(model.prior.blocks[0].classes())
    assert (covariance[:first] @ found.variances[:first] >= 0).all()


@pytest.mark.cpu_seconds(5)
def test_ascend_reaches_the_exact_maximum(small, model, kernels) -> None:
    exact = Evidence(model, kernels, small[3])
    start = model.prior.start(4e-4, variance=0.05)
    best = maximise(exact, start).value
    free = MatrixFreeEvidence(model, small[3], probes=10, solver=Solver(rank=20, relative=1e-4))
    reached = exact(ascend(free, start, steps=40))[0]
    assert exact(start)[0] < reached <= best + 1e-3
    assert best - reached < 0.05 * (best - exact(start)[0])


def test_a_search_that_stops_too_early_says_so(small, model) -> None:
    free = MatrixFreeEvidence(model, small[3], probes=4, solver=Solver(rank=20, relative=1e-4))
    with pytest.warns(UserWarning, match=r"has not settled: one unit of log .* Give more `steps`"):
        ascend(free, model.prior.start(4e-4, variance=1e-5), steps=3, lr=0.05)


def test_bad_input(small, model, hyper) -> None:
    with pytest.raises(ValueError, match="`probes` must be at least 2, got 1"):
        MatrixFreeEvidence(model, small[3], probes=1)
    with pytest.raises(ValueError, match="`number` of samples must be at least 2, got 1"):
        matheron(model, hyper, 1)
