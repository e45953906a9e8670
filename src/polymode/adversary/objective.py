r"""The objective of an attack on a posterior: a function of the predictive distribution.

With S networks the predictive is their mean probability, and its logarithm

.. math:: \log p(y|x) = \mathrm{logsumexp}_s \log\mathrm{softmax}(f_s(x))_y - \log S,

never the softmax of mean outputs, which is a different model, and never the logarithm of a
probability that has become 0.

===============  ==============================  ==============================
`loss`           away from the label y           towards the target t
===============  ==============================  ==============================
"log_prob"       -log p(y)                       log p(t)
"margin"         max_{k≠y} log p(k) - log p(y)   log p(t) - max_{k≠t} log p(k)
"member_margin"  the mean over networks of their margins
===============  ==============================  ==============================

"log_prob" is the cross-entropy of the papers. Its gradient is exactly 0 where the probabilities of
the other classes have become 0 in every network, with logits some hundred apart; that of "margin"
is not. Where networks disagree and all are that certain, p(k) is the share of their votes, which no
small step changes, and both gradients vanish; "member_margin" is not a function of the predictive
distribution, but always has a gradient.

An adaptive attack knows the detector, a score u(x) of uncertainty that should stay low:

.. math:: \ell(x) - w\, u(x).

There :math:`\ell` must be bounded, or it would dominate: :math:`\log (1 - p(y))` replaces
:math:`-\log p(y)`, and margins count up to 1 nat.

References: N. Carlini, D. Wagner, Towards evaluating the robustness of neural networks, S&P 2017
(margins); N. Carlini, D. Wagner, Adversarial examples are not easily detected, AISec 2017, and Y.
Feng et al., Attacking Bayes, arXiv:2404.19640 (attacks that know the detector).

`S` samples, `B` batch, `C` classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polymode.prediction import CategoricalPrediction

LOSSES = ("log_prob", "margin", "member_margin")
ADAPTIVE = ("predictive_entropy", "mutual_information")
_ENOUGH = 1.0  # nats of margin at which an adaptive attack stops raising it


class Aim(NamedTuple):
    """The aim of an attack on a batch of inputs.

    Attributes:
        labels: (B,) classes to move away from. targets: (B,) classes to reach, or None.
        loss: see the module. score: kept low by an adaptive attack, or None. weight: w > 0.
    """

    labels: Tensor
    targets: Tensor | None = None
    loss: str = "log_prob"
    score: str | None = None
    weight: float = 1.0

    def rows(self, which: slice | Tensor) -> Aim:
        """Return the aim of some inputs."""
        targets = None if self.targets is None else self.targets[which]
        return self._replace(labels=self.labels[which], targets=targets)

    def rise(self, prediction: CategoricalPrediction) -> Tensor:
        """Return the objective to raise, (B,), differentiable."""
        by_member, bounded = self.loss == "member_margin", self.score is not None
        # (S, B, C) or (B, C)
        log_probs = prediction.log_probs if by_member else prediction.log_mean
        chosen = self.labels if self.targets is None else self.targets
        place = chosen[:, None].expand(*log_probs.shape[:-1], 1)
        at_class = log_probs.gather(-1, place).squeeze(-1)
        elsewhere = log_probs.scatter(-1, place, -torch.inf)
        if self.loss != "log_prob":
            gap = elsewhere.amax(-1) - at_class
            gap = gap if self.targets is None else -gap
            gap = gap.clamp(max=_ENOUGH) if bounded else gap
            value = gap.mean(0) if by_member else gap
        elif self.targets is not None:
            value = at_class
        else:
            value = elsewhere.logsumexp(-1) if bounded else -at_class
        if self.score is None:
            return value
        uncertainty: Tensor = getattr(prediction, self.score)
        return value - self.weight * uncertainty

    def reached(self, classes: Tensor) -> Tensor:
        """Return where predicted classes reach the aim, (B,) bool."""
        return classes != self.labels if self.targets is None else classes == self.targets
