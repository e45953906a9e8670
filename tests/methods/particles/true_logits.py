"""Repulsion by the gradients of true classes' logits, as the tests of chains take it."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from polymode.core.likelihoods import Categorical
from polymode.methods.particles.input_gradients import Terms
from polymode.methods.particles.repulsion import repulsion


def true_logit(outputs, targets, extra) -> torch.Tensor:
    return outputs.gather(-1, targets.expand(outputs.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def slopes(outputs, targets) -> torch.Tensor:
    return nn.functional.one_hot(targets, outputs.shape[-1]).to(outputs)


def terms_of(rows: int, basis: torch.Tensor | None = None, chains: bool = True) -> Terms:
    """Return what members minimise; without `chains`, all networks go the general way."""
    likelihood = Categorical()
    known = (slopes, likelihood.nll_gradient) if chains else ()
    return Terms(likelihood.nll, true_logit, partial(repulsion), 0.7, rows, basis, *known)
