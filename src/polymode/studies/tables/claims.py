"""What the study claims, written before its run, and whether it holds.

Of one contender, the default of the estimators: on how many tables it is the best or tied with the
best of the others in NLL, and in CRPS (Brier score of classes). Tied: the 95 % interval of the
difference, paired over divisions, does not lie above 0. With three divisions such an interval is
wide, so the tables have the differences as well.
"""

from __future__ import annotations

from polymode.studies.study import Claim, Runs
from polymode.studies.tables.contenders import OURS
from polymode.studies.tables.tables import (
    DEFAULT,
    best_of,
    contenders,
    gap_to,
    metrics_of,
    worst_group,
)

LEAST = 0.85  # coverage of the worst group, of 0.90


def claims(runs: Runs) -> list[Claim]:
    """Return the claims with their verdicts."""
    return [_tied(runs, 0), _tied(runs, 1), _worst(runs, DEFAULT), _worst(runs, "")]


def _tied(runs: Runs, which: int) -> Claim:
    names = {"nll": "NLL"} if which == 0 else {"crps": "CRPS", "brier": "Brier score"}
    title = " or ".join(names.values())
    verdicts: dict[str, list[str]] = {"best": [], "tied": [], "worse": []}
    for part in runs.parts:
        metric = metrics_of(part)[which]
        gap = gap_to(runs, part, metric, DEFAULT, best_of(runs, part, metric, but=DEFAULT))
        if gap is None or gap.low is None or gap.high is None:
            continue
        verdict = "worse" if gap.low > 0 else "best" if gap.mean < 0 else "tied"
        verdicts[verdict].append(part)
    judged = sum(map(len, verdicts.values()))
    good = judged - len(verdicts["worse"])
    text = "; ".join(f"{name} on {', '.join(parts) or 'none'}" for name, parts in verdicts.items())
    verdict = "holds" if 2 * good >= judged else "does not hold"
    return Claim(
        f"{title}: the default is best or tied on at least half of the tables",
        "with defaults, paired intervals",
        f"{good} of {judged}: {text}" if judged else "not run",
        verdict if judged else "not run",
    )


def _worst(runs: Runs, only: str) -> Claim:
    """Holds if every pooled share is high enough; refuted by an interval that lies below."""
    groups = {
        f"{part}, {name}": group
        for part in runs.parts
        for name in contenders(runs, part)
        if name in OURS and only in ("", name)
        and (group := worst_group(runs, part, name, "mondrian")) is not None
    }  # fmt: skip
    who = f"of the default ({DEFAULT})" if only else "of every method of polymode"
    below = {name: group for name, group in groups.items() if group.share < LEAST}
    where = "; ".join(
        f"{name} {group.share:.3f} [{group.low:.3f}, {group.high:.3f}]"
        for name, group in below.items()
    )
    lowest = min((group.share for group in groups.values()), default=0.0)
    clear = any(group.high < LEAST for group in below.values())
    verdict = "holds" if not below else "does not hold" if clear else "undecided"
    return Claim(
        f"Coverage of the worst group {who} is at least {LEAST:.2f} with Mondrian everywhere",
        "nominal 0.90",
        f"lowest {lowest:.3f} of {len(groups)}; below: {where or 'none'}" if groups else "not run",
        verdict if groups else "not run",
    )
