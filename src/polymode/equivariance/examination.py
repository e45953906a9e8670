"""The examination `equivariance`: does a posterior predict the same for every g x?

    polymode run --task fashion_mnist --method deep_ensemble --examine equivariance:group=C4

On the test set and on an OOD set, for single members and for all of them together: orbit same
predictions (OSP), spread of the probabilities along orbits, symmetrised KL, and the equivariance
error; and how OSP and spread change with the number of members, by sub-ensembles. Accuracy stands
beside OSP, as a constant prediction is perfectly invariant. A member is a mode, with the mean over
its samples; an ensemble predicts the mean of its members' probabilities, or of their values in a
regression. See docs/equivariance.md for the definitions.

A layer whose padding or stride breaks the symmetry of the architecture is named in a warning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.memory import require_free
from polymode.core.options import Config, option, rule
from polymode.core.registry import suggest
from polymode.core.rng import generator
from polymode.core.warn import warn
from polymode.equivariance.broken_layers import broken_layers
from polymode.equivariance.groups import Group
from polymode.equivariance.groups import group as find_group
from polymode.equivariance.orbits import Score, class_scores, mean_of_members, value_scores
from polymode.equivariance.planar import QuarterTurns, Turns
from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import (
    Findings,
    measure,
    require_one_input,
    require_one_target,
)
from polymode.metrics.diversity.size import mean_over_subsets, subsets
from polymode.metrics.results import Row
from polymode.posterior import Posterior
from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.tasks import Task
from polymode.training.data import Arrays, first_inputs

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
        by_member = [self.scores([mode]) for mode in range(len(self.members))]
        averages = {}
        for name in by_member[0]:
            values = torch.tensor([scores[name].value for scores in by_member], dtype=torch.float64)
            error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else None
            averages[name] = Score(values.mean().item(), error, len(values))
        return averages


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
    curves: dict[str, list[float]] = {key: [] for name in names for key in (name, f"{name} s.e.")}
    for size in sizes:
        subset_scores = [along.scores(chosen) for chosen in subsets(most, size, num_subsets, seed)]
        for name in names:
            values = [scores[name].value for scores in subset_scores]
            mean, error = mean_over_subsets(values, math.comb(most, size))
            curves[name].append(mean)
            curves[f"{name} s.e."].append(error)
    return {"members": np.array(sizes, float)} | {k: np.array(v) for k, v in curves.items()}


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
        choices = [*names, NOISE]
        raise ValueError(
            f"Unknown OOD set '{name}'.{suggest(name, choices)} Known: {', '.join(choices)}"
        )
    if name == NOISE or not names:
        return NOISE, torch.randn(like.shape, generator=generator(0, NOISE)).to(like)
    return name or names[0], first_inputs(task.ood[name or names[0]], len(like))


SHOWN = 3  # inputs with an orbit plot
ANGLES = 36  # of such a plot
CURVES = ("same_share", "deviation")
UNITS = {"kl": "nats", "largest_kl": "nats"}
UP = ("same_predictions", "same_share", "accuracy", "orbit_accuracy")


def _are_sizes(value: Any) -> bool:
    several = isinstance(value, list | tuple)
    return several and all(type(size) is int and size >= 1 for size in value)


@dataclass(frozen=True, kw_only=True)
class Equivariance(Config):
    """Options of `equivariance`."""

    called = "equivariance"
    group: str = option(
        "C4", doc='name such as "C4", "C16", "D4", "C4@5x5" or "SO3-octahedral->input"'
    )
    ood: str = option(
        "", doc='name of the OOD set, empty for the task\'s first; "noise" for normal noise'
    )
    num_examples: int = option(300, ge=2, doc="inputs of each set, or all that there are")
    sizes: Sequence[int] | None = option(
        None,
        rule=rule("integers of at least 1", _are_sizes),
        doc="numbers of members of sub-ensembles",
        none="takes powers of 2 and all",
    )
    num_subsets: int = option(20, ge=2, doc="sub-ensembles of a size")
    samples_per_mode: int | None = option(
        None, ge=1, doc="L", none="is that of the posterior's predictions"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        find_group(self.group)  # names the groups there are


_WORDS = {
    "same_predictions": "OSP: of the |G| predictions along an orbit, how many are that of the"
    " input itself, mean over inputs; at most |G|",
    "same_share": "OSP / |G|, to compare groups",
    "kl": "symmetrised KL divergence between the predictions at x and at g x, mean over g ≠ 1",
    "largest_kl": "the largest of these over inputs and g",
    "deviation": "standard deviation along the orbit, of probabilities or values, mean over inputs",
    "relative_deviation": "the same over the rms of the orbit's mean",
    "error": "‖f(g x) − ρ(g) f(x)‖ over the mean ‖f‖, of probabilities or values",
    "accuracy": "accuracy at x",
    "orbit_accuracy": "accuracy at all g x",
}
MEASURES = {"chance": "OSP of independent uniform predictions, 1 + (|G| − 1) / C"}
for _set, _where in (("", "test set"), ("ood_", "OOD set")):
    for _name, _text in _WORDS.items():
        if _set and "accuracy" in _name:
            continue
        MEASURES[f"{_set}{_name}"] = f"{_text}; all members together, {_where}"
        MEASURES[f"{_set}member_{_name}"] = f"the same of one member, mean over members; {_where}"


@EXAMINATIONS.register(
    "equivariance",
    summary="how symmetric predictions are along the orbits of a group, members and ensemble",
    measures=MEASURES,
    options=Equivariance,
)
def equivariance(post: Posterior, task: Task, options: Equivariance) -> Findings:
    """Return how symmetric a posterior's predictions are; see the module."""
    require_one_input("a group acts on one input", post.input_shape)
    require_one_target("an orbit", post.likelihood)
    acting, samples_per_mode = find_group(options.group), options.samples_per_mode
    if post.likelihood.classification and not acting.invariant:
        raise ValueError(
            f"labels have no group action, but the outputs of '{options.group}' are to move; take"
            " the group without '->' for invariant classes"
        )
    _warn_of_layers(post, acting)
    x, y = inputs_of(task, options.num_examples)
    name, outside = ood_inputs(task, options.ood, x)
    sets = {"": (x, y if post.likelihood.classification else None), "ood_": (outside, None)}
    rows: list[Row] = []
    arrays: dict[str, np.ndarray] = {"ood": np.array([name]), "order": np.array([len(acting)])}
    for prefix, (inputs, labels) in sets.items():
        along = along_orbits(post, inputs, acting, labels, samples_per_mode=samples_per_mode)
        together, alone = along.scores(), along.member_scores()
        chance = together.pop("chance", None)
        alone.pop("chance", None)
        if chance is not None and not prefix:
            rows.append(_row("chance", chance))
        rows += [_row(f"{prefix}{key}", score, key) for key, score in together.items()]
        rows += [_row(f"{prefix}member_{key}", score, key) for key, score in alone.items()]
        names = [curve for curve in CURVES if curve in together]
        curves = by_size(along, names, sizes=options.sizes, num_subsets=options.num_subsets)
        arrays |= {f"{prefix}{key}": values for key, values in curves.items()}
    return Findings(tuple(rows), arrays | _shown(post, acting, x, y, samples_per_mode))


