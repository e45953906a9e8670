"""Histological slices under C4: members and ensembles of growing size, on tissue and off it.

The talk shows slices of Kather et al. 2018 (nine classes) and ensembles from 5 members on, in and
out of distribution; sizes, network and training are not known. paper: those images, given their
files (`--set task_options={"path": ...}` or the folder in $POLYMODE_DATA), at 32x32, ensembles of
up to 100. cpu: breast tissue of BreaKHis at 44x44, divided by patient, LeNet, the full orbit in
every batch, ensembles of up to 10. smoke: digits. No picture of the tissue is kept anywhere.
"""

from __future__ import annotations

from typing import Any

from polymode.plots import Display
from polymode.plots.axes import over_seeds
from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import comparison
from polymode.studies.equivariance.comparison import (
    cell,
    curves,
    judge_near_one,
    scaled_ratio,
    sets_of,
)
from polymode.studies.study import Claim, Runs, Table, paired_difference
from polymode.studies.table_cells import difference_text, judge_sign, present
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
        PART: Experiment(function=comparison.trained, arms={ARM: options}, seeds=seeds, data=data)
    }


WHO = {"one member": "member", "all members": "ensemble"}


def tables(runs: Runs) -> dict[str, Table]:
    """Return the orbit metrics of members and of the whole, set by set."""
    if PART not in runs.parts:
        return {}
    lines = []
    for name in sets_of(runs, PART):
        for title, who in WHO.items():
            cells = [
                cell(runs.measured(PART, ARM, f"{name}_{who}_{metric}"), digits)
                for metric, digits in (
                    ("same_predictions", 3), ("kl", 4), ("deviation", 4), ("accuracy", 3)
                )
            ]  # fmt: skip
            lines.append((f"{name}, {title}", *cells))
    head = ("", "OSP (most 4) ↑", "symmetrised KL, nats ↓", "orbit s.d. ↓", "accuracy ↑")
    note = f"{over_seeds(len(runs.of(PART, ARM)))}; two classes, so chance is OSP 2.5"
    return {PART: Table("Histological slices under C4", head, tuple(lines), note)}


def figures(runs: Runs) -> dict[str, Display]:
    """Return KL along orbits and OSP against the number of members, in and out of distribution."""
    lines = {name: (ARM, name) for name in sets_of(runs, PART)}
    metrics = ("same_share", "deviation")
    return present({f"histology_{m}": curves(runs, PART, lines, m) for m in metrics})


def claims(runs: Runs) -> list[Claim]:
    """Return whether the ensemble is more invariant than its members, as independent ones are."""
    claimed = []
    for name in sets_of(runs, PART):
        member, ensemble = (
            runs.measured(PART, ARM, f"{name}_{who}_same_share") for who in WHO.values()
        )
        difference = paired_difference(ensemble, member)
        claimed.append(
            Claim(
                f"Histology, {name}: the ensemble has a higher OSP than its members",
                "figure, no numbers",
                difference_text(difference, "OSP / |G|, ensemble − member"),
                judge_sign(difference, sign=1),
            )
        )
    for name in sets_of(runs, PART):
        difference = paired_difference(scaled_ratio(runs, PART, ARM, name), 1.0)
        claimed.append(
            Claim(
                f"Histology, {name}: the spread along orbits falls as 1/√M",
                "figure, no numbers",
                difference_text(difference, "√M · s.d. of ensemble / of member − 1"),
                judge_near_one(difference),
            )
        )
    return claimed
