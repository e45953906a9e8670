r"""Likelihoods: what the outputs of a network say about a target.

A likelihood gives outputs a meaning: how many there must be, which targets are legal, what
:math:`\log p(y \mid f(x))` is, and which distribution is predicted. It holds no tensors: what it
learns itself (a noise scale) comes in as `params`, with the leading axes of the outputs, so that
one call serves a whole stack of networks.

========================  =======  ================================================================
name                      outputs  :math:`-\log p(y \mid f)` of one example, in nats
========================  =======  ================================================================
categorical               C        :math:`\log\sum_c e^{f_c} - f_y`
bernoulli                 1        :math:`\log(1 + e^{-f})` if y = 1, else :math:`\log(1 + e^f)`
gaussian                  D        :math:`\sum_d z_d^2/2 + \log\sigma_d + \frac12\log 2\pi`
heteroscedastic_gaussian  2 D      the same, :math:`\sigma_d = s_0 + \mathrm{softplus}(f_{D+d})`
student_t                 D        :math:`\sum_d \frac{\nu+1}2\log(1+z_d^2/\nu)+\log\sigma_d-c_\nu`
laplace                   D        :math:`\sum_d |z_d| + \log 2\sigma_d`
========================  =======  ================================================================

where :math:`z_d = (y_d - f_d)/\sigma_d` and :math:`c_\nu` is `student_log_norm`. Counts are in
`counts.py`, quantile heads, which are no likelihood, in `quantiles.py`. The D outputs of a
regression are independent given x.

Shapes: outputs (..., B, K) with any leading axes, usually `M` modes; targets (B,) labels or (B, D)
values, shared by all leading axes or with leading axes of their own. `B` batch, `C` classes, `D`
target dimensions, `K` outputs. Targets are taken as `check` returns them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import shown
from polymode.core.registry import suggest
from polymode.likelihoods.base import Likelihood as Likelihood
from polymode.likelihoods.base import Params, field_names
from polymode.likelihoods.components import Categories, Components, Moments
from polymode.likelihoods.densities import (
    HALF_LOG_2PI,
    LAPLACE,
    Shape,
    log_density,
    student_log_norm,
)
from polymode.likelihoods.options import LEARNED, count, positive, scale_spec
from polymode.likelihoods.targets import align

_NO_LABEL = -(2**62)  # cross_entropy ignores a label; its default, -100, would be lost in silence
_LEAST_SQUARE = 1e-12  # networks that are given may fit all targets: noise of 0 has no logarithm
_MANY_CLASSES = 1000  # labels that are hashes or codes leave more than 999 in 1,000 classes empty
_VECTOR_WIDTH = 16  # softmax over a last axis shorter than this is not vectorised on CPU


class _Classification(Likelihood):
    classification = True
    scales_targets = False

    def num_outputs(self, target_size: int) -> int:
        return count("target_size", self, target_size, at_least=2)

    def target_size(self, targets: Tensor) -> int:
        labels = self.check(targets)
        size = max(2, int(labels.max()) + 1)
        if size > _MANY_CLASSES:
            found = len(labels.unique())
            if size > _MANY_CLASSES * found:
                raise ValueError(
                    f"Labels must number the classes 0, 1, 2, ...: the largest is {size - 1:,}, so"
                    f" a network would have {size:,} outputs for {found:,} labels that occur."
                    " Number them by torch.unique(y, return_inverse=True)[1], or give"
                    " `target_size` of Task if there are so many classes"
                )
        return size


@dataclasses.dataclass(frozen=True)
class Categorical(_Classification):
    """One of C classes; the outputs are C logits (log-probabilities up to a constant)."""

    name = "categorical"

    def log_prob(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        return -self._costs(outputs, targets)

    def nll(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        if outputs.dim() == 2 and targets.dim() == 1:
            return F.cross_entropy(outputs, targets, ignore_index=_NO_LABEL)
        return self._costs(outputs, targets).mean(-1)

    def nll_gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient is that of the mean: (probabilities − one-hot label) / B."""
        number, axis = outputs.shape[-2], -1
        logits = outputs.detach()
        if outputs.shape[-1] < _VECTOR_WIDTH:
            logits, axis = logits.mT, -2
        labels = align(targets, outputs.shape[:-1], trailing=1).unsqueeze(axis)
        gradient = logits.log_softmax(axis)
        losses = gradient.gather(axis, labels).sum((-2, -1)) / -number
        ones = gradient.new_ones(()).expand(labels.shape)
        gradient = gradient.exp_().scatter_add_(axis, labels, -ones).div_(number)
        return losses, gradient.mT if axis == -2 else gradient

    def components(self, outputs: Tensor, params: Params) -> Categories:
        log_probs = _log_softmax(outputs)
        return Categories(log_probs, outputs[..., 0] - log_probs[..., 0])

    def _costs(self, outputs: Tensor, targets: Tensor) -> Tensor:
        targets = align(targets, outputs.shape[:-1], trailing=1)
        if outputs.dim() == 2:
            logits, labels = outputs, targets
        elif outputs.shape[-1] < _VECTOR_WIDTH:  # as (M, C, B), so that B is vectorised over
            logits, labels = outputs.flatten(0, -3).transpose(-1, -2), targets.flatten(0, -2)
        else:
            logits, labels = outputs.flatten(0, -2), targets.flatten()
        costs = F.cross_entropy(logits, labels, reduction="none", ignore_index=_NO_LABEL)
        return costs.view(targets.shape)


