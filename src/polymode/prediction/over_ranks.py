"""Averages of predictions of classes whose samples lie on several ranks.

Rank r holds S_r of the S samples. It sends averages over its own, and no samples: each rank takes
about B / k rows, receives the averages of all k ranks for them, combines these, and sends the
result back. With w_r = S_r / S, and the mean p_r and entropy e_r of rank r,

    log p = log Σ_r exp(log w_r + log p_r),      e = Σ_r w_r e_r
    Σ_c Var_s p_sc = Σ_r w_r ( Σ_c Var_s∈r p_sc + Σ_c (p_rc − p_c)² )

The second line splits a variance into that within and that between groups. Disagreement needs how
many samples vote for each class: labels are sent where they are fewer than classes, else counts.

Shapes: `S` samples, `k` ranks, `B` inputs, `b` those of one rank, `C` classes, `V` columns of
votes, `F` columns in all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polymode.distributed import ranks
from polymode.prediction.averages import Averages, Part, is_small
from polymode.prediction.categorical import CategoricalPrediction, entropy_of, first_argmax


class _Layout(NamedTuple):
    """Columns of what ranks send.

    Attributes:
        classes: C. labels: columns of votes as labels; 0 where counts of classes are sent.
        energy: whether the networks' outputs are known.
    """

    classes: int
    labels: int
    energy: bool

    @property
    def columns(self) -> list[int]:
        return [self.classes, self.labels or self.classes, 1, 1, *[1] * self.energy]


def averages_over_ranks(local: CategoricalPrediction, num_modes: int) -> Averages:
    """Return the averages over the samples of all ranks, the same bits on each.

    Args:
        local: the prediction of this rank's modes, without positions. num_modes: M of all ranks.
    """
    per_mode, total = local.samples_per_mode, len(local)
    counts = [per_mode * length for length in ranks.mode_counts()]
    classes = local.mean.shape[-1]
    labels = max(counts) if max(counts) < classes else 0
    layout = _Layout(classes, labels, local.has_energy)
    rows = ranks.rows_of_all(_sent(local, layout))
    weights = torch.tensor(counts, dtype=rows.dtype, device=rows.device) / sum(counts)
    joined = ranks.join_rows(_combined(rows, weights, sum(counts), layout), total)
    log_mean, *rest = joined.split([classes, 1, 1, 1, 1, *[1] * layout.energy], -1)
    predictive, expected, variance, disagreement, *energy = (tensor[:, 0] for tensor in rest)
    mean = log_mean.exp()
    part = Part(
        mean=mean,
        small=log_mean[is_small(mean)],
        predictive_entropy=predictive,
        expected_entropy=expected,
        total_epistemic_variance=variance,
        disagreement=disagreement,
        energy=energy[0] if energy else None,
    )
    return Averages.of_part(part, num_modes=num_modes, num_samples=sum(counts))


def _sent(local: CategoricalPrediction, layout: _Layout) -> Tensor:
    """Return what this rank knows of each row, (B, F)."""
    votes = first_argmax(local.log_probs).T  # (B, S_r)
    if layout.labels:
        absent = votes.new_full((len(votes), layout.labels - votes.shape[1]), layout.classes)
        votes = torch.cat([votes, absent], 1)
    else:
        votes = _counts(votes, layout.classes)
    columns = [
        local.log_mean,
        votes.to(local.mean.dtype),  # whole numbers far below 2²⁴: exact
        local.expected_entropy.unsqueeze(-1),
        local.total_epistemic_variance.unsqueeze(-1),
    ]
    if layout.energy:
        columns.append(local.energy.unsqueeze(-1))
    return torch.cat(columns, -1)


def _combined(rows: Tensor, weights: Tensor, samples: int, layout: _Layout) -> Tensor:
    """Return the averages over all samples (b, C + 4 or 5) from those of each rank (k, b, F)."""
    logs, votes, entropies, variances, *energies = rows.split(layout.columns, -1)
    w = weights.view(-1, 1, 1)
    log_mean = (logs + w.log()).logsumexp(0).clamp(max=0.0)
    mean = log_mean.exp()
    between = (logs.exp() - mean).square().sum(-1, keepdim=True)
    if layout.labels:
        counts = _counts(votes.movedim(0, 1).flatten(1).long(), layout.classes).to(mean)
    else:
        counts = votes.sum(0)
    agreeing = (counts * (counts - 1)).sum(-1, keepdim=True)
    results = [
        log_mean,
        entropy_of(log_mean, mean).unsqueeze(-1),
        (w * entropies).sum(0),
        (w * (variances + between)).sum(0),
        1.0 - agreeing / (samples * (samples - 1)),
        *((w * energy).sum(0) for energy in energies),
    ]
    return torch.cat(results, -1)


def _counts(votes: Tensor, classes: int) -> Tensor:
    """Return how many votes (B, V) each class has, (B, C); labels of C are no votes."""
    counts = votes.new_zeros(len(votes), classes + 1)
    return counts.scatter_add(1, votes, torch.ones_like(votes))[:, :classes]
