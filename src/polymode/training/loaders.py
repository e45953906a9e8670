"""Loaders of the user's own: `DataLoader`s, map-style data sets, and other iterables of batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from polymode.core.rng import generator, global_stream
from polymode.core.rows import as_rows, is_several, stacked
from polymode.likelihoods.scaling import Scaling
from polymode.training.batches import Pair, as_leaf, cast, listed, spans

TARGET_NAMES = ("labels", "label", "targets", "target", "y")  # of targets among named inputs


def _each_within(stream: global_stream, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield what is made within a stream; between two of them the stream is not held."""
    with stream:
        iterator = iter(batches)
    while True:
        with stream:
            batch = next(iterator, _END)
        if batch is _END:
            return
        yield batch


_END = object()


class Loader:
    """A `DataLoader` (or another iterable that can be iterated anew) of (inputs, targets) pairs, or
    of dictionaries in which the targets have the name `target`.

    The loader keeps its own batch size, workers and transforms. Its shuffling is made a function of
    the seed: the generators of the loader and its sampler, and torch's global one, are set at the
    start of every shuffled pass and put back after. Its length is what one pass yields.
    """

    def __init__(self, loader: Iterable[Any], target: str | None = None) -> None:
        if hasattr(loader, "__next__"):
            raise ValueError(
                "the loader is an iterator, which can be read only once; give a DataLoader, a"
                " Dataset, arrays, or an object whose __iter__ starts anew"
            )
        self.loader, self.target = loader, target
        self._check: Callable[[Any, Tensor], Pair] | None = None
        self._weights: str | None = None
        self._join: Callable[[Tensor, Any], Any] | None = None
        self._scaling: Scaling | None = None
        self._function: Callable[[Any], Any] | None = None
        self._dtype: torch.dtype | None = None
        self._device: torch.device | str = "cpu"
        self._num_examples: int | None = None

    def __len__(self) -> int:
        if self._num_examples is None:
            with global_stream(0, *self._generators()):
                self._num_examples = self._count()
            if self._num_examples == 0:
                raise ValueError("the data set is empty: 0 examples")
        return self._num_examples

    @property
    def is_counted_unread(self) -> bool:
        """Whether the length is known without a pass over the data."""
        rows = isinstance(self.loader, DataLoader) and not _streams(self.loader)
        return rows and getattr(self.loader, "batch_sampler", None) is not None

    def _count(self) -> int:
        """Return how many examples one pass yields: a sampler may draw a part of the data set."""
        if self.is_counted_unread:  # the sampler tells which rows, and reads none
            batches: Iterable[Any] = self.loader.batch_sampler  # type: ignore[attr-defined]
            return sum(len(rows) for rows in batches)
        batches = (self._without_weights(batch)[0] for batch in self.loader)
        return sum(len(inputs_alone(batch, self.target)) for batch in batches)

    def _generators(self) -> list[torch.Generator]:
        """Return the streams that shuffle: the loader's, and those of its samplers."""
        batches = getattr(self.loader, "batch_sampler", None)
        owners = [self.loader, batches]
        owners += [getattr(owner, "sampler", None) for owner in (self.loader, batches)]
        streams = {id(g): g for g in (getattr(owner, "generator", None) for owner in owners)}
        return [g for g in streams.values() if isinstance(g, torch.Generator)]

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Loader:
        """Return a loader whose batches come on `device`, floating-point tensors as `dtype`."""
        moved = copy.copy(self)
        moved._dtype, moved._device = dtype, device
        return moved

    def checked_by(self, check: Callable[[Any, Tensor], Pair]) -> Loader:
        """Return a loader whose batches pass through `check`, which refuses or amends them."""
        checked = copy.copy(self)
        checked._check = check
        return checked

    def scale_targets(self, scaling: Scaling) -> Loader:
        """Return a loader whose targets come as scaling(y)."""
        scaled = copy.copy(self)
        scaled._scaling = scaling
        return scaled

    def mapped(self, function: Callable[[Any], Any]) -> Loader:
        """Return a loader whose inputs come as function(x), once they are as networks take them."""
        mapped = copy.copy(self)
        mapped._function = function
        return mapped

    def weighted_by(self, name: str, join: Callable[[Tensor, Any], Any] | None) -> Loader:
        """Return a loader whose batches have weights of their targets under `name`.

        They are no inputs. Targets come as join(y, weights); None leaves the weights out.
        """
        weighted = copy.copy(self)
        weighted._weights, weighted._join = name, join
        return weighted

    def _without_weights(self, batch: Any) -> tuple[Any, Any]:
        """Return a batch without its weights, and the weights."""
        if self._weights is None:
            return batch, None
        if not isinstance(batch, Mapping):
            raise ValueError(
                f"weights='{self._weights}' names an entry of dictionaries, but the loader yields"
                f" {_kind(batch)}"
            )
        if self._weights not in batch and self._join is not None:
            raise ValueError(
                f"the data have no '{self._weights}', which `weights` names; they have"
                f" {listed(batch)}"
            )
        rest = {name: part for name, part in batch.items() if name != self._weights}
        return rest, batch.get(self._weights)

    def num_batches(self, batch_size: int) -> int:
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return sum(1 for _ in self.loader)

    def batches(self, batch_size: int) -> Iterator[Pair]:
        """Yield (x, y) in the loader's order; `batch_size` is the loader's own."""
        yield from map(self._ready, self.loader)

    def inputs(self, batch_size: int) -> Iterator[Any]:
        """Yield the inputs alone, in the loader's order; batches need no targets."""
        for batch in self.loader:
            x = inputs_alone(self._without_weights(batch)[0], self.target)
            yield cast(x, self._dtype, self._device)

    def epoch(
        self, batch_size: int, seed: int, start: int = 0, rows: Tensor | None = None
    ) -> Iterator[Pair]:
        """Yield the loader's batches of one pass whose shuffling is set by `seed`.

        Args:
            rows: (n,) the examples that it is made of, by default all.
        """
        if rows is not None:
            yield from self.only(rows).epoch(batch_size, seed, start)
            return
        stream = global_stream(seed, *self._generators())
        for number, batch in enumerate(_each_within(stream, self.loader)):
            if number >= start:
                yield self._ready(batch)

    def epoch_each(
        self, batch_size: int, seeds: Sequence[int], start: int = 0, rows: Tensor | None = None
    ) -> Iterator[Pair]:
        """Yield batches (M, B, ...): every member makes a pass of its own through the loader.

        What a transform draws at random is then a function of the member's seed alone, too.

        Args:
            rows: (M, n) the examples that each member sees, by default all.
        """
        alone = copy.copy(self)
        alone.loader = _without_persistent_workers(self.loader)
        sources = [alone] * len(seeds) if rows is None else [alone.only(part) for part in rows]
        yield from _beside(
            [s.epoch(batch_size, seed, start) for s, seed in zip(sources, seeds, strict=True)]
        )

    def batches_each(self, batch_size: int, rows: Tensor, start: int = 0) -> Iterator[Pair]:
        """Yield batches (M, B, ...) of the examples `rows` (M, n), in that order."""
        alone = copy.copy(self)
        alone.loader = _without_persistent_workers(self.loader)
        yield from _beside([alone.only(part)._fixed(batch_size, start) for part in rows])

    def _fixed(self, batch_size: int, start: int) -> Iterator[Pair]:
        """Yield the batches in order; what transforms draw is the same in every pass."""
        stream = global_stream(0, *self._generators())
        batches = _each_within(stream, self.batches(batch_size))
        return (batch for number, batch in enumerate(batches) if number >= start)

    def only(self, rows: Tensor) -> Loader:
        """Return a loader of the examples `rows` (n,), which shuffles as this one does."""
        assert isinstance(self.loader, DataLoader)
        part = copy.copy(self)
        part.loader = _over_subset(self.loader, rows.tolist())
        part._num_examples = None
        return part

    @property
    def can_divide(self) -> bool:
        """Whether some of the examples can be left out: they have numbers, and usual samplers."""
        loader = self.loader
        if not (self.is_counted_unread and type(loader.batch_sampler) is BatchSampler):  # type: ignore[attr-defined]
            return False
        sampler = loader.sampler  # type: ignore[attr-defined]
        once = type(sampler) is RandomSampler and not sampler.replacement
        return (once or type(sampler) is SequentialSampler) and len(self) == len(loader.dataset)  # type: ignore[attr-defined]

    @property
    def can_reorder(self) -> bool:
        """Whether passes with other seeds come in another order, seen without reading examples."""
        return self.is_counted_unread and self._order(0) != self._order(1)

    def _order(self, seed: int) -> list[Any]:
        """Return the numbers of the examples in each batch of a pass."""
        with global_stream(seed, *self._generators()):
            return list(self.loader.batch_sampler)  # type: ignore[attr-defined]

    def fingerprint(self) -> str:
        return f"loader of {len(self)} examples"

    def _ready(self, batch: Any) -> Pair:
        batch, weights = self._without_weights(batch)
        x, y = pair(batch, self.target)
        if self._check is not None:
            x, y = self._check(x, y)
        if self._scaling is not None:
            y = self._scaling(y)
        if self._join is not None:
            y = self._join(y, weights)
        x, y = cast(x, self._dtype, self._device), cast(y, self._dtype, self._device)
        return (x if self._function is None else self._function(x)), y