def _row(metric: str, score: Score, kind: str = "") -> Row:
    direction = "up" if kind in UP else "down" if kind in _WORDS else ""
    finite = None if math.isinf(score.value) else score.standard_error
    return measure(
        metric, score.value, n=score.n, unit=UNITS.get(kind, ""), direction=direction,
        standard_error=finite,
    )  # fmt: skip


def _warn_of_layers(post: Posterior, acting: Group) -> None:
    for layer in broken_layers(post[:1].members[0], acting, post.input_shape):
        warn(str(layer))


def _shown(
    post: Posterior, acting: Group, x: Tensor, y: Tensor, samples_per_mode: int | None
) -> dict[str, np.ndarray]:
    """Return curves of a few inputs along their orbits: the probability of the label, or the first
    output. Turns are shown on a fine circle, with the image turned and put back as a control."""
    few, labels = x[:SHOWN], y[:SHOWN]
    turning = isinstance(acting, Turns) or (isinstance(acting, QuarterTurns) and not acting.mirror)
    circle, control = acting, None
    if turning and few.ndim == 4 and few.shape[-1] == few.shape[-2]:
        angles = torch.arange(ANGLES + 1, dtype=torch.float64) * (2 * math.pi / ANGLES)
        circle = Turns(angles, closed=False, name="circle")
        back = Turns(-angles, closed=False, name="back")
        control = torch.stack([back.act(image, k) for k, image in enumerate(circle.orbit(few))])
    along = along_orbits(post, few, circle, samples_per_mode=samples_per_mode)
    curves = {"theta": np.arange(len(circle)) * (360 / ANGLES if control is not None else 1.0)}

    def curve(members: Tensor) -> np.ndarray:
        """Return (n, M, T) of (M, T, n, C)."""
        if along.classes:
            places = labels.long().cpu().expand(*members.shape[:2], -1)[..., None]
            members = members.exp().gather(-1, places)
        return members[..., 0].permute(2, 0, 1).numpy()

    curves["orbit members"] = curve(along.members)
    if along.classes:
        probs = along.ensemble().exp()
        curves["orbit entropy"] = torch.special.entr(probs).sum(-1).T.numpy()
        curves["orbit label"] = labels.cpu().numpy()
    if control is not None:
        same = along_orbits(post, control.flatten(0, 1), _identity(), None)
        split = same.members[:, 0].unflatten(1, control.shape[:2])
        curves["orbit control"] = curve(split).mean(1)
    return curves


def _identity() -> Group:
    return find_group("C1")
