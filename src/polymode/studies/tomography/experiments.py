"""Experiments of the study: images with every method, and samples of priors.

In each, γ of the total variation and the number of steps, the rate of MC dropout, the constant
variance and the rate of TV-PredCP are chosen on other images than those that are scored.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.examinations import Findings, measure
from polymode.nets import unet
from polymode.studies.tomography.images import images_of, walnut
from polymode.studies.tomography.scored import Board, pictures
from polymode.tomography import Projector, Scan, fbp, parallel_beam, psnr, simulate, ssim
from polymode.tomography.baselines import constant_sd, ensemble_dip, fitted_sd, mc_dropout_dip
from polymode.tomography.dip import DeepImagePrior, DIPFit, best_steps, deep_image_prior
from polymode.tomography.linearised_dip import LinearisedDIP
from polymode.tomography.matrix_free import Solver
from polymode.tomography.reconstruction import image_posteriors
from polymode.tomography.scores import image_noise, log_density
from polymode.tomography.tv import total_variation, tv_reconstruction
from polymode.tomography.tv_samples import factorised_samples, predcp_samples, tv_samples

VARIANTS = (
    "linear_matern_predcp", "linear_matern", "linear_isotropic",
    "trained_matern_predcp", "trained_matern", "trained_isotropic",
)  # fmt: skip

FORM = "jacobian"  # f = J θ, the talk's

TV_ALONE = (3e-4, 1e-3, 3e-3)
SMALL = 2000  # pixels up to which there is a TV reconstruction: it takes long beyond


class Tuned(NamedTuple):
    """What was chosen on other images."""

    options: DeepImagePrior
    dropout: float
    sd: float
    predcp: float  # as a multiple of λ of the training objective
    psnr: float
    tv_alone: float  # γ of the TV reconstruction


def reconstruct(
    seed: int,
    *,
    data: str = "kmnist",
    angles: int = 20,
    noise: float = 0.05,
    images: int = 10,
    tuning: int = 4,
    channels: tuple[int, ...] = (32, 32, 32),
    skips: tuple[int, ...] = (4, 4),
    sigmoid: bool = True,
    steps: int = 1500,
    lr: float = 3e-3,
    tv_weights: tuple[float, ...] = (3e-5, 3e-4),
    dropouts: tuple[float, ...] = (0.05, 0.2),
    predcp: tuple[float, ...] = (0.03, 0.3),
    networks: int = 4,
    num_samples: int = 100,
    variants: tuple[str, ...] = VARIANTS,
    hyper_steps: int = 30,
    probes: int = 6,
    rank: int = 80,
    path: str = "auto",
    show: bool = True,
) -> Findings:
    """Score every method on some images, with one geometry and noise.

    Args:
        data: see `images_of`. angles: of a parallel beam over half a turn.
        noise: standard deviation as a fraction of mean |y|.
        images, tuning: how many are scored, and how many others choices are made on.
        channels, skips, sigmoid: of the U-Net. steps: of Adam at most; as many as were best on
            the tuning images are taken. lr: of Adam.
        tv_weights, dropouts, predcp: what is tried on the tuning images; `predcp` is a multiple
            of λ = γ m / (2 σ²).
        networks: of the ensemble. num_samples: of dropout and of the matrix-free posterior.
        variants: of the linearised posterior. hyper_steps: of the search for its hyperparameters.
        probes, rank: of the matrix-free path. path: "exact", "matrix_free", or "auto": by size.
        show: whether pictures of the first image are kept.
    """
    scored, held_out = images_of(data, images, tuning)
    side = scored.shape[-1]
    operator = parallel_beam(side, angles)
    build = partial(
        unet, (1, side, side), 1, channels=tuple(channels), skips=tuple(skips), sigmoid=sigmoid
    )
    how = {
        "num_samples": num_samples, "steps": hyper_steps, "probes": probes, "seed": seed,
        "path": path, "form": FORM,
        "solver": Solver(rank=rank, relative=1e-2, most=60),
    }  # fmt: skip
    first = DeepImagePrior(steps=steps, lr=lr, look_every=max(1, steps // 15))
    methods = Methods(build, tuple(variants), networks, num_samples, how, seed)
    candidates = Candidates(tuple(tv_weights), tuple(dropouts), tuple(predcp))
    tuned = _tuned(
        simulate(operator, held_out, noise=noise, seed=seed + 1), first, candidates, methods
    )
    return _scored(simulate(operator, scored, noise=noise, seed=seed), tuned, methods, show)


class Methods(NamedTuple):
    """How images are reconstructed with uncertainty.

    Attributes:
        build: builder of the U-Net. variants: of the linearised posterior.
        networks: of the ensemble. num_samples: of dropout. linearised: options of `LinearisedDIP`.
        seed: of all of it.
    """

    build: Any
    variants: tuple[str, ...]
    networks: int
    num_samples: int
    linearised: dict[str, Any]
    seed: int

    def dropout(self, scan: Scan, options: DeepImagePrior, rate: float) -> Any:
        """Return the images of MC dropout."""
        build = partial(self.build, dropout=rate)
        return mc_dropout_dip(scan, build, options, num_samples=self.num_samples, seed=self.seed)


class Candidates(NamedTuple):
    """What is tried on the tuning images: γ, rates of dropout, multiples of λ."""

    tv_weights: tuple[float, ...]
    dropouts: tuple[float, ...]
    predcp: tuple[float, ...]


def _tuned(scan: Scan, first: DeepImagePrior, candidates: Candidates, methods: Methods) -> Tuned:
    """Return what is best on images that are not scored."""
    assert scan.truth is not None
    best: tuple[float, DeepImagePrior] | None = None
    for weight in candidates.tv_weights:
        options = replace(first, tv_weight=weight)
        fit = deep_image_prior(scan, methods.build, options, seed=methods.seed)
        errors = fit.looks[2]
        assert errors is not None
        level = float((-10 * torch.log10(errors)).mean(1).max())
        if best is None or level > best[0]:
            best = level, replace(options, steps=best_steps(fit))
    assert best is not None
    options = best[1]
    fit = deep_image_prior(scan, methods.build, options, seed=methods.seed)
    sd = fitted_sd([(fit.reconstruction(), scan.truth)])
    by_rate = {
        rate: _mean_density(image_posteriors(methods.dropout(scan, options, rate)), scan.truth)
        for rate in candidates.dropouts
    }
    by_factor = {}
    predcp = any("predcp" in variant for variant in methods.variants)
    for factor in candidates.predcp if predcp else ():
        model = LinearisedDIP(fit, 0, **methods.linearised)
        outcome = model.uncertainty(mean="linear", predcp=factor * model.tv_rate)
        by_factor[factor] = _mean_density([outcome.posterior], scan.truth)
    factor = max(by_factor, key=lambda f: by_factor[f]) if by_factor else 0.0
    dropout = max(by_rate, key=lambda rate: by_rate[rate])
    tv_psnr = {
        weight: float(psnr(_by_tv(scan, weight), scan.truth).mean())
        for weight in (TV_ALONE if scan.operator.shape[1] <= SMALL else ())
    }
    weight = max(tv_psnr, key=lambda w: tv_psnr[w]) if tv_psnr else TV_ALONE[0]
    return Tuned(options, dropout, sd, factor, best[0], weight)


def _mean_density(posteriors: list[Any], truth: Tensor) -> float:
    pairs = zip(posteriors, truth[:, 0], strict=False)
    return float(np.mean([log_density(posterior, image) for posterior, image in pairs]))


def _scored(scan: Scan, tuned: Tuned, methods: Methods, show: bool) -> Findings:
    """Return the scores of every method on the images of a scan."""
    assert scan.truth is not None
    truth = scan.truth
    fit = deep_image_prior(scan, methods.build, tuned.options, seed=methods.seed)
    plain = fit.reconstruction()
    unit = image_noise(scan.operator, 1.0)
    board = Board(plain.mean, [unit * float(sd) ** 2 for sd in scan.noise_sd])
    baselines = {
        "dropout": methods.dropout(scan, tuned.options, tuned.dropout),
        "ensemble": ensemble_dip(
            scan, methods.build, tuned.options, networks_per_image=methods.networks,
            seed=methods.seed,
        ),
        "constant": constant_sd(plain, tuned.sd),
    }  # fmt: skip
    for method, reconstruction in baselines.items():
        for posterior, image in zip(image_posteriors(reconstruction), truth[:, 0], strict=True):
            board.add(method, posterior, image)
    back = _classical(scan, tuned)
    arrays: dict[str, np.ndarray] = {}
    evidence: list[float] = []
    for k, image in enumerate(truth[:, 0]):
        model = LinearisedDIP(fit, k, **methods.linearised)
        for variant in methods.variants:
            mean, prior, *predcp = variant.split("_")
            rate = tuned.predcp * model.tv_rate if predcp else None
            outcome = model.uncertainty(prior=prior, mean=mean, predcp=rate)
            board.add(variant, outcome.posterior, image)
            if variant == methods.variants[0] and k == 0 and show:
                arrays["pictures"] = pictures(
                    image, next(iter(back.values()))[0, 0], outcome.posterior
                )
        evidence.append(model.model.tangent.closeness([fit.inputs[k : k + 1]]))
    return board.findings(_facts(fit, tuned, truth, back, evidence), arrays)


def _classical(scan: Scan, tuned: Tuned) -> dict[str, Tensor]:
    """Return FBP, where there is a projector, and the TV reconstruction of small images."""
    images = {}
    if isinstance(scan.operator, Projector):
        images["fbp"] = fbp(scan.operator, scan.observations)
    if scan.operator.shape[1] <= SMALL or not images:
        images["tv"] = _by_tv(scan, tuned.tv_alone)
    return images


def _by_tv(scan: Scan, weight: float) -> Tensor:
    return tv_reconstruction(
        scan.operator, scan.observations, tv_weight=weight, tolerance=1e-3
    ).mean


def _facts(
    fit: DIPFit, tuned: Tuned, truth: Tensor, back: dict[str, Tensor], closeness: list[float]
) -> list[Any]:
    count = len(truth)
    rows = [
        measure("weights", float(fit.stack.num_parameters), n=1),
        measure("observations", float(fit.scan.operator.num_observations), n=1),
        measure("tuned_steps", float(tuned.options.steps), n=1),
        measure("tuned_tv_weight", tuned.options.tv_weight, n=1),
        measure("tuned_dropout", tuned.dropout, n=1),
        measure("tuned_sd", tuned.sd, n=1, unit="grey value"),
        measure("tuned_predcp", tuned.predcp, n=1, unit="of λ"),
        measure("tuned_psnr", tuned.psnr, n=1, unit="dB", direction="up"),
        measure("closeness", float(np.mean(closeness)), n=count),
    ]
    for name, images in back.items():
        for metric, function, unit in (("psnr", psnr, "dB"), ("ssim", ssim, "")):
            value = float(function(images, truth).mean())
            rows.append(measure(f"{metric}_{name}", value, n=count, unit=unit, direction="up"))
    return rows


def walnut_scan(
    seed: int,
    *,
    steps: int = 1500,
    tv_weight: float = 6.5e-6,
    lr: float = 1e-4,
    channels: tuple[int, ...] = (128,) * 6,
    num_samples: int = 4096,
    hyper_steps: int = 3000,
    predcp: float = 1.0,
    dropout: float = 0.05,
    networks: int = 5,
) -> Findings:
    """Score every method on the walnut, with the reference's settings; see `images.walnut`."""
    scan = walnut()
    shape = (1, *scan.operator.image_shape)
    build: Any = partial(
        unet, shape, 1, channels=tuple(channels), skips=(0, 0, 0, 4, 4), norm="group",
        blank_skips=True,
    )  # fmt: skip
    options = DeepImagePrior(steps=steps, tv_weight=tv_weight, lr=lr)
    how = {
        "num_samples": num_samples, "steps": hyper_steps, "probes": 10, "seed": seed,
        "path": "matrix_free", "form": FORM, "solver": Solver(rank=200, relative=0.1, most=50),
    }  # fmt: skip
    tuned = Tuned(options, dropout, 1.0, predcp, float("nan"), tv_weight)
    variants = ("linear_matern_predcp", "linear_matern", "trained_matern")
    methods = Methods(build, variants, networks, num_samples, how, seed)
    return _scored(scan, tuned, methods, show=True)