class Examples(Loader):
    """A map-style `Dataset`: batches of the size that is asked for, shuffled here."""

    def __init__(self, dataset: Dataset, target: str | None = None) -> None:
        super().__init__(DataLoader(dataset), target)
        self.dataset = dataset

    def _count(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def only(self, rows: Tensor) -> Examples:
        """Return the examples `rows` (n,)."""
        part = copy.copy(self)
        part.dataset, part._num_examples = Subset(self.dataset, rows.tolist()), None
        return part

    @property
    def can_reorder(self) -> bool:
        """Whether passes with other seeds come in another order."""
        return True

    @property
    def can_divide(self) -> bool:
        """Whether some of the examples can be left out."""
        return True

    def num_batches(self, batch_size: int) -> int:
        return len(spans(len(self), batch_size))

    def batches(self, batch_size: int) -> Iterator[Pair]:
        yield from self._over(list(range(len(self))), batch_size, 0)

    def inputs(self, batch_size: int) -> Iterator[Any]:
        rows = [list(range(i, j)) for i, j in spans(len(self), batch_size)]
        for batch in DataLoader(self.dataset, batch_sampler=rows):
            x = inputs_alone(self._without_weights(batch)[0], self.target)
            yield cast(x, self._dtype, self._device)

    def epoch(
        self, batch_size: int, seed: int, start: int = 0, rows: Tensor | None = None
    ) -> Iterator[Pair]:
        if rows is not None:
            yield from self.only(rows).epoch(batch_size, seed, start)
            return
        order = torch.randperm(len(self), generator=generator(seed)).tolist()
        stream = global_stream(seed)  # for transforms that draw
        yield from _each_within(stream, self._over(order, batch_size, start))

    def _over(self, order: list[int], batch_size: int, start: int) -> Iterator[Pair]:
        rows = [order[i:j] for i, j in spans(len(self), batch_size)]
        for number, batch in enumerate(DataLoader(self.dataset, batch_sampler=rows)):
            if number >= start:
                yield self._ready(batch)


def pair(batch: Any, target: str | None = None) -> Pair:
    """Return (inputs, targets) of one batch of a loader, or say what came instead."""
    if isinstance(batch, Mapping):
        inputs, y = without_target(batch, target)
        if y is None:
            raise ValueError(
                f"the loader yields dictionaries with the keys {listed(batch)}, and none of them"
                f" is a target ({listed(TARGET_NAMES)}); name it, as in pm.Task(target='...')"
            )
        x: Any = as_rows(inputs, as_leaf)
    elif not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(
            f"the loader yields {_kind(batch)}; polymode takes (inputs, targets) pairs, such as"
            " ((a, b), y) for several inputs, or dictionaries. Weights of examples are not inputs"
        )
    else:
        x, y = batch
        x = as_rows(x, as_leaf) if is_several(x) else x
    if isinstance(x, (str, bytes)) or not hasattr(x, "split") or not isinstance(y, Tensor):
        raise ValueError(
            f"the loader yields {_kind(batch[0])} and {_kind(batch[1])}; targets must be a tensor,"
            " inputs one or several"
        )
    if len(x) != len(y):
        raise ValueError(f"a batch has {len(x)} inputs and {len(y)} targets")
    return x, y


def inputs_alone(batch: Any, target: str | None = None) -> Any:
    """Return the inputs of one batch of a loader, which may hold targets or not."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        return as_rows(without_target(batch, target)[0], as_leaf)
    if isinstance(batch, (tuple, list)) and len(batch) == 1:
        return inputs_alone(batch[0], target)
    return pair(batch, target)[0]


def without_target(batch: Mapping[str, Any], target: str | None) -> tuple[dict[str, Any], Any]:
    """Return named inputs without their targets, and the targets, None where there are none.

    Two possible names of targets at once are refused; `target` settles which it is, and the other
    is then an input.
    """
    if target is not None:
        if target not in batch:
            raise ValueError(
                f"the data have no '{target}', which `target` names; they have {listed(batch)}"
            )
        names = [target]
    else:
        names = [name for name in TARGET_NAMES if name in batch]
    if len(names) > 1:
        raise ValueError(
            f"the data have {listed(names)}, any of which may be the targets; name one, as in"
            f" pm.Task(target='{names[0]}')"
        )
    inputs = {key: value for key, value in batch.items() if key not in names}
    return inputs, batch[names[0]] if names else None


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _beside(passes: Sequence[Iterator[Pair]]) -> Iterator[Pair]:
    """Yield the batches of all members' passes together, (M, B, ...); as `Ragged` where they differ
    in size."""
    for pairs in zip(*passes, strict=True):
        yield stacked([x for x, _ in pairs]), stacked([y for _, y in pairs])


def _over_subset(loader: DataLoader, rows: list[int]) -> DataLoader:
    """Return a loader of some examples with all other settings of `loader`."""
    names = ("num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn",
             "multiprocessing_context", "prefetch_factor", "batch_size", "generator")  # fmt: skip
    settings = {name: getattr(loader, name) for name in names}
    shuffle = isinstance(loader.sampler, RandomSampler)
    return DataLoader(Subset(loader.dataset, rows), shuffle=shuffle, **settings)


def _without_persistent_workers(loader: Any) -> Any:
    """Return the loader with workers for each pass: persistent ones serve one pass at a time."""
    if not getattr(loader, "persistent_workers", False):
        return loader
    changed = copy.copy(loader)
    object.__setattr__(changed, "persistent_workers", False)  # a DataLoader refuses to be changed
    object.__setattr__(changed, "_iterator", None)
    return changed


def _streams(loader: DataLoader) -> bool:
    """Whether the data set is one that is iterated, not indexed by a sampler."""
    return isinstance(loader.dataset, IterableDataset)
