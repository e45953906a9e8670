"""Regression scores in standard deviations of the training targets, besides those in units of y.

Much of the literature reports them: RMSE, NLL and CRPS of targets scaled to unit variance. Each is
the metric itself on prediction and targets divided by that scale (`regression.standardise`), which
`evaluate` takes from the task; results name it as `target_scale`.
"""

from __future__ import annotations

from polymode.metrics.crps import crps
from polymode.metrics.regression import nll, rmse
from polymode.metrics.score import REGRESSION, register

UNIT = "standard deviations"

for metric, title, unit, what in (
    (rmse, "RMSE", UNIT, "RMSE"),
    (nll, "NLL", "nats/example", "NLL"),
    (crps, "CRPS", UNIT, "CRPS"),
):
    register(
        REGRESSION,
        f"{metric.__name__}_standardised",
        title=f"{title}, standardised",
        unit=unit,
        direction="down",
        family="quality",
        standardised=True,
        summary=f"{what} of targets divided by the training targets' standard deviation",
    )(metric)
