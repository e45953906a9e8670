"""What the papers say, and whether it holds in our runs: paired over seeds, 95 % intervals.

"The same" is within a quarter of what the deep ensemble gains over one network, or 0.01.
"""

from __future__ import annotations

from polymode.studies.efficient.published import SAID, Said
from polymode.studies.efficient.setup import ENSEMBLE, SINGLE
from polymode.studies.efficient.tables import is_classes, numbers_of
from polymode.studies.study import Claim, Runs, paired_difference
from polymode.studies.table_cells import difference_text, judge_equal, judge_sign

NAMES = {
    "nll": "NLL",
    "ece": "ECE",
    "ood": "AUROC of the entropy, mean over OOD sets",
    "energy": "AUROC of the density or the entropy, mean over OOD sets",
}


def claims(runs: Runs) -> list[Claim]:
    """Return the claims for each part whose arms were both run."""
    return [
        judged(runs, part, said)
        for part in runs.parts
        for said in SAID
        if (said.classes if is_classes(runs, part) else said.values)
        and {said.first, said.second} <= {*runs.arms(part)}
    ]


def judged(runs: Runs, part: str, said: Said) -> Claim:
    """Return a claim with its verdict."""
    against = "ood" if said.metric == "energy" else said.metric
    gap = paired_difference(
        numbers_of(runs, part, said.first, said.metric),
        numbers_of(runs, part, said.second, against),
    )
    what = f"{NAMES[said.metric]}, {said.first} − {said.second}"
    if said.sign:
        verdict = judge_sign(gap, sign=said.sign)
    else:
        verdict = judge_equal(gap, margin_of(runs, part, said.metric))
        what += f" (margin {margin_of(runs, part, said.metric):.3f})"
    return Claim(f"{part}: {said.text}", said.paper, difference_text(gap, what, digits=4), verdict)


def margin_of(runs: Runs, part: str, metric: str) -> float:
    """Return the difference up to which two arms count as the same."""
    gain = paired_difference(*(numbers_of(runs, part, arm, metric) for arm in (ENSEMBLE, SINGLE)))
    return max(0.01, 0.25 * abs(gain.mean)) if gain is not None else 0.01
