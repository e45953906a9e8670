"""Weights whose modes lie on several ranks, as `fit` leaves them under torchrun.

Each rank predicts with its own modes, and predictions are joined in the order of modes, so every
rank holds all of the prediction. Calls that need all networks at once (`stack`, `draw`, slices of
modes) gather them on every rank, where they fit. All ranks must make the same calls in the same
order.

Shapes: `M` modes of all ranks, `m` of this one, `S` samples of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from polymode.core.memory import free_bytes, human
from polymode.distributed import ranks
from polymode.posterior.weights import Weights, of_stack
from polymode.prediction import Prediction
from polymode.prediction.averages import has_averages
from polymode.prediction.over_ranks import averages_over_ranks
from polymode.stack.sharing import digest, row_of, spread
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors


def on_all_ranks(weights: Weights) -> Weights:
    """Return weights over the modes of all ranks; outside a group, the weights as they are."""
    share = ranks.sharing_now()
    return weights if share is None else Ranked(weights, share)


class Ranked(Weights):
    """The modes of all ranks, of which this one holds a share.

    Args:
        local: weights of this rank's modes. share: which modes these are.
    """

    kind = "ranked"

    def __init__(self, local: Weights, share: ranks.Share) -> None:
        self.local, self.share = local, share
        self.samples_per_mode, self.most = local.samples_per_mode, local.most
        self._num_bytes = sum(ranks.everyones(local.num_bytes))
        self._all_modes: Weights | None = None

    @property
    def num_modes(self) -> int:
        return self.share.num_modes

    @property
    def like(self) -> Stack:
        return self.local.like

    @property
    def stack(self) -> Stack:  # type: ignore[override]
        return self.all_modes().stack

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def draw(self, number: int, seed: int) -> Stack:
        return self.all_modes().draw(number, seed)

    def gather(self, chosen: Sequence[tuple[int, int]], seed: int) -> Stack:
        return self.all_modes().gather(chosen, seed)

    def __getitem__(self, modes: slice) -> Weights:
        return self.all_modes()[modes]

    def parts(self) -> Iterator[Weights]:
        yield self.local

    def tensors(self) -> Tensors:
        return self.all_modes().tensors()

    def numbers(self) -> dict[str, Any]:
        return self.local.numbers()

    def meet(self, predictions: Sequence[Prediction]) -> Prediction:
        """Return the prediction of the modes of all ranks from predictions of the local ones."""
        tensors, facts = super().meet(predictions)._parts()
        with ranks.sharing(self.share):
            tensors = {name: self._modes(tensor) for name, tensor in tensors.items()}
        return Prediction.from_arrays(tensors, {**facts, "num_modes": self.num_modes})

    def meet_in_averages(self, predictions: Sequence[Prediction]) -> Prediction:
        """Return the same without samples where scores need none: each rank then sends averages
        over its own samples."""
        local = super().meet(predictions)
        if not has_averages(local):
            return self.meet(predictions)
        with ranks.sharing(self.share):
            return averages_over_ranks(local, self.num_modes)  # type: ignore[arg-type]

    def _modes(self, local: Tensor) -> Tensor:
        """Return a tensor (m L, ...) of all ranks, (M L, ...)."""
        by_mode = local.unflatten(0, (self.share.last - self.share.first, -1))
        return ranks.joined(by_mode).flatten(0, 1)

    def spread(self, x: Tensor) -> Tensor:
        with ranks.sharing(self.share):
            return ranks.spread(x)

    def in_step(self) -> AbstractContextManager[None]:
        return ranks.in_step()

    def all_modes(self) -> Weights:
        """Return all modes in the memory of this rank."""
        if self._all_modes is None:
            if self.like.members_differ:
                raise ValueError(
                    "the members differ in plain attributes"
                    f" ({', '.join(self.like.members_differ)}), which ranks cannot exchange"
                )
            need = 2 * self.num_bytes
            if need > free_bytes(self.like.device):
                raise ValueError(
                    f"all {self.num_modes:,} modes need {human(need)} of memory to be joined on"
                    f" one rank; {human(free_bytes(self.like.device))} free. post.predict and"
                    " post.save need them only where they are"
                )
            self._all_modes = self._joined()
        return self._all_modes

    def _joined(self) -> Weights:
        with ranks.sharing(self.share):
            local = self.local.tensors()
            tensors = self._common(local)
            tensors |= {
                name: ranks.gather(tensor, self.local.mode_axis(name))
                for name, tensor in local.items()
                if name not in tensors
            }
        stack = self.like[[0] * self.num_modes]
        stack.seeds = [seed for seeds in ranks.everyones(self.like.seeds) for seed in seeds]
        stack.load_tensors({name: t for name, t in tensors.items() if of_stack(name)})
        beside = {name: tensor for name, tensor in tensors.items() if not of_stack(name)}
        return self.local.restore(stack, beside, self.local.numbers())

    def _common(self, tensors: Tensors) -> Tensors:
        """Return frozen tensors that the modes of all ranks share: nothing is sent of them but a
        digest."""
        frozen = {f"network/{name}" for name in self.like.frozen}
        rows = {n: t[:1] for n, t in tensors.items() if n in frozen and len(row_of(t)) == 1}
        digests = ranks.everyones({name: digest(row) for name, row in rows.items()})
        return {
            name: spread(row, self.num_modes)
            for name, row in rows.items()
            if all(theirs.get(name) == digests[0].get(name) for theirs in digests)
        }

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> Ranked:
        raise NotImplementedError("modes on ranks are saved as shards")
