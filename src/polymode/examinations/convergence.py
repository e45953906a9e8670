r"""Did training converge? The loss curves that `fit` records, in numbers.

Curves are means over members. The slope is that of a least-squares line through the train losses of
the last fifth of training, times the length of that fifth: how much the loss still falls there,

.. math:: \hat\beta = \sum_t (t - \bar t)(\ell_t - \bar\ell) / \sum_t (t - \bar t)^2,
          \quad s.e. = \sqrt{\hat\sigma^2 / \sum_t (t - \bar t)^2}.

Traps: losses of neighbouring windows are treated as independent, which holds approximately for
windows of many steps. A schedule that ends at a rate of zero flattens every curve, whether or not
there was more to learn. The validation NLL is that of single members; their mixture may improve
while they get worse. Its best moment is the best of those evaluated, on at most 1,000 examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import Findings, measure
from polymode.metrics.results import Row
from polymode.posterior import Posterior
from polymode.tasks import Task
from polymode.training.history import History

LAST = 0.2  # share of training for the slope
FEWEST = 4  # points of a slope, at least
LOSS = "nats/example"


@EXAMINATIONS.register(
    "convergence",
    summary="loss curves of training and validation, and where they end",
    measures={
        "train_loss": "what the method minimises, per example, at the end of training",
        "train_drop": "how much the train loss fell from the first window of steps to the last",
        "train_slope": "least-squares change of the train loss over the last fifth of training",
        "best_val_nll": "lowest validation NLL of single members, mean over them",
        "last_val_nll": "the same at the end of training",
        "val_rise": "last minus best validation NLL",
        "best_val_at": "when it was lowest, as a fraction of training",
        "train_seconds": "wall time of training",
    },
)
def convergence(post: Posterior, task: Task) -> Findings:
    """Return the numbers of the fit's loss curves; see the module."""
    history: History = post.history
    if not history.train_steps:
        raise ValueError(
            f"this posterior ({post.method}) has no loss curves: it was not trained here, or saved"
            " before curves were kept; fit it with epochs > 0"
        )
    steps, train = np.array(history.train_steps, float), _array(history.train_loss)
    moments, val = np.array(history.val_steps, float), _array(history.val_nll)
    rows = [*_training(steps, train, history.total_steps), *_validation(moments, val, history)]
    rows.append(measure("train_seconds", history.seconds, unit="s", n=1))
    arrays = {"train steps": steps, "train loss": train}
    if len(moments):
        arrays |= {"validation steps": moments, "validation NLL": val}
    return Findings(tuple(rows), arrays)


def _training(steps: np.ndarray, train: np.ndarray, total: int) -> list[Row]:
    curve, members = train.mean(1), train.shape[1]
    late = steps > (1 - LAST) * total
    slope, error = _slope(steps[late], curve[late])
    defined = slope is not None
    return [
        measure(
            "train_loss", curve[-1], unit=LOSS, n=members, standard_error=_spread(train[-1])
        ),
        measure("train_drop", curve[0] - curve[-1], unit=LOSS, n=len(steps)),
        measure(
            "train_slope",
            LAST * total * slope if slope is not None else None,
            unit=LOSS,
            n=int(late.sum()),
            standard_error=LAST * total * error if error is not None else None,
            note="" if defined else f"n/a (fewer than {FEWEST} points in the last fifth)",
        ),
    ]  # fmt: skip


def _validation(moments: np.ndarray, val: np.ndarray, history: History) -> list[Row]:
    if not len(moments):
        return []
    curve = val.mean(1)
    shared: dict[str, Any] = {"unit": LOSS, "n": history.num_val}
    best = int(np.nanargmin(curve)) if np.isfinite(curve).any() else len(curve) - 1
    rise = val[-1] - val[best]
    place = moments[best] / history.total_steps
    return [
        measure(
            "best_val_nll",
            curve[best],
            direction="down",
            standard_error=_spread(val[best]),
            **shared,
        ),
        measure(
            "last_val_nll", curve[-1], direction="down", standard_error=_spread(val[-1]), **shared
        ),
        measure("val_rise", rise.mean(), standard_error=_spread(rise), **shared),
        measure("best_val_at", place, unit="fraction of training", n=len(moments)),
    ]


def _array(curve: tuple[tuple[float | None, ...], ...]) -> np.ndarray:
    """Return a curve (T, M), NaN where a loss was not finite."""
    return np.array([[np.nan if v is None else v for v in point] for point in curve], float)


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float | None, float | None]:
    """Return the slope of a least-squares line and its standard error; None for too few points."""
    if len(x) < FEWEST:
        return None, None
    centred = x - x.mean()
    square = float((centred**2).sum())
    slope = float((centred * y).sum()) / square
    residuals = y - y.mean() - slope * centred
    return slope, float((residuals**2).sum() / (len(x) - 2) / square) ** 0.5


def _spread(values: np.ndarray) -> float | None:
    """Return the standard error over members; None for one."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
