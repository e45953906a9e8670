"""Histological slices under C4: members and ensembles of growing size, on tissue and off it.

The talk shows slices of Kather et al. 2018 (nine classes) and ensembles from 5 members on, in and
out of distribution; sizes, network and training are not known. paper: those images, given their
files (`--set task_options={"path": ...}` or the folder in $POLYMODE_DATA), at 32x32, ensembles of
up to 100. cpu: breast tissue of BreaKHis at 44x44, divided by patient, LeNet, the full orbit in
every batch, ensembles of up to 10. smoke: digits. No picture of the tissue is kept anywhere.
"""

from __future__ import annotations

from typing import Any

from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import networks
from polymode.tasks.files import data_folder

PART, ARM = "histology", "C4, full orbit"


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return the one training per seed."""
    options: dict[str, Any] = {"group": "C4", "augment": "full"}
    data: tuple[str, ...] = ()
    if preset == "smoke":
        options |= {"task": "digits", "num_modes": 3, "epochs": 1, "num_inputs": 8}
    elif preset == "cpu":
        data = ("histology_46", "cifar10_subset")
        options |= {
            "task": "histology", "task_options": {"ood": ["jigsaw", "cifar10_subset"]},
            "num_modes": 10, "epochs": 8, "batch_size": 32, "lr": 2e-3, "num_inputs": 400,
        }  # fmt: skip
    else:
        path = str(data_folder() / "nct_crc_he")
        options |= {
            "task": "nct_crc_he", "task_options": {"path": path, "size": 32},
            "num_modes": 100, "epochs": 20, "batch_size": 64, "lr": 1e-3, "num_inputs": 7180,
        }  # fmt: skip
    seeds = {"smoke": (0, 1), "cpu": (0, 1, 2), "paper": tuple(range(5))}[preset]
    return {
        PART: Experiment(function=networks.trained, arms={ARM: options}, seeds=seeds, data=data)
    }


def tables(runs):
    return {}


def figures(runs):
    return {}


def claims(runs):
    return []


def comparisons(preset, runs):
    return []
