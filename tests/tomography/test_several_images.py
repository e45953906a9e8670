"""Several images, several networks for each, unequal noise, images that are not square, float64:
whatever belongs to one image is that image's."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from polymode.nets import unet
from polymode.tomography import (
    DeepImagePrior,
    LinearisedDIP,
    LinearOperator,
    best_steps,
    deep_image_prior,
    mc_dropout_dip,
    scan_of,
    total_variation,
    tv_reconstruction,
)
from polymode.tomography.filter_prior import filter_prior
from polymode.tomography.image_evidence import assemble
from polymode.tomography.linearised_dip import starting_point
from polymode.tomography.matrix_free import Solver
from polymode.tomography.tv_predcp import neighbours

SHAPE, N, E = (8, 12), 3, 2
NOISE = torch.tensor([0.02, 0.08, 0.3], dtype=torch.float64)
tall = partial(unet, (1, *SHAPE), 1, channels=(3, 3), skips=(2,), sigmoid=True)


def scans(noise=NOISE):
    """Three images of 8 x 12 pixels, 40 observations each, every noise another."""
    stream = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=stream, dtype=torch.float64)
    matrix = draw(40, 96) / 4
    operator = LinearOperator.from_matrix(matrix, SHAPE)
    truth = torch.zeros(N, 1, *SHAPE, dtype=torch.float64)
    for k in range(N):
        truth[k, 0, 1 + k : 6, 2 : 6 + 2 * k] = 0.4 + 0.2 * k
    return scan_of(operator, operator(truth) + NOISE[:, None] * draw(N, 40), noise, truth)


@pytest.fixture(scope="module")
def fit():
    options = DeepImagePrior(steps=40, lr=1e-2, tv_weight=2e-4, networks_per_image=E, look_every=40)
    return deep_image_prior(scans(), tall, options, seed=3)


def written_out(net: nn.Module, x: torch.Tensor, names) -> torch.Tensor:
    """The Jacobian (n, P) by autograd."""
    named = dict(net.named_parameters())
    rows = []
    for pixel in net(x).flatten():
        grads = torch.autograd.grad(pixel, [named[n] for n in names], retain_graph=True)
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(rows)


@pytest.mark.parametrize("k", range(N))
def test_the_linear_model_of_an_image_has_its_network_noise_and_observations(fit, k) -> None:
    """Against the Jacobian of the module that `fit.network` gives."""
    made = LinearisedDIP(fit, k)
    net, x = fit.network(k), fit.inputs[k : k + 1]
    assert made.model.dtype == torch.float64
    torch.testing.assert_close(made.model.image, net(x).flatten())
    torch.testing.assert_close(made.model.image, fit.images()[0, k].flatten())
    dense = written_out(net, x, made.model.prior.names)
    some = torch.eye(96, dtype=torch.float64)[[0, 13, 95]]
    torch.testing.assert_close(made.model.weights(some), dense[[0, 13, 95]])
    assert made.noise == pytest.approx(float(NOISE[k]) ** 2)
    assert made.tv_rate == pytest.approx(2e-4 * 40 / (2 * float(NOISE[k]) ** 2))
    torch.testing.assert_close(made.observations, fit.scan.observations[k])
    torch.testing.assert_close(made.model.shift, made.model.image - dense @ made.model.point)


def test_block_by_block_kernels_of_a_later_image(fit) -> None:
    model = LinearisedDIP(fit, 2).model
    whole = assemble(model)
    largest = max(block.stop - block.start for block in model.prior.blocks)
    count = sum(len(block.classes()) for block in model.prior.blocks)
    least = 8.0 * count * (40**2 + 96**2) + 8.0 * (4 * 40**2 + 2 * 96**2) + 3.0 * 96 * largest * 8
    parts = assemble(model, most_bytes=least + 1)
    torch.testing.assert_close(parts.observed, whole.observed)
    torch.testing.assert_close(parts.pixels, whole.pixels)


def test_looks_compare_with_the_truth_of_their_image() -> None:
    """With a tiny rate networks stay as they are, so that the last look is at the fit's images."""
    options = DeepImagePrior(steps=2, lr=1e-9, networks_per_image=E, look_every=1)
    fit = deep_image_prior(scans(), tall, options, seed=1)
    off = fit.images() - fit.scan.truth  # (E, N, ...)
    errors = off.square().mean((2, 3, 4)).T.flatten()
    torch.testing.assert_close(fit.looks[2][-1], errors, rtol=1e-5, atol=1e-7)
    left = fit.scan.operator(fit.images()) - fit.scan.observations
    torch.testing.assert_close(
        fit.looks[1][-1], left.square().mean(-1).T.flatten(), rtol=1e-5, atol=1e-7
    )
    assert best_steps(fit) in (1, 2)


