r"""Temperature: the one number T that makes softmax(log p / T) most likely on labelled data.

With :math:`\beta = 1/T` and log-probabilities :math:`l_n`, the mean negative log-likelihood

.. math:: f(\beta) = \frac1n \sum_n \log\sum_c e^{\beta l_{nc}} - \beta l_{n y_n},\quad
    f' = \frac1n \sum_n E_\beta[l_n] - l_{n y_n},\quad f'' = \frac1n \sum_n Var_\beta[l_n] \ge 0

is convex: it has one minimum, found to machine precision by Newton's method within a bracket. The
negative log-likelihood of a mixture, with one T on the log-probabilities :math:`l_{sn}` of each of
its samples,

.. math:: f(\beta) = -\frac1n \sum_n \log\frac1S\sum_s \frac{e^{\beta l_{sny_n}}}
    {\sum_c e^{\beta l_{snc}}}

is not convex; Newton's method starts from the best of 17 points.

Reference: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger, On calibration of modern neural networks,
ICML 2017, section 4.2. `S` samples, `n` examples, `C` classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.likelihoods.targets import check_as_many, check_labels
from polymode.recalibration.minimise import BOUNDS, Slopes, least

_FEW = 500  # examples for a first guess
_PIECE = 2**23  # numbers that are looked at together
_IMPOSSIBLE = -1e300  # replaces -inf, whose product with its probability 0 would be nan


def fit_temperature(log_probs: Tensor, labels: Tensor) -> float:
    """Return the T in [0.01, 100] that maximises the mean log-likelihood of softmax(log_probs / T).

    The result is deterministic. Logits work as well as log-probabilities: adding a constant to a
    row changes nothing. T > 1 makes predictions less confident, T < 1 more; the top class stays.

    At the bounds: if every label is the top class of its row (separable), the likelihood rises as T
    falls, and T = 0.01; if the labels contradict the predictions, T = 100; if all rows are uniform,
    every T is equally good, and T = 1. Rows whose label has a probability of exactly 0 have
    likelihood 0 at every T and are left out; if none remains, T = 1.

    Args:
        log_probs: (n, C) floats, n >= 1; -inf is a probability of zero.
        labels: (n,) integers in 0..C-1.

    >>> log_probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]).log()
    >>> round(fit_temperature(log_probs, torch.tensor([0, 0, 1])), 4)  # log 9 / log 2
    3.1699
    """
    check_call(fit_temperature, locals())
    return _fit(*_checked(log_probs, labels))


def fit(log_probs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return {"temperature": T}, the best for the mixture of log-probabilities (S, n, C)."""
    return {"temperature": _fit(log_probs, labels)}


def apply(parameters: dict[str, Any], log_probs: Tensor) -> Tensor:
    """Return the log-softmax of log_probs / T, (..., C); impossible classes stay impossible."""
    return (log_probs / parameters["temperature"]).log_softmax(-1)


def _fit(logs: Tensor, labels: Tensor) -> float:
    top = logs - logs.amax(-1, keepdim=True)
    of_label = top.gather(-1, labels.expand(len(top), -1).unsqueeze(-1)).squeeze(-1)
    possible = (of_label > -torch.inf).any(0)
    top, of_label = (values[:, possible].clamp(min=_IMPOSSIBLE) for values in (top, of_label))
    if not top.any():
        return 1.0
    if not of_label.any():
        return BOUNDS[0]
    if len(top) > 1:
        return 1.0 / least(lambda beta: _slopes(top, of_label, beta), convex=False)
    few, few_of_label = (
        values[:, :: max(1, of_label.shape[1] // _FEW)] for values in (top, of_label)
    )
    start = least(lambda beta: _slopes(few, few_of_label, beta), convex=True)
    return 1.0 / least(lambda beta: _slopes(top, of_label, beta), convex=True, start=start)


def _slopes(top: Tensor, of_label: Tensor, beta: float) -> Slopes:
    """Return f, f', f'' at beta, from log-probabilities less their largest, of all and of labels;
    of so many examples at a time that intermediate results are small beside them."""
    n = of_label.shape[1]
    rows = max(1, _PIECE // (top.shape[0] * top.shape[2]))
    if rows >= n:
        return _slopes_of(top, of_label, beta)
    pieces = zip(top.split(rows, 1), of_label.split(rows, 1), strict=True)
    parts = [(a.shape[1] / n, _slopes_of(a, b, beta)) for a, b in pieces]
    return Slopes(*(sum(share * part[k] for share, part in parts) for k in range(3)))


def _slopes_of(top: Tensor, of_label: Tensor, beta: float) -> Slopes:
    """Return f, f', f'' of some examples.

    With responsibilities r of the samples for each label, f' is the mean of E_r[E[l] - l_y] and
    f'' that of E_r[Var[l]] - Var_r[E[l] - l_y].
    """
    weights = (beta * top).exp_()
    total = weights.sum(-1)
    weights *= top
    mean = weights.sum(-1) / total
    weights *= top
    variance = weights.sum(-1) / total - mean.square()
    fit = beta * of_label - total.log()
    value, gap = -fit.logsumexp(0).mean(), mean - of_label
    if len(top) == 1:
        return Slopes(value.item(), gap.mean().item(), variance.mean().item())
    shares = fit.softmax(0)
    slope = (shares * gap).sum(0)
    second = (shares * variance - shares * gap * gap).sum(0) + slope.square()
    return Slopes(value.item(), slope.mean().item(), second.mean().item())


def _checked(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (1, n, C) in float64 and labels (n,), or raise what is wrong."""
    if not isinstance(log_probs, Tensor) or not log_probs.is_floating_point():
        kind = log_probs.dtype if isinstance(log_probs, Tensor) else type(log_probs).__name__
        raise ValueError(f"`log_probs` must be a tensor of floats, got {kind}.")
    if log_probs.dim() != 2 or log_probs.shape[-1] < 2:
        raise ValueError(f"`log_probs` must have shape (n, C >= 2), got {tuple(log_probs.shape)}.")
    logs = log_probs.detach().double()
    classes = check_labels(labels, logs.shape[-1]).to(logs.device)
    check_as_many(len(classes), len(logs), "label(s)", "row(s)")
    wrong = ~logs.amax(-1).isfinite()  # nan, inf, or -inf throughout
    if wrong.any():
        row = int(wrong.int().argmax())
        raise ValueError(
            f"`log_probs` must be numbers below inf, one of each row above -inf, got"
            f" {logs[row].tolist()} in row {row} ({int(wrong.sum())} of {len(logs)} rows are not)."
        )
    if (logs >= 0).all() and ((logs.sum(-1) - 1).abs() < 1e-3).all():
        raise ValueError("`log_probs` are probabilities, their rows add up to 1; pass `.log()`.")
    return logs.unsqueeze(0), classes
