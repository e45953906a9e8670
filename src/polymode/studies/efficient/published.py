"""What the papers claim, each in a sentence, and where it stands; numbers where they were read.

BatchEnsemble's are those of the Uncertainty Baselines, FoRDE's of its own table. Where a claim
stands in an abstract, in words, nothing else is given.
"""

from __future__ import annotations

from typing import NamedTuple

from polymode.studies.efficient.setup import ENSEMBLE, SINGLE, THIN, WIDE


class Said(NamedTuple):
    """A sentence of a paper about two arms.

    Attributes:
        first, second: arms; the sentence is about first − second.
        metric: of the test set, or "ood": AUROC of the predictive entropy, mean over OOD sets;
            "energy": the same with the energy of the first, which is its density, in its place.
        sign: of the difference, −1 or 1; 0 for "the same within a margin".
        text, paper: the sentence, and where it stands.
        classes, values: whether it is about classifications, and about regressions.
    """

    first: str
    second: str
    metric: str
    sign: int
    text: str
    paper: str
    classes: bool = True
    values: bool = True


SAID = (
    Said(
        ENSEMBLE, SINGLE, "nll", -1, "a deep ensemble has a lower NLL than one network",
        "Lakshminarayanan et al. 2017, abstract",
    ),
    Said(
        ENSEMBLE, WIDE, "nll", -1,
        "a deep ensemble has a lower NLL than one network with as many parameters",
        "Lobacheva et al. 2020: several medium networks are better than one large one",
    ),
    Said(
        "packed", ENSEMBLE, "nll", 0, "Packed matches the ensemble at a quarter of the cost",
        "Laurent et al. 2023, abstract: performs equally well within the memory of one network",
    ),
    Said(
        THIN, SINGLE, "nll", -1,
        "at equal parameters, four thin networks have a lower NLL than one",
        "Laurent et al. 2023: the properties of deep ensembles are kept",
    ),
    Said(
        "packed", SINGLE, "nll", -1,
        "Packed has a lower NLL than one network",
        "Laurent et al. 2023: the properties of deep ensembles are kept",
    ),
    Said(
        "batch_ensemble", SINGLE, "nll", -1, "BatchEnsemble beats one network",
        "CIFAR-10, WRN-28-10: NLL 0.136 and 0.159, accuracy 96.3 and 96.0 %; a later"
        " reimplementation on one GPU has 93.7 and 94.2 %",
    ),
    Said(
        "tabm", SINGLE, "nll", -1, "on tables, TabM beats one network",
        "Gorishniy et al. 2025, abstract: the best of the deep models", classes=False,
    ),
    Said(
        "mimo", SINGLE, "nll", -1, "MIMO beats one network, for free",
        "Havasi et al. 2021, abstract: better NLL, accuracy and calibration", values=False,
    ),
    Said(
        "masksembles", ENSEMBLE, "nll", 0, "Masksembles is on par with the deep ensemble",
        "Durasov et al. 2021, abstract",
    ),
    Said(
        "lp_bnn", SINGLE, "nll", -1, "LP-BNN beats one network",
        "Franchi et al. 2023, abstract: competitive with deep ensembles",
    ),
    Said(
        "vbll", SINGLE, "nll", -1, "a variational last layer has a lower NLL than one network",
        "Harrison et al. 2024, abstract: better accuracy, calibration and OOD detection",
    ),
    Said(
        "sngp", SINGLE, "ood", 1, "SNGP detects OOD inputs better than one network",
        "Liu et al. 2020, abstract: best of the single-model approaches", values=False,
    ),
    Said(
        "ddu", SINGLE, "energy", 1, "the density of DDU detects OOD inputs better than entropy",
        "Mukhoti et al. 2023, abstract",
        values=False,
    ),
    Said(
        "evidential", SINGLE, "nll", -1, "evidential heads have a lower NLL than one network",
        "Amini et al. 2020; users found deviations wrong by orders of magnitude", classes=False,
    ),
    Said(
        "evidential", SINGLE, "ood", 1, "evidential heads detect OOD inputs better",
        "Sensoy et al. 2018, abstract", values=False,
    ),
    Said(
        "swa", SINGLE, "nll", -1, "the average of late weights beats one network",
        "Izmailov et al. 2018, abstract: better generalisation",
    ),
    Said(
        "mc_batchnorm", SINGLE, "nll", -1, "MC BatchNorm has a lower NLL than one network",
        "Teye et al. 2018, abstract: quality above that of baselines",
    ),
    Said(
        "FoRDE", ENSEMBLE, "nll", -1, "FoRDE has a lower NLL than a deep ensemble",
        "Trinh et al. 2024, CIFAR-10, identity lengthscales: 0.113 and 0.117", values=False,
    ),
)  # fmt: skip
