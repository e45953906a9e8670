"""What the talk and its paper say, and whether it holds here: paired over images, 95 %."""

from __future__ import annotations

from polymode.metrics.paired import Difference, paired
from polymode.studies.study import Claim, Runs, judged, said
from polymode.studies.tomography.scored import METHODS, METRICS
from polymode.studies.tomography.setup import MAIN

PAPER = {
    "density": "figure and table of the paper, whose numbers we could not read",
    "calibration": "figure of the talk: lin-DIP's errors follow its standard deviations, those of"
    " dropout do not",
}


def values(runs: Runs, part: str, arm: str, method: str, metric: str) -> list[float]:
    """Return a score of each image, none where the method was not run."""
    column = list(METRICS).index(metric)
    for found in runs.findings(part, arm).values():
        if method in found.arrays:
            return [float(row[column]) for row in found.arrays[method]]
    return []


def gap(runs: Runs, first: str, second: str, metric: str, arm: str = MAIN) -> Difference | None:
    """Return first − second of a score, paired over images."""
    ours, theirs = (values(runs, "small", arm, each, metric) for each in (first, second))
    return paired([a - b for a, b in zip(ours, theirs, strict=True)]) if ours and theirs else None


def claims(runs: Runs) -> list[Claim]:
    """Return the claims, if the setting they rest on was run.

    Those against dropout are judged for both evidences: the talk recommends θ*, the reference's
    code takes θ̃ for KMNIST.
    """
    if MAIN not in runs.arms("small"):
        return []
    best = "linear_matern_predcp"
    against = [
        claim
        for method, where in ((best, "at θ*"), ("trained_matern_predcp", "at θ̃"))
        for claim in (
            *(
                _claim(
                    runs, f"the linearised DIP {where} has a higher {what} than MC dropout",
                    PAPER["density"], method, "dropout", metric, 1,
                )
                for what, metric in (
                    ("log-density", "log_density"),
                    ("log-density with the reference's noise term", "log_density_noise"),
                )
            ),
            _claim(
                runs, f"the linearised DIP {where} is better calibrated than MC dropout",
                PAPER["calibration"], method, "dropout", "calibration_error", -1,
            ),
        )
    ]  # fmt: skip
    return [
        *against,
        _not_worse(
            runs, "with TV-PredCP the log-density is not lower than without",
            best, "linear_matern",
        ),
        _not_worse(
            runs, "the evidence at θ* gives no lower log-density than that at θ̃",
            "linear_matern", "trained_matern",
            "−2.240 and −1.703 NLL (talk, table 1, U-Net)",
        ),
        _not_worse(
            runs, "the Matérn prior gives no lower log-density than the isotropic one",
            "linear_matern", "linear_isotropic",
        ),
        _claim(
            runs, "the linearised DIP has a higher log-density than a constant variance",
            PAPER["density"], best, "constant", "log_density", 1,
        ),
    ]  # fmt: skip


def _claim(
    runs: Runs, text: str, paper: str, first: str, second: str, metric: str, sign: int
) -> Claim:
    found = gap(runs, first, second, metric)
    title, unit, _ = METRICS[metric]
    what = f"{METHODS[first]} − {METHODS[second]}, {title[:-2]}, {unit}"
    ours = said(found, what, "images", digits=4)
    return Claim(f"{MAIN}: {text}", paper, ours, judged(found, sign=sign))


def _not_worse(
    runs: Runs, text: str, first: str, second: str, paper: str = PAPER["density"]
) -> Claim:
    """A claim that a difference is not negative, with a margin of 0.02 nats per pixel, our choice.

    It holds where the interval lies above −0.02, does not hold where it lies below 0, and is
    undecided otherwise.
    """
    found = gap(runs, first, second, "log_density")
    what = f"{METHODS[first]} − {METHODS[second]}, nats per pixel"
    ours = said(found, what, "images", digits=4)
    if found is None or found.low is None or found.high is None:
        verdict = "not run" if found is None else "undecided"
    elif found.low > -MARGIN:
        verdict = "holds"
    else:
        verdict = "does not hold" if found.high < 0 else "undecided"
    return Claim(f"{MAIN}: {text}", paper, ours, verdict)


MARGIN = 0.02
