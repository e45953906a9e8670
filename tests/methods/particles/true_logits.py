"""Repulsion by gradients of true classes' logits, as tests of second derivatives take it."""

from __future__ import annotations

import torch

from polymode.likelihoods.kinds import Categorical
from polymode.methods.method import Problem
from polymode.methods.particles.repulsion import repulsion
from polymode.methods.particles.terms import Terms
from polymode.methods.particles.terms import terms_of as make_terms


def terms_of(rows: int, basis: torch.Tensor | None = None, chains: bool = True) -> Terms:
    """Return what members minimise; without `chains`, all networks go the plain way."""
    terms = make_terms(Problem(Categorical(), 100, 4, 10), "logit", repulsion, 0.7, rows, basis)
    return terms if chains else terms._replace(slopes=None)
