"""What torchmetrics has of `pm.evaluate`, batch by batch: no prediction is held."""

from __future__ import annotations

import torch
import torchmetrics.classification as tm

from ..cases import Case, evaluated_data
from . import Job
from .evaluating import BATCH, member_probs


def shared(case: Case) -> Job:
    """Accuracies, ECE, MCE; AUROC, AUPR in and out, FPR95 for 4 scores of an OOD set."""
    nets, x, y, outside = evaluated_data(case)
    classes = {"num_classes": case.num_classes}

    @torch.inference_mode()
    def run() -> float:
        torch.set_num_threads(1)
        metrics = [
            tm.MulticlassAccuracy(average="micro", **classes),
            tm.MulticlassAccuracy(average="micro", top_k=5, **classes),
            tm.MulticlassCalibrationError(n_bins=15, norm="l1", **classes),
            tm.MulticlassCalibrationError(n_bins=15, norm="max", **classes),
        ]
        scores: list[list[torch.Tensor]] = []
        for inputs, labels in ((x, y), (outside, None)):
            for start in range(0, len(inputs), BATCH):
                probs, energy = member_probs(nets, inputs[start : start + BATCH])
                mean = probs.mean(0)
                if labels is not None:
                    for metric in metrics:
                        metric.update(mean, labels[start : start + BATCH])
                entropy = torch.special.entr(mean).sum(-1)
                information = entropy - torch.special.entr(probs).sum(-1).mean(0)
                scores.append([entropy, information, 1 - mean.amax(-1), energy])
        for metric in metrics:
            metric.compute()
        truth = torch.cat([torch.zeros(len(x)), torch.ones(len(outside))]).long()
        found = [_areas(torch.cat(parts), truth) for parts in zip(*scores, strict=True)]
        return found[1]

    return Job(run, 1)


def _areas(score: torch.Tensor, truth: torch.Tensor) -> float:
    """OOD is the positive class."""
    scaled = (score - score.min()) / (score.max() - score.min()).clamp(min=1e-12)
    area = tm.BinaryAUROC()
    for metric, values, labels in (
        (area, scaled, truth),
        (tm.BinaryAveragePrecision(), scaled, truth),
        (tm.BinaryAveragePrecision(), 1 - scaled, 1 - truth),
        (tm.BinarySpecificityAtSensitivity(0.95), scaled, truth),
    ):
        metric.update(values, labels)
        value = metric.compute()
    del value
    return float(area.compute())
