"""Tables and figures of the study, from its runs."""

from __future__ import annotations

import numpy as np

from polymode.metrics.text_table import number
from polymode.plots import Display
from polymode.plots.image_rows import image_rows
from polymode.studies.study import Runs, Table
from polymode.studies.table_cells import mean_cells
from polymode.studies.tomography.claims import values
from polymode.studies.tomography.scored import METHODS, METRICS
from polymode.studies.tomography.setup import MAIN
from polymode.tomography.plots import error_calibration, reconstruction_pictures

SCORED = ("small", "large", "walnut")
TITLES = {"small": "small images", "large": "large images", "walnut": "walnut"}
DRAWN = ("linear_matern_predcp", "trained_matern", "dropout", "ensemble", "constant")


def tables(runs: Runs) -> dict[str, Table]:
    """Return a table of scores for each setting, one over settings, and what was tuned."""
    by_name: dict[str, Table] = {}
    for part in SCORED:
        for arm in runs.arms(part):
            if part != "small" or arm == MAIN:
                by_name[f"{part}_{_key(arm)}"] = scores(runs, part, arm)
    for metric in ("log_density", "calibration_error", "psnr"):
        if len(runs.arms("small")) > 1:
            by_name[f"settings_{metric}"] = settings(runs, metric)
    if any(runs.arms(part) for part in SCORED):
        by_name["tuned"] = tuned(runs)
    if runs.arms("priors"):
        by_name["priors"] = variation(runs)
    return by_name


def _key(arm: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in arm.lower())


def scores(runs: Runs, part: str, arm: str) -> Table:
    """Return all scores of all methods in one setting."""
    rows = [m for m in METHODS if values(runs, part, arm, m, "psnr")]
    columns = [
        mean_cells([values(runs, part, arm, method, metric) for method in rows])
        for metric in METRICS
    ]
    count = len(values(runs, part, arm, rows[0], "psnr"))
    baselines = " ".join(
        f"{name.upper()}: PSNR {value:.2f} dB."
        for name in ("fbp", "tv")
        for value in runs.measured(part, arm, f"psnr_{name}").values()
    )
    note = (
        f"mean ± s.e. over {count} image{'s' * (count > 1)}; log-density in nats per pixel, one"
        " Gaussian for all methods; errors in grey values, white = 1."
    )
    return Table(
        f"{TITLES[part]}: {arm}",
        ("method", *(METRICS[metric][0] for metric in METRICS)),
        tuple(zip([METHODS[m] for m in rows], *columns, strict=True)),
        f"{note} {baselines}".strip().removesuffix("."),
    )


def settings(runs: Runs, metric: str) -> Table:
    """Return one score over all settings of the small images."""
    arms = runs.arms("small")
    rows = [m for m in METHODS if any(values(runs, "small", arm, m, metric) for arm in arms)]
    most_digits = 1 if metric == "psnr" else 3
    columns = [
        mean_cells([values(runs, "small", arm, method, metric) for method in rows], most_digits)
        for arm in arms
    ]
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
                chosen = list(runs.measured(part, arm, name).values())
                line.append(f"{chosen[0]:.4g}" if chosen else "n/a")
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
    for findings in runs.findings("priors", arm).values():
        for key, title in names.items():
            row = findings[key]
            lines.append((title, number(row.value, row.standard_error, 1), f"{row.n:,}"))
    return Table(
        "Total variation of samples of priors",
        ("prior", "total variation", "samples"),
        tuple(lines),
        "mean ± s.e.; the two Gaussians have the pixel variance of the first",
    )


def figures(runs: Runs) -> dict[str, Display]:
    """Return calibration curves, pictures of first images, and samples of the priors."""
    displays: dict[str, Display] = {}
    for part in (*SCORED, "priors"):
        for arm in runs.arms(part):
            findings = runs.first_findings(part, arm)
            if findings is None:
                continue
            arrays = {name: np.asarray(values) for name, values in findings.arrays.items()}
            if part == "priors":
                displays["priors"] = _priors(arrays)
                continue
            label, key = f"{TITLES[part]}, {arm}", f"{part}_{_key(arm)}"
            if part != "small" or arm == MAIN:
                displays[f"calibration_{key}"] = _calibration(arrays, label)
            if "pictures" in arrays:
                truth, back, mean, _, sd = arrays["pictures"]
                displays[f"pictures_{key}"] = reconstruction_pictures(
                    truth, mean, sd, others={"FBP": back}, label=label
                )
    return displays


def _calibration(arrays: dict[str, np.ndarray], label: str) -> Display:
    curves = {
        METHODS[method]: tuple(arrays[f"calibration {method}"].clip(1e-9))
        for method in DRAWN
        if f"calibration {method}" in arrays
    }
    return error_calibration(curves, label=label)


def _priors(arrays: dict[str, np.ndarray]) -> Display:
    rows = {name: images for name, images in arrays.items() if ":" not in name}
    means = {name: float(np.mean(arrays[f"{name}: variation"])) for name in rows}
    variations = ", ".join(f"{name} {value:.0f}" for name, value in means.items())
    return image_rows(
        rows,
        label="samples of priors",
        caption="Samples of the total variation prior on [0, 1], of the Gaussian whose lengthscale"
        " has the TV-PredCP prior, and of independent Gaussian pixels of the same variance; each"
        " row has a grey scale of its own.",
        summary=f"Mean total variation: {variations}.",
    )
