"""Weights of the end of a network, on the features of a trunk that all members share.

A method that trains a head sees the head as its network and features as its data. What it returns
are weights of the head; with the trunk before them they are weights of the whole network. A batch
goes through the trunk once, however many samples predict it (`Weights.prepare`). Draws, members and
files are those of the whole network.

Shapes: `M` modes, `L` samples per mode, `B` batch, `K` network outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from torch import Tensor

from polymode.core.safe_files import TensorForm
from polymode.likelihoods.components import Categories, Densities, Moments
from polymode.likelihoods.kinds import Likelihood
from polymode.posterior.weights import Outputs, Samples, Weights
from polymode.stack.stack import Stack
from polymode.stack.trunk import Trunk
from polymode.tracing.modules import Tensors


class OnTrunk(Weights):
    """Weights of whole networks that have a trunk in common.

    Args:
        trunk: what comes before the cut. inner: weights of what comes after it.
    """

    kind = "on_trunk"
    inner_kind: ClassVar[type[Weights]]

    def __init__(self, trunk: Trunk, inner: Weights) -> None:
        self.trunk, self._inner = trunk, inner
        self.samples_per_mode, self.most = inner.samples_per_mode, inner.most
        self._whole: tuple[Stack, Stack] | None = None

    @property
    def inner(self) -> Weights:
        return self._inner

    @property
    def stack(self) -> Stack:  # type: ignore[override]
        """One network per mode, the centres: those of `inner` may be others than were trained."""
        centres = self._inner.stack
        if self._whole is None or self._whole[0] is not centres:
            self._whole = centres, self.trunk.grafted(centres)
        return self._whole[1]

    @property
    def like(self) -> Stack:
        return self.stack

    def prepare(self, x: Tensor) -> Tensor:
        return self.trunk(x)

    def draw(self, number: int, seed: int) -> Stack:
        return self.trunk.grafted(self._inner.draw(number, seed))

    def gather(self, chosen: Sequence[tuple[int, int]], seed: int) -> Stack:
        return self.trunk.grafted(self._inner.gather(chosen, seed))

    def __getitem__(self, modes: slice) -> OnTrunk:
        return type(self)(self.trunk, self._inner[modes])

    def parts(self) -> Iterator[Weights]:
        for part in self._inner.parts():
            yield self if part is self._inner else type(self)(self.trunk, part)

    def outputs(self, samples_per_mode: int, seed: int) -> Outputs:
        return self._inner.outputs(samples_per_mode, seed)

    def noise(self, samples_per_mode: int, seed: int) -> Tensors:
        return self._inner.noise(samples_per_mode, seed)

    def components(
        self, likelihood: Likelihood, x: Tensor, samples_per_mode: int, seed: int
    ) -> Categories | Densities | None:
        return self._inner.components(likelihood, x, samples_per_mode, seed)

    def moments(self, x: Tensor) -> Moments | None:
        return self._inner.moments(x)

    def logits(self, moments: Moments, samples_per_mode: int, seeds: Sequence[int]) -> Tensor:
        return self._inner.logits(moments, samples_per_mode, seeds)

    def keep(self, samples_per_mode: int, seed: int) -> Samples:
        return self._inner.keep(samples_per_mode, seed)

    @property
    def draw_bytes(self) -> int:
        return self._inner.draw_bytes

    def tensors(self) -> Tensors:
        return self.stack.tensors() | self._inner.tensors()

    def numbers(self) -> dict[str, Any]:
        return {**self._inner.numbers(), "after_the_trunk": list(self.trunk.paths)}

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        trunk, inner_numbers = _read(stack, numbers)
        return cls.inner_kind.layout(trunk.late, forms, inner_numbers)

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> OnTrunk:
        trunk, inner_numbers = _read(stack, numbers)
        return cls(trunk, cls.inner_kind.restore(trunk.late, tensors, inner_numbers))


def _read(stack: Stack, numbers: dict[str, Any]) -> tuple[Trunk, dict[str, Any]]:
    """Return the trunk of networks from a file, and the numbers of the weights behind it."""
    inner = dict(numbers)
    paths = inner.pop("after_the_trunk")
    return Trunk(stack, paths), inner


@cache
def on_trunk(inner: type[Weights]) -> type[OnTrunk]:
    """Return the weights on a trunk whose inner ones are of a kind."""

    class OfKind(OnTrunk):
        inner_kind = inner
        of_networks = inner.of_networks
        mode_axis = staticmethod(inner.mode_axis)

    OfKind.kind = f"{OnTrunk.kind}/{inner.kind}"
    return OfKind


def behind(trunk: Trunk, inner: Weights) -> OnTrunk:
    """Return weights of whole networks from those of what comes after a trunk."""
    return on_trunk(type(inner))(trunk, inner)
