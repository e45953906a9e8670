"""The same metrics with torchmetrics, and with those that TorchUncertainty adds to it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ..cases import Case, member_log_probs
from ..peers import torchvision_shim  # noqa: F401  (before the first import of torchvision)
from . import Job

warnings.filterwarnings("ignore")

import torchmetrics.classification as tm  # noqa: E402


def own(case: Case) -> Job:
    """What torchmetrics has: accuracies, ECE, MCE; AUROC, AUPR in and out, FPR95 for 4 scores."""
    inside, labels = member_log_probs(case, shift=2.0)
    outside, _ = member_log_probs(case, shift=0.5)
    energies = torch.zeros(2, inside.shape[1])

    def run() -> float:
        torch.set_num_threads(1)
        members = inside.exp().transpose(0, 1)
        _top_label(members.mean(1), labels, case)
        return _against(members, outside.exp().transpose(0, 1), energies)

    return Job(run, 1)


def with_torch_uncertainty(case: Case) -> Job:
    """All that the two have together: also NLL, Brier, other calibration errors, selection."""
    from torch_uncertainty import metrics as tu

    inside, labels = member_log_probs(case, shift=2.0)
    outside, _ = member_log_probs(case, shift=0.5)
    energies = torch.zeros(2, inside.shape[1])
    calibration = {"task": "multiclass", "num_bins": 15, "num_classes": case.num_classes}

    def run() -> float:
        torch.set_num_threads(1)
        members = inside.exp().transpose(0, 1)
        probs = members.mean(1)
        _top_label(probs, labels, case)
        on_mean = [
            tu.CategoricalNLL(), tu.BrierScore(case.num_classes), tu.AURC(), tu.AUGRC(),
            tu.CovAt5Risk(), tu.RiskAt80Cov(), tu.AdaptiveCalibrationError(**calibration),
            tu.ClasswiseCalibrationError(num_classes=case.num_classes, num_bins=15),
            tu.SmoothCalibrationError(),
        ]  # fmt: skip
        for metric in on_mean:
            metric.update(probs, labels)
            metric.compute()
        for metric in (tu.MutualInformation(), tu.Disagreement(), tu.Entropy()):
            metric.update(members)
            metric.compute()
        return _against(members, outside.exp().transpose(0, 1), energies)

    return Job(run, 1)


def _top_label(probs: Tensor, labels: Tensor, case: Case) -> None:
    classes: dict[str, Any] = {"num_classes": case.num_classes}
    metrics = [
        tm.MulticlassAccuracy(average="micro", **classes),
        tm.MulticlassAccuracy(average="micro", top_k=5, **classes),
        tm.MulticlassCalibrationError(n_bins=15, norm="l1", **classes),
        tm.MulticlassCalibrationError(n_bins=15, norm="max", **classes),
    ]
    for metric in metrics:
        metric.update(probs, labels)
        metric.compute()


def _against(inside: Tensor, outside: Tensor, energies: Tensor) -> float:
    """OOD is the positive class; scores (B,) of members' probabilities (B, M, C)."""
    found = [_uncertainties(members) for members in (inside, outside)]
    is_outside = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).long()
    area = 0.0
    for name, (here, there) in {
        **{name: (found[0][name], found[1][name]) for name in found[0]},
        "energy": (energies[0], energies[1]),
    }.items():
        score = torch.cat([here, there])
        scaled = (score - score.min()) / (score.max() - score.min()).clamp(min=1e-12)
        values = {}
        for label, metric, values_in, truth in (
            ("auroc", tm.BinaryAUROC(), scaled, is_outside),
            ("aupr_out", tm.BinaryAveragePrecision(), scaled, is_outside),
            ("aupr_in", tm.BinaryAveragePrecision(), 1 - scaled, 1 - is_outside),
            ("fpr95", tm.BinarySpecificityAtSensitivity(0.95), scaled, is_outside),
        ):
            metric.update(values_in, truth)
            values[label] = metric.compute()
        if name == "mutual_information":
            area = float(values["auroc"])
    return area


def _uncertainties(members: Tensor) -> dict[str, Tensor]:
    mean = members.mean(1)
    entropy = torch.special.entr(mean).sum(-1)
    expected = torch.special.entr(members).sum(-1).mean(1)
    return {
        "predictive_entropy": entropy,
        "mutual_information": entropy - expected,
        "one_minus_confidence": 1 - mean.amax(-1),
    }
