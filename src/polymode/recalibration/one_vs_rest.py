r"""Isotonic regression and histogram binning: one function per class of its probability.

For each class c a function :math:`g_c` from :math:`p_c` to the observed frequency of c is fitted,
and the C values are normalised, :math:`q_c = g_c(p_c) / \sum_k g_k(p_k)`.

- Isotonic: the increasing function with the least :math:`\sum_n (g(p_{nc}) - 1[y_n=c])^2`, by
  pooling adjacent violators; constant on each pool, linear between pools, constant outside.
- Histogram: the mean of :math:`1[y_n = c]` in each of `num_bins` bins, of equal mass or width. A
  bin of equal width without examples returns its centre.

A function may return 0, so a probability of exactly 0, and an infinite NLL, is possible. A row
whose C values are all 0 is left unchanged. A class without examples in the fit is left unchanged
before normalisation.

References: B. Zadrozny, C. Elkan, Obtaining calibrated probability estimates from decision trees
and naive Bayesian classifiers, ICML 2001 (bins); Transforming classifier scores into accurate
multiclass probability estimates, KDD 2002 (isotonic, one against the rest). `n`, `B` examples, `C`
classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from polymode.core.options import Config, option


def fit_isotonic(log_probs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return the corners {"x": C lists, "y": C lists} of each class's function, from (1, n, C)."""
    probs, which = log_probs[0].exp().sort(0)
    hits = one_hot(labels, probs.shape[1]).gather(0, which)
    x, y = [], []
    for of_class, hit in zip(probs.T, hits.T, strict=True):
        corners = _pools(of_class, hit.double()) if hit.any() else ([0.0, 1.0], [0.0, 1.0])
        x.append(corners[0])
        y.append(corners[1])
    return {"x": x, "y": y}


def apply_isotonic(parameters: dict[str, Any], log_probs: Tensor) -> Tensor:
    """Return the log of the normalised values of the increasing functions, (..., C)."""
    probs = log_probs.exp()
    corners = zip(parameters["x"], parameters["y"], strict=True)
    values = [_interpolate(probs[..., c], x, y) for c, (x, y) in enumerate(corners)]
    return _normalised(torch.stack(values, -1), log_probs)


@dataclass(frozen=True, kw_only=True)
class Histogram(Config):
    """Options of histogram binning."""

    called = "histogram_binning"
    num_bins: int = option(
        15, ge=1, doc="tied probabilities share a bin, so fewer of equal mass may remain"
    )
    equal: str = option(
        "mass", choices=("mass", "width"), doc="examples of the fit per bin, or widths of bins"
    )


def fit_histogram(log_probs: Tensor, labels: Tensor, options: Histogram) -> dict[str, Any]:
    """Return {"edges": C lists between bins, "values": C lists, one longer}, from (1, n, C)."""
    probs = log_probs[0].exp()
    hits = one_hot(labels, probs.shape[1]).double()
    edges: list[list[float]] = []
    values: list[list[float]] = []
    for of_class, hit in zip(probs.T.contiguous(), hits.T, strict=True):
        if not hit.any():
            edges.append([])
            values.append([])  # no bins: unchanged
            continue
        cuts = _cuts(of_class, options.num_bins, options.equal)
        bins = torch.bucketize(of_class, cuts, right=True)
        count = bins.bincount(minlength=len(cuts) + 1)
        sums = bins.bincount(hit, minlength=len(cuts) + 1)
        ends = torch.cat([cuts.new_zeros(1), cuts, cuts.new_ones(1)])
        middle = 0.5 * (ends[1:] + ends[:-1])
        edges.append(cuts.tolist())
        values.append(torch.where(count > 0, sums / count.clamp(min=1), middle).tolist())
    return {"edges": edges, "values": values}


def apply_histogram(parameters: dict[str, Any], log_probs: Tensor) -> Tensor:
    """Return the log of normalised values of the bins, (..., C)."""
    probs = log_probs.exp()
    columns = []
    for c, (edges, values) in enumerate(
        zip(parameters["edges"], parameters["values"], strict=True)
    ):
        column = probs[..., c].contiguous()
        if values:
            bins = torch.bucketize(column, column.new_tensor(edges), right=True)
            column = column.new_tensor(values)[bins]
        columns.append(column)
    return _normalised(torch.stack(columns, -1), log_probs)


def _normalised(values: Tensor, log_probs: Tensor) -> Tensor:
    total = values.sum(-1, keepdim=True)
    return torch.where(total > 0, (values / total).log(), log_probs)


def _cuts(probs: Tensor, num_bins: int, equal: str) -> Tensor:
    """Return the increasing edges between bins; bins include only their lower edge."""
    if equal == "width":
        return torch.arange(1, num_bins, dtype=probs.dtype, device=probs.device) / num_bins
    ordered = probs.sort().values
    rises = (ordered[1:] > ordered[:-1]).nonzero()[:, 0] + 1
    at = torch.arange(1, num_bins, device=probs.device) * len(probs) // num_bins
    at = torch.bucketize(at, rises)  # ties stay together: move on to where probabilities rise
    at = rises[at[at < len(rises)].unique()]
    return 0.5 * (ordered[at - 1] + ordered[at])


def _pools(x: Tensor, hits: Tensor) -> tuple[list[float], list[float]]:
    """Return the corners of the increasing function nearest to 0/1 `hits` at sorted `x`, both (n,).

    Ties in x are pooled, then runs of neighbours that do not increase, until all increase. Sums of
    hits are integers, so rounding does not decide what is pooled.
    """
    first, last, count = x, x, torch.ones_like(hits)
    joined = x[1:] == x[:-1]
    while True:
        edge = joined.new_ones(1)
        pool = torch.cat([edge, ~joined]).long().cumsum(0) - 1
        first, last = first[torch.cat([edge, ~joined])], last[torch.cat([~joined, edge])]
        hits = hits.new_zeros(len(first)).index_add(0, pool, hits)
        count = count.new_zeros(len(first)).index_add(0, pool, count)
        height = hits / count
        joined = height[1:] <= height[:-1]
        if not joined.any():
            break
    ends = torch.stack([first, last], 1).flatten()
    keep = torch.stack([torch.ones_like(first, dtype=torch.bool), first < last], 1).flatten()
    return ends[keep].tolist(), height.repeat_interleave(2)[keep].tolist()


def _interpolate(x: Tensor, at: list[float], values: list[float]) -> Tensor:
    """Return the piecewise linear function through the corners, constant outside them."""
    corners, heights = x.new_tensor(at), x.new_tensor(values)
    if len(corners) == 1:
        return heights[0].expand_as(x)
    left = (torch.bucketize(x.contiguous(), corners, right=True) - 1).clamp(0, len(corners) - 2)
    low, high = corners[left], corners[left + 1]
    share = ((x - low) / (high - low)).clamp(0.0, 1.0)
    return torch.lerp(heights[left], heights[left + 1], share)
