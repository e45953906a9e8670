"""TabM: BatchEnsemble as it works on tables.

    weight of member m:  W ∘ (s_m r_mᵀ) in hidden layers, a linear head of its own

Against `batch_ensemble`: adapters r of the first layer start at ±1 and all others at 1, so members
begin as one network that sees its inputs with other signs; the last layer is each member's own;
and there are 32 members. Members are trained on their own losses and averaged only in prediction.
The paper's networks are MLPs; any network that `batch_ensemble` takes is converted.

Where paper and this differ: the published members share batches (`data_order="shared"`); here each
has its own by default, as with other ensembles. The paper trains with AdamW and decoupled weight
decay; here λ is the prior's.
Limits: as of `batch_ensemble`; for large images the first layer's signs matter less.
Reference: Y. Gorishniy, A. Kotelnikov, A. Babenko, TabM: advancing tabular deep learning with
    parameter-efficient ensembling, ICLR 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from polymode.methods.batch_ensemble import finish, step
from polymode.methods.map import MAP, init
from polymode.methods.method import METHODS, Method
from polymode.nets.conversion import Conversion, rank_one
from polymode.nets.conversion.conversion import Sample


@dataclass(frozen=True, kw_only=True)
class TabM(MAP):
    """Options of `tabm`: those of `map`, with 32 members, the paper's number."""

    usual_modes = 32
    stops_together = True


def convert(config: TabM, num_modes: int, sample: Sample) -> Conversion:
    """Return how the network gets adapters and heads of its own."""
    return rank_one.plan(sample, rank_one.Adapters("tabm", "sign", 1.0, 1.0, own_heads=True))


METHODS.register(
    "tabm",
    summary="networks for tables that share hidden weights between rank-one factors, own heads",
    kind="many modes",
    equation="p(y | x) ≈ (1/M) Σₘ p(y | f(x; W ∘ (sₘ rₘᵀ), headₘ)),  r of the first layer ±1",
    cost="M × training, M × prediction; parameters of one network, vectors and heads",
    limits="Members share what they learn, so they are more alike than those of a deep ensemble.",
    paper="Gorishniy et al. 2025",
    bibtex="""@inproceedings{gorishniy2025tabm,
  title={{TabM}: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling},
  author={Gorishniy, Yury and Kotelnikov, Akim and Babenko, Artem},
  booktitle={International Conference on Learning Representations}, year={2025}}""",
)(Method(TabM, init, step, finish, convert=convert, uses_inputs=lambda config: True))
