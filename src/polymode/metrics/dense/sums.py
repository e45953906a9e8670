r"""Statistics of maps that add up over images, and what is computed from them.

Pixels of an image are not independent, so every standard error is over images. A metric is a
function f of sums :math:`T = \sum_i t_i` over images. The images go in turn into at most 40 groups
with sums :math:`T_g`, and

.. math:: \mathrm{s.e.}^2 = \frac{G - 1}{G} \sum_g (f(T - T_g) - \bar f)^2

is the delete-a-group jackknife: exact for means up to the unequal sizes of groups, first order for
others. With at most 40 images each is a group. Only sums of groups have to be held, however many
images there are. Means over pixels have the sums of every image, and the exact formula of
`clusters`.

`N` images, `G` groups, `R` sets of sums that a metric is computed from at once.

Reference: J. Shao, D. Tu, The jackknife and bootstrap, Springer 1995, section 2.3 (grouped).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from polymode.metrics.by_image import STORED
from polymode.metrics.dense.image_scores import aggregates
from polymode.metrics.score import NotDefined, Score, mean_score

GROUPS = 40

Sums = Mapping[str, Tensor]
Functional = Callable[[Sums], Tensor]


class GroupSums:
    """Sums of statistics over images by group.

    Attributes:
        num_images: images added so far.
    """

    def __init__(self) -> None:
        self.num_images = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, statistics: Sums) -> None:
        """Add the statistics of one image, whose shapes are those of every other image."""
        group = self.num_images % GROUPS
        for name, values in statistics.items():
            if name not in self._sums:
                self._sums[name] = values.new_zeros((GROUPS, *values.shape), dtype=torch.float64)
            self._sums[name][group] += values
        self.num_images += 1

    def total(self, name: str) -> Tensor:
        """Return the sum over all images."""
        return self._sums[name].sum(0)

    def by_group(self, name: str) -> Tensor:
        """Return the sum over the images of each group, (G, ...)."""
        return self._sums[name][: min(GROUPS, self.num_images)]

    def __contains__(self, name: str) -> bool:
        return name in self._sums

    def score(self, functional: Functional, names: tuple[str, ...], n: int) -> Score:
        """Return f of the sums called `names`, with its error over images.

        Args:
            functional: from sums (R, ...) to values (R,).
            n: what the score says it is a score of.
        """
        return jackknife(functional, {name: self._sums[name] for name in names}, n, self._groups)

    @property
    def _groups(self) -> int:
        return min(GROUPS, self.num_images)


class MapSums:
    """What a set of images leaves behind: numbers of each image, and sums over groups of them.

    Attributes:
        groups: sums over images by group.
        num_samples, has_epistemic: of the predictions.
    """

    def __init__(self) -> None:
        self.groups = GroupSums()
        self.num_samples, self.has_epistemic = 0, False
        self._parts: dict[str, list[Tensor]] = {}

    def keep(self, name: str, values: Tensor) -> None:
        """Add numbers of some images, (n, ...)."""
        self._parts.setdefault(name, []).append(values.detach().double().cpu())

    def keep_uncertainty(self, maps: Mapping[str, Tensor]) -> None:
        """Add the numbers that maps (n, H, W) of uncertainty give for each image."""
        for name, values in maps.items():
            for way, numbers in aggregates(values).items():
                self.keep(f"{name}:{way}", numbers)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def of_images(self, name: str) -> Tensor:
        """Return the numbers of all images, (N, ...); none of them if there are none."""
        if name not in self._parts:
            return torch.zeros(0, dtype=torch.float64)
        if len(self._parts[name]) > 1:
            self._parts[name] = [torch.cat(self._parts[name])]
        return self._parts[name][0]

    def by_image(self) -> dict[str, Tensor]:
        """Return what other posteriors are compared with, image by image."""
        return {name: self.of_images(name) for name in STORED if name in self}

    def uncertainty(self, what: str, way: str) -> Tensor:
        """Return the uncertainty of each image, aggregated one way of `AGGREGATES`, (N,)."""
        if f"{what}:{way}" not in self:
            raise NotDefined("needs ≥ 2 samples")
        return self.of_images(f"{what}:{way}")

    @property
    def num_pixels(self) -> int:
        """Return how many pixels were observed."""
        return int(self.of_images("pixels").sum())

    def require_pixels(self) -> None:
        """Raise `NotDefined` where no pixel was observed."""
        if not self.num_pixels:
            raise NotDefined("needs targets")

    def mean_over_pixels(self, name: str) -> Score:
        """Return the mean over observed pixels of what was added up for each image."""
        if name not in self:
            raise NotDefined("needs ≥ 2 samples")
        self.require_pixels()
        return ratio_of_sums(self.of_images(name), self.of_images("pixels"))

    def joint_nll(self) -> Score:
        """Return the mean over images of −log p of all their targets together."""
        return mean_score(-self.of_images("joint")[self.of_images("pixels") > 0])


def jackknife(functional: Functional, groups: Sums, n: int, number: int | None = None) -> Score:
    """Return f of all, and its standard error by leaving out one group at a time.

    Args:
        functional: from sums (R, ...) to values (R,).
        groups: sums of each group, (G, ...).
        n: what the score says it is a score of.
        number: how many of the groups are in use, the first ones; None for all.
    """
    total = {name: values[:number].sum(0, keepdim=True) for name, values in groups.items()}
    value = functional(total)[0].item()
    size = len(next(iter(groups.values()))[:number])
    if size < 2 or not math.isfinite(value):
        return Score(value, n)
    without = {name: total[name] - values[:number] for name, values in groups.items()}
    values = functional(without)
    if not bool(values.isfinite().all()):
        return Score(value, n)
    spread = (values - values.mean()).square().sum().item()
    return Score(value, n, math.sqrt((size - 1) / size * spread))


def by_group(values: Tensor) -> Tensor:
    """Return the sums of images (N, ...) by group, (G, ...)."""
    number = min(GROUPS, len(values))
    places = torch.arange(len(values)) % GROUPS
    sums = values.new_zeros((number, *values.shape[1:]), dtype=torch.float64)
    return sums.index_add_(0, places, values.double())


def ratio_of_sums(sums: Tensor, counts: Tensor) -> Score:
    """Return the mean over pixels from sums and numbers of each image (N,), error over images."""
    total = counts.sum().item()
    value = sums.sum().item() / total
    number = len(sums)
    if number < 2 or not math.isfinite(value):
        return Score(value, int(total))
    residuals = (sums - value * counts).square().sum().item()
    return Score(value, int(total), math.sqrt(number / (number - 1) * residuals) / total)
