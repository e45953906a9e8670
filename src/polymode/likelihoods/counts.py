r"""Likelihoods of counts 0, 1, 2, ...: the outputs are logarithms of the expected counts.

=================  =======  =======================================================================
name               outputs  :math:`-\log p(y \mid f)` of one count, in nats, :math:`\mu = e^f`
=================  =======  =======================================================================
poisson            D        :math:`\mu - y f + \log y!`
negative_binomial  D        :math:`\log\frac{\Gamma(r)\,y!}{\Gamma(y + r)} + r\log\frac{r+\mu}{r}
                            + y\log\frac{r+\mu}{\mu}`
=================  =======  =======================================================================

The variance is :math:`\mu` of a Poisson count, and :math:`\mu + \mu^2/r` of a negative binomial
one: with the dispersion :math:`r \to \infty` it becomes the former. Counts are never shifted or
scaled for training. A network starts near :math:`\mu = 1`: where counts are in the thousands, give
it a few epochs more, or count in larger units.

The Fisher information in an output, which Laplace's approximation takes, is :math:`\mu` (where it
is the Hessian as well) and :math:`\mu r / (\mu + r)`.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.likelihoods.base import Likelihood, Params
from polymode.likelihoods.components import Counts
from polymode.likelihoods.kinds import LIKELIHOODS
from polymode.likelihoods.options import LEARNED, count, scale_spec
from polymode.likelihoods.targets import align


class _Count(Likelihood):
    classification = False
    scales_targets = False

    def num_outputs(self, target_size: int) -> int:
        return count("target_size", self, target_size, at_least=1)

    def target_size(self, targets: Tensor) -> int:
        return self.check(targets).shape[-1]

    def check(self, targets: Tensor, target_size: int | None = None) -> Tensor:
        """Return counts (N, D) as floats, or say which row is no count."""
        values = super().check(targets, target_size)
        wrong = ((values < 0) | (values != values.round())).any(-1)
        if wrong.any():
            row = int(wrong.int().argmax())
            raise ValueError(
                f"Targets of {type(self).__name__} must be counts 0, 1, 2, ..., got"
                f" {values[row].tolist()} in row {row} ({int(wrong.sum())} of {len(values)} rows"
                " are not); for other values choose 'gaussian' or another regression likelihood"
            )
        self.num_outputs(values.shape[-1])
        return values

    def squared_errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.double().exp() - targets).square().sum(-2)


@dataclasses.dataclass(frozen=True)
class Poisson(_Count):
    """Counts whose variance is their mean; the outputs are the logarithms of the means."""

    name = "poisson"

    def log_prob(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        y = align(targets, outputs.shape, trailing=2)
        return (y * outputs - outputs.exp() - torch.lgamma(y + 1.0)).sum(-1)

    def components(self, outputs: Tensor, params: Params) -> Counts:
        return Counts(outputs.exp())


@dataclasses.dataclass(frozen=True)
class NegativeBinomial(_Count):
    """Counts that vary more than Poisson ones; the outputs are the logarithms of the means.

    Args:
        dispersion: r of the variance mean + mean² / r: a number > 0 or a tuple of D numbers if
            known; "learned" for one `log_dispersion` a member, "learned_per_output" for D of them.
            Learned ones start at 1.
    """

    dispersion: float | tuple[float, ...] | str = "learned"
    name = "negative_binomial"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dispersion", scale_spec("dispersion", self, self.dispersion))

    @property
    def learns(self) -> bool:
        return self.dispersion in LEARNED

    def num_outputs(self, target_size: int) -> int:
        size = super().num_outputs(target_size)
        if isinstance(self.dispersion, tuple) and len(self.dispersion) != size:
            raise ValueError(
                f"`dispersion` of NegativeBinomial has {len(self.dispersion)} value(s) for {size}"
                " target dimension(s)."
            )
        return size

    def init(
        self,
        num_modes: int,
        target_size: int,
        dtype: torch.dtype = torch.float32,
        spread: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return log-dispersions of 0, (M,) or (M, D)."""
        super().init(num_modes, target_size, dtype)
        if not self.learns:
            return {}
        sizes = (num_modes,) if self.dispersion == "learned" else (num_modes, target_size)
        return {"log_dispersion": torch.zeros(sizes, dtype=dtype)}

    def log_prob(self, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
        y, log_r = align(targets, outputs.shape, trailing=2), self._log_dispersion(outputs, params)
        r, wide = log_r.double().exp(), y.double()  # in float32 the two lgammas lose all digits
        ways = torch.lgamma(wide + r) - torch.lgamma(r) - torch.lgamma(wide + 1.0)
        odds = outputs - log_r
        failures = (log_r.exp() * F.softplus(odds)).to(outputs.dtype)
        return (ways.to(outputs.dtype) - failures - y * F.softplus(-odds)).sum(-1)

    def components(self, outputs: Tensor, params: Params) -> Counts:
        log_r = self._log_dispersion(outputs, params)
        return Counts(outputs.exp(), log_r.exp().expand_as(outputs))

    def _log_dispersion(self, outputs: Tensor, params: Params) -> Tensor:
        """Return log r that broadcasts with outputs (..., B, D)."""
        spec = self.dispersion
        if not isinstance(spec, str):
            logs = [math.log(value) for value in (spec if isinstance(spec, tuple) else (spec,))]
            return torch.tensor(logs, dtype=outputs.dtype, device=outputs.device)
        if "log_dispersion" not in params:
            raise ValueError(
                f"{self} needs params['log_dispersion'], see `init`; got {sorted(params)}."
            )
        log_r = params["log_dispersion"]
        log_r = log_r.unsqueeze(-1) if spec == "learned" else log_r
        if log_r.dim() != outputs.dim() - 1:
            need, got = tuple(outputs.shape[:-2]), tuple(log_r.shape[:-1])
            raise ValueError(
                "params['log_dispersion'] must have as many leading axes as outputs, "
                f"{need}, got {got}"
            )
        return log_r.unsqueeze(-2)


LIKELIHOODS.update({cls.name: cls for cls in (Poisson, NegativeBinomial)})
