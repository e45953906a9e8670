r"""Mondrian conformal prediction: the stated coverage within every group.

Calibrated by group, the quantile of group g comes from the scores of its :math:`n_g` examples
alone, so that for a new example of that group

.. math:: P(y \in C(x) \mid g) \ge level,

if calibration and new examples of the group are exchangeable. Groups may be

- any column that is known of new inputs, too: a site, a sex, a product;
- the class itself (`by_class`): the set then contains class c if its score is at most the quantile
  of the examples labelled c, so rare classes are covered as often as frequent ones;
- strata of predicted difficulty (`difficulty_groups`), whose edges are found on other data.

A group with :math:`n_g < level / (1 - level)` examples, and one that calibration has not seen, has
infinite intervals or sets of all classes. Groups must not be chosen by the scores or targets of the
calibration data.

Reference: V. Vovk, A. Gammerman, G. Shafer, Algorithmic learning in a random world, 2005 (Mondrian
and label-conditional predictors); H. Boström, U. Johansson, Mondrian conformal regressors, COPA
2020 (difficulty). `n`, `B` examples, `G` groups, `C` classes, `D` outputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.conformal.coverage import covered
from polymode.conformal.prediction_intervals import PredictionIntervals
from polymode.conformal.prediction_sets import PredictionSets
from polymode.conformal.quantile import conformal_quantile
from polymode.conformal.region import Region, region_of
from polymode.core.checks import Few, Seed, Share, check_call
from polymode.core.warn import warn
from polymode.likelihoods.targets import check_labels
from polymode.prediction import CategoricalPrediction, Prediction


@dataclass(frozen=True)
class MondrianRule:
    """A rule with a quantile per group: call it on a prediction and the groups of its inputs.

    Attributes:
        region: the score and its method.
        quantiles: of each group, D or 1 numbers; inf if the group is too small for the level.
        counts: calibration examples of each group.
    """

    region: Region
    quantiles: dict[Hashable, tuple[float, ...]] = field(repr=False)
    counts: dict[Hashable, int]

    @property
    def vacuous(self) -> list[Hashable]:
        """The groups with too few examples: their intervals are infinite, their sets full."""
        return [name for name, q in self.quantiles.items() if torch.inf in q]

    def __call__(
        self, prediction: Prediction, groups: Any, *, seed: Seed = 0
    ) -> PredictionSets | PredictionIntervals:
        """Return sets or intervals of B inputs.

        Args:
            prediction: of the kind of the calibration.
            groups: the group of each input, (B,).
            seed: of the draws of aps and raps.
        """
        names = group_names(groups, len(prediction))
        if unseen := sorted({str(name) for name in names if name not in self.quantiles}):
            warn(
                f"{len(unseen)} group(s) have no calibration example (first: {unseen[0]}); their"
                " intervals are infinite, or their sets hold all classes"
            )
        width = len(next(iter(self.quantiles.values())))
        default = (torch.inf,) * width
        rows = [self.quantiles.get(name, default) for name in names]
        bounds = torch.tensor(rows, dtype=torch.float64).view(len(names), width)
        return self.region.within(prediction, bounds, seed=seed)


@dataclass(frozen=True)
class ClassRule:
    """A rule with a quantile per class: call it on a prediction to get its sets.

    Attributes:
        region: the score and its method.
        quantiles: of each class; inf if it has too few examples for the level.
        counts: calibration examples of each class.
    """

    region: Region
    quantiles: tuple[float, ...] = field(repr=False)
    counts: tuple[int, ...]

    @property
    def vacuous(self) -> list[int]:
        """The classes with too few examples, which are in every set."""
        return [label for label, q in enumerate(self.quantiles) if q == torch.inf]

    def __call__(self, prediction: Prediction, *, seed: Seed = 0) -> PredictionSets:
        """Return the sets of B inputs; `seed` is that of the draws of aps and raps."""
        bounds = torch.tensor([self.quantiles], dtype=torch.float64)
        sets = self.region.within(prediction, bounds, seed=seed)
        assert isinstance(sets, PredictionSets)
        return sets


def by_group(
    prediction: Prediction,
    targets: Tensor,
    groups: Any,
    level: Share = 0.9,
    method: str | None = None,
    *,
    joint: bool = False,
    seed: Seed = 0,
) -> MondrianRule:
    """Return a rule that covers with probability >= `level` in every group.

    Args:
        prediction: of n >= 1 examples that the user sets aside for this.
        targets: their labels (n,), or values (n, D).
        groups: the group of each example, (n,): a tensor, an array or a list of names.
        level: in (0, 1).
        method: of `conformal_sets` ("thr" if None) or `conformal_intervals` ("scaled" if None).
        joint: whether all D outputs are to be covered at once.
        seed: of the draws of aps and raps.
    """
    check_call(by_group, locals(), but=("method",))
    region = region_of(prediction, method, level, joint=joint)
    scores = region.scores(prediction, targets, seed=seed)
    names = group_names(groups, len(scores))
    rows: dict[Hashable, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    quantiles = {
        name: tuple(conformal_quantile(scores[places], level).tolist())
        for name, places in rows.items()
    }
    rule = MondrianRule(region, quantiles, {name: len(places) for name, places in rows.items()})
    _warn_of_small([str(name) for name in rule.vacuous], level)
    return rule


def by_class(
    prediction: Prediction,
    targets: Tensor,
    level: Share = 0.9,
    method: str = "thr",
    *,
    seed: Seed = 0,
) -> ClassRule:
    """Return a rule whose sets hold the label with probability >= `level`, for every class.

    Args:
        prediction: of n >= 1 examples that the user sets aside for this.
        targets: their labels (n,).
        level: in (0, 1).
        method: "thr", "aps" or "raps".
        seed: of the draws of aps and raps.
    """
    check_call(by_class, locals())
    if not isinstance(prediction, CategoricalPrediction):
        raise ValueError(f"`by_class` needs a prediction of classes, got {prediction!r}")
    region = region_of(prediction, method, level)
    scores = region.scores(prediction, targets, seed=seed)
    labels = check_labels(targets, region.outputs).to(scores.device)
    quantiles, counts = [], []
    for label in range(region.outputs):
        of_class = scores[labels == label]
        counts.append(len(of_class))
        quantiles.append(float(conformal_quantile(of_class, level)) if len(of_class) else torch.inf)
    rule = ClassRule(region, tuple(quantiles), tuple(counts))
    _warn_of_small([str(label) for label in rule.vacuous], level)
    return rule


class GroupCoverage(NamedTuple):
    """Coverage within groups, in the order in which they first occur.

    Attributes:
        names: of the groups. counts: examples of each.
        coverage: share of targets inside, (G,), or (G, D) of intervals of several outputs.
    """

    names: list[Hashable]
    counts: list[int]
    coverage: Tensor

    @property
    def worst(self) -> float:
        """The lowest coverage of a group; noisy where `counts` are small."""
        return self.coverage.min().item()


def group_coverage(
    sets: PredictionSets | PredictionIntervals, targets: Tensor, groups: Any
) -> GroupCoverage:
    """Return the coverage of each group, such as those that a marginal rule was not made for."""
    check_call(group_coverage, locals())
    inside = covered(sets, targets).double()
    names = group_names(groups, len(inside))
    places = {name: k for k, name in enumerate(dict.fromkeys(names))}
    numbers = torch.tensor([places[name] for name in names], device=inside.device)
    counts = numbers.bincount(minlength=len(places))
    sums = inside.new_zeros(len(places), *inside.shape[1:]).index_add(0, numbers, inside)
    shares = sums / counts.view(-1, *[1] * (sums.dim() - 1))
    shares = shares[:, 0] if shares.dim() == 2 and shares.shape[1] == 1 else shares
    return GroupCoverage(list(places), counts.tolist(), shares)


@dataclass(frozen=True)
class DifficultyGroups:
    """Strata of predicted difficulty: call it on a prediction to get group numbers (B,).

    Attributes:
        edges: increasing difficulties between the strata.
    """

    edges: tuple[float, ...]

    def __call__(self, prediction: Prediction) -> Tensor:
        """Return the stratum of each input, 0 (easy) to len(edges), int64 (B,)."""
        edges = torch.tensor(self.edges, dtype=torch.float64)
        return torch.bucketize(difficulty(prediction), edges, right=True)


def difficulty_groups(prediction: Prediction, num_groups: Few = 5) -> DifficultyGroups:
    """Return strata that hold equally many of these inputs, by how uncertain the prediction is.

    Labels are not needed. Take inputs that are in neither the calibration nor the test set, such as
    those of training: then the guarantee of `by_group` is exact.
    """
    check_call(difficulty_groups, locals())
    values = difficulty(prediction)
    if len(values) < num_groups:
        raise ValueError(f"{num_groups} groups need at least as many inputs, got {len(values)}")
    shares = torch.arange(1, num_groups, dtype=torch.float64) / num_groups
    return DifficultyGroups(tuple(torch.quantile(values, shares).unique().tolist()))


def difficulty(prediction: Prediction) -> Tensor:
    """Return predictive entropy of classes, or the mean over outputs of log std, float64 (B,)."""
    if isinstance(prediction, CategoricalPrediction):
        return prediction.predictive_entropy.detach().double()
    return prediction.std.detach().double().log().mean(-1)


def group_names(groups: Any, size: int) -> list[Hashable]:
    """Return the group of each example as plain values, or say what is wrong with them."""
    values = groups.tolist() if hasattr(groups, "tolist") else groups
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"`groups` must hold one name or number per example, got {groups!r}")
    if len(values) != size:
        raise ValueError(f"got {len(values)} group(s) for {size} prediction(s)")
    for row, name in enumerate(values):
        if not isinstance(name, Hashable) or name is None or name != name:
            raise ValueError(f"`groups` must be names or numbers, got {name!r} in row {row}")
    return list(values)


def _warn_of_small(names: list[str], level: float) -> None:
    if names:
        warn(
            f"{len(names)} group(s) have too few examples for {level:g} (first: {names[0]}): they"
            f" need {level / (1 - level):.0f} or more, and get infinite intervals or full sets"
        )
