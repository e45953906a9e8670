"""The checks, one file for each question: functions of a `Subject`, entered in `CHECKS`.

`calibration`: are confidences right, overall, in shape, by predicted class? `usefulness`: better
than trivial baselines? `groups`: whom does it fail? `rejection`: does it know when it is wrong?
"""

from polymode.audits.checks import calibration, groups, rejection, usefulness
from polymode.audits.checks.registry import CHECKS, Check, NotApplicable

__all__ = ["CHECKS", "Check", "NotApplicable", "calibration", "groups", "rejection", "usefulness"]
