"""polymode: how sure is this network, and can I trust that?

Fits approximations of a Bayesian neural network's posterior, with one mode or many, predicts with
them, scores the predictions and reports.

    import polymode as pm

    task = pm.task("digits")
    post = pm.fit("deep_ensemble", net=pm.nets.lenet, task=task, num_modes=5, seed=0)
    pred = post.predict(task.test.x)
    pred.mean, pred.predictive_entropy, pred.mutual_information
    board = pm.compare([pm.evaluate(post, task)])
    pm.report(board, "report.html")

Names are imported when they are first used, so that `import polymode`, and the command line's help
with it, cost next to nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from polymode._version import __version__

if TYPE_CHECKING:
    from polymode import (
        adversary,
        conformal,
        equivariance,
        examinations,
        likelihoods,
        methods,
        metrics,
        nets,
        plots,
        recalibration,
        sklearn,
        symmetry,
        tasks,
        tomography,
        zoo,
    )
    from polymode.audits import audit
    from polymode.examinations import examine
    from polymode.examinations.reference_posterior import reference
    from polymode.methods import fit, options
    from polymode.metrics import compare, evaluate
    from polymode.posterior import Posterior, load
    from polymode.prediction import Prediction
    from polymode.report import cite, list_methods, report
    from polymode.tasks import Task, list_tasks, task

__all__ = [
    "Posterior", "Prediction", "Task", "__version__", "adversary", "audit", "cite", "compare",
    "conformal", "equivariance", "evaluate", "examinations", "examine", "fit", "likelihoods",
    "list_methods", "list_tasks", "load", "methods", "metrics", "nets", "options", "plots",
    "recalibration", "reference", "report", "sklearn", "symmetry", "task", "tasks", "tomography",
    "zoo",
]  # fmt: skip

# Torch reads this with its first tensor: large ones then lie in huge pages (docs/decisions/0006).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

_HOMES = {
    "Posterior": "posterior",
    "Prediction": "prediction",
    "Task": "tasks",
    "audit": "audits",
    "cite": "report",
    "compare": "metrics",
    "evaluate": "metrics",
    "examine": "examinations",
    "fit": "methods",
    "list_methods": "report",
    "list_tasks": "tasks",
    "load": "posterior",
    "options": "methods",
    "reference": "examinations.reference_posterior",
    "report": "report",
    "task": "tasks",
}

_ROOMS = (
    "adversary", "conformal", "equivariance", "examinations", "likelihoods", "methods", "metrics",
    "nets", "plots", "recalibration", "sklearn", "symmetry", "tasks", "tomography", "zoo",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"polymode.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'polymode' has no attribute '{name}'")
    value = getattr(import_module(f"polymode.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
