"""The deep image prior: against a plain loop of torch, stopping, resuming; and its baselines."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from polymode.core.safe_files import FileProblem
from polymode.nets import unet
from polymode.stack.stack import Stack
from polymode.tomography import (
    DeepImagePrior,
    LinearOperator,
    Reconstruction,
    Scan,
    best_steps,
    constant_sd,
    deep_image_prior,
    ensemble_dip,
    fbp,
    fitted_sd,
    inpainting,
    mc_dropout_dip,
    parallel_beam,
    psnr,
    simulate,
)
from polymode.tomography import dip as dip_module

SIDE = 12
small = partial(unet, (1, SIDE, SIDE), 1, channels=(8, 8), skips=(2,), sigmoid=True)


def squares(number: int) -> Tensor:
    images = torch.zeros(number, 1, SIDE, SIDE)
    for k in range(number):
        images[k, 0, 3 : 9 - k, 2 + k : 8] = 0.8
        images[k, 0, 5, 4:6] = 0.3
    return images


def scans(number: int = 2, noise: float = 0.05) -> Scan:
    return simulate(parallel_beam(SIDE, 10), squares(number), noise=noise, seed=1)


def test_stack_takes_the_steps_of_a_plain_loop() -> None:
    """The same networks one after the other, with torch's own Adam and clipping; least loss kept.

    In float64 both differ by rounding only, which 15 steps do not amplify beyond 1e-6."""
    scan = scans()
    scan = scan._replace(observations=scan.observations.double(), truth=scan.truth.double())
    nets = Stack(small, 2, seed=4, dtype=torch.float64).members()
    start = [{k: v.clone() for k, v in net.state_dict().items()} for net in nets]
    options = DeepImagePrior(steps=15, tv_weight=1e-3, lr=2e-3, clip_norm=0.5)
    fit = deep_image_prior(scan, nets, options)
    inputs = fbp(scan.operator, scan.observations)
    for k, net in enumerate(nets):
        net.load_state_dict(start[k])
        adam, seen = torch.optim.Adam(net.parameters(), lr=2e-3), []
        for _ in range(15):
            image = net(inputs[k : k + 1])
            misfit = (scan.operator(image)[0] - scan.observations[k]).square().mean()
            x = image[0, 0]
            loss = misfit + 1e-3 * (x.diff(dim=0).abs().sum() + x.diff(dim=1).abs().sum())
            seen.append((loss.item(), image.detach()))
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            adam.step()
        best = min(range(15), key=lambda i: seen[i][0])
        assert int(fit.steps[k]) == best
        assert float(fit.losses[k]) == pytest.approx(seen[best][0], rel=1e-6)
        mean = fit.reconstruction().mean[k : k + 1]
        torch.testing.assert_close(mean, seen[best][1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(fit.network(k)(inputs[k : k + 1]), mean)


@pytest.mark.cpu_seconds(6)
def test_discrepancy_stops_at_the_noise_and_helps() -> None:
    scan = scans(noise=0.1)
    options = DeepImagePrior(steps=400, lr=5e-3, stop="discrepancy", discrepancy=1.2, look_every=5)
    fit = deep_image_prior(scan, small, options)
    residuals = (scan.operator(fit.images()[0]) - scan.observations).square().mean(-1)
    assert torch.all(residuals <= 1.2 * scan.noise_sd**2)
    steps, seen, errors = fit.looks
    for k in range(2):
        first = int(torch.nonzero(seen[:, k] <= 1.2 * float(scan.noise_sd[k]) ** 2)[0])
        assert int(fit.steps[k]) == int(steps[first]) <= fit.steps_run < 400
    assert torch.all(
        psnr(fit.reconstruction().mean, scan.truth)
        > psnr(fbp(scan.operator, scan.observations), scan.truth) + 3
    )
    assert errors.shape == seen.shape
    at_best = errors[steps.tolist().index(best_steps(fit))]
    assert at_best.log().mean() == errors.log().mean(1).min()
    with pytest.warns(UserWarning, match="2 of 2 networks did not come down"):
        deep_image_prior(scan, small, DeepImagePrior(steps=2, stop="discrepancy"))


def test_interrupted_training_resumes_to_the_same_bits(tmp_path, monkeypatch) -> None:
    scan, options = scans(), DeepImagePrior(steps=12, look_every=4, tv_weight=1e-3)
    whole = deep_image_prior(scan, small, options, seed=3)
    plain_step, calls = dip_module.step, []

    def broken(*arguments):
        calls.append(1)
        if len(calls) == 8:
            raise RuntimeError("power cut")
        return plain_step(*arguments)

    monkeypatch.setattr(dip_module, "step", broken)
    with pytest.raises(RuntimeError, match="power cut"):
        deep_image_prior(scan, small, options, seed=3, checkpoint=tmp_path, checkpoint_seconds=0)
    with pytest.raises(FileProblem, match="seed was 3, is 4"):
        deep_image_prior(scan, small, options, seed=4, checkpoint=tmp_path)
    monkeypatch.setattr(dip_module, "step", plain_step)
    again = deep_image_prior(scan, small, options, seed=3, checkpoint=tmp_path)
    for name, tensor in whole.stack.tensors().items():
        assert torch.equal(tensor, again.stack.tensors()[name]), name
    assert all(torch.equal(a, b) for a, b in zip(whole.looks, again.looks, strict=True))
    assert torch.equal(whole.steps, again.steps)


def test_any_operator_plugs_in() -> None:
    """A picture with half of its pixels; the input is noise, the same for the same seed."""
    mask = torch.arange(SIDE * SIDE).reshape(SIDE, SIDE) % 2 == 0
    scan = simulate(inpainting(mask), squares(1), noise=0.05)
    options = DeepImagePrior(steps=3)
    fit, same = (deep_image_prior(scan, small, options, seed=5) for _ in range(2))
    assert fit.inputs.shape == (1, 1, SIDE, SIDE) and torch.equal(fit.inputs, same.inputs)
    assert torch.equal(fit.images(), same.images())
    assert fit.reconstruction().mean.shape == (1, 1, SIDE, SIDE)


def test_baselines_have_one_form() -> None:
    scan, options = scans(), DeepImagePrior(steps=10)
    shape = (2, 1, SIDE, SIDE)
    dropped = mc_dropout_dip(scan, partial(small, dropout=0.2), options, num_samples=7)
    several = ensemble_dip(scan, small, options, networks_per_image=3)
    for found, number in ((dropped, 7), (several, 3)):
        assert isinstance(found, Reconstruction)
        assert found.mean.shape == found.sd.shape == shape
        assert found.samples.shape == (number, *shape)
        torch.testing.assert_close(found.sd, found.samples.std(0))
        assert float(found.sd.min()) > 0
        assert found.samples.unique(dim=0).shape[0] == number
    plain = deep_image_prior(scan, small, options).reconstruction()
    sd = fitted_sd([(plain, scan.truth)])
    assert sd == pytest.approx(float((plain.mean - scan.truth).square().mean().sqrt()), rel=1e-6)
    constant = constant_sd(plain, sd)
    assert torch.equal(constant.mean, plain.mean) and float(constant.sd.max()) == pytest.approx(sd)


def test_noise_of_dropout_has_its_variance() -> None:
    """Outputs x z / (1 - p) with z ~ Bernoulli(1 - p): for p = 1/2 the variance is x², and s² / x²
    of 200 samples has mean 1 and deviation 0.007: 0.005 are 8 standard errors of a mean of 144.
    """

    def net() -> nn.Module:
        one = nn.Conv2d(1, 1, 1, bias=False)
        nn.init.ones_(one.weight)
        return nn.Sequential(one, nn.Dropout(0.5))

    scan, options = scans(1), DeepImagePrior(steps=1)
    found = mc_dropout_dip(scan, net, options, num_samples=200, seed=2)
    inputs = fbp(scan.operator, scan.observations)
    assert float((found.sd / inputs).square().mean()) == pytest.approx(1, abs=0.005)
    assert set((found.samples[0] / inputs).round(decimals=4).flatten().tolist()) == {0.0, 2.0}


def test_first_network_of_an_ensemble_is_not_that_of_the_next_image() -> None:
    """Members are image by image: image k has networks k E to (k + 1) E - 1."""
    scan, options = scans(), DeepImagePrior(steps=3, networks_per_image=2)
    fit = deep_image_prior(scan, small, options)
    images = fit.images()
    for k in range(2):
        for e in range(2):
            found = fit.network(k, e)(fit.inputs[k : k + 1])
            torch.testing.assert_close(found, images[e, k : k + 1])
    assert fit.steps.shape == (4,)


def test_wrong_input_is_refused() -> None:
    scan = scans()
    for name, value in (("steps", 0), ("tv_weight", -1.0), ("lr", 0.0), ("discrepancy", 0.0)):
        with pytest.raises(ValueError, match=f"`{name}` of .* must be"):
            DeepImagePrior(**{name: value})
    with pytest.raises(ValueError, match="`stop` of DeepImagePrior must be one of"):
        DeepImagePrior(stop="never")
    with pytest.raises(ValueError, match=r"must map an image \(1, 1, 12, 12\)"):
        deep_image_prior(scan, lambda: nn.Conv2d(1, 1, 3))
    with pytest.raises(ValueError, match="a network for each of 2 members .* got 1"):
        deep_image_prior(scan, [small()])
    with pytest.raises(ValueError, match="must be finite, got 1 of"):
        broken = scan.observations.clone()
        broken[0, 3] = torch.nan
        deep_image_prior(scan._replace(observations=broken), small)
    with pytest.raises(ValueError, match="a pass of this UNet draws nothing"):
        mc_dropout_dip(scan, small, DeepImagePrior(steps=1))
    with pytest.raises(ValueError, match="must be at least 2, one has no spread, got 1"):
        ensemble_dip(scan, small, networks_per_image=1)
    with pytest.raises(ValueError, match="`sd` of constant_sd must be > 0, got 0"):
        constant_sd(Reconstruction(scan.truth), 0.0)
    eye = LinearOperator.from_matrix(torch.eye(SIDE**2), (SIDE, SIDE))
    with pytest.raises(ValueError, match="fbp needs a projector"):
        deep_image_prior(
            Scan(eye, torch.rand(1, SIDE**2), torch.ones(1)), small, DeepImagePrior(input="fbp")
        )
