"""Simulated scans, filtered backprojection, and how near an image is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from polymode.tomography import (
    LinearOperator,
    fan_beam,
    fbp,
    inpainting,
    parallel_beam,
    psnr,
    scan_of,
    simulate,
    ssim,
)
from polymode.tomography.projector import Projector


def discs(side: int) -> Tensor:
    """A disc with a smaller, darker one in it."""
    axis = (torch.arange(side) - (side - 1) / 2) * 64 / side

    def disc(x: float, y: float, radius: float) -> Tensor:
        return ((axis - x) ** 2 + (-axis[:, None] - y) ** 2 < radius**2).double()

    return (disc(3, -2, 20) - 0.5 * disc(9, 1, 7))[None, None]


def fan(side: int, angles: int) -> Projector:
    return fan_beam(side, angles, source_distance=1.6 * side, detector_distance=0.8 * side)


@pytest.mark.parametrize("make", [parallel_beam, fan])
def test_backprojection_recovers_discs_from_many_angles(make) -> None:
    """Values inside are right to 1 % and edges to 25 dB; less with fewer angles."""
    truth = discs(64)
    quality = []
    for angles in (8, 120):
        projector = make(64, angles)
        image = fbp(projector, projector(truth))
        quality.append(float(psnr(image, truth)))
    assert quality[1] > 25 > quality[0] + 4
    assert abs(float(image[0, 0, 20:30, 20:26].mean()) - 1) < 0.01
    assert abs(float(image[0, 0, 27:36, 38:45].mean()) - 0.5) < 0.015
    assert abs(float(image[0, 0, :6].mean())) < 0.01


def test_backprojection_with_uneven_angles_weighs_them() -> None:
    """Angles that stand closer to each other count less each."""
    truth = discs(64)
    even = torch.arange(60) * math.pi / 60
    extra = torch.arange(30) * math.pi / 60 + math.pi / 120  # twice as dense in the first half
    projector = parallel_beam(64, torch.cat([even, extra]))
    image = fbp(projector, projector(truth))
    assert abs(float(image[0, 0, 20:30, 20:26].mean()) - 1) < 0.01


def test_smoother_filters_help_with_noise() -> None:
    scan = simulate(parallel_beam(64, 60), discs(64), noise=0.1)
    names = ("ram-lak", "shepp-logan", "cosine", "hann")
    quality = [
        float(psnr(fbp(scan.operator, scan.observations, name), scan.truth)) for name in names
    ]
    assert quality == sorted(quality)


def test_noise_is_the_fraction_of_the_mean() -> None:
    """4 standard errors of a standard deviation of 4,920 draws: false alarm in 1 of 16,000."""
    projector = parallel_beam(28, 120)
    scan = simulate(projector, torch.cat([discs(28), 2 * discs(28)]), noise=0.1, seed=3)
    clean = simulate(projector, torch.cat([discs(28), 2 * discs(28)]), noise=1e-9, seed=3)
    assert scan.observations.shape == (2, projector.shape[0]) == (2, 4920)
    torch.testing.assert_close(scan.noise_sd, 0.1 * clean.observations.abs().mean(1))
    drawn = (scan.observations - clean.observations).std(1) / scan.noise_sd
    assert torch.all((drawn - 1).abs() < 4 / math.sqrt(2 * 4920))
    again = simulate(projector, discs(28), noise=0.1, seed=3)
    torch.testing.assert_close(again.observations, scan.observations[:1])


def test_data_come_from_a_finer_grid() -> None:
    """They differ from what the operator itself would give, by less than the noise."""
    projector = parallel_beam(32, 10)
    scan = simulate(projector, discs(64), noise=1e-9)
    assert scan.truth.shape == (1, 1, 32, 32)
    gap = (scan.observations - projector(scan.truth)).norm() / scan.observations.norm()
    assert 0.001 < gap < 0.05
    own = simulate(projector, discs(32), noise=1e-9, finer=1)
    torch.testing.assert_close(own.observations, projector(own.truth), atol=1e-6, rtol=0)


def test_own_measurements_come_in_every_form() -> None:
    """By angle and cell, as rows, as arrays; other operators take images that are not square."""
    projector = parallel_beam(8, 3)
    sinogram = torch.arange(39.0).reshape(3, 13)
    rows = [scan_of(projector, each, 1.0).observations for each in (
        sinogram, sinogram[None], sinogram.flatten(), sinogram.numpy(), sinogram.int().tolist(),
    )]  # fmt: skip
    assert all(torch.equal(each, sinogram.flatten()[None]) for each in rows)
    two = scan_of(projector, torch.stack([sinogram, 2 * sinogram]), torch.tensor([1.0, 2.0]))
    assert two.only([1]).noise_sd.tolist() == [2.0] and two.only([1]).observations.max() == 76
    long = inpainting(torch.ones(4, 6, dtype=torch.bool))
    assert simulate(long, torch.rand(4, 6)).observations.shape == (1, 24)


def test_ssim_and_psnr_are_those_of_scikit_image() -> None:
    """Values of structural_similarity and peak_signal_noise_ratio of scikit-image 0.26."""
    i, j = torch.meshgrid(torch.arange(16.0).double(), torch.arange(12.0).double(), indexing="ij")
    truth = torch.sin(0.4 * i) + 0.5 * torch.cos(0.7 * j)
    image = truth + 0.3 * torch.cos(1.3 * i * j)
    truth, image = truth[None, None], image[None, None]
    assert float(ssim(image, truth)) == pytest.approx(0.9165490788698661, abs=1e-12)
    assert float(psnr(image, truth)) == pytest.approx(22.45102000295065, abs=1e-12)
    assert float(ssim(image, truth, data_range=2.0)) == pytest.approx(0.9147723737502896, abs=1e-12)
    assert float(ssim(truth, truth)) == 1


def test_wrong_input_is_refused() -> None:
    projector = parallel_beam(8, 3)
    image = torch.rand(1, 1, 8, 8)
    with pytest.raises(ValueError, match="`noise` of simulate must be > 0, .* got 0"):
        simulate(projector, image, noise=0)
    with pytest.raises(ValueError, match="must be square, got 8 × 9 pixels"):
        simulate(projector, torch.rand(8, 9))
    with pytest.raises(ValueError, match=r"8 × 8 pixels, .* or 16 × 16 for finer=2, got 9 × 9"):
        simulate(projector, torch.rand(9, 9))
    with pytest.raises(ValueError, match="must not be 0 everywhere"):
        simulate(projector, 0 * image)
    with pytest.raises(ValueError, match="`noise_sd` must be > 0 and finite, got 0"):
        scan_of(projector, torch.rand(39), 0.0)
    with pytest.raises(ValueError, match="must be finite, got 1 of 39"):
        scan_of(projector, torch.full((39,), 1.0).index_fill(0, torch.tensor([3]), math.nan), 1.0)
    with pytest.raises(ValueError, match=r"3 angles, 13 detector cells\), got \(3, 12\)"):
        scan_of(projector, torch.rand(3, 12), 1.0)
    with pytest.raises(ValueError, match="must be one of ram-lak, .* Did you mean 'hann'"):
        fbp(projector, torch.rand(39), "han")
    eye = LinearOperator.from_matrix(torch.eye(64), (8, 8))
    with pytest.raises(ValueError, match="fbp needs a projector"):
        fbp(eye, torch.rand(64))
    with pytest.raises(ValueError, match=r"must have shape \(..., 3 angles, 13 detector cells\)"):
        fbp(projector, torch.rand(38))
    sinogram = torch.rand(2, 3, 13)
    torch.testing.assert_close(fbp(projector, sinogram), fbp(projector, sinogram.flatten(1)))
    with pytest.raises(ValueError, match="at least 7 × 7 pixels"):
        ssim(torch.rand(1, 1, 6, 9), torch.rand(1, 1, 6, 9))
    with pytest.raises(ValueError, match="give data_range"):
        psnr(image, torch.ones_like(image))
