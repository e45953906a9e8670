"""Tables and figures of the study, from its runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polymode.metrics.paired import mean_and_error
from polymode.metrics.table import decimals_for, number
from polymode.plots import Display
from polymode.plots.image_rows import image_rows
from polymode.studies.study import Runs, Table
from polymode.studies.tomography.claims import values
from polymode.studies.tomography.scored import METHODS, METRICS
from polymode.studies.tomography.setup import MAIN
from polymode.tomography.plots import error_calibration, reconstruction_pictures

SCORED = ("small", "large", "walnut")
TITLES = {"small": "small images", "large": "large images", "walnut": "walnut"}
SHOWN = ("linear_matern_predcp", "trained_matern", "dropout", "ensemble", "constant")


def tables(runs: Runs) -> dict[str, Table]:
    """Return a table of scores for each setting, one over settings, and what was tuned."""
    found: dict[str, Table] = {}
    for part in SCORED:
        for arm in runs.arms(part):
            if part != "small" or arm == MAIN:
                found[f"{part}_{_key(arm)}"] = scores(runs, part, arm)
    for metric in ("log_density", "calibration_error", "psnr"):
        if len(runs.arms("small")) > 1:
            found[f"settings_{metric}"] = settings(runs, metric)
    if any(runs.arms(part) for part in SCORED):
        found["tuned"] = tuned(runs)
    if runs.arms("priors"):
        found["priors"] = variation(runs)
    return found


def _key(arm: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in arm.lower())


def _cell(found: list[float]) -> tuple[float | None, float | None]:
    return mean_and_error(found) if found else (None, None)


def scores(runs: Runs, part: str, arm: str) -> Table:
    """Return all scores of all methods in one setting."""
    rows = [m for m in METHODS if values(runs, part, arm, m, "psnr")]
    columns = []
    for metric in METRICS:
        cells = [_cell(values(runs, part, arm, method, metric)) for method in rows]
        digits = min(decimals_for(*zip(*cells, strict=True)), 4)
        columns.append([number(mean, error, digits) for mean, error in cells])
    count = len(values(runs, part, arm, rows[0], "psnr"))
    others = " ".join(
        f"{name.upper()}: PSNR {value:.2f} dB."
        for name in ("fbp", "tv")
        for value in runs.values(part, arm, f"examined:{part}", f"psnr_{name}").values()
    )
    note = (
        f"mean ± s.e. over {count} image{'s' * (count > 1)}; log-density in nats per pixel, one"
        " Gaussian for all methods; errors in grey values, white = 1."
    )
    return Table(
        f"{TITLES[part]}: {arm}",
        ("method", *(METRICS[metric][0] for metric in METRICS)),
        tuple(zip([METHODS[m] for m in rows], *columns, strict=True)),
        f"{note} {others}".strip().removesuffix("."),
    )


def settings(runs: Runs, metric: str) -> Table:
    """Return one score over all settings of the small images."""
    arms = runs.arms("small")
    rows = [m for m in METHODS if any(values(runs, "small", arm, m, metric) for arm in arms)]
    columns = []
    for arm in arms:
        cells = [_cell(values(runs, "small", arm, method, metric)) for method in rows]
        digits = min(decimals_for(*zip(*cells, strict=True)), 3 if metric != "psnr" else 1)
        columns.append([number(mean, error, digits) for mean, error in cells])
    counts = {arm: len(values(runs, "small", arm, "constant", metric)) for arm in arms}
    title, unit, _ = METRICS[metric]
    return Table(
        f"Small images: {title[:-2]} by angles and noise",
        ("method", *arms),
        tuple(zip([METHODS[m] for m in rows], *columns, strict=True)),
        f"{title}, {unit}; mean ± s.e. over images: "
        + ", ".join(f"{count} with {arm}" for arm, count in counts.items()),
    )


def tuned(runs: Runs) -> Table:
    """Return what was chosen on images that are not scored."""
    names = {
        "tuned_steps": "steps", "tuned_tv_weight": "γ", "tuned_dropout": "dropout",
        "tuned_sd": "constant s.d.", "tuned_predcp": "TV-PredCP, of λ",
        "closeness": "‖Jθ̃ − f‖ / ‖f‖", "weights": "weights", "observations": "observations",
    }  # fmt: skip
    lines = []
    for part in SCORED:
        for arm in runs.arms(part):
            line = [f"{TITLES[part]}: {arm}"]
            for name in names:
                found = list(runs.values(part, arm, f"examined:{part}", name).values())
                line.append(f"{found[0]:.4g}" if found else "n/a")
            lines.append(tuple(line))
    return Table(
        "What was tuned on other images",
        ("setting", *names.values()),
        tuple(lines),
        "chosen by PSNR (steps, γ) and by log-density (dropout, TV-PredCP) on images that are not"
        " scored; λ = γ m / (2 σ²)",
    )


def variation(runs: Runs) -> Table:
    """Return the mean total variation of each prior's samples."""
    (arm,) = runs.arms("priors")[:1]
    names = {
        "tv_tv": "TV", "tv_tv_predcp": "TV-PredCP", "tv_factorised_gaussian": "factorised Gaussian",
    }  # fmt: skip
    lines = []
    for found in runs.findings("priors", arm).values():
        for key, title in names.items():
            row = found[key]
            lines.append((title, number(row.value, row.standard_error, 1), f"{row.n:,}"))
    return Table(
        "Total variation of samples of priors",
        ("prior", "total variation", "samples"),
        tuple(lines),
        "mean ± s.e.; the two Gaussians have the pixel variance of the first",
    )


def figures(runs: Runs) -> dict[str, Display]:
    """Return calibration curves, pictures of first images, and samples of the priors."""
    found: dict[str, Display] = {}
    for part in SCORED:
        for arm in runs.arms(part):
            for findings in list(runs.findings(part, arm).values())[:1]:
                arrays = {name: np.asarray(values) for name, values in findings.arrays.items()}
                label, key = f"{TITLES[part]}, {arm}", f"{part}_{_key(arm)}"
                if part != "small" or arm == MAIN:
                    found[f"calibration_{key}"] = _calibration(arrays, label)
                if "pictures" in arrays:
                    truth, back, mean, _, sd = arrays["pictures"]
                    found[f"pictures_{key}"] = reconstruction_pictures(
                        truth, mean, sd, others={"FBP": back}, label=label
                    )
    for arm in runs.arms("priors"):
        for findings in list(runs.findings("priors", arm).values())[:1]:
            found["priors"] = _priors(findings.arrays)
    return found


def _calibration(arrays: dict[str, np.ndarray], label: str) -> Display:
    shown = [method for method in SHOWN if f"calibration {method}" in arrays]
    curves = {
        METHODS[method]: tuple(arrays[f"calibration {method}"].clip(1e-9)) for method in shown
    }
    return error_calibration(curves, label=label)


def _priors(arrays: Mapping[str, Any]) -> Display:
    rows = {name: np.asarray(images) for name, images in arrays.items() if ":" not in name}
    means = {name: float(np.mean(arrays[f"{name}: variation"])) for name in rows}
    said = ", ".join(f"{name} {value:.0f}" for name, value in means.items())
    return image_rows(
        rows,
        label="samples of priors",
        caption="Samples of the total variation prior on [0, 1], of the Gaussian whose lengthscale"
        " has the TV-PredCP prior, and of independent Gaussian pixels of the same variance; each"
        " row has a grey scale of its own.",
        said=f"Mean total variation: {said}.",
    )
