"""All classification metrics of a test set and an OOD set, from the members' log-probabilities."""

from __future__ import annotations

import torch

from ..cases import Case, member_log_probs
from . import Job


def polymode(case: Case) -> Job:
    """Every registered metric."""
    from polymode.metrics.score import CLASSIFICATION, OOD_CLASSIFICATION

    return _job(case, CLASSIFICATION.names(), OOD_CLASSIFICATION.names())


def polymode_shared(case: Case) -> Job:
    """Only what torchmetrics has, too."""
    scores = ("predictive_entropy", "mutual_information", "one_minus_confidence", "energy")
    against = [f"{m}_{s}" for s in scores for m in ("auroc", "aupr_in", "aupr_out", "fpr95")]
    return _job(case, ["accuracy", "top_5_accuracy", "ece", "mce"], against)


def _job(case: Case, names: list[str], names_against: list[str]) -> Job:
    from polymode.metrics.score import CLASSIFICATION, OOD_CLASSIFICATION, score_of
    from polymode.prediction import CategoricalPrediction

    inside, labels = member_log_probs(case, shift=2.0)
    outside, _ = member_log_probs(case, shift=0.5)
    energy = torch.zeros(inside.shape[:2])  # its values do not change the work

    def run() -> float:
        torch.set_num_threads(1)
        test = CategoricalPrediction(inside, energy)
        ood = CategoricalPrediction(outside, energy)
        for name in names:
            score_of(CLASSIFICATION.get(name), test, labels)
        found = {n: score_of(OOD_CLASSIFICATION.get(n), test, ood) for n in names_against}
        return found["auroc_mutual_information"].value

    return Job(run, 1)
