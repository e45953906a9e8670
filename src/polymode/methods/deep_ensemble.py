"""Deep ensembles: M networks from independent initialisations, their predictions averaged.

    p(y | x) ≈ (1/M) Σ_m p(y | f_{θ_m}(x)),        θ_m = MAP from initialisation m

Each member is `map` from its own random stream, so this file holds no mathematics of its own:
members do not interact, each follows its own unscaled gradient, and member k of 3 is member k of
10. Every member shuffles the data by itself, as in the paper. With `data_order="shared"` the
members see the same batches: each batch is read once, but the noise of the last steps is then the
same for all members, so that they err together unless the learning rate ends small.

The paper's adversarial training is not part of it: it is optional there, and later work leaves it
out.
Limits: M times the training and prediction of one network; regions between modes have no weight.
Reference: B. Lakshminarayanan, A. Pritzel, C. Blundell, Simple and scalable predictive uncertainty
    estimation using deep
ensembles, NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from polymode.methods.map import MAP, init, step
from polymode.methods.method import METHODS, Method


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(MAP):
    """Options of `deep_ensemble`: those of `map`, with five members, the paper's default."""

    usual_modes = 5


METHODS.register(
    "deep_ensemble",
    summary="networks from independent initialisations, predictions averaged",
    kind="many modes",
    equation="p(y | x) ≈ (1/M) Σₘ p(y | f(x; θₘ)),  θₘ = MAP from initialisation m",
    cost="M × training, M × prediction",
    limits="M times the cost of one network; regions between the modes have no weight, and members"
    " may all extrapolate alike.",
    paper="Lakshminarayanan et al. 2017",
    bibtex="""@inproceedings{lakshminarayanan2017simple,
  title={Simple and scalable predictive uncertainty estimation using deep ensembles},
  author={Lakshminarayanan, Balaji and Pritzel, Alexander and Blundell, Charles},
  booktitle={Advances in Neural Information Processing Systems}, year={2017}}""",
)(Method(DeepEnsemble, init, step))
