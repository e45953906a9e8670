r"""Test-time augmentation: a prediction averaged over views of each input.

.. math:: p_s(y \mid x) = \frac{1}{V} \sum_v p_s(y \mid g_v x)        \quad\text{classes},
          \qquad
          p_s(y \mid x) = \frac{1}{V} \sum_v p_s(g_v y \mid g_v x)    \quad\text{maps}

for each posterior sample s: what is predicted for a view moves back before it is averaged. Over a
whole group this is exactly invariant, or equivariant, up to rounding. Of classes a sample stays a
sample, its probabilities averaged; mutual information is then that between networks. A mean of
densities is no density of the same kind, so of values each view of a sample is a component of the
mixture, and disagreement between views counts as epistemic.

Shapes: `V` views, `S` samples, `M` modes, `B` batch, `E` positions, `C` classes, `D` outputs.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.equivariance.groups import Group
from polymode.equivariance.groups import group as find_group
from polymode.equivariance.planar import Planar
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction
from polymode.tasks.augment import Augmentation, Compose, Orbit
from polymode.tasks.augment import augmentation as find_augmentation

T = TypeVar("T")


class Views(ABC):
    """The views of an input that are averaged; number 0 is the input itself."""

    @abstractmethod
    def __len__(self) -> int:
        """V."""

    @abstractmethod
    def view(self, x: Tensor, number: int) -> Tensor:
        """Return a view of inputs (B, ...), the same move for all of them."""

    @abstractmethod
    def back(self, prediction: Prediction, number: int) -> Prediction:
        """Return what is predicted for a view as a prediction for the input itself."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return what `views_from` makes the same views of, JSON-safe."""


@dataclass(frozen=True)
class OverGroup(Views):
    """The views of a group: all g x."""

    group: Group

    def __len__(self) -> int:
        return len(self.group)

    def view(self, x: Tensor, number: int) -> Tensor:
        return self.group.act(x, number)

    def back(self, prediction: Prediction, number: int) -> Prediction:
        if number == 0 or (self.group.invariant and not prediction.num_axes):
            return prediction
        inverse = self.group.inverse(number)
        if prediction.num_axes:
            return _mapped(prediction, lambda map_: self._map_back(map_, inverse))
        places, signs = _exchange(self.group, inverse, prediction.num_outputs)
        return _mapped(
            prediction,
            lambda part: part[..., places.to(part.device)],
            lambda loc: loc[..., places.to(loc.device)] * signs.to(loc),
        )

    def _map_back(self, values: Tensor, inverse: int) -> Tensor:
        """Return a map (S, B, H, W, C) moved; pixels move, what is said of each stays."""
        return self.group.act(values.movedim(-1, -3), inverse).movedim(-3, -1)

    def to_dict(self) -> dict[str, Any]:
        group = self.group
        if isinstance(group.output, Tensor):
            raise ValueError(
                f"views of {group.name} whose outputs move by given matrices are not saved: save"
                " the posterior itself, and take `augmented` after loading"
            )
        spec = group.name + ("" if group.invariant else f"->{group.output}")
        try:
            same = len(find_group(spec)) == len(group)
        except ValueError:
            same = False
        if not same:
            raise ValueError(
                f"views of '{group.name}' are not saved, as no group is found by that name: save"
                " the posterior itself, and take `augmented` after loading"
            )
        return {"group": spec}


@dataclass(frozen=True)
class Drawn(Views):
    """Views drawn at random, the same for all inputs: what an input gets depends on no batch."""

    augmentation: Augmentation
    draws: int
    seed: int

    def __len__(self) -> int:
        return self.draws

    def view(self, x: Tensor, number: int) -> Tensor:
        if number == 0:
            return x
        stream = generator(self.seed, "view", number)
        together = x.reshape(1, -1, *x.shape[-2:])  # one picture of B C channels: one draw
        return self.augmentation(together, stream).view(x.shape)

    def back(self, prediction: Prediction, number: int) -> Prediction:
        return prediction

    def to_dict(self) -> dict[str, Any]:
        return {
            "augmentation": self.augmentation.to_config(), "draws": self.draws, "seed": self.seed
        }  # fmt: skip


class Takes(NamedTuple):
    """What networks take and give.

    Attributes:
        input_shape: of an example. num_axes: of positions that are predicted.
        num_outputs: classes C, or values D.
    """

    input_shape: Any
    num_axes: int
    num_outputs: int


def with_views(post: T, group: Any, augmentation: Any, draws: int, seed: int) -> T:
    """Return a posterior that averages over views; arguments as of `Posterior.augmented`."""
    averaging: Any = copy.copy(post)
    if averaging.views is not None:
        raise ValueError("this posterior has views already: take `augmented` of the first one")
    takes = Takes(averaging.input_shape, averaging.likelihood.num_axes, averaging.target_size)
    views = averaging.views = views_of(group, augmentation, draws, seed, takes)
    averaging.bundle = None  # chosen on other predictions
    named = views.group.name if isinstance(views, OverGroup) else str(augmentation)
    averaging.config = {**averaging.config, "augmented": named}
    return averaging  # type: ignore[no-any-return]


