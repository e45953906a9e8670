"""From networks and data as users have them to a `Subject`: nothing is trained."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polymode.audits.subject import Subject
from polymode.core.rows import Inputs, Rows
from polymode.likelihoods.kinds import Gaussian, Likelihood, as_likelihood
from polymode.methods.fit import fit
from polymode.posterior import Posterior
from polymode.tasks.task import Task
from polymode.training.data import TARGET_NAMES, as_data

PROBE = 2  # rows that a network is tried on, for the number of its outputs


@dataclass(frozen=True)
class Sources:
    """What an audit is given besides networks; see `audit`."""

    test: Any
    val: Any = None
    train: Any = None
    ood: Mapping[str, Any] = field(default_factory=dict)
    likelihood: str | Likelihood = "categorical"
    output: str | int | None = None
    class_names: Sequence[str] | None = None


def subject_of(net: Any, data: Sources) -> Subject:
    """Return networks and data as a subject; the noise of a Gaussian is fitted if it is unset."""
    if isinstance(data.test, Task):
        return _of_task(net, data.test, data.output)
    likelihood, num_rows = _with_noise(net, data)
    data = replace(data, likelihood=likelihood)
    labelled = _has_labels(data.test)
    size = _target_size(net, data)
    test = data.test if labelled else _with_zeros(data.test, likelihood, size)
    source = next(part for part in (data.train, data.val, test) if part is not None)
    task = Task(
        train=source, test=test, val=data.val, ood=data.ood, likelihood=likelihood, name="audit",
        target_scaling=None, input_scaling=None, target_size=size, class_names=data.class_names,
    )  # fmt: skip
    _refuse_positions(task)
    post = as_posterior(net, task, data.output)
    return Subject(
        post,
        task,
        has_train=data.train is not None,
        has_labels=labelled,
        noise_fitted_on=num_rows,
        output=data.output,
    )


def _of_task(net: Any, task: Task, output: str | int | None) -> Subject:
    if task.test is None:
        raise ValueError("an audit needs test data: give `test=(x, y)`, or a task that has them")
    _refuse_positions(task)
    return Subject(as_posterior(net, task, output), task, has_train=True, output=output)


def _refuse_positions(task: Task) -> None:
    if task.likelihood.num_axes:
        raise ValueError(
            "an audit is for one target for each input, and these have targets at positions; see"
            " pm.evaluate for maps and sequences"
        )


def as_posterior(net: Any, task: Task, output: str | int | None) -> Posterior:
    """Return networks as they are as a posterior."""
    if isinstance(net, Posterior):
        return net
    if not isinstance(net, nn.Module) and not isinstance(net, Sequence):
        raise ValueError(
            f"`net` of audit must be a trained module, a list of them or a posterior, got"
            f" {type(net).__name__}; a factory would make untrained networks"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a network without a spread is a point is known here
        return fit("map", net=net, task=task, epochs=0, output=output, progress="silent")


def _has_labels(test: Any) -> bool:
    """Whether test data are more than inputs."""
    if isinstance(test, Mapping):
        return any(name in test for name in TARGET_NAMES)
    if isinstance(test, (tuple, list)) and len(test) == 2:
        return test[1] is not None
    return not isinstance(test, (Tensor, np.ndarray, Rows))


def _with_zeros(test: Any, likelihood: str | Likelihood, size: int | None) -> tuple[Any, Tensor]:
    """Return inputs with targets that nobody looks at."""
    x = test[0] if isinstance(test, (tuple, list)) else test
    n = len(next(iter(x.values()))) if isinstance(x, Mapping) else len(x)
    if as_likelihood(likelihood).classification:
        return x, torch.zeros(n, dtype=torch.int64)
    return x, torch.zeros(n, size or 1)


def _target_size(net: Any, data: Sources) -> int | None:
    """Return the number of classes or values that the networks have outputs for, if it is clear."""
    if isinstance(net, Posterior):
        return net.target_size
    first = net[0] if isinstance(net, Sequence) and len(net) else net
    likelihood = as_likelihood(data.likelihood)
    if not isinstance(first, nn.Module) or likelihood.num_axes:
        return None
    test = data.test if _has_labels(data.test) else _with_zeros(data.test, "categorical", None)
    try:
        x, _ = next(iter(as_data(test).batches(PROBE)))
    except (ValueError, StopIteration):  # tables and names of classes, which a task reads
        return None
    number = _num_outputs(first, x[:PROBE], data.output)
    if likelihood.classification:
        return number if number > 1 and likelihood.num_outputs(number) == number else None
    return next(filter(lambda size: _fits(likelihood, size, number), range(1, number + 1)), None)


def _fits(likelihood: Likelihood, size: int, number: int) -> bool:
    """Whether targets of this size need so many outputs."""
    try:
        return likelihood.num_outputs(size) == number
    except ValueError:  # a noise for each of another number of targets
        return False


def _num_outputs(net: nn.Module, x: Inputs, output: str | int | None) -> int:
    """Return the length of a network's output for one example, 0 if it cannot be told."""
    mode = net.training
    parameter = next(net.parameters(), None)
    try:
        net.eval()
        with torch.no_grad():
            tree = x.tree if isinstance(x, Rows) else _cast(x, parameter)
            if isinstance(tree, Mapping):
                logits = net(**tree)
            elif isinstance(tree, tuple):
                logits = net(*tree)
            else:
                logits = net(tree)
        if output is not None:
            logits = logits[output] if not isinstance(output, str) else _named(logits, output)
        return int(logits.shape[-1]) if isinstance(logits, Tensor) and logits.dim() == 2 else 0
    except Exception:  # what is wrong with the call is said by the fit, with its reason
        return 0
    finally:
        net.train(mode)


def _named(outputs: Any, name: str) -> Any:
    return outputs[name] if isinstance(outputs, Mapping) else getattr(outputs, name)


def _cast(x: Tensor, parameter: Tensor | None) -> Tensor:
    return x.to(parameter.dtype) if parameter is not None and x.is_floating_point() else x


def _with_noise(net: Any, data: Sources) -> tuple[str | Likelihood, int | None]:
    """Return the likelihood with the noise of a Gaussian, and on how many rows it was fitted.

    Its variance is the mean square of the errors on `val` less the variance between networks.
    """
    law = data.likelihood
    unset = isinstance(law, Gaussian) and law.noise is None
    if isinstance(net, Posterior):
        return net.likelihood, None
    if law != "gaussian" and not unset:
        return law, None
    if data.val is None:
        raise ValueError(
            "a Gaussian likelihood needs its noise: give likelihood=Gaussian(noise=...), or"
            " labelled validation data (`val`) on which it is fitted"
        )
    trial = subject_of(
        net, replace(data, test=data.val, val=None, ood={}, likelihood=Gaussian(1.0))
    )
    errors = (trial.targets - trial.prediction.mean).double().square()
    between = trial.prediction.epistemic_variance.double()
    variance = torch.maximum((errors - between).mean(0), 1e-6 * errors.mean(0)).clamp_min(1e-24)
    return Gaussian(noise=tuple(variance.sqrt().tolist())), len(errors)
