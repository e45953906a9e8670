"""The linearised deep image prior from its front door, on both paths."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from polymode.nets import unet
from polymode.tomography import DeepImagePrior, deep_image_prior, parallel_beam, simulate
from polymode.tomography.image_evidence import Evidence, assemble
from polymode.tomography.linearised_dip import LinearisedDIP, same_tap, starting_point
from polymode.tomography.phantoms import random_ellipses

# 60 steps are quick and too few to explain the scan, as the warning rightly says
pytestmark = pytest.mark.filterwarnings("ignore:the evidence chose noise:UserWarning")


@pytest.fixture(scope="module")
def fit():
    images = torch.stack([random_ellipses(10, seed=k) for k in range(2)])[:, None]
    scan = simulate(parallel_beam(10, 6), images, noise=0.05)
    net = partial(unet, (1, 10, 10), 1, channels=(3, 3), skips=(2,), sigmoid=True)
    return deep_image_prior(scan, net, DeepImagePrior(steps=60, lr=1e-2, tv_weight=1e-4))


def test_the_second_image_has_its_own_network(fit) -> None:
    model = LinearisedDIP(fit, 1)
    torch.testing.assert_close(model.model.image, fit.images()[0, 1].flatten())
    assert model.exact and not LinearisedDIP(fit, 1, form="jacobian").model.shift.any()
    assert model.tv_rate == pytest.approx(
        1e-4 * len(model.observations) / (2 * float(fit.scan.noise_sd[1]) ** 2)
    )


@pytest.mark.parametrize("prior", ["matern", "isotropic"])
def test_evidence_rises_and_the_posterior_is_narrower_than_the_prior(fit, prior) -> None:
    model = LinearisedDIP(fit, 0, steps=15)
    found = model.uncertainty(prior=prior)
    own = model.model if prior == "matern" else model.model.with_prior(prior)
    kernels = assemble(own)
    evidence = Evidence(own, kernels, model.observations, mean="trained")
    start = starting_point(own.prior, own.point, model.noise)
    assert found.log_evidence > evidence(start)[0]
    assert found.log_evidence == pytest.approx(evidence(found.hyper)[0], abs=1e-4)
    before = kernels.pixel_covariance(own.prior.coefficients(found.hyper)).diagonal()
    assert (found.posterior.variance <= before + 1e-9).all()


def test_kernels_of_the_isotropic_prior_are_some_of_the_other(fit) -> None:
    model = LinearisedDIP(fit, 0).model
    flat = assemble(model.with_prior("isotropic"))
    torch.testing.assert_close(
        flat.observed, assemble(model).subset(same_tap(model.prior)).observed, rtol=1e-5, atol=1e-6
    )


@pytest.mark.cpu_seconds(6)
def test_both_paths_see_about_the_same_deviations(fit) -> None:
    """Other searches and 200 samples: means of the deviations within a quarter."""
    exact = LinearisedDIP(fit, 0, steps=30, path="exact").uncertainty()
    free = LinearisedDIP(fit, 0, steps=30, path="matrix_free", num_samples=200).uncertainty()
    assert float(free.posterior.std.mean()) == pytest.approx(
        float(exact.posterior.std.mean()), rel=0.25
    )


@pytest.mark.parametrize("path", ["exact", "matrix_free"])
def test_the_outcome_in_the_form_of_other_methods(fit, path) -> None:
    outcome = LinearisedDIP(fit, 1, steps=20, path=path, num_samples=30).uncertainty()
    found = outcome.reconstruction()
    torch.testing.assert_close(found.mean[0, 0], fit.images()[0, 1, 0].double())
    torch.testing.assert_close(found.sd[0, 0], outcome.posterior.std)
    if path == "exact":
        assert found.samples is None
    else:
        assert found.samples.shape == (30, 1, 1, 10, 10)
        spread = (found.samples - found.mean).square().mean(0).sqrt()
        torch.testing.assert_close(spread, found.sd)


def test_predcp_lowers_the_expected_total_variation(fit) -> None:
    model = LinearisedDIP(fit, 0, steps=30)
    without, strong = (model.uncertainty(predcp=rate).hyper for rate in (None, 50.0))
    kappa = model._predcp(model.model, 1.0).kappa
    assert float(kappa(strong).sum()) < float(kappa(without).sum())


def test_bad_input(fit) -> None:
    with pytest.raises(ValueError, match="`path` of LinearisedDIP must be one of auto, exact"):
        LinearisedDIP(fit, path="dense")
    with pytest.raises(ValueError, match="one of the 2 that were fitted, got 2"):
        LinearisedDIP(fit, 2)
    for option in ({"steps": 0}, {"num_samples": 1}, {"probes": 1}):
        (name,) = option
        with pytest.raises(ValueError, match=f"`{name}` of LinearisedDIP must be an integer of at"):
            LinearisedDIP(fit, **option)
    with pytest.raises(ValueError, match="`prior` must be one of isotropic, matern, got 'rbf'"):
        LinearisedDIP(fit).uncertainty(prior="rbf")


def test_tv_predcp_without_lengthscales_is_refused(fit) -> None:
    with pytest.raises(ValueError, match="prior='isotropic', which has none"):
        LinearisedDIP(fit, 0).uncertainty(prior="isotropic", predcp=1.0)