def test_each_image_stops_at_its_own_noise() -> None:
    """The first image's level is met at once, the others' never, by both networks of an image."""
    scan = scans(noise=torch.tensor([100.0, 1e-4, 1e-4], dtype=torch.float64))
    options = DeepImagePrior(steps=4, stop="discrepancy", networks_per_image=E, look_every=2)
    with pytest.warns(UserWarning, match="4 of 6 networks did not come down"):
        fit = deep_image_prior(scan, tall, options)
    assert fit.steps[:E].tolist() == [2, 2] and fit.steps_run == 4
    left = scan.operator(fit.images()) - scan.observations
    residuals = left.square().mean(-1).T.flatten()
    torch.testing.assert_close(residuals[:E], fit.looks[1][0, :E])


def test_noisy_passes_of_an_image_are_those_of_its_networks() -> None:
    """A network that is dropout alone gives 0 or 2 times the input of its image."""
    inputs = torch.rand(N, 1, *SHAPE, dtype=torch.float64) + torch.arange(1.0, 4).view(-1, 1, 1, 1)

    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.scale = nn.Dropout(0.5), nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(x) * self.scale

    options = DeepImagePrior(steps=1, lr=1e-9, networks_per_image=E)
    found = mc_dropout_dip(scans(), Some, options, num_samples=4, inputs=inputs)
    assert found.samples.shape == (4 * E, N, 1, *SHAPE)
    values = (found.samples / inputs).round(decimals=5).unique()
    assert values.tolist() == [0.0, 2.0]


# ---------------------------------------------------------------- the noise, chosen or held


