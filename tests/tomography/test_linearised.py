"""The linearised posterior of an image against a dense Gaussian in numpy, and its evidence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polymode.core.rng import generator
from polymode.methods.laplace.evidence_dual import DualEvidence, kernels_between
from polymode.methods.laplace.linear_model import Observed
from polymode.methods.laplace.linear_model_solve import solve_primal
from polymode.tomography.filter_prior import Hyper
from polymode.tomography.image_evidence import Evidence, assemble, exact_posterior, maximise
from polymode.tomography.linearised import Linearised
from polymode.tomography.reconstruction import Reconstruction, image_posteriors
from polymode.tomography.tv_predcp import expected_variation, neighbours, tv_predcp


@pytest.fixture(scope="module")
def kernels(model):
    return assemble(model)


def test_products_with_the_jacobian(model, dense) -> None:
    stream = generator(0)
    w = torch.randn(3, dense.shape[1], generator=stream, dtype=torch.float64)
    c = torch.randn(3, dense.shape[0], generator=stream, dtype=torch.float64)
    torch.testing.assert_close(model.images(w), w @ dense.T)
    torch.testing.assert_close(model.weights(c), c @ dense)
    torch.testing.assert_close(model.images(w[:1]), w[:1] @ dense.T)


def test_shift_is_what_the_linear_model_has_beside_the_jacobian(small, model, dense) -> None:
    net, x, operator, _ = small
    torch.testing.assert_close(model.shift, model.image - dense @ model.point)
    assert not Linearised(net, x, operator, form="jacobian").shift.any()


@pytest.mark.parametrize("pixels", [True, False])
def test_kernels_are_the_prior_covariance(model, dense, hyper, kernels, dense_covariance, pixels):
    sigma, a = dense_covariance(model.prior, hyper), model.operator.matrix()
    found = kernels if pixels else assemble(model, pixels=False)
    coefficients = model.prior.coefficients(hyper)
    image = dense @ sigma @ dense.T
    torch.testing.assert_close(found.covariance(coefficients), a @ image @ a.T)
    if pixels:
        torch.testing.assert_close(found.pixel_covariance(coefficients), image)


def test_block_by_block_gives_the_same_kernels(model, kernels) -> None:
    m, n = model.operator.shape
    count = len(kernels.observed)
    dense = 8.0 * count * (m**2 + n**2) + 8.0 * (4 * m**2 + 2 * n**2)
    tight = dense + 24.0 * n * max(b.stop - b.start for b in model.prior.blocks)
    found = assemble(model, most_bytes=tight)
    torch.testing.assert_close(found.observed, kernels.observed)
    with pytest.raises(ValueError, match=r"the exact path needs 20 matrices of 24 × 24.*may be"):
        assemble(model, most_bytes=tight - 1)


def test_posterior_against_a_dense_gaussian_in_numpy(
    small, model, dense, hyper, kernels, dense_covariance
) -> None:
    y = small[3].numpy()
    j, a = dense.numpy(), model.operator.matrix().numpy()
    sigma = dense_covariance(model.prior, hyper).numpy()
    image = model.image.numpy()
    precision = np.linalg.inv(sigma) + (a @ j).T @ (a @ j) / hyper.noise
    weights = np.linalg.inv(precision)
    evidence = Evidence(model, kernels, small[3])
    found = exact_posterior(evidence, hyper, mean="linear")
    np.testing.assert_allclose(found.covariance.numpy(), j @ weights @ j.T, atol=1e-10)
    rest = y - a @ (image - j @ model.point.numpy())
    optimum = weights @ (a @ j).T @ rest / hyper.noise
    np.testing.assert_allclose(evidence.optimum(hyper).numpy(), optimum, atol=1e-7)
    mean = image - j @ model.point.numpy() + j @ optimum
    np.testing.assert_allclose(found.mean.numpy(), mean, atol=1e-8)
    network = exact_posterior(evidence, hyper)
    np.testing.assert_array_equal(network.mean.numpy(), image)
    np.testing.assert_allclose(network.std.numpy() ** 2, np.diag(j @ weights @ j.T).reshape(8, 8))


def test_evidence_against_the_density_of_the_observations(
    small, model, dense, hyper, kernels, dense_covariance
) -> None:
    from scipy.stats import multivariate_normal

    a, sigma = model.operator.matrix(), dense_covariance(model.prior, hyper)
    k = a @ dense @ sigma @ dense.T @ a.T + hyper.noise * torch.eye(24, dtype=torch.float64)
    value, _ = Evidence(model, kernels, small[3])(hyper)
    centre = (a @ model.shift).numpy()
    assert value == pytest.approx(multivariate_normal(centre, k.numpy()).logpdf(small[3].numpy()))
    # at θ̃: the joint density there over the Laplace approximation of the posterior
    aj = a @ dense
    h = aj.T @ aj / hyper.noise + torch.linalg.inv(sigma)
    misfit = small[3] - a @ model.image
    theta = model.point
    likelihood = -0.5 * (misfit @ misfit / hyper.noise + 24 * math.log(2 * math.pi * hyper.noise))
    prior = -0.5 * (theta @ torch.linalg.solve(sigma, theta) + torch.logdet(sigma))
    trained, _ = Evidence(model, kernels, small[3], mean="trained")(hyper)
    assert trained == pytest.approx(float(likelihood + prior - 0.5 * torch.logdet(h)), rel=1e-6)


def test_primal_and_dual_optimum_agree_with_laplace(small, model, dense) -> None:
    """An isotropic prior is that of `methods/laplace`: same θ* and same evidence, both ways."""
    flat = model.with_prior("isotropic")
    hyper = flat.prior.start(4e-4, variance=0.05)
    hyper = hyper._replace(
        log_variance=hyper.log_variance + torch.arange(len(flat.prior.blocks)).double() / 4
    )
    aj, shift = model.operator.matrix() @ dense, model.operator.matrix() @ model.shift
    index = {b.name: torch.arange(b.start, b.stop) for b in flat.prior.blocks}
    each = torch.cat([(-v).exp().expand(len(i)) for v, i in zip(hyper.log_variance, index.values(),
                                                                strict=True)])  # fmt: skip
    data = Observed("gaussian", small[3][:, None], torch.tensor([1 / hyper.noise]).double())
    primal = solve_primal(aj[:, None], shift[:, None], data, each)
    evidence = Evidence(flat, assemble(flat), small[3])
    dual = evidence.optimum(hyper)
    torch.testing.assert_close(dual, primal, atol=1e-6, rtol=0)
    for mean in ("linear", "trained"):
        theirs = DualEvidence(
            model.tangent, kernels_between(aj[:, None], aj[:, None], index), index,
            (model.operator.matrix() @ model.image)[:, None], shift[:, None], data, mean=mean,
        )  # fmt: skip
        terms = theirs((-hyper.log_variance).exp(), data.precision)
        ours = Evidence(flat, evidence.kernels, small[3], mean=mean)(hyper)[0]
        assert ours == pytest.approx(terms.value, rel=1e-8)


@pytest.mark.parametrize("mean", ["linear", "trained"])
@pytest.mark.parametrize("predcp", [False, True])
def test_gradient_against_finite_differences(small, model, hyper, kernels, mean, predcp) -> None:
    prior = tv_predcp(model, kernels, 0.7) if predcp else None
    evidence = Evidence(model, kernels, small[3], mean=mean, log_prior=prior)
    _, gradient = evidence(hyper)
    flat, step = hyper.flat(), 1e-5
    for place in range(len(flat)):
        move = torch.zeros_like(flat)
        move[place] = step
        high, low = (evidence(Hyper.from_flat(flat + s * move))[0] for s in (1, -1))
        slope = (high - low) / (2 * step)
        assert float(gradient[place]) == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_maximise_ends_where_the_gradient_is_zero_or_at_a_bound(small, model, kernels) -> None:
    evidence = Evidence(model, kernels, small[3])
    start = model.prior.start(4e-4, variance=0.05)
    fitted = maximise(evidence, start, steps=200)
    assert fitted.value > evidence(start)[0]
    inside = (fitted.hyper.flat() - start.flat()).abs() < 4.0
    inside[len(start.log_variance) : -1] &= fitted.hyper.log_lengthscale.abs() < 2.5
    assert fitted.gradient[inside].abs().max() < 0.02
    kept = maximise(evidence, start, learn_noise=False, steps=3).hyper
    assert float(kept.log_noise) == float(start.log_noise)


def test_kappa_against_brute_force(model, hyper, kernels, dense) -> None:
    """TV of 20,000 draws; six standard errors, false alarms below 1e-8 a block."""
    predcp = tv_predcp(model, kernels, 1.0)
    found = predcp.kappa(hyper)
    drawn = model.prior.draw(hyper, 20_000, generator(0, "kappa"))
    for g, block in enumerate(model.prior.blocks):
        part = slice(block.start, block.stop)
        images = (model.image + drawn[:, part] @ dense[:, part].T).view(-1, 8, 8)
        tv = images.diff(dim=1).abs().sum((1, 2)) + images.diff(dim=2).abs().sum((1, 2))
        error = float(tv.std()) / len(tv) ** 0.5
        assert float(found[g]) == pytest.approx(float(tv.mean()), abs=6 * error)


def test_change_of_variables_is_a_density(model, hyper, kernels) -> None:
    """Where κ is monotone in ℓ, p(log ℓ) integrates to the mass of the exponential in between."""
    predcp = tv_predcp(model, kernels, 0.5)
    g = next(i for i, b in enumerate(model.prior.blocks) if b.kind == "matern")
    alone = model.of_block(model.prior.blocks[g])
    one = tv_predcp(alone, assemble(alone), 0.5)
    lengths = torch.linspace(-2.0, 1.0, 301).double()

    def at(length):
        return Hyper(hyper.log_variance[g : g + 1], length.reshape(1), hyper.log_noise)

    density = torch.stack([one(at(length)).detach().exp() for length in lengths])
    kappa = torch.stack([one.kappa(at(length))[0] for length in lengths])
    assert float(kappa[0]) == pytest.approx(
        float(predcp.kappa(hyper._replace(log_lengthscale=lengths[:1].expand(
            len(model.prior.blocks))))[g]), rel=1e-9,
    )  # fmt: skip
    steps = kappa.diff()
    pieces = (torch.exp(-0.5 * kappa[:-1]) - torch.exp(-0.5 * kappa[1:])).abs().sum()
    assert (steps != 0).any()
    assert float(torch.trapezoid(density, lengths)) == pytest.approx(float(pieces), rel=1e-3)


def test_expected_variation_of_a_folded_normal() -> None:
    from scipy.stats import foldnorm

    for mean, sd in ((0.3, 0.5), (-1.0, 0.2), (0.0, 2.0)):
        found = expected_variation(torch.tensor([mean]).double(), torch.tensor([sd**2]).double())
        assert float(found) == pytest.approx(foldnorm(abs(mean) / sd, scale=sd).mean())
    still = expected_variation(torch.tensor([-0.4]).double(), torch.zeros(1).double())
    assert float(still) == pytest.approx(0.4)
    assert [len(each) for each in neighbours((4, 5))] == [31, 31]


def test_posteriors_of_samples_and_of_deviations() -> None:
    samples = torch.randn(50, 2, 1, 4, 5, generator=generator(2), dtype=torch.float64)
    found = image_posteriors(Reconstruction.from_samples(samples))
    assert len(found) == 2
    torch.testing.assert_close(found[1].std, samples[:, 1, 0].std(0))
    cov = np.cov(samples[:, 1].flatten(1).numpy()[:, :3].T)
    np.testing.assert_allclose(found[1].patch_covariance(torch.arange(3)).numpy(), cov)
    mean = torch.zeros(1, 1, 4, 5)
    (flat,) = image_posteriors(Reconstruction(mean, torch.full_like(mean, 0.2)))
    torch.testing.assert_close(flat.std, torch.full((4, 5), 0.2).double())
    with pytest.raises(ValueError, match="has no spread"):
        image_posteriors(Reconstruction(mean))


def test_bad_input(small, model, kernels) -> None:
    net, x, operator, y = small
    with pytest.raises(ValueError, match="observations must be finite, got 1"):
        Evidence(model, kernels, torch.where(torch.arange(24) == 3, torch.nan, y))
    with pytest.raises(ValueError, match=r"must have shape \(..., 24\)"):
        Evidence(model, kernels, y[:-1])
    with pytest.raises(ValueError, match="makes 100 pixels, the operator sees 8 × 8 = 64"):
        Linearised(net, torch.zeros(1, 1, 10, 10), operator)
    with pytest.raises(ValueError, match="`form` must be one of jacobian, offset"):
        Linearised(net, x, operator, form="affine")
    with pytest.raises(ValueError, match="`mean` must be one of linear, trained, got 'map'"):
        Evidence(model, kernels, y, mean="map")
    with pytest.raises(ValueError, match="`rate` of tv_predcp must be > 0, got 0"):
        tv_predcp(model, kernels, 0.0)
    with pytest.raises(ValueError, match="assemble them with pixels=True"):
        tv_predcp(model, assemble(model, pixels=False), 1.0)
