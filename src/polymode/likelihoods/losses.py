r"""Losses that networks are often trained by, and that are not a likelihood.

===================  ======================================================================
name                 what is minimised for one example, in the place of :math:`-\log p(y \mid f)`
===================  ======================================================================
label_smoothing      :math:`-(1 - \epsilon) \log p_y - \frac\epsilon C \sum_c \log p_c`
focal                :math:`-(1 - p_y)^\gamma \log p_y`
beta_nll             :math:`\sum_d \lfloor\sigma_d^2\rfloor^\beta\,(-\log N(y_d; f_d, \sigma_d^2))`,
                     no gradient passing through :math:`\lfloor\cdot\rfloor`
===================  ======================================================================

Only training differs: outputs mean what they mean under the likelihood that the loss departs from,
`log_prob` is that likelihood's, and so are predictions and scores. But no posterior has these
losses as its log-density: :math:`e^{-\ell}` is not a distribution of y, label smoothing's optimum
is not the label's probability, and the gradient of :math:`\beta`-NLL is that of no function.
Networks trained by them are point estimates. Methods that sample or approximate a posterior warn
that their target is another, those that need its curvature refuse. `C` classes.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from polymode.core.checks import is_number, shown
from polymode.likelihoods.base import Likelihood, Params
from polymode.likelihoods.densities import log_density
from polymode.likelihoods.kinds import LIKELIHOODS, Categorical, HeteroscedasticGaussian
from polymode.likelihoods.targets import align


class _ClassLoss(Categorical):
    """Classes whose training does not minimise the NLL: without the short cuts of that."""

    def nll(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        return Likelihood.nll(self, outputs, targets, params)

    def nll_gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return Likelihood.nll_gradient(self, outputs, targets)


@dataclasses.dataclass(frozen=True)
class LabelSmoothing(_ClassLoss):
    """Classes, trained as if each label were another class with a small probability.

    Args:
        smoothing: ε in (0, 1), shared by all C classes, the label's among them.

    Reference: C. Szegedy et al., Rethinking the Inception architecture for computer vision, CVPR
    2016, section 7; R. Müller, S. Kornblith, G. Hinton, When does label smoothing help?, NeurIPS
    2019.
    """

    smoothing: float = 0.1
    name = "label_smoothing"

    def __post_init__(self) -> None:
        _require(
            "smoothing", self, self.smoothing, 0.0 < _number(self.smoothing) < 1.0, "in (0, 1)"
        )

    @property
    def departure(self) -> str:
        return "label smoothing trains towards labels that are not those of the data"

    def losses(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        labels = align(targets, outputs.shape[:-1], trailing=1).unsqueeze(-1)
        logs = outputs.log_softmax(-1)
        of_label = logs.gather(-1, labels).squeeze(-1)
        return -(1.0 - self.smoothing) * of_label - self.smoothing * logs.mean(-1)


@dataclasses.dataclass(frozen=True)
class FocalLoss(_ClassLoss):
    """Classes, trained with less weight on examples that are right already.

    Args:
        gamma: γ > 0; 0 would be the NLL.

    Reference: T.-Y. Lin et al., Focal loss for dense object detection, ICCV 2017; J. Mukhoti et
    al., Calibrating deep neural networks using focal loss, NeurIPS 2020.
    """

    gamma: float = 2.0
    name = "focal"

    def __post_init__(self) -> None:
        _require("gamma", self, self.gamma, 0.0 < _number(self.gamma) < float("inf"), "> 0")

    @property
    def departure(self) -> str:
        return "the focal loss weighs examples by what the network says of them"

    def losses(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        labels = align(targets, outputs.shape[:-1], trailing=1).unsqueeze(-1)
        logs = outputs.log_softmax(-1).gather(-1, labels).squeeze(-1)
        wrong = (-logs.clamp(max=-1e-12).expm1()).pow(
            self.gamma
        )  # bounded: a power has slope ∞ at 0
        return -wrong * logs


@dataclasses.dataclass(frozen=True)
class BetaNLL(HeteroscedasticGaussian):
    """Heteroscedastic noise, trained so that large predicted noise does not hide an example.

    Args:
        min_scale: as of `HeteroscedasticGaussian`.
        beta: β in (0, 1]; 0 would be the NLL, at 1 the means are trained as by squared errors.

    Reference: M. Seitzer, A. Tavakoli, D. Antic, G. Martius, On the pitfalls of heteroscedastic
    uncertainty estimation with probabilistic neural networks, ICLR 2022.
    """

    beta: float = 0.5
    name = "beta_nll"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("beta", self, self.beta, 0.0 < _number(self.beta) <= 1.0, "in (0, 1]")

    @property
    def departure(self) -> str:
        return "beta-NLL weighs examples by the noise that is predicted for them"

    def losses(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        loc, scale, *_ = self.components(outputs, params)
        logs = log_density(align(targets, loc.shape, trailing=2), loc, scale, None)
        return -(scale.detach() ** (2.0 * self.beta) * logs).sum(-1)


LIKELIHOODS.update({cls.name: cls for cls in (LabelSmoothing, FocalLoss, BetaNLL)})


def _number(value: object) -> float:
    return float(value) if is_number(value) else float("nan")  # type: ignore[arg-type]


def _require(field: str, owner: object, value: object, legal: bool, range_: str) -> None:
    if not legal:
        name = type(owner).__name__
        raise ValueError(f"`{field}` of {name} must be a number {range_}, got {shown(value)}")