def quiet(made: LinearisedDIP, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return made.uncertainty(**options)


@pytest.mark.parametrize("path", ["exact", "matrix_free"])
@pytest.mark.parametrize("prior, predcp", [("matern", 0.5), ("isotropic", None)])
@pytest.mark.parametrize("mean", ["trained", "linear"])
def test_noise_that_is_held_is_that_of_the_image(fit, path, prior, predcp, mean) -> None:
    """All else is learnt; and where the noise is learnt it moves."""
    solver = Solver(rank=40, relative=1e-3, most=20)
    made = LinearisedDIP(fit, 1, path=path, steps=2, num_samples=2, probes=2, solver=solver)
    held = quiet(made, prior=prior, predcp=predcp, mean=mean, learn_noise=False)
    learnt = quiet(made, prior=prior, predcp=predcp, mean=mean)
    assert held.hyper.noise == pytest.approx(float(NOISE[1]) ** 2, rel=1e-9)
    assert abs(learnt.hyper.log_noise - held.hyper.log_noise) > 1e-3
    start = starting_point(made.model.prior, made.model.point, made.noise)
    assert (held.hyper.log_variance - start.log_variance).abs().max() > 1e-3
    assert held.posterior.shape == SHAPE and held.posterior.std.dtype == torch.float64


def simulated(made: LinearisedDIP, hyper, noise_sd: float, seed: int) -> torch.Tensor:
    """Observations of the linear model itself."""
    stream = torch.Generator().manual_seed(seed)
    weights = made.model.prior.draw(hyper, 1, stream)
    images = made.model.shift + made.model.images(weights)
    white = torch.randn(40, generator=stream, dtype=torch.float64)
    return made.model.observe(images)[0] + noise_sd * white


def test_data_of_the_model_itself_do_not_contradict_the_noise(fit) -> None:
    """A right model is doubted in less than 1 of 1,000 images: none of 25 but in 1 of 40 runs; ten
    times the noise, or a tenth, always."""
    made = LinearisedDIP(fit, 1, steps=20)
    hyper = made.model.prior.start(made.noise, variance=1e-3)
    for seed in range(25):
        made.observations = simulated(made, hyper, made.noise**0.5, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made.uncertainty(mean="linear", prior="isotropic")
    for factor, cause in ((10.0, "does not explain the scan"), (0.1, "has fitted noise")):
        made.observations = simulated(made, hyper, factor * made.noise**0.5, 0)
        with pytest.warns(UserWarning, match=f"for image 1, the scan has 0.08: .*{cause}"):
            made.uncertainty(mean="linear", prior="isotropic")
        made.uncertainty(mean="linear", prior="isotropic", learn_noise=False)  # says nothing


@pytest.mark.parametrize("path", ["exact", "matrix_free"])
def test_how_far_the_noise_may_be_is_by_its_information(fit, path, monkeypatch) -> None:
    """The Fisher information that the check is given against that of a dense K."""
    made = LinearisedDIP(fit, 2, path=path, steps=2, num_samples=2, solver=Solver(40, 1e-6, 60))
    given = []
    monkeypatch.setattr(LinearisedDIP, "_check_noise", lambda *more: given.append(more[1:]))
    found = quiet(made)
    kernel = assemble(made.model).covariance(made.model.prior.coefficients(found.hyper))
    share = found.hyper.noise / (torch.linalg.eigvalsh(kernel).clamp_min(0) + found.hyper.noise)
    ((chosen, information, mean),) = given
    assert chosen == found.hyper.noise and mean == "trained"
    assert information == pytest.approx(0.5 * float(share.square().sum()), rel=1e-3)


def test_defaults_are_those_that_the_study_supports(fit) -> None:
    """The evidence at the trained weights, whatever the form; θ* around the network's image."""
    plain = quiet(LinearisedDIP(fit, 0, steps=5))
    for form in ("offset", "jacobian"):
        other = quiet(LinearisedDIP(fit, 0, steps=5, form=form), mean="trained", prior="matern")
        assert other.log_evidence == plain.log_evidence
        torch.testing.assert_close(other.posterior.variance, plain.posterior.variance)
    offset = quiet(LinearisedDIP(fit, 0, steps=5), mean="linear")
    named = quiet(LinearisedDIP(fit, 0, steps=5, form="offset"), mean="linear")
    assert offset.log_evidence == named.log_evidence != plain.log_evidence


@pytest.mark.parametrize("path", ["exact", "matrix_free"])
@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_wrong_rates_are_refused_on_both_paths(fit, path, rate) -> None:
    with pytest.raises(ValueError, match="`predcp` must be a rate > 0, got"):
        LinearisedDIP(fit, 0, path=path).uncertainty(predcp=rate)
    with pytest.raises(ValueError, match="`mean` must be one of linear, trained, got 'map'"):
        LinearisedDIP(fit, 0, path=path).uncertainty(mean="map")


# ---------------------------------------------------------------- shapes that are not square


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 4)])
def test_differences_of_neighbours_are_the_total_variation(shape) -> None:
    image = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left, right = neighbours(shape)
    flat = image.flatten()
    total = (flat[left] - flat[right]).abs().sum()
    torch.testing.assert_close(total, total_variation(image[None]))


@pytest.mark.parametrize("taps", [(2, 3), (3, 1), (1, 3)])
def test_taps_of_filters_that_are_not_square_are_where_the_filter_has_them(taps) -> None:
    prior = filter_prior(nn.Sequential(nn.Conv2d(1, 2, taps), nn.ReLU(), nn.Conv2d(2, 1, taps)))
    hyper = prior.start(1.0, lengthscale=0.7)
    (block, *_) = prior.blocks
    found = block.covariance(hyper.log_variance[0], hyper.log_lengthscale[0])
    places = [(row, column) for row in range(taps[0]) for column in range(taps[1])]
    for i, (a, b) in enumerate(places):
        for j, (c, d) in enumerate(places):
            apart = ((a - c) ** 2 + (b - d) ** 2) ** 0.5
            wanted = torch.exp(torch.tensor(-apart / 0.7, dtype=torch.float64)) + 1e-6 * (i == j)
            torch.testing.assert_close(found[i, j], wanted)


def test_images_of_unequal_size_are_reconstructed_as_if_alone() -> None:
    """Convergence is that of each image: a faint one beside a bright one comes as far as alone."""
    scan = scans()
    rows = scan.observations[:2] * torch.tensor([[1.0], [1e-3]], dtype=torch.float64)
    both = tv_reconstruction(scan.operator, rows, tv_weight=1e-4, tolerance=1e-5).mean
    alone = tv_reconstruction(scan.operator, rows[1:], tv_weight=1e-4, tolerance=1e-5).mean
    assert (both[1] - alone[0]).norm() < 1e-2 * alone.norm()
