"""Regression scores in standard deviations of the training targets, as much literature reports.

RMSE, NLL and CRPS of prediction and targets divided by that scale (`regression.standardise`), which
`evaluate` takes from the task and results call `target_scale`.
"""

from __future__ import annotations

from polymode.metrics.crps import crps
from polymode.metrics.regression import nll, rmse
from polymode.metrics.score import REGRESSION, register

UNIT = "standard deviations"

for metric, title, unit in (
    (rmse, "RMSE", UNIT),
    (nll, "NLL", "nats/example"),
    (crps, "CRPS", UNIT),
):
    register(
        REGRESSION,
        f"{metric.__name__}_standardised",
        title=f"{title}, standardised",
        unit=unit,
        direction="down",
        family="quality",
        standardised=True,
        summary=f"{title} of targets divided by the training targets' standard deviation",
    )(metric)
