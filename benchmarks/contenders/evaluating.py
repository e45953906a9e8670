"""`pm.evaluate` of more predictions than fit: all metrics, and those that torchmetrics has."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..cases import Case, evaluated_data
from . import Job

BATCH = 256


def everything(case: Case) -> Job:
    """Every registered metric of the test set and an OOD set; no prediction is kept."""
    import polymode as pm

    nets, x, y, outside = evaluated_data(case)
    few = (x[:64], y[:64])
    task = pm.Task(train=few, test=(x, y), ood={"far": outside}, likelihood="categorical",
                   target_size=case.num_classes)  # fmt: skip
    post = pm.fit("deep_ensemble", net=nets, task=task, epochs=0, progress="silent")

    def run() -> float:
        torch.set_num_threads(1)
        results = pm.evaluate(post, task, keep=False)
        return results["ood:far", "auroc_mutual_information"].value or 0.0

    return Job(run, 1)


def shared(case: Case) -> Job:
    """The 20 metrics that torchmetrics has, too."""
    from polymode.likelihoods.kinds import Categorical
    from polymode.metrics.score import CLASSIFICATION, OOD_CLASSIFICATION, score_of
    from polymode.prediction import CategoricalPrediction
    from polymode.prediction.averages import Averages
    from polymode.stack.stack import Stack

    nets, x, y, outside = evaluated_data(case)
    stack = Stack(nets)
    scores = ("predictive_entropy", "mutual_information", "one_minus_confidence", "energy")
    against = [f"{m}_{s}" for s in scores for m in ("auroc", "aupr_in", "aupr_out", "fpr95")]

    def parts(inputs: Tensor) -> Iterator[CategoricalPrediction]:
        with torch.no_grad():
            for batch in inputs.split(BATCH):
                yield CategoricalPrediction(*Categorical().components(stack(batch), {}))

    def run() -> float:
        torch.set_num_threads(1)
        test, ood = Averages(parts(x)), Averages(parts(outside))
        for name in ("accuracy", "top_5_accuracy", "ece", "mce"):
            score_of(CLASSIFICATION.get(name), test, y)
        found = {n: score_of(OOD_CLASSIFICATION.get(n), test, ood) for n in against}
        return found["auroc_mutual_information"].value

    return Job(run, 1)


def member_probs(nets: list[nn.Module], batch: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities (M, B, C) and the mean over members of the negative log-sum-exp."""
    logits = torch.stack([net(batch) for net in nets])
    return logits.softmax(-1), -logits.logsumexp(-1).mean(0)
