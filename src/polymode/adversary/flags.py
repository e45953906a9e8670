r"""Signs that an attack is weaker than it seems: the warnings of AutoAttack, for posteriors.

================  ===============================================================================
flag              evidence
================  ===============================================================================
`randomised`      two gradients from different samples have a mean cosine below 1/2: with
                  g = μ + noise that is more noise than signal; raise `samples_per_mode`. Or the
                  networks of a posterior that does not draw are random: two predictions differ
`zero_gradient`   gradients that are 0 in all entries: the step goes nowhere, although the network
                  may be easy to fool; try `loss="member_margin"`, or an attack without gradients
`broken_gradient` gradients with NaN or infinite entries, which count as 0
`softmax_output`  the networks' outputs are already probabilities, so that their log-softmax is a
                  second softmax, whose gradients are far too small
`black_box`       the square attack, which uses predictions only, fools examples that withstood
                  gradients: these are masked
`noise`           random noise of the same size fools as many examples as the attack, not counting
                  those that were wrong before
================  ===============================================================================

The first four are checked on at most 64 unattacked inputs; the last two cost a further attack and
need `checks="full"`, `black_box` in L∞ only. The absence of flags does not mean that the attack is
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

from polymode.adversary.attack_kinds import KINDS
from polymode.adversary.ball import Ball
from polymode.adversary.objective import Aim
from polymode.adversary.search import Search
from polymode.adversary.victim import Victim
from polymode.prediction import CategoricalPrediction

LOOKED_AT = 64  # inputs
SAME = 1e-3  # smaller differences of probabilities may be rounding
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
    flags = {}
    broken = int((~gradient.isfinite().flatten(1).all(1)).sum())
    if broken:
        flags["broken_gradient"] = (
            f"{broken} of {len(x)} gradients have entries that are not finite, taken as 0;"
            " predict in float64, or drop members that diverged"
        )
    zero = int((gradient == 0).flatten(1).all(1).sum())
    if zero:
        flags["zero_gradient"] = (
            f"{zero} of {len(x)} gradients are 0 in all entries, so that steps go nowhere;"
            " try loss='member_margin', or kind='square', which needs none"
        )
    second, second_prediction = victim.gradient(x, aim.rise, "check", 1)
    cosine = torch.cosine_similarity(gradient.flatten(1), second.flatten(1)).mean().item()
    apart = (prediction.mean - second_prediction.mean).abs().max().item()
    if victim.draws and cosine < AGREEMENT:
        flags["randomised"] = (
            f"two gradients, each from {prediction.num_samples} samples of its own, have a mean"
            f" cosine of {cosine:.2f}: more noise than signal; raise samples_per_mode"
        )
    elif not victim.draws and apart > SAME:
        flags["randomised"] = (
            "the networks draw in evaluation: two predictions at the same inputs differ by up"
            f" to {apart:.2f} in a probability; fit them with 'dropout', whose passes are"
            " samples"
        )
    if _is_softmax(prediction):
        flags["softmax_output"] = (
            "the networks' outputs are >= 0 and add up to 1: probabilities, of which another"
            " softmax is taken; let the networks return logits"
        )
    return _listed(flags)


def _listed(messages: dict[str, str]) -> list[Flag]:
    return [Flag(name, message) for name, message in messages.items()]


def _is_softmax(prediction: CategoricalPrediction) -> bool:
    """Return whether the outputs behind a prediction are already probabilities."""
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
        reached: (B,) where the attack succeeded.
    """
    flags = {}
    noise = Search(victim, aim, ball)
    KINDS.get("noise").value(noise)
    safe = ~aim.reached(victim.judge(ball.centre).classes)  # not fooled without an attack
    random, white, all_safe = (int((safe & e).sum()) for e in (noise.reached, reached, safe))
    if 0 < random >= white < all_safe:
        flags["noise"] = (
            f"random noise of the same size succeeds on {random} of {all_safe} inputs, the"
            f" attack on {white}; take more steps or samples, or another loss"
        )
    left = (~reached).nonzero().flatten()
    if ball.norm != "linf" or not len(left):
        return _listed(flags)
    black = Search(victim.rows(left), aim.rows(left), ball.rows(left))
    KINDS.get("square").value(black, queries=QUERIES)
    if more := int(black.reached.sum()):
        flags["black_box"] = (
            f"the square attack ({QUERIES} queries) succeeds on {more} of the {len(left)}"
            f" inputs that withstood gradients (of {len(reached)}): gradients are masked, or"
            " steps too few"
        )
    return _listed(flags)
