r"""Signs that an attack says less than it seems to: what AutoAttack warns of, for posteriors.

================  ===============================================================================
flag              what was seen
================  ===============================================================================
`randomised`      two gradients from different samples have a mean cosine below 1/2: with
                  g = μ + noise that is more noise than signal; more `samples_per_mode` are wanted.
                  Or networks of a posterior that does not draw do so: two predictions differ
`zero_gradient`   gradients that are 0 in all entries: the step goes nowhere, though the network may
                  well be fooled; `loss="member_margin"`, or a black-box attack
`broken_gradient` gradients with NaN or infinite entries, which are taken as 0
`softmax_output`  the networks' outputs are probabilities already, so that their log-softmax is a
                  second softmax, whose gradients are far too small
`black_box`       the square attack, which sees predictions alone, fools examples that withstood
                  gradients: these are masked
`noise`           random noise of the same size fools as many examples as the attack, those that
                  were wrong before left out
================  ===============================================================================

The first four are looked for on at most 64 inputs as they are; the last two cost a further attack
and are made with `checks="full"`, `black_box` in L∞ only. No flag does not mean that the attack is
strong.

References: F. Croce, M. Hein, Reliable evaluation of adversarial robustness with an ensemble of
diverse parameter-free attacks, ICML 2020, and the notes on flags of its code; A. Athalye, N.
Carlini, D. Wagner, Obfuscated gradients give a false sense of security, ICML 2018.

`S` samples, `B` batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polymode.adversary.ball import Ball
from polymode.adversary.kinds import KINDS
from polymode.adversary.objective import Aim
from polymode.adversary.search import Search
from polymode.adversary.victim import Victim
from polymode.prediction import CategoricalPrediction

LOOKED_AT = 64  # inputs
SAME = 1e-3  # probabilities that differ by less may do so by rounding
AGREEMENT = 0.5  # cosine of two gradients from different samples: noise is as large as signal
QUERIES = 200  # of the square attack


class Flag(NamedTuple):
    """A sign with its number, cause and remedy."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def gradient_flags(victim: Victim, aim: Aim, x: Tensor) -> list[Flag]:
    """Return the flags that gradients at inputs (B, ...) raise, B at most `LOOKED_AT`."""
    gradient, prediction = victim.gradient(x, aim.rise, "check", 0)
    found = []
    broken = int((~gradient.isfinite().flatten(1).all(1)).sum())
    if broken:
        found.append(
            Flag(
                "broken_gradient",
                f"{broken} of {len(x)} gradients have entries that are not finite, taken as 0;"
                " predict in float64, or drop members that diverged",
            )
        )
    zero = int((gradient == 0).flatten(1).all(1).sum())
    if zero:
        found.append(
            Flag(
                "zero_gradient",
                f"{zero} of {len(x)} gradients are 0 in all entries, so that steps go nowhere;"
                " try loss='member_margin', or kind='square', which needs none",
            )
        )
    other, again = victim.gradient(x, aim.rise, "check", 1)
    cosine = torch.cosine_similarity(gradient.flatten(1), other.flatten(1)).mean().item()
    apart = (prediction.mean - again.mean).abs().max().item()
    if victim.draws and cosine < AGREEMENT:
        found.append(
            Flag(
                "randomised",
                f"two gradients, each from {prediction.num_samples} samples of its own, have a mean"
                f" cosine of {cosine:.2f}: more noise than signal; raise samples_per_mode",
            )
        )
    elif not victim.draws and apart > SAME:
        found.append(
            Flag(
                "randomised",
                "the networks draw in evaluation: two predictions at the same inputs differ by up"
                f" to {apart:.2f} in a probability; fit them with 'dropout', whose passes are"
                " samples",
            )
        )
    if _is_softmax(prediction):
        found.append(
            Flag(
                "softmax_output",
                "the networks' outputs are >= 0 and add up to 1: probabilities, of which another"
                " softmax is taken; let the networks return logits",
            )
        )
    return found


def _is_softmax(prediction: CategoricalPrediction) -> bool:
    """Return whether the outputs behind a prediction are probabilities already."""
    if prediction.log_normalizer is None:
        return False
    with torch.no_grad():
        outputs = prediction.log_probs + prediction.log_normalizer[..., None]
        slack = 1e-4 if outputs.dtype.itemsize >= 4 else 1e-1
        return bool((outputs >= -slack).all() and ((outputs.sum(-1) - 1).abs() <= slack).all())


def masking_flags(victim: Victim, aim: Aim, ball: Ball, reached: Tensor) -> list[Flag]:
    """Return the flags that attacks without gradients raise.

    Args:
        aim, ball: of the inputs that the attack was made on, (B, ...).
        reached: (B,) where the attack got what it wanted.
    """
    found = []
    noise = Search(victim, aim, ball)
    KINDS.get("noise").value(noise)
    safe = ~aim.reached(victim.judge(ball.centre).classes)  # where there was something to do
    random, white, all_safe = (int((safe & e).sum()) for e in (noise.reached, reached, safe))
    if 0 < random >= white < all_safe:
        found.append(
            Flag(
                "noise",
                f"random noise of the same size succeeds on {random} of {all_safe} inputs, the"
                f" attack on {white}; take more steps or samples, or another loss",
            )
        )
    left = (~reached).nonzero().flatten()
    if ball.norm != "linf" or not len(left):
        return found
    black = Search(victim, aim.rows(left), ball.rows(left))
    KINDS.get("square").value(black, queries=QUERIES)
    if more := int(black.reached.sum()):
        found.append(
            Flag(
                "black_box",
                f"the square attack ({QUERIES} queries) succeeds on {more} of the {len(left)}"
                f" inputs that withstood gradients (of {len(reached)}): gradients are masked, or"
                " steps too few",
            )
        )
    return found
