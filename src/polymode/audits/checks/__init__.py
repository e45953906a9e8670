"""The checks, one file for each question: functions of a `Subject`, entered in `CHECKS`.

`calibration`: are confidences right, overall, in shape, by predicted class? `usefulness`: better
than trivial baselines? `groups`: whom does it fail? `rejection`: does it know when it is wrong?
`baseline`: better than the version before? `confusions`: which two classes are confused?
`duplicates`: are test rows among the training rows? `label_errors`: are labels wrong? `data`:
classes and columns. `slices`: where does it fail? `intervals`: all this of regressions.
`shifts`: what do corruptions do? `elsewhere`: OOD sets and attacks. `gains`: what would a cheap
posterior change? `unlabelled`: test data without labels. `laws` holds the laws of counts.
"""

from polymode.audits.checks import (
    baseline,
    calibration,
    confusions,
    data,
    duplicates,
    elsewhere,
    gains,
    groups,
    intervals,
    label_errors,
    rejection,
    shifts,
    slices,
    unlabelled,
    usefulness,
)
from polymode.audits.checks.registry import CHECKS, Check, NotApplicable, all_checks

__all__ = [
    "CHECKS", "Check", "NotApplicable", "all_checks", "baseline", "calibration", "confusions",
    "data", "duplicates", "elsewhere", "gains", "groups", "intervals", "label_errors", "rejection",
    "shifts", "slices", "unlabelled", "usefulness",
]  # fmt: skip
