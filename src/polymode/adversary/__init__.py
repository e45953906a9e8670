"""Attacks on the predictive distribution of a posterior, and their detection by uncertainty.

    found = pm.adversary.attack(post, x, y, kind="pgd", eps=0.1, scaling=task.input_scaling)
    print(found)                                    # accuracy, uncertainty, flags, cost
    pm.adversary.sweep(post, x, y, kind="fgsm", eps=[0, 0.1, 0.2]).auroc

Being Bayesian is no defence: posteriors, HMC included, and detectors that use their uncertainty
fall to plain attacks (Y. Feng et al., Attacking Bayes, arXiv:2404.19640). So every attack has an
adaptive form that knows the detector, and flags that warn of weak attacks.

Read `attack` first, then `search` (its state), `victim`, `objective` and `ball`; `gradient_steps`
and `gradient_free` hold the kinds of `kinds`, `attacked` the outcome, `flags` the warnings.
`detection` and `transfer` build on `attack`; `examination` and `plots` are those of the subject.
"""

from __future__ import annotations

from polymode.adversary.attack import attack
from polymode.adversary.attack_kinds import KINDS
from polymode.adversary.attacked import Attacked, Cost
from polymode.adversary.ball import Ball
from polymode.adversary.detection import Detection, Sweep, detection, sweep
from polymode.adversary.examination import arrays_of, inputs_of
from polymode.adversary.flags import Flag
from polymode.adversary.transfer import Transfer, transfer

__all__ = [
    "KINDS",
    "Attacked",
    "Ball",
    "Cost",
    "Detection",
    "Flag",
    "Sweep",
    "Transfer",
    "arrays_of",
    "attack",
    "detection",
    "inputs_of",
    "sweep",
    "transfer",
]
