r"""The probabilistic deep image prior: a trained network, linearised, as a prior over its image.

Train a deep image prior (`dip.py`), linearise it (`linearised.py`), choose the hyperparameters of
its weights by the evidence (`evidence.py`, `matrix_free.py`), with or without TV-PredCP
(`tv_predcp.py`), and see how sure the image is. The mean stays the image of the network.

The variance σ̂² of the noise that the evidence chooses is compared with σ² of the scan. Were the
linear model right, then log σ̂² would be near log σ² with a standard deviation of at least 1 / √I,
I = ½ σ⁴ tr K⁻² the Fisher information. A scan's σ is hardly ever exact, and the discretisation adds
errors, so σ̂ may be up to 1.5 times σ or as much below, and a warning is given beyond

    |log σ̂² − log σ²| > 2 log 1.5 + 3.29 / √I :

for any true σ within these factors, in less than 1 of 1,000 images.

References: J. Antorán et al., A probabilistic deep image prior for computational tomography, 2022;
Uncertainty estimation for computed tomography with a linearised deep image prior, TMLR 2023.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import Config, option, rule
from polymode.core.warn import warn
from polymode.methods.laplace.linear_model import FORMS
from polymode.tomography.dip import DIPFit
from polymode.tomography.filter_prior import KINDS, FilterPrior, Hyper
from polymode.tomography.image_evidence import (
    MEANS,
    Evidence,
    Kernels,
    assemble,
    exact_posterior,
    maximise,
)
from polymode.tomography.linearised import Linearised
from polymode.tomography.matrix_free import (
    MatrixFreeEvidence,
    Solver,
    ascend,
    matheron,
    sampled_tv_predcp,
)
from polymode.tomography.reconstruction import ImagePosterior, Reconstruction
from polymode.tomography.tv_predcp import TVPredCP, tv_predcp

PATHS = ("auto", "exact", "matrix_free")
EXACT_PIXELS = 2000  # up to so many, "auto" is exact: 30 matrices of this size are 1 GB
_NEAR, _QUANTILE = 1.5, 3.29  # how far σ may be off, and of a normal beyond which 1 of 1,000 lies


class Outcome(NamedTuple):
    """The posterior of one image, with its hyperparameters.

    Attributes:
        posterior: of the image. hyper: of the weights.
        log_evidence: in nats, with TV-PredCP if it was asked for; NaN on the matrix-free path.
    """

    posterior: ImagePosterior
    hyper: Hyper
    log_evidence: float

    def reconstruction(self) -> Reconstruction:
        """Return mean, deviation and samples in the form that all other methods give."""
        posterior = self.posterior
        samples = None if posterior.deviations is None else posterior.samples()[:, None, None]
        return Reconstruction(
            posterior.image[None, None], posterior.std[None, None], samples, "linearised DIP"
        )


@dataclass(eq=False)
class LinearisedDIP(Config):
    """The linear model of one image of a trained deep image prior; kernels are made once.

    The form is f = f̂ + J (θ − θ̃), "offset", or f = J θ as in the talk, "jacobian". It matters only
    with mean="linear": the evidence at θ̃ is the same for both.
    """

    fit: DIPFit = option(
        MISSING,
        rule=rule("what `dip` returned", lambda fit: isinstance(fit, DIPFit)),
        doc="the trained networks",
    )
    image: int = option(
        0, ge=0, doc="which of their images; of several networks for it the first is taken"
    )
    form: str = option("offset", choices=FORMS, doc="of the linear model")
    path: str = option(
        "auto",
        choices=PATHS,
        doc="dense matrices of observations and pixels, products alone, or by the number of pixels",
    )
    num_samples: int = option(100, ge=2, doc="of the posterior, on the matrix-free path")
    probes: int = option(8, ge=2, doc="of a gradient, on the matrix-free path")
    steps: int = option(40, ge=1, doc="of the search for hyperparameters, at most")
    solver: Solver = option(
        Solver(),
        rule=rule("a Solver", lambda solver: isinstance(solver, Solver)),
        doc="how K⁻¹ is applied, on the matrix-free path",
    )
    seed: int = option(0, doc="of probes and samples")
    _cache: dict[str, object] = field(default_factory=dict, repr=False, init=False)

    rules = (
        rule(
            "`image` of {name} must be one of the {config.fit.num_images} that were fitted, got"
            " {config.image}",
            lambda config: config.image < config.fit.num_images,
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        scan = self.fit.scan
        self.model = Linearised(
            self.fit.stack,
            self.fit.inputs[self.image : self.image + 1],
            scan.operator,
            form=self.form,
            member=self.image * self.fit.options.networks_per_image,
        )
        self.observations = scan.observations[self.image]
        self.noise = float(scan.noise_sd[self.image]) ** 2

    @property
    def exact(self) -> bool:
        """Whether the path is the exact one."""
        if self.path == "auto":
            return self.model.operator.shape[1] <= EXACT_PIXELS
        return self.path == "exact"

    @property
    def tv_rate(self) -> float:
        """λ = γ m / (2 σ²), the rate that the training objective has as a density."""
        weight = self.fit.options.tv_weight
        return weight * len(self.observations) / (2 * self.noise)

    def uncertainty(
        self,
        *,
        prior: str = "matern",
        mean: str = "trained",
        predcp: float | None = None,
        learn_noise: bool = True,
    ) -> Outcome:
        """Return the posterior of the image, with hyperparameters that maximise the evidence.

        A warning says if the noise that the evidence chooses contradicts that of the scan.

        Args:
            prior: "matern" or "isotropic", see `filter_prior.py`.
            mean: "trained", the evidence at the trained weights θ̃; "linear", at the optimum θ* of
                the linear model.
            predcp: rate of TV-PredCP > 0, such as `tv_rate`; None is without it.
            learn_noise: whether the evidence chooses σ² too; False holds that of the scan.
        """
        self._check(prior, mean, predcp)
        model = self.model if prior == "matern" else self.model.with_prior(prior)
        start = starting_point(model.prior, model.point, self.noise)
        extra = None if predcp is None else self._predcp(model, predcp)
        if self.exact:
            kernels = self._kernels()
            if prior != "matern":
                kernels = kernels.subset(same_tap(self.model.prior))
            evidence = Evidence(model, kernels, self.observations, mean=mean, log_prior=extra)
            fitted = maximise(evidence, start, learn_noise=learn_noise, steps=self.steps)
            hyper, value = fitted.hyper, fitted.value
            posterior = exact_posterior(evidence, hyper)
            squares = hyper.noise**2 * torch.cholesky_inverse(evidence.factor(hyper)).square().sum()
        else:
            free = MatrixFreeEvidence(
                model, self.observations, mean=mean, log_prior=extra, probes=self.probes,
                solver=self.solver, seed=self.seed,
            )  # fmt: skip
            hyper = ascend(free, start, steps=self.steps, learn_noise=learn_noise)
            value, solved = float("nan"), free.solved(hyper)
            posterior = matheron(model, hyper, self.num_samples, inverse=solved, seed=self.seed)
            squares = solved.near.noise_shares().square().sum()
        if learn_noise:
            self._check_noise(hyper.noise, 0.5 * float(squares), mean)
        return Outcome(posterior, hyper, value)

    def _check(self, prior: str, mean: str, predcp: float | None) -> None:
        for name, value, choices in (("prior", prior, KINDS), ("mean", mean, MEANS)):
            if value not in choices:
                raise ValueError(f"`{name}` must be one of {', '.join(choices)}, got '{value}'")
        if predcp is None:
            return
        if not (math.isfinite(predcp) and predcp > 0):
            raise ValueError(
                f"`predcp` must be a rate > 0, got {predcp:g}; None leaves TV-PredCP out"
                + (", and tv_weight=0 has no rate" if predcp == self.tv_rate else "")
            )
        if prior != "matern":
            raise ValueError(
                f"`predcp` is a prior of the lengthscales of prior='matern', got prior='{prior}',"
                " which has none; leave one of the two out"
            )

    def _check_noise(self, chosen: float, information: float, mean: str) -> None:
        """Warn if the chosen variance of the noise contradicts that of the scan.

        Args:
            information: about log σ², of the observations.
        """
        apart = math.log(chosen / self.noise)
        most = 2 * math.log(_NEAR) + _QUANTILE / math.sqrt(information)
        if abs(apart) <= most:
            return
        hold = ", or hold the scan's noise with learn_noise=False"
        if mean == "linear" and self.form == "jacobian":  # held, it would be surer and as wrong
            cause = "J θ is another model than this network: take form='offset' or mean='trained'"
        elif apart < 0:
            cause = f"the network has fitted noise: train it with stop='discrepancy'{hold}"
        else:
            cause = f"the network does not explain the scan: train it for more steps{hold}"
        ratio, low, high = (math.exp(value / 2) for value in (apart, -most, most))
        warn(
            f"the evidence chose noise of standard deviation {chosen**0.5:.3g} for image"
            f" {self.image}, the scan has {self.noise**0.5:.3g}: {ratio:.2g} times as much, where"
            f" {low:.2g} to {high:.2g} are likely, so the deviations of pixels are doubtful;"
            f" {cause}"
        )

    def _kernels(self) -> Kernels:
        if "kernels" not in self._cache:
            self._cache["kernels"] = assemble(self.model)
        kernels = self._cache["kernels"]
        assert isinstance(kernels, Kernels)
        return kernels

    def _predcp(self, model: Linearised, rate: float) -> TVPredCP:
        if self.exact:
            return tv_predcp(model, self._kernels(), rate)
        if "predcp" not in self._cache:
            self._cache["predcp"] = sampled_tv_predcp(model, 1.0, seed=self.seed)
        penalty = self._cache["predcp"]
        assert isinstance(penalty, TVPredCP)
        return TVPredCP(penalty.prior, penalty.jumps, penalty.variances, rate)


def starting_point(prior: FilterPrior, point: Tensor, noise: float) -> Hyper:
    """Return s² of each block as the mean square of its trained weights, ℓ = 1 tap, and σ²."""
    start = prior.start(noise)
    sizes = [block.stop - block.start for block in prior.blocks]
    squares = torch.stack([part.double().square().mean() for part in point.split(sizes)])
    return start._replace(log_variance=squares.clamp(1e-5, 1e2).log())


def same_tap(prior: FilterPrior) -> list[int]:
    """Return the places of the components r = 0, which are those of the isotropic prior."""
    places, place = [], 0
    for block in prior.blocks:
        places.append(place)
        place += len(block.classes())
    return places
