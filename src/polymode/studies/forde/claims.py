"""What the paper says, and whether it holds in our runs: paired over seeds, 95 % intervals."""

from __future__ import annotations

import numpy as np

from polymode.metrics.leaderboard import SHIFT_MEAN
from polymode.metrics.paired import paired
from polymode.studies.forde.published import CIFAR10
from polymode.studies.forde.setup import ALPHAS, SAME_BATCHES, name_of
from polymode.studies.forde.tables import image_parts
from polymode.studies.study import Claim, Runs
from polymode.studies.table_cells import difference_text, judge_equal, judge_sign

EQUAL = 1.0  # points of accuracy that count as the same; the paper's differences reach 0.4


def claims(runs: Runs) -> list[Claim]:
    """Return the claims of the paper with their verdicts, those whose parts were run."""
    claimed = []
    if runs.arms("regression"):
        claimed += [_epistemic(runs, place) for place in ("outside", "gap")]
    if runs.arms("classification"):
        claimed.append(_plane(runs))
    for part in image_parts(runs):
        claimed += [_corrupted(runs, part, metric) for metric in ("accuracy", "nll")]
        claimed.append(_clean(runs, part))
        if runs.of(part, "FoRDE-Identity"):
            claimed += [_pca_not_identity(runs, part), _rising(runs, part)]
    return claimed


def best_ensemble(runs: Runs, part: str, dataset: str, metric: str) -> str:
    """Return which deep ensemble is better by this number: the one to be judged against.

    A large epistemic uncertainty away from the data counts as better.
    """
    means = {}
    for arm in ("DE", SAME_BATCHES):
        values = runs.values(part, arm, dataset, metric).values()
        if values:
            means[arm] = sum(values) / len(values)
    if not means:
        return "DE"
    best = min if metric == "nll" else max
    return best(means, key=means.__getitem__)


def _epistemic(runs: Runs, place: str) -> Claim:
    best = best_ensemble(runs, "regression", f"ood:{place}", "epistemic_std")
    gap = runs.difference("regression", "FoRDE", best, f"ood:{place}", "epistemic_std")
    where = {"outside": "outside the clusters", "gap": "between the clusters"}[place]
    return Claim(
        f"1-D regression: {where}, FoRDE's epistemic uncertainty is above DE's",
        "figure 1, no numbers",
        difference_text(gap, f"epistemic s.d., FoRDE − {best}", digits=4),
        judge_sign(gap, sign=1),
    )


def _plane(runs: Runs) -> Claim:
    best = best_ensemble(runs, "classification", "ood:ring", "mutual_information")
    gap = runs.difference("classification", "FoRDE", best, "ood:ring", "mutual_information")
    return Claim(
        "2-D classification: far from the data, FoRDE's epistemic uncertainty is above DE's",
        "figure 3, no numbers",
        difference_text(gap, f"mutual information on the ring, FoRDE − {best}, nats", digits=4),
        judge_sign(gap, sign=1),
    )


def _corrupted(runs: Runs, part: str, metric: str) -> Claim:
    best = best_ensemble(runs, part, SHIFT_MEAN, metric)
    gap = runs.difference(part, "FoRDE-PCA", best, SHIFT_MEAN, metric)
    pca, ensemble = (getattr(CIFAR10[arm], f"corrupted_{metric}") for arm in ("FoRDE-PCA", "DE"))
    if metric == "accuracy":
        words, published = "higher corrupted accuracy", f"{pca - ensemble:+.1f} points"
        ours = difference_text(gap, f"cA, PCA − {best}, points", digits=2, factor=100)
    else:
        words, published = "lower corrupted NLL", f"{pca - ensemble:+.2f} nats".replace("-0", "−0")
        ours = difference_text(gap, f"cNLL, PCA − {best}, nats", digits=4)
    return Claim(
        f"{part}: FoRDE-PCA has a {words} than DE",
        f"{published} on CIFAR-10-C",
        ours,
        judge_sign(gap, sign=1 if metric == "accuracy" else -1),
    )


def _pca_not_identity(runs: Runs, part: str) -> Claim:
    """The gain is of the lengthscales: PCA is above Identity, which is not above DE."""
    over = runs.difference(part, "FoRDE-PCA", "FoRDE-Identity", SHIFT_MEAN, "accuracy")
    best = best_ensemble(runs, part, SHIFT_MEAN, "accuracy")
    identity = runs.difference(part, "FoRDE-Identity", best, SHIFT_MEAN, "accuracy")
    gained = identity is not None and identity.clear and identity.mean > 0
    verdict = "does not hold" if gained else judge_sign(over, sign=1)
    return Claim(
        f"{part}: the gain under corruption comes from the PCA lengthscales, not from Identity",
        "+2.5 points on CIFAR-10-C, PCA − Identity; −0.1, Identity − DE",
        f"{difference_text(over, 'cA, PCA − Identity, points', digits=2, factor=100)};"
        f" {difference_text(identity, f'Identity − {best}', digits=2, factor=100)}",
        verdict,
    )


def _clean(runs: Runs, part: str) -> Claim:
    best = best_ensemble(runs, part, "test", "accuracy")
    gap = runs.difference(part, "FoRDE-PCA", best, "test", "accuracy")
    return Claim(
        f"{part}: clean accuracy of FoRDE-PCA and DE is the same within {EQUAL:g} point",
        "−0.2 points on CIFAR-10, −0.4 on CIFAR-100",
        difference_text(gap, f"accuracy, PCA − {best}, points", digits=2, factor=100),
        judge_equal(gap, EQUAL / 100),
    )


def _rising(runs: Runs, part: str) -> Claim:
    """The slope of corrupted accuracy over alpha, least squares for each seed."""
    values = {alpha: runs.values(part, name_of(alpha), SHIFT_MEAN, "accuracy") for alpha in ALPHAS}
    alphas = [alpha for alpha, numbers in values.items() if numbers]
    seeds = set.intersection(*(set(values[a]) for a in alphas)) if len(alphas) > 2 else set()
    slopes = [
        float(np.polyfit(alphas, [values[a][seed] for a in alphas], 1)[0]) for seed in sorted(seeds)
    ]
    gap = paired(slopes)
    return Claim(
        f"{part}: corrupted accuracy rises with α",
        "rises from α = 0 to 1 on CIFAR-10-C and CIFAR-100-C (figure)",
        difference_text(gap, "slope, points from α = 0 to 1", digits=2, factor=100),
        judge_sign(gap, sign=1),
    )
