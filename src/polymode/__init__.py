"""polymode: how sure is this network, and can I trust that?

Fits approximations of a Bayesian neural network's posterior, with one mode or many, and predicts
with them.

    import polymode as pm

    task = pm.task("digits")
    post = pm.fit("deep_ensemble", net=pm.nets.lenet, task=task, num_modes=5, seed=0)
    pred = post.predict(task.test.x)
    pred.mean, pred.predictive_entropy, pred.mutual_information
"""

from polymode import methods, nets
from polymode._version import __version__
from polymode.methods import fit
from polymode.posterior import Posterior, load
from polymode.prediction import Prediction
from polymode.tasks import Task, task

__all__ = [
    "Posterior",
    "Prediction",
    "Task",
    "__version__",
    "fit",
    "load",
    "methods",
    "nets",
    "task",
]
