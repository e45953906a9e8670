"""What the talk says, and whether it holds in our runs: paired over seeds, 95 % intervals."""

from __future__ import annotations

from polymode.metrics.paired import Difference, paired
from polymode.studies.linearised_laplace import occam
from polymode.studies.linearised_laplace.networks import NORMALISED, part_of
from polymode.studies.linearised_laplace.published import TABLE
from polymode.studies.linearised_laplace.tables import difference, name_of, starred
from polymode.studies.study import Claim, Runs, paired_log_ratio
from polymode.studies.table_cells import judge_sign, ratio_text

STABLE = 1.0  # per cent


def claims(runs: Runs) -> list[Claim]:
    """Return the claims whose parts were run."""
    claimed = []
    if runs.arms("training"):
        claimed += [_overestimates(runs), _error_bars(runs), _training_does_not_help(runs)]
    if runs.arms("scale"):
        claimed += [_invariant(runs), _single_is_not(runs)]
    claimed += occam.claims(runs)
    for net in NORMALISED:
        if runs.of(part_of(net), net):
            claimed += [_recommendation_1(runs, net), _recommendation_2(runs, net)]
    if runs.of("networks", "fixup"):
        claimed.append(_recommendation_1(runs, "fixup"))
    return claimed


def _log_ratio(runs: Runs, arm: str, first: str, second: str) -> Difference | None:
    over, under = (runs.measured("training", arm, metric) for metric in (first, second))
    return paired_log_ratio(over, under)


def _times(log_ratio: Difference | None) -> str:
    seeds = "" if log_ratio is None else f", {log_ratio.n} seeds"
    return ratio_text(log_ratio, 2, " times") + seeds


def _overestimates(runs: Runs) -> Claim:
    arm = runs.arms("training")[-1]
    change = _log_ratio(runs, arm, "precision_linear", "precision_trained")
    return Claim(
        "1-D: the evidence at θ̃ chooses a smaller prior precision than that at θ*",
        "λ of the largest evidence at θ̃ overestimates uncertainty (figure, no numbers)",
        f"λ at θ* over λ at θ̃, after {arm}: {_times(change)}",
        judge_sign(change, sign=1),
    )


def _error_bars(runs: Runs) -> Claim:
    arm = runs.arms("training")[-1]
    change = _log_ratio(runs, arm, "gap_sd_trained_single", "gap_sd_linear_single")
    return Claim(
        "1-D: recommendation 1 narrows the error bars between the data",
        "figure, no numbers",
        f"largest s.d. in the gap, θ̃ over θ*, after {arm}: {_times(change)}",
        judge_sign(change, sign=1),
    )


def _training_does_not_help(runs: Runs) -> Claim:
    """The distance after the longest training is not 0: half of its largest is taken as far."""
    arms = runs.arms("training")
    last = runs.measured("training", arms[-1], "wasserstein_single")
    most = [
        max(runs.measured("training", arm, "wasserstein_single").get(seed, 0.0) for arm in arms)
        for seed in last
    ]
    shares = [last[seed] / top for seed, top in zip(last, most, strict=True)]
    excess = paired([share - 0.1 for share in shares])
    return Claim(
        "1-D: training longer does not make the predictives of both evidences agree",
        "figure 5: their distance does not vanish",
        f"distance after {arms[-1]} in units of the largest along training, less a tenth:"
        f" {starred(excess)}",
        judge_sign(excess, sign=1),
    )


def _largest(runs: Runs, kind: str, form: str) -> list[float]:
    return [
        value
        for arm in runs.arms("scale")
        for place in ("frozen", "inside")
        for value in runs.measured("scale", arm, f"change_{form}_{place}_{kind}").values()
    ]


def _invariant(runs: Runs) -> Claim:
    jacobian, offset = (_largest(runs, "multiple", form) for form in ("jacobian", "offset"))
    holds = max(jacobian) <= STABLE
    return Claim(
        "Proposition 3: with a precision per group the predictive does not depend on k",
        "independent of k",
        f"largest change of a s.d. {max(jacobian):.2g} % with h = Jθ, {max(offset):.2g} % with the"
        f" offset, {len(jacobian)} comparisons each",
        "holds" if holds else "does not hold",
    )


def _single_is_not(runs: Runs) -> Claim:
    scaled = [arm for arm in runs.arms("scale") if arm != "k = 1"]
    least = [
        min(runs.measured("scale", arm, "change_jacobian_frozen_single").values()) for arm in scaled
    ]
    return Claim(
        "With one precision for all weights the predictive does depend on k",
        "it does in general",
        "least change of a s.d. over seeds, h = Jθ: "
        + ", ".join(f"{arm}: {value:.2g} %" for arm, value in zip(scaled, least, strict=True)),
        "not run" if not least else "holds" if min(least) > STABLE else "does not hold",
    )


def _recommendation_1(runs: Runs, net: str) -> Claim:
    single = difference(runs, part_of(net), net, "nll_linear_single", "nll_trained_single")
    multiple = difference(runs, part_of(net), net, "nll_linear_multiple", "nll_trained_multiple")
    row = TABLE[net]
    paper = f"{row.linear_multiple[0]:g} and {row.trained_multiple[0]:g} with multiple λ"
    if row.linear_single is not None and row.trained_single is not None:
        paper = f"{row.linear_single[0]:g} and {row.trained_single[0]:g} with a single λ, {paper}"
    return Claim(
        f"{name_of(net)}: the test NLL at θ* is below that at θ̃",
        paper.replace("-", "−"),
        f"θ* − θ̃, nats: single λ {starred(single)}, multiple λ {starred(multiple)}",
        judge_sign(single, sign=-1),
    )


def _recommendation_2(runs: Runs, net: str) -> Claim:
    gap = difference(runs, part_of(net), net, "nll_linear_multiple", "nll_linear_single")
    row = TABLE[net]
    paper = "no single λ printed"
    if row.linear_single is not None:
        paper = f"{row.linear_multiple[0]:g} and {row.linear_single[0]:g}"
    return Claim(
        f"{name_of(net)}: at θ*, multiple λ are not worse than a single one",
        paper,
        f"multiple − single λ, nats: {starred(gap)}",
        judge_sign(gap, sign=-1),
    )