def views_from(fields: Mapping[str, Any], takes: Takes) -> Views:
    """Return the views that `to_dict` described, checked as by `views_of`."""
    draws, seed = fields.get("draws", 1), fields.get("seed", 0)
    if not (type(draws) is int and 1 <= draws and type(seed) is int and 0 <= seed):
        raise ValueError(f"draws and seed must be integers, got {draws!r:.40} and {seed!r:.40}")
    group, augmentation = fields.get("group"), fields.get("augmentation")
    return views_of(group, augmentation, draws, seed, takes)


def views_of(group: Any, augmentation: Any, draws: int, seed: int, takes: Takes) -> Views:
    """Return the views that were asked for, checked against what the networks take and give.

    Args:
        group, augmentation, draws, seed: as of `Posterior.augmented`.
        takes: what the networks do.
    """
    if (group is None) == (augmentation is None):
        raise ValueError(
            "`augmented` needs one of group='D4' and augmentation='crop+flip', got"
            f" {'neither' if group is None else 'both'}"
        )
    shape = takes.input_shape
    shape = tuple(shape) if isinstance(shape, (tuple, list, torch.Size)) else None
    if shape is None or not all(isinstance(size, int) for size in shape):
        raise ValueError("views are of one input tensor, but the networks take several inputs")
    if augmentation is not None:
        return _drawn(augmentation, draws, seed, shape, takes.num_axes)
    views = OverGroup(find_group(group))
    views.group.check(torch.zeros(1, *shape))
    if takes.num_axes:
        _check_maps(views.group, takes.num_axes)
    elif not views.group.invariant:
        for index in range(len(views.group)):
            _exchange(views.group, views.group.inverse(index), takes.num_outputs)
    return views


def _drawn(
    augmentation: Any, draws: int, seed: int, shape: tuple[int, ...], num_axes: int
) -> Drawn:
    step = augmentation
    if not isinstance(step, Augmentation):
        step = find_augmentation(augmentation)
    steps = step.steps if isinstance(step, Compose) else (step,)
    if any(isinstance(one, Orbit) for one in steps):
        raise ValueError("an orbit is not drawn: give `augmented` its group, group='C4'")
    if num_axes:
        raise ValueError(
            "what an augmentation draws is not undone, so maps would not lie on their pixels: give"
            " `augmented` a group that moves whole pixels, group='D4'"
        )
    if len(shape) != 3:
        raise ValueError(f"an augmentation is for images (C, H, W), the inputs are {shape}")
    return Drawn(step, draws, seed)


def _check_maps(group: Group, num_axes: int) -> None:
    if num_axes != 2 or not isinstance(group, Planar) or group.lattice is not None:
        raise ValueError(
            f"views of {group.name} do not move the {num_axes} axes of positions: maps (H, W) go"
            " with groups of the plane, such as 'D4'"
        )
    if not (group.exact and group.closed):
        raise ValueError(
            f"{group.name} interpolates between pixels, so maps cannot move back exactly: take a"
            " group that moves whole pixels, such as 'C4' or 'D4'"
        )
    if isinstance(group.output, Tensor):
        raise ValueError(f"outputs at positions stay as they are, but {group.name} changes them")


def _exchange(group: Group, index: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the action on outputs: which of the K outputs each becomes, and its sign."""
    matrix = group.act_on_outputs(torch.eye(size), index).mT
    ones = matrix.abs().round()
    if (matrix.abs() - ones).abs().max() > 1e-5 or (ones.sum(0) != 1).any():
        raise ValueError(
            f"the action of {group.name} mixes outputs, and so would covariances between them,"
            " which predictions do not have; take a group that exchanges outputs or their signs"
        )
    return ones.argmax(1), matrix.sum(1).round()


def _mapped(prediction: Prediction, move: Any, move_loc: Any = None) -> Prediction:
    """Return the prediction with what it is made of moved; locations perhaps otherwise."""
    if isinstance(prediction, CategoricalPrediction):
        return CategoricalPrediction(move(prediction.log_probs), num_modes=prediction.num_modes)
    assert isinstance(prediction, MixturePrediction)
    share = prediction.epistemic
    return MixturePrediction(
        (move_loc or move)(prediction.loc),
        move(prediction.scale),
        prediction.df,
        None if share is None else move(share),
        num_modes=prediction.num_modes,
    )


def averaged_views(parts: Iterable[Prediction]) -> Prediction:
    """Return the mean of predictions of the same inputs by the same samples."""
    parts = iter(parts)
    first = next(parts)
    if isinstance(first, CategoricalPrediction):
        logs, number = first.log_probs, 1
        for part in parts:  # one after another: memory is that of two
            assert isinstance(part, CategoricalPrediction)
            logs, number = torch.logaddexp(logs, part.log_probs), number + 1
        return CategoricalPrediction(logs - math.log(number), num_modes=first.num_modes)
    views: list[MixturePrediction] = [first, *parts]  # type: ignore[list-item]
    split = first.num_modes, first.num_samples // first.num_modes

    def joined(name: str) -> Tensor | None:
        if getattr(first, name) is None:
            return None
        tensors = [getattr(view, name).unflatten(0, split) for view in views]
        return torch.stack(tensors, 2).flatten(0, 2)

    loc, scale = joined("loc"), joined("scale")
    assert loc is not None and scale is not None
    return MixturePrediction(
        loc, scale, views[0].df, joined("epistemic"), num_modes=first.num_modes
    )
