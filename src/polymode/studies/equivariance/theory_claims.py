"""What the theory says, and whether it holds in our runs: over seeds, 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polymode.metrics.paired import Difference, not_rejected, paired
from polymode.studies.equivariance.shown import values
from polymode.studies.equivariance.theory_numbers import (
    CROSS,
    ISING,
    NTK,
    PARTIAL,
    PLACES,
    TOY,
    cell,
    steps_of,
)
from polymode.studies.study import Claim, Runs

EQUIVARIANT = 0.1  # largest part of a member's squared deviation that its limit may have left
GROUPED = (2, 5)  # sizes of sub-ensembles of which there are several
NEAR = 0.15  # half-width of the logarithm's interval, so that "as predicted" says something


def claims(runs: Runs) -> list[Claim]:
    """Return the claims whose parts were run."""
    found = []
    if runs.arms(TOY):
        found += [_at_all_steps(runs), _closed_curves(runs)]
    for arm in runs.arms(ISING):
        if arm != NTK:
            found += [_as_predicted(runs, arm, place) for place in PLACES]
    if len([arm for arm in runs.arms(ISING) if arm != NTK]) > 1:
        found.append(_left_at_any_width(runs))
    if runs.arms(PARTIAL):
        found.append(_full_is_needed(runs))
    if runs.arms(CROSS):
        found.append(_cross_equivariant(runs))
    if len(runs.arms(CROSS)) > 1:
        found.append(_finer(runs))
    return found


def _said(found: Difference, digits: int = 3) -> str:
    text = f"{found.mean:.{digits}f}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:.{digits}f}, {found.high:.{digits}f}]"
    return text.replace("-", "−")


def _ratios(runs: Runs, part: str, arm: str, over: str, under: str) -> Difference | None:
    """Return the logarithm of a ratio of two numbers of one arm, over seeds."""
    ours, theirs = values(runs, part, arm, over), values(runs, part, arm, under)
    return paired([math.log(ours[seed] / theirs[seed]) for seed in ours if seed in theirs])


def _after(steps: int) -> str:
    return f"{steps:,} step" + ("" if steps == 1 else "s")


def _nothing_left(found: dict[str, Difference]) -> str:
    """Return whether the mean is equivariant in all these places: no interval, corrected for their
    number, lies above 0, and none reaches beyond `EQUIVARIANT`."""
    if not found or any(each.high is None for each in found.values()):
        return "not run" if not found else "undecided"
    p_values = {name: each.p_value for name, each in found.items() if each.p_value is not None}
    standing = not_rejected(p_values)
    if any(name not in standing and found[name].mean > 0 for name in p_values):
        return "does not hold"
    reaching = max(each.high for each in found.values() if each.high is not None)
    return "holds" if reaching < EQUIVARIANT else "undecided"


def _left(runs: Runs, part: str, arm: str, names: Sequence[str]) -> dict[str, Difference]:
    found = {n: paired(list(values(runs, part, arm, f"{n}_left_over").values())) for n in names}
    return {name: each for name, each in found.items() if each is not None}


def _at_all_steps(runs: Runs) -> Claim:
    steps = steps_of(runs)
    found = _left(runs, TOY, "toy", [f"step_{step}" for step in steps])
    members = [cell(runs, TOY, "toy", f"step_{step}_member", 2) for step in steps]
    parts = [
        f"{_after(step)}: {members[n]} and {_said(found[f'step_{step}'])}"
        for n, step in enumerate(steps)
    ]
    return Claim(
        "Toy: the ensemble's mean is equivariant at all steps, members are not",
        "curves at 0, 1, 2, 3 and 2000 steps: members lopsided, mean symmetric",
        "deviation of a member, and part of its square that infinitely many members would have: "
        + "; ".join(parts),
        _nothing_left(found),
    )


def _closed_curves(runs: Runs) -> Claim:
    steps = steps_of(runs)
    largest = max(
        v for s in steps for v in values(runs, TOY, "toy", f"step_{s}_closed_form").values()
    )
    found = {
        s: _ratios(runs, TOY, "toy", f"step_{s}_from_closed_form",
                   f"step_{s}_from_closed_form_expected") for s in steps
    }  # fmt: skip
    text = "; ".join(
        f"{_after(s)}: {math.exp(d.mean):.2f}" for s, d in found.items() if d is not None
    )
    return Claim(
        "Toy: the infinite ensemble is exactly even at all steps",
        "theorem",
        f"largest deviation of the closed form {largest:.1g}; distance of the ensemble's mean from"
        f" it, over that expected of so few members: {text}",
        "holds" if largest < 1e-10 else "does not hold",
    )


def _as_predicted(runs: Runs, arm: str, place: str) -> Claim:
    sizes = [size for size in GROUPED if values(runs, ISING, arm, f"{place}_deviation_{size}")]
    size = max(sizes, default=1)
    found = {
        each: _ratios(runs, ISING, arm, f"{place}_deviation_{each}", f"{place}_predicted_{each}")
        for each in (1, size)
    }
    mean, verdict = found[size], "undecided"
    if mean is not None and mean.low is not None and mean.high is not None:
        near = mean.high - mean.low < 2 * NEAR
        verdict = "does not hold" if mean.clear else "holds" if near else "undecided"
    said = (
        "n/a" if each is None else f"{math.exp(each.mean):.3f}{_interval(each)}"
        for each in found.values()
    )
    return Claim(
        f"Ising, {arm}, {PLACES[place]}: finite ensembles deviate by s/√M",
        "points near the NTK line (figure, no numbers)",
        "measured over predicted: one member {}, means of {} {}".format(next(said), size, *said),
        verdict,
    )


def _interval(found: Difference) -> str:
    if found.low is None or found.high is None:
        return ""
    return f" [{math.exp(found.low):.3f}, {math.exp(found.high):.3f}]"


def _left_at_any_width(runs: Runs) -> Claim:
    arms = [arm for arm in runs.arms(ISING) if arm != NTK]
    found = {
        f"{arm}, {place.upper()}": each
        for arm in arms
        for place, each in _left(runs, ISING, arm, list(PLACES)).items()
    }
    return Claim(
        "Ising: the mean of infinitely many members is invariant, on and off the data",
        "holds at infinite width",
        "part of a member's squared deviation: "
        + "; ".join(f"{name} {_said(each, 4)}" for name, each in found.items()),
        _nothing_left(found),
    )


def _full_is_needed(runs: Runs) -> Claim:
    spreads: dict[str, list[float]] = {}
    for arm in runs.arms(PARTIAL):
        for found in runs.findings(PARTIAL, arm).values():
            rows = [row for row in found.rows if "_relative_" in row.metric]
            spreads.setdefault(arm, []).extend(float(row.value or 0.0) for row in rows)
    full = max(spreads.pop("all four", [math.nan]))
    least = {arm: min(found) for arm, found in spreads.items()}
    text = ", ".join(f"{arm} {value:.2g}" for arm, value in least.items())
    holds = full < 1e-10 and all(value > 1e-3 for value in least.values())
    return Claim(
        "Exactness needs the full orbit, and then holds at every t, on and off the data",
        "theorem",
        f"relative orbit deviation at infinite width: all four at most {full:.1g};"
        f" at least: {text}",
        "holds" if holds else "does not hold",
    )


def _cross_equivariant(runs: Runs) -> Claim:
    arm = runs.arms(CROSS)[0]
    found = _left(runs, CROSS, arm, [f"{place}_solid" for place in PLACES])
    return Claim(
        f"Cross product: with {arm} rotations the mean is equivariant, members are not",
        "not in the talk",
        "deviation of a member, and part of its square that infinitely many would have: "
        + "; ".join(
            f"{name.split('_')[0].upper()} {cell(runs, CROSS, arm, f'{name}_member', 2)} and"
            f" {_said(each, 4)}"
            for name, each in found.items()
        ),
        _nothing_left(found),
    )


def _finer(runs: Runs) -> Claim:
    arms = runs.arms(CROSS)
    metric = "id_continuous_closed_form"
    logs = [
        paired([math.log(fine[s] / coarse[s]) for s in fine if s in coarse])
        for fine, coarse in (
            (values(runs, CROSS, b, metric), values(runs, CROSS, a, metric))
            for a, b in zip(arms, arms[1:], strict=False)
        )
    ]
    clear = [each is not None and each.clear and each.mean < 0 for each in logs]
    text = " to ".join(cell(runs, CROSS, arm, metric, 3) for arm in arms)
    return Claim(
        "Cross product: finer sets of rotations come nearer to the continuous group",
        "not in the talk (a lemma of the paper)",
        f"deviation at any rotation, infinite ensemble, {' to '.join(arms)}: {text}",
        "holds" if all(clear) else "undecided",
    )