def priors(
    seed: int, *, side: int = 28, rate: float = 10.0, number: int = 200, sweeps: int = 2000
) -> Findings:
    """Return samples of the total variation prior, of TV-PredCP and of independent pixels.

    All have values around ½; the two Gaussians have the variance that a pixel has under the total
    variation prior on [0, 1]. The rate λ of TV-PredCP is that for which the mean of its κ is the
    mean TV of the first.
    """
    shape = (side, side)
    total = tv_samples(shape, rate, number, sweeps=sweeps, seed=seed)
    variance = float(total.var(0).mean())
    mean_tv = float(total_variation(total[:, None]).mean())
    surrogate, lengths = predcp_samples(shape, variance, 1 / mean_tv, number, seed=seed)
    independent = factorised_samples(shape, variance, number, seed=seed)
    samples = {"TV": total, "TV-PredCP": surrogate, "factorised Gaussian": independent}
    rows = [measure("lengthscale", float(lengths.median()), n=number, unit="pixels")]
    arrays = {}
    for name, images in samples.items():
        values = total_variation(images[:, None]).double()
        key = name.lower().replace("-", "_").replace(" ", "_")
        error = float(values.std()) / number**0.5
        rows.append(measure(f"tv_{key}", float(values.mean()), n=number, standard_error=error))
        arrays[name] = images[:3].numpy()
        arrays[f"{name}: variation"] = values.numpy()
    return Findings(tuple(rows), arrays)
