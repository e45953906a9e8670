"""What a posterior predicts along orbits: each mode by itself, sub-ensembles, all together.

An ensemble of members predicts the mean of their probabilities, or of their values in a regression.
A member is a mode, with the mean over its samples. `M` modes, `G` elements, `B` inputs, `C` classes
or outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.memory import require_free
from polymode.core.registry import suggest
from polymode.core.rng import generator
from polymode.equivariance.groups import Group
from polymode.equivariance.orbits import Score, class_scores, mean_of_members, value_scores
from polymode.metrics.diversity.size import mean_over_subsets, subsets
from polymode.posterior import Posterior
from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.tasks import Task
from polymode.training.data import Arrays

NOISE = "noise"


class Along(NamedTuple):
    """Predictions along the orbits of some inputs.

    Attributes:
        members: (M, G, B, C) log-probabilities of each mode, or values.
        classes: whether they are log-probabilities. group: whose orbits they are.
        labels: (B,) or None.
    """

    members: Tensor
    classes: bool
    group: Group
    labels: Tensor | None = None

    def ensemble(self, modes: Sequence[int] | None = None) -> Tensor:
        """Return what some members, or all, predict together, (G, B, C)."""
        chosen = self.members if modes is None else self.members[list(modes)]
        return mean_of_members(chosen) if self.classes else chosen.mean(0)

    def scores(self, modes: Sequence[int] | None = None) -> dict[str, Score]:
        """Return the orbit metrics of some members together, by default all."""
        together = self.ensemble(modes)
        if self.classes:
            return class_scores(together, self.labels)
        return value_scores(together, self.group)

    def member_scores(self) -> dict[str, Score]:
        """Return the orbit metrics of one member, mean over members with the error over them."""
        each = [self.scores([mode]) for mode in range(len(self.members))]
        found = {}
        for name in each[0]:
            values = torch.tensor([scores[name].value for scores in each], dtype=torch.float64)
            error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else None
            found[name] = Score(values.mean().item(), error, len(values))
        return found


def along_orbits(
    post: Posterior,
    x: Tensor,
    group: Group,
    labels: Tensor | None = None,
    *,
    samples_per_mode: int | None = None,
    seed: int = 0,
) -> Along:
    """Return what each mode predicts at every g x; the same samples at all of them."""
    need = len(group) * x.numel() * x.element_size()
    require_free(need, f"the orbits of {len(x):,} inputs", "Take fewer inputs: num_examples")
    orbit = group.orbit(x)
    prediction = post.predict(orbit.flatten(0, 1), samples_per_mode=samples_per_mode, seed=seed)
    split = (len(group), len(x))
    if isinstance(prediction, CategoricalPrediction):
        log_probs = prediction.by_mode.log_probs  # (M, L, G B, C)
        members = log_probs.logsumexp(1) - math.log(log_probs.shape[1])
        return Along(members.unflatten(1, split).cpu(), True, group, labels)
    assert isinstance(prediction, MixturePrediction)
    return Along(prediction.by_mode.loc.mean(1).unflatten(1, split).cpu(), False, group)


def by_size(
    along: Along,
    names: Sequence[str],
    *,
    sizes: Sequence[int] | None = None,
    num_subsets: int = 20,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return orbit metrics of sub-ensembles, whose members are drawn without replacement.

    Returns:
        "members" (sizes), and for each name its mean over subsets and "NAME s.e.", the error of
        that mean over all subsets of these members; 0 where all were taken.
    """
    most = len(along.members)
    sizes = sizes or sorted({min(2**k, most) for k in range(most.bit_length() + 1)})
    if max(sizes) > most:
        raise ValueError(f"`sizes` must be at most {most}, the number of modes, got {max(sizes)}")
    found: dict[str, list[float]] = {key: [] for name in names for key in (name, f"{name} s.e.")}
    for size in sizes:
        each = [along.scores(chosen) for chosen in subsets(most, size, num_subsets, seed)]
        for name in names:
            values = [scores[name].value for scores in each]
            mean, error = mean_over_subsets(values, math.comb(most, size))
            found[name].append(mean)
            found[f"{name} s.e."].append(error)
    return {"members": np.array(sizes, float)} | {k: np.array(v) for k, v in found.items()}


def inputs_of(task: Task, number: int) -> tuple[Tensor, Tensor]:
    """Return the first test inputs and targets."""
    if task.test is None:
        raise ValueError(f"task '{task.name}' has no test set; orbits need inputs, give it one")
    if isinstance(task.test, Arrays):
        return task.test.head(number)
    x, y = next(iter(task.test.batches(number)))
    return x[:number], y[:number]


def ood_inputs(task: Task, name: str, like: Tensor) -> tuple[str, Tensor]:
    """Return an OOD set's name and first inputs, as many as `like` has.

    Args:
        name: of the task's OOD sets; "" for the first; "noise", also where there is none, for
            independent N(0, 1) entries.
    """
    names = list(task.ood)
    if name and name != NOISE and name not in names:
        known = [*names, NOISE]
        raise ValueError(
            f"Unknown OOD set '{name}'.{suggest(name, known)} Known: {', '.join(known)}"
        )
    if name == NOISE or not names:
        return NOISE, torch.randn(like.shape, generator=generator(0, NOISE)).to(like)
    found = task.ood[name or names[0]]
    x = found if isinstance(found, Tensor) else next(iter(found.batches(len(like))))[0]
    return name or names[0], x[: len(like)]