def _log_softmax(outputs: Tensor) -> Tensor:
    """Return outputs (..., B, C) less their log-sum-exp over classes.

    For few classes torch is up to 26 times faster over the last axis but one, where it vectorises
    over B. The result has classes last in memory, however the outputs lay: sums over it then have
    the same bits, wherever the outputs came from.
    """
    if outputs.dim() > 1 and outputs.shape[-1] < _VECTOR_WIDTH:
        return outputs.transpose(-1, -2).log_softmax(-2).transpose(-1, -2).contiguous()
    return outputs.log_softmax(-1)


@dataclasses.dataclass(frozen=True)
class Bernoulli(_Classification):
    """One of two classes from one output, the logit of class 1; predicts `Categories`, C = 2."""

    name = "bernoulli"

    def num_outputs(self, target_size: int) -> int:
        if super().num_outputs(target_size) != 2:
            raise ValueError(f"Bernoulli has 2 classes, got {target_size}. Use Categorical.")
        return 1

    def check(self, targets: Tensor, target_size: int | None = None) -> Tensor:
        if target_size is not None:
            self.num_outputs(target_size)
        return super().check(targets, 2)

    def log_prob(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        logits = _single_output(outputs)
        targets = align(targets, logits.shape, trailing=1)
        return F.logsigmoid(torch.where(targets > 0, logits, -logits))

    def components(self, outputs: Tensor, params: Params) -> Categories:
        logits = _single_output(outputs)
        return Categories(F.logsigmoid(torch.stack([-logits, logits], -1)))


class _Regression(Likelihood):
    classification = False

    def num_outputs(self, target_size: int) -> int:
        return count("target_size", self, target_size, at_least=1)

    def target_size(self, targets: Tensor) -> int:
        return self.check(targets).shape[-1]


class _SharedScale(_Regression):
    """A regression whose scale is the same at all inputs: known, or learned by each member."""

    _field: ClassVar[str]

    @property
    def _spec(self) -> float | tuple[float, ...] | str:
        return getattr(self, self._field)

    @property
    def _df(self) -> Shape:
        return None

    def num_outputs(self, target_size: int) -> int:
        size = super().num_outputs(target_size)
        if isinstance(self._spec, tuple) and len(self._spec) != size:
            raise ValueError(
                f"`{self._field}` of {type(self).__name__} has {len(self._spec)} value(s)"
                f" for {size} target dimension(s)."
            )
        return size

    def check(self, targets: Tensor, target_size: int | None = None) -> Tensor:
        values = super().check(targets, target_size)
        self.num_outputs(values.shape[-1])
        return values

    @property
    def learns(self) -> bool:
        return self._spec in LEARNED

    def init(
        self,
        num_modes: int,
        target_size: int,
        dtype: torch.dtype = torch.float32,
        spread: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return log-scales, (M,) or (M, D), of noise as large as `spread`."""
        super().init(num_modes, target_size, dtype)
        if not self.learns:
            return {}
        square = torch.ones(num_modes, target_size) if spread is None else spread.square()
        square = square.mean(1) if self._spec == "learned" else square
        return {f"log_{self._field}": 0.5 * square.clamp_min(_LEAST_SQUARE).log().to(dtype)}

    def scaled(self, scale: Tensor, target_size: int) -> Likelihood:
        """Return the likelihood of targets that are divided by `scale`; known noise is, too."""
        if self.learns:
            return self
        noise = torch.tensor(self._spec, dtype=torch.float64) / scale.double().cpu()
        values = tuple(noise.expand(target_size).tolist())
        same = len(set(values)) == 1
        return dataclasses.replace(self, **{self._field: values[0] if same else values})  # type: ignore[type-var]

    def log_prob(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        costs, constant = self._costs(outputs, targets, params)
        if isinstance(constant, Tensor):
            constant = constant.unsqueeze(-1)
        return -(costs.sum(-1) + constant)

    def nll(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        costs, constant = self._costs(outputs, targets, params)
        return costs.sum((-2, -1)) / outputs.shape[-2] + constant

    def components(self, outputs: Tensor, params: Params) -> Components:
        log_scale = self._log_scale(outputs, params)
        if self._spec in LEARNED:
            log_scale = log_scale.unsqueeze(-2)
        return Components(outputs, log_scale.exp().expand_as(outputs), self._df)

    def _costs(
        self, outputs: Tensor, targets: Tensor, params: Params
    ) -> tuple[Tensor, Tensor | float]:
        """Return what depends on the example, (..., B, D), and what does not, () or (...)."""
        df, size = self._df, outputs.shape[-1]
        errors = outputs - align(targets, outputs.shape, trailing=2)
        if isinstance(df, str):
            factor, constant = 1.0, size * math.log(2.0)
        else:
            factor = math.sqrt(0.5) if df is None else df**-0.5
            constant = size * (HALF_LOG_2PI if df is None else -student_log_norm(df))
        if isinstance(self._spec, float):  # no tensor is made for a known scale
            z = errors * (factor / self._spec)
            total: Tensor | float = size * math.log(self._spec) + constant
        else:
            log_scale = self._log_scale(outputs, params)
            inverse = (-log_scale).exp() * factor
            z = errors * inverse.unsqueeze(-2)
            total = log_scale.expand(*log_scale.shape[:-1], size).sum(-1) + constant
        if isinstance(df, str):
            return z.abs(), total
        squares = z.square()
        return squares if df is None else torch.log1p(squares) * (0.5 * (df + 1.0)), total

    def _log_scale(self, like: Tensor, params: Params) -> Tensor:
        """Return the log-scale, (D,) or (1,) if known, else (..., D) or (..., 1)."""
        spec, key = self._spec, f"log_{self._field}"
        if not isinstance(spec, str):
            values = spec if isinstance(spec, tuple) else (spec,)
            logs = [math.log(value) for value in values]
            return torch.tensor(logs, dtype=like.dtype, device=like.device)
        if key not in params:
            raise ValueError(f"{self} needs params['{key}'], see `init`; got {sorted(params)}.")
        log_scale = params[key].unsqueeze(-1) if spec == "learned" else params[key]
        if log_scale.dim() != like.dim() - 1:  # (M,) would broadcast to the L of (M, L, B, D)
            need, got = tuple(like.shape[:-2]), tuple(log_scale.shape[:-1])
            raise ValueError(
                f"params['{key}'] must have as many leading axes as outputs, {need}, got {got}"
            )
        return log_scale


@dataclasses.dataclass(frozen=True)
class Gaussian(_SharedScale):
    """Gaussian noise of one size at all inputs; the outputs are the means.

    Args:
        noise: standard deviation in units of the targets: a number > 0 or a tuple of D numbers if
            known; "learned" for one `log_noise` a member, "learned_per_output" for D of them. No
            default: the noise sets how far data outweigh the prior, so all posteriors hang on it.
    """

    noise: float | tuple[float, ...] | str | None = None
    name = "gaussian"
    _field = "noise"

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", scale_spec("noise", self, self.noise))

    def closed(self, moments: Moments, params: Params) -> Components:
        r"""Return N(:math:`\mu, \sigma^2 + v`), :math:`v / (\sigma^2 + v)` of it from the weights.

        Exact for each output. Outputs stay independent within a mode, as in all `Components`:
        covariances between them have no effect, and a joint density of several is then not exact.
        """
        noise = self.components(moments.loc, params).scale.square()
        total = noise + moments.variance
        below_one = 1.0 - torch.finfo(total.dtype).eps  # what rounds to 1 would leave no noise
        share = (moments.variance / total).clamp(max=below_one)
        return Components(moments.loc, total.sqrt(), None, share)


@dataclasses.dataclass(frozen=True)
class StudentT(_SharedScale):
    """Heavy-tailed noise of one size at all inputs; the outputs are the locations.

    Args:
        df: degrees of freedom > 0. The variance is infinite for df <= 2, the mean undefined for
            df <= 1: predictions then say inf and NaN; use their quantiles.
        scale: as `noise` of `Gaussian`; the standard deviation is scale * sqrt(df / (df - 2)).
    """

    df: float | None = None
    scale: float | tuple[float, ...] | str | None = None
    name = "student_t"
    _field = "scale"

    def __post_init__(self) -> None:
        if self.df is None:
            raise ValueError("`df` of StudentT must be chosen: a number > 0, such as 4.0.")
        object.__setattr__(self, "df", positive("df", self, self.df))
        object.__setattr__(self, "scale", scale_spec("scale", self, self.scale))

    @property
    def _df(self) -> Shape:
        return self.df


@dataclasses.dataclass(frozen=True)
class Laplace(_SharedScale):
    """Laplace noise of one size at all inputs; the outputs are the locations, medians of y.

    Its mode minimises absolute errors. Laplace's approximation takes the Fisher information
    1 / scale², since the Hessian is 0 almost everywhere.

    Args:
        scale: as `noise` of `Gaussian`; the mean absolute deviation, the standard deviation over
            the root of 2.
    """

    scale: float | tuple[float, ...] | str = "learned"
    name = "laplace"
    _field = "scale"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", scale_spec("scale", self, self.scale))

    @property
    def _df(self) -> Shape:
        return LAPLACE


@dataclasses.dataclass(frozen=True)
class HeteroscedasticGaussian(_Regression):
    """Gaussian noise that depends on the input; the outputs are D means, then D raw scales.

    The scale is `min_scale` + softplus(raw). A trap: the gradient of a mean is divided by its
    variance, so what fits badly early on may be declared noise and never be fitted.

    Args:
        min_scale: smallest standard deviation > 0; it bounds the density. In units of the targets
            as they are trained on, scaled ones where `Task` scales them.
    """

    min_scale: float = 1e-3
    name = "heteroscedastic_gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_scale", positive("min_scale", self, self.min_scale))

    def num_outputs(self, target_size: int) -> int:
        return 2 * super().num_outputs(target_size)

    def log_prob(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        loc, scale, *_ = self.components(outputs, params)
        return log_density(align(targets, loc.shape, trailing=2), loc, scale, None).sum(-1)

    def components(self, outputs: Tensor, params: Params) -> Components:
        if outputs.shape[-1] % 2:
            raise ValueError(
                "HeteroscedasticGaussian needs 2 outputs per target dimension (means, then raw"
                f" scales), got {outputs.shape[-1]}."
            )
        loc, raw = outputs.chunk(2, -1)
        return Components(loc, F.softplus(raw) + self.min_scale, None)


LIKELIHOODS: dict[str, type[Likelihood]] = {
    cls.name: cls
    for cls in (Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian, StudentT, Laplace)
}


def as_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood itself, or the one of that name if nothing is left to choose.

    >>> as_likelihood("categorical")
    Categorical()
    """
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, str):
        return likelihood_from_config({"name": likelihood})
    raise ValueError(
        "`likelihood` must be a name or a Likelihood object such as Gaussian(noise=0.1),"
        f" got {shown(likelihood)}"
    )


def likelihood_from_config(config: Mapping[str, Any]) -> Likelihood:
    """Return the likelihood that `to_config` described."""
    fields = dict(config)
    name = fields.pop("name", None)
    if name not in LIKELIHOODS:
        near = suggest(str(name), LIKELIHOODS)
        raise ValueError(f"Unknown likelihood {name!r}.{near} Known: {', '.join(LIKELIHOODS)}.")
    names = field_names(LIKELIHOODS[name])
    for field in fields.keys() - set(names):
        near = suggest(field, names)
        raise ValueError(f"Likelihood '{name}' has no field '{field}'.{near} Known: {names}.")
    return LIKELIHOODS[name].from_config(fields)


def _single_output(outputs: Tensor) -> Tensor:
    if outputs.shape[-1] != 1:
        raise ValueError(
            f"Bernoulli needs 1 network output, got {outputs.shape[-1]}."
            " Use Categorical for the logits of several classes."
        )
    return outputs.squeeze(-1)
