"""What the talk and its paper say, and whether it holds here: paired over images, 95 %."""

from __future__ import annotations

from typing import NamedTuple

from polymode.metrics.paired import Difference, paired
from polymode.studies.study import Claim, Runs
from polymode.studies.table_cells import difference_text, judge_not_below, judge_sign
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
    for findings in runs.findings(part, arm).values():
        if method in findings.arrays:
            return [float(row[column]) for row in findings.arrays[method]]
    return []


def gap(runs: Runs, first: str, second: str, metric: str, arm: str = MAIN) -> Difference | None:
    """Return first − second of a score, paired over images."""
    scores = [values(runs, "small", arm, method, metric) for method in (first, second)]
    return paired([a - b for a, b in zip(*scores, strict=True)]) if all(scores) else None


def claims(runs: Runs) -> list[Claim]:
    """Return the claims, if the setting they rest on was run.

    Those against dropout are judged for both evidences: the talk recommends θ*, the reference's
    code takes θ̃ for KMNIST.
    """
    if MAIN not in runs.arms("small"):
        return []
    best = "linear_matern_predcp"
    density, calibration = (PAPER[name] for name in ("density", "calibration"))
    return [
        *(
            _higher(f"the linearised DIP {where} {words} than MC dropout", paper,
                    Scored(runs, method, "dropout", metric), sign)
            for method, where in ((best, "at θ*"), ("trained_matern_predcp", "at θ̃"))
            for words, paper, metric, sign in (
                ("has a higher log-density", density, "log_density", 1),
                ("has a higher log-density with the reference's noise term", density,
                 "log_density_noise", 1),
                ("is better calibrated", calibration, "calibration_error", -1),
            )
        ),
        _not_lower("with TV-PredCP the log-density is not lower than without", density,
                   Scored(runs, best, "linear_matern")),
        _not_lower("the evidence at θ* gives no lower log-density than that at θ̃",
                   "−2.240 and −1.703 NLL (talk, table 1, U-Net)",
                   Scored(runs, "linear_matern", "trained_matern")),
        _not_lower("the Matérn prior gives no lower log-density than the isotropic one", density,
                   Scored(runs, "linear_matern", "linear_isotropic")),
        _higher("the linearised DIP has a higher log-density than a constant variance", density,
                Scored(runs, best, "constant"), 1),
    ]  # fmt: skip


class Scored(NamedTuple):
    """Two methods whose scores are compared."""

    runs: Runs
    first: str
    second: str
    metric: str = "log_density"

    @property
    def gap(self) -> Difference | None:
        return gap(*self)

    def text(self, of: str) -> str:
        """Return the difference for a claim; `of` says what of."""
        what = f"{METHODS[self.first]} − {METHODS[self.second]}, {of}"
        return difference_text(self.gap, what, "images", digits=4)


def _higher(text: str, paper: str, scores: Scored, sign: int) -> Claim:
    title, unit, _ = METRICS[scores.metric]
    ours = scores.text(f"{title[:-2]}, {unit}")
    return Claim(f"{MAIN}: {text}", paper, ours, judge_sign(scores.gap, sign=sign))


def _not_lower(text: str, paper: str, scores: Scored) -> Claim:
    """A claim that a difference is not negative, with a margin of 0.02 nats per pixel, our choice.

    It holds where the interval lies above −0.02, does not hold where it lies below 0, and is
    undecided otherwise.
    """
    verdict = judge_not_below(scores.gap, MARGIN, refuted_below=0.0)
    return Claim(f"{MAIN}: {text}", paper, scores.text("nats per pixel"), verdict)


MARGIN = 0.02
