r"""Sparsification: how the error falls when the most uncertain examples are removed first.

With squared errors :math:`e_n` in order of increasing uncertainty, the error left when k of B
examples are removed, in multiples of the error of all, is

.. math:: r(k/B) = \frac{\frac{1}{B-k}\sum_{n \le B-k} e_n}{\frac1B\sum_n e_n}, \qquad k < B,

and AUSE is the area between this curve and that of the oracle, which removes by the error itself.
`B` batch, `D` outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.metrics.regression import check_pair, check_variance
from polymode.metrics.score import REGRESSION, NotDefined, Score, register
from polymode.prediction import Prediction


class Sparsification(NamedTuple):
    """Curves of the remaining error, float64; 1 throughout if removal is random.

    Attributes:
        removed: (B,) share of examples removed, 0 to 1 - 1/B.
        error: (B,) mean error of the remaining examples over that of all, most uncertain first.
        oracle: (B,) the same with the largest error removed first: no order is below.
        area: between `error` and `oracle`: AUSE.
        area_random: between 1 and `oracle`: the area of an uninformative uncertainty, on average
            over random orders, and exactly if it is constant.
    """

    removed: Tensor
    error: Tensor
    oracle: Tensor
    area: float
    area_random: float


def sparsification(uncertainty: OnlyTensor, error: OnlyTensor) -> Sparsification:
    """Return the curves of any error under any uncertainty.

    Examples of equal uncertainty count with their mean error, the expectation over their orders, so
    the order of the arguments does not matter. Not defined (`NotDefined`) for fewer than 2
    examples, or if every error is zero.

    Args:
        uncertainty: (B,) numbers, highest for the examples to remove first; inf is allowed.
        error: (B,) finite numbers >= 0.

    >>> curve = sparsification(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))
    >>> curve.error.tolist(), curve.oracle.tolist()
    ([1.0, 1.0, 0.5], [1.0, 0.75, 0.5])
    """
    check_call(sparsification, locals())
    if uncertainty.dim() != 1 or uncertainty.shape != error.shape:
        shapes = f"{tuple(uncertainty.shape)} and {tuple(error.shape)}"
        raise ValueError(f"`uncertainty` and `error` must both have shape (B,), got {shapes}")
    if uncertainty.isnan().any():
        raise ValueError(f"`uncertainty` has {int(uncertainty.isnan().sum())} NaN; drop them")
    if not (error.isfinite() & (error >= 0)).all():
        wrong = int((~(error.isfinite() & (error >= 0))).sum())
        raise ValueError(f"`error` must be finite and >= 0, but {wrong} of {len(error)} are not")
    if len(error) < 2:
        raise NotDefined(f"needs at least 2 examples, got {len(error)}")
    errors = error.detach().double()
    if not errors.any():
        raise NotDefined("every error is zero: there is none to remove")
    count = len(errors)
    removed = torch.arange(count, dtype=torch.float64, device=errors.device) / count
    curve, oracle = _error_left(uncertainty.detach(), errors), _error_left(errors, errors)
    area = torch.trapezoid(curve - oracle, removed).item()
    return Sparsification(
        removed, curve, oracle, max(area, 0.0), torch.trapezoid(1.0 - oracle, removed).item()
    )


@register(
    REGRESSION,
    "ause",
    title="AUSE",
    unit="fraction of MSE",
    direction="down",
    family="selective",
    summary="area between the error left when the most uncertain examples are removed first and the"
    " error left by an oracle, over the error of all",
)
def ause(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the area under the sparsification error, squared error against predictive variance.

    .. math:: \int_0^{1-1/B} r_{v}(t) - r_{oracle}(t)\; dt

    by the trapezoidal rule, as in TorchUncertainty; 0 if the variances order the examples as the
    errors do, near `Sparsification.area_random` for uninformative variances, more for misleading
    ones. With D outputs, the sum of variances against the mean of squared errors. No standard
    error. Not defined for fewer than 2 examples, if every error is zero, or where the variance is
    infinite (Student-t, df <= 2).

    Traps: even the true variances do not reach 0, because noise has no order (standard normal
    errors of equal variance: 0.77); so compare methods on the same data only. Only the order
    counts, not calibration. For squared errors; papers also use absolute errors or the root of the
    curve, which give different numbers. Of outputs in different units the largest dominates.

    Reference: E. Ilg et al., Uncertainty estimates and multi-hypotheses networks for optical flow,
    ECCV 2018.
    """
    check_call(ause, locals())
    mixture, values = check_pair(prediction, targets, "ause")
    uncertainty = check_variance(mixture).double().sum(1)
    squares = (mixture.mean.double() - values.double()).square().mean(1)
    return Score(sparsification(uncertainty, squares).area, len(squares))


def _error_left(uncertainty: Tensor, errors: Tensor) -> Tensor:
    """Return the curve r, (B,), equal uncertainties at their mean error."""
    _, group, sizes = uncertainty.unique(return_inverse=True, return_counts=True)
    means = torch.zeros_like(sizes, dtype=errors.dtype).index_add(0, group, errors) / sizes
    remaining = torch.arange(1, len(errors) + 1, dtype=errors.dtype, device=errors.device)
    left = means.repeat_interleave(sizes).cumsum(0) / remaining
    return left.flip(0) / errors.mean()
