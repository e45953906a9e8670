"""The parts of the study by preset.

`small`: 28 x 28 images, exact path. `large`: 128 x 128 images, matrix-free. `priors`: samples of
the total variation prior, of TV-PredCP and of independent pixels.

cpu: KMNIST with the reference's U-Net; 20 angles with 5 % noise have twenty images, on which the
claims rest, the other settings three. Images 100 and later: earlier ones were used in trials. One
Shepp-Logan head and one CT slice, with a U-Net of 16 channels at four scales. Rate (3e-3) and steps
are ours; PSNR on the tuning images no longer rises much after 1,000 steps.

paper: the reference's settings for KMNIST (50 images, all angles and noises, its U-Net, γ and
iterations, which were tuned on 50 training images) and Walnut, given their files. What it does
not say, such as the rate of TV-PredCP on KMNIST, is tuned as in cpu.
"""

from __future__ import annotations

from typing import Any

from polymode.runs.part import Experiment, Part
from polymode.studies.tomography.experiments import priors, reconstruct, walnut_scan

ANGLES = (5, 10, 20, 30)
NOISES = (0.05, 0.1)
MAIN = "20 angles, 5 % noise"

KMNIST = {
    (5, 0.05): (14_000, 1e-5), (10, 0.05): (29_000, 3e-5),
    (20, 0.05): (41_000, 1e-4), (30, 0.05): (50_000, 1e-4),
    (5, 0.1): (7_400, 3e-5), (10, 0.1): (13_000, 1e-4),
    (20, 0.1): (17_000, 3e-4), (30, 0.1): (22_000, 3e-4),
}  # fmt: skip
"""Iterations and γ of the reference by angles and noise (bayes_dip)."""


def name_of(angles: int, noise: float) -> str:
    """Return the name of a setting.

    >>> name_of(20, 0.05)
    '20 angles, 5 % noise'
    """
    return f"{angles} angles, {100 * noise:g} % noise"


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return the parts."""
    return {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[preset]()


def _part(function: Any, arms: dict[str, dict[str, Any]], data: tuple[str, ...] = ()) -> Experiment:
    return Experiment(function=function, arms=arms, seeds=(0,), data=data)


def _smoke() -> dict[str, Part | Experiment]:
    tiny = {
        "data": "ellipses:10", "images": 2, "tuning": 1, "channels": [4, 4], "skips": [2],
        "steps": 20, "tv_weights": [1e-4], "dropouts": [0.05], "predcp": [0.1], "networks": 2,
        "num_samples": 10, "hyper_steps": 3,
    }  # fmt: skip
    large = {
        **tiny, "images": 1, "tuning": 1, "data": "shepp_logan:16", "steps": 3, "angles": 5,
        "path": "matrix_free",
        "hyper_steps": 40, "probes": 2, "rank": 100, "variants": ["linear_matern_predcp"],
        "sigmoid": False,
    }  # fmt: skip
    return {
        "small": _part(
            reconstruct,
            {
                MAIN: {**tiny, "angles": 20, "noise": 0.05},
                name_of(5, 0.05): {
                    **tiny, "angles": 5, "noise": 0.05, "variants": ["linear_matern"],
                },
            },
        ),
        "large": _part(reconstruct, {"Shepp-Logan": large}),
        "priors": _part(priors, {"samples": {"number": 8, "sweeps": 30, "side": 12}}),
    }  # fmt: skip


def _cpu() -> dict[str, Part | Experiment]:
    fresh = {"data": "kmnist:100"}
    arms: dict[str, dict[str, Any]] = {
        MAIN: {**fresh, "angles": 20, "noise": 0.05, "images": 20},
    }
    for noise in NOISES:
        for angles in ANGLES:
            arms.setdefault(
                name_of(angles, noise),
                {
                    **fresh, "angles": angles, "noise": noise, "images": 3, "tuning": 3,
                    "show": False,
                },
            )  # fmt: skip
    large = {
        "images": 1, "tuning": 1, "angles": 30, "channels": [16] * 4, "skips": [4, 4, 4],
        "steps": 900, "tv_weights": [1e-6, 1e-5], "dropouts": [0.05], "predcp": [0.03],
        "networks": 3, "num_samples": 60, "hyper_steps": 40,
        "variants": ["linear_matern_predcp", "linear_matern", "trained_matern"],
    }  # fmt: skip
    return {
        "small": _part(reconstruct, arms, ("kmnist",)),
        "priors": _part(priors, {"samples": {}}),
        "large": _part(
            reconstruct,
            {
                "Shepp-Logan": {**large, "data": "shepp_logan"},
                "CT slice": {
                    **large,
                    "data": "ct:0",
                    "tuning": 3,
                    "tv_weights": [1e-5, 3e-4],
                    "show": False,
                },
            },
        ),
    }


def _paper() -> dict[str, Part | Experiment]:
    net = {"lr": 1e-4, "images": 50, "tuning": 50, "networks": 10}
    arms = {}
    for (angles, noise), (steps, weight) in KMNIST.items():
        arms[name_of(angles, noise)] = {
            **net, "angles": angles, "noise": noise, "steps": steps, "tv_weights": [weight],
            "dropouts": [0.05], "num_samples": 16_384, "hyper_steps": 1500,
        }  # fmt: skip
    return {
        "small": _part(reconstruct, arms, ("kmnist",)),
        "priors": _part(priors, {"samples": {"number": 1000, "sweeps": 20_000}}),
        "walnut": _part(walnut_scan, {"60 angles": {}, "120 angles": {
            "tv_weight": 4e-6, "steps": 2500,
        }}),
    }  # fmt: skip
