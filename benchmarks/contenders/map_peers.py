"""Scores of masks by the metrics of TorchUncertainty's segmentation routine."""

from __future__ import annotations

import warnings

import torch
from torch.utils.data import DataLoader

from ..cases import Case, Pictures, map_members
from ..peers import torchvision_shim  # noqa: F401  (before the first import of torchvision)
from . import Job

warnings.filterwarnings("ignore")

from torch_uncertainty import metrics as tu  # noqa: E402
from torchmetrics import Accuracy, MetricCollection  # noqa: E402


def all_pixels(case: Case) -> Job:
    """The routine's metrics of every pixel."""
    return _routine(case, 1.0)


def some_pixels(case: Case) -> Job:
    """Its default: all but mIoU, accuracies and PAvPU from 1 % of the pixels."""
    return _routine(case, 0.01)


def _routine(case: Case, rate: float) -> Job:
    nets = map_members(case)
    classes = {"num_classes": case.num_classes}
    multiclass = {"task": "multiclass", **classes}

    @torch.inference_mode()
    def run() -> float:
        torch.set_num_threads(1)
        masks = tu.SegmentationMetric(
            MetricCollection(
                {
                    "mIoU": tu.MeanIntersectionOverUnion(**classes),
                    "mAcc": Accuracy(average="macro", **multiclass),
                    "pixAcc": Accuracy(**multiclass),
                },
                compute_groups=[["mIoU", "mAcc", "pixAcc"]],
            )
        )
        patches = tu.PAvPU(patch_size=16)
        pixels = tu.SegmentationMetric(
            MetricCollection(
                {
                    "Brier": tu.BrierScore(**classes),
                    "NLL": tu.CategoricalNLL(),
                    "ECE": tu.CalibrationError(num_bins=15, **multiclass),
                    "MCE": tu.CalibrationError(num_bins=15, norm="max", **multiclass),
                    "aECE": tu.CalibrationError(adaptive=True, **multiclass),
                    "SmECE": tu.SmoothCalibrationError(),
                    "AURC": tu.AURC(),
                    "AUGRC": tu.AUGRC(),
                    "Cov": tu.CovAt5Risk(),
                    "Risk": tu.RiskAt80Cov(),
                },
                compute_groups=[["Brier"], ["NLL"], ["ECE", "SmECE", "MCE", "aECE"],
                                ["AURC", "AUGRC", "Cov", "Risk"]],
            ),
            subsampling_rate=None if rate == 1.0 else rate,
        )  # fmt: skip
        for x, y in DataLoader(Pictures(case), batch_size=1):
            mean = torch.stack([net(x) for net in nets]).softmax(2).mean(0)
            for metric in (masks, patches, pixels):
                metric.update(mean, y)
        masks.compute()
        patches.compute()
        return float(next(v for k, v in pixels.compute().items() if k.endswith("NLL")))

    return Job(run, 1)
