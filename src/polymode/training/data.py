"""Where batches come from: tensors in memory, images as bytes, or a loader of the user's own.

All give the same: `epoch(...)` yields the shuffled batches of one pass as a pure function of a
seed, so that a run can resume in the middle of an epoch; `batches(...)` yields them in order.
`B` batch, `C` channels, `M` modes, `N` examples.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    TensorDataset,
)

from polymode.core.rng import generator, global_stream
from polymode.likelihoods.scaling import Scaling

Pair = tuple[Tensor, Tensor]

_PERMUTE_WHOLE_BELOW = (
    2**26
)  # bytes: below, one gather an epoch and slices are cheaper than a gather a batch


def spans(num_examples: int, batch_size: int) -> list[tuple[int, int]]:
    """Return the (start, stop) of each batch; a last batch of one example joins the one before it.

    A batch of one has no batch statistics, so it would break networks with BatchNorm at N = k B +
    1.

    >>> spans(5, 2)
    [(0, 2), (2, 5)]
    """
    edges = list(range(0, num_examples, batch_size)) + [num_examples]
    if len(edges) > 2 and edges[-1] - edges[-2] == 1 and batch_size > 1:
        del edges[-2]
    return list(zip(edges, edges[1:], strict=False))


class Arrays:
    """Inputs `x` (N, ...) and targets `y` (N, ...) in memory."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        if len(x) != len(y):
            raise ValueError(f"inputs and targets differ in length: {len(x):,} and {len(y):,}")
        if len(x) == 0:
            raise ValueError("the data set is empty: 0 examples")
        self._stored, self.y = x, y

    @property
    def x(self) -> Tensor:
        """All inputs (N, ...) as a network takes them."""
        return self._inputs(self._stored)

    def _inputs(self, rows: Tensor) -> Tensor:
        """Return rows of what is stored as a network takes them."""
        return rows

    def __len__(self) -> int:
        return len(self._stored)

    def with_targets(self, y: Tensor) -> Arrays:
        """Return the same inputs with other targets."""
        changed = copy.copy(self)
        Arrays.__init__(changed, self._stored, y)
        return changed

    def scale_targets(self, scaling: Scaling) -> Arrays:
        """Return the same inputs with scaling(y) as targets."""
        return self.with_targets(scaling(self.y))

    def head(self, num: int) -> Pair:
        """Return the first `num` examples."""
        return self._inputs(self._stored[:num]), self.y[:num]

    def rows(self, places: Tensor) -> Pair:
        """Return the examples at these places."""
        rows = self._stored.index_select(0, places.to(self._stored.device))
        return self._inputs(rows), self.y.index_select(0, places.to(self.y.device))

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Arrays:
        """Return the data on `device`, floating-point tensors as `dtype`; integers stay so."""
        return Arrays(_cast(self._stored, dtype, device), _cast(self.y, dtype, device))

    def num_batches(self, batch_size: int) -> int:
        return len(spans(len(self), batch_size))

    def batches(self, batch_size: int) -> Iterator[Pair]:
        """Yield (x, y) in order; views of the data where it is stored as it is used."""
        for start, stop in spans(len(self), batch_size):
            yield self._inputs(self._stored[start:stop]), self.y[start:stop]

    def epoch(
        self, batch_size: int, seed: int, start: int = 0, rows: Tensor | None = None
    ) -> Iterator[Pair]:
        """Yield the batches of one shuffled pass, from batch number `start` on.

        Args:
            rows: (n,) the examples that it is made of, by default all.
        """
        stored, targets = self._stored, self.y
        number = len(self) if rows is None else len(rows)
        order = torch.randperm(number, generator=generator(seed))
        order = (order if rows is None else rows[order]).to(stored.device)
        todo = spans(number, batch_size)[start:]
        if stored.element_size() * stored.nelement() < _PERMUTE_WHOLE_BELOW:
            x, y = stored.index_select(0, order), targets.index_select(0, order)
            for i, j in todo:
                yield self._inputs(x[i:j]), y[i:j]
        else:
            for i, j in todo:  # whole rows are copied: far faster than indexing by a tensor
                rows = order[i:j]
                yield self._inputs(stored.index_select(0, rows)), targets.index_select(0, rows)

    def epoch_each(
        self, batch_size: int, seeds: Sequence[int], start: int = 0, rows: Tensor | None = None
    ) -> Iterator[Pair]:
        """Yield batches (M, B, ...) in which every member has its own order, one seed a member.

        Args:
            rows: (M, n) the examples that each member sees, by default all.
        """
        number = len(self) if rows is None else rows.shape[1]
        orders = torch.stack([torch.randperm(number, generator=generator(s)) for s in seeds])
        yield from self.batches_each(
            batch_size, orders if rows is None else rows.gather(1, orders), start
        )

    def batches_each(self, batch_size: int, rows: Tensor, start: int = 0) -> Iterator[Pair]:
        """Yield batches (M, B, ...) of the examples `rows` (M, n), in that order."""
        rows = rows.to(self._stored.device)
        for i, j in spans(rows.shape[1], batch_size)[start:]:
            part = rows[:, i:j]
            x, y = (t.index_select(0, part.flatten()) for t in (self._stored, self.y))
            yield self._inputs(x.unflatten(0, part.shape)), y.unflatten(0, part.shape)

    def only(self, rows: Tensor) -> Arrays:
        """Return the examples `rows` (n,)."""
        part = copy.copy(self)
        part._stored = self._stored.index_select(0, rows.to(self._stored.device))
        part.y = self.y.index_select(0, rows.to(self.y.device))
        return part

    @property
    def can_divide(self) -> bool:
        """Whether some of the examples can be left out."""
        return True

    @property
    def can_reorder(self) -> bool:
        """Whether passes with other seeds come in another order."""
        return True

    def fingerprint(self) -> str:
        """Return a hash of shapes, types and values."""
        return _digest(self._stored, self.y)


class Pixels(Arrays):
    """Images kept as bytes, a quarter of the memory, and scaled batch by batch.

    Args:
        pixels: (N, C, H, W) uint8.
        y: targets (N, ...).
        scaling: of pixels in [0, 1]; the inputs are scaling(pixels / 255).

    >>> from polymode.likelihoods.scaling import Scaling
    >>> grey = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    >>> Pixels(grey, torch.tensor([0, 1]), Scaling(0.5, 0.25)).x.flatten().tolist()
    [-2.0, 2.0]
    """

    def __init__(self, pixels: Tensor, y: Tensor, scaling: Scaling) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise ValueError(
                f"Pixels takes images (N, C, H, W) of type uint8, got {tuple(pixels.shape)} of"
                f" type {pixels.dtype}"
            )
        super().__init__(pixels, y)
        self.scaling = scaling
        self._dtype = torch.get_default_dtype()
        self._prepare()

    @property
    def pixels(self) -> Tensor:
        """The images as they are stored, (N, C, H, W) uint8."""
        return self._stored

    def _prepare(self) -> None:
        """Work out (p / 255 - shift) / scale = p factor + offset for this type and device."""
        shift, scale = self.scaling.shift.double(), self.scaling.scale.double()
        device, dtype = self._stored.device, self._dtype
        self._factor = (1 / (255 * scale)).to(device, dtype)
        self._offset = (-shift / scale).to(device, dtype)

    def _inputs(self, rows: Tensor) -> Tensor:
        return rows.to(self._dtype).mul_(self._factor).add_(self._offset)

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Pixels:
        """Return the data with its bytes on `device` and batches of type `dtype`."""
        moved = Pixels(self._stored.to(device), _cast(self.y, dtype, device), self.scaling)
        moved._dtype = dtype
        moved._prepare()
        return moved

    def fingerprint(self) -> str:
        """Return a hash of shapes, types and values, the scaling included."""
        return _digest(self._stored, self.y, self.scaling.shift, self.scaling.scale)


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
    """A `DataLoader` (or another iterable that can be iterated anew) of (inputs, targets) pairs.

    The loader keeps its own batch size, workers and transforms. Its shuffling is made a function of
    the seed: the generators of the loader and its sampler, and torch's global one, are set at the
    start of every shuffled pass and put back after. Its length is what one pass yields.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        if hasattr(loader, "__next__"):
            raise ValueError(
                "the loader is an iterator, which can be read only once; give a DataLoader, a"
                " Dataset, arrays, or an object whose __iter__ starts anew"
            )
        self.loader = loader
        self._check: Callable[[Tensor, Tensor], Pair] | None = None
        self._scaling: Scaling | None = None
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
        return sum(len(pair(batch)[0]) for batch in self.loader)

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

    def checked_by(self, check: Callable[[Tensor, Tensor], Pair]) -> Loader:
        """Return a loader whose batches pass through `check`, which refuses or amends them."""
        checked = copy.copy(self)
        checked._check = check
        return checked

    def scale_targets(self, scaling: Scaling) -> Loader:
        """Return a loader whose targets come as scaling(y)."""
        scaled = copy.copy(self)
        scaled._scaling = scaling
        return scaled

    def num_batches(self, batch_size: int) -> int:
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return sum(1 for _ in self.loader)

    def batches(self, batch_size: int) -> Iterator[Pair]:
        """Yield (x, y) in the loader's order; `batch_size` is the loader's own."""
        yield from map(self._ready, self.loader)

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
        x, y = pair(batch)
        if self._check is not None:
            x, y = self._check(x, y)
        if self._scaling is not None:
            y = self._scaling(y)
        return _cast(x, self._dtype, self._device), _cast(y, self._dtype, self._device)


class Examples(Loader):
    """A map-style `Dataset`: batches of the size that is asked for, shuffled here."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(DataLoader(dataset))
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


Data = Arrays | Loader


def pair(batch: Any) -> Pair:
    """Return (inputs, targets) of one batch of a loader, or say what came instead."""
    if isinstance(batch, dict):
        raise ValueError(
            f"the loader yields dictionaries with keys {sorted(map(str, batch))}; polymode takes"
            " (inputs, targets) pairs. Give the DataLoader a collate_fn that returns such a pair"
        )
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        raise ValueError(
            f"the loader yields a {type(batch).__name__}{size}; polymode takes (inputs, targets)"
            " pairs"
        )
    x, y = batch
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise ValueError(
            f"the loader yields a {type(x).__name__} and a {type(y).__name__}; both must be tensors"
        )
    if len(x) != len(y):
        raise ValueError(f"a batch has {len(x)} inputs and {len(y)} targets")
    return x, y


def as_data(source: Any) -> Data:
    """Return `source` as data: an (x, y) pair of arrays or tensors, a `Dataset`, or a loader."""
    if isinstance(source, (Arrays, Loader)):
        return source
    if isinstance(source, TensorDataset) and len(source.tensors) == 2:
        return Arrays(*source.tensors)
    if isinstance(source, (tuple, list)):
        if len(source) != 2:
            raise ValueError(
                "data in memory is a pair (inputs, targets), got a"
                f" {type(source).__name__} of {len(source)}"
            )
        return Arrays(_tensor(source[0], "inputs"), _tensor(source[1], "targets"))
    if isinstance(source, Dataset) and hasattr(source, "__len__"):
        if len(source) == 0:
            raise ValueError("the data set is empty: 0 examples")
        return Examples(source)
    lone = isinstance(source, (dict, str, bytes, Tensor)) or hasattr(source, "__array__")
    if hasattr(source, "__iter__") and not lone:
        return Loader(source)
    raise ValueError(
        f"cannot read data from a {type(source).__name__}; give (inputs, targets) arrays, a Dataset"
        " or a DataLoader"
    )


def _beside(passes: Sequence[Iterator[Pair]]) -> Iterator[Pair]:
    """Yield the batches of all members' passes together, (M, B, ...)."""
    for pairs in zip(*passes, strict=True):
        shapes = {(x.shape, y.shape) for x, y in pairs}
        if len(shapes) > 1:
            raise ValueError(
                f"members see batches of different shapes, {_listed(shapes)}, which cannot be"
                " stacked. Give data_order='shared', or a loader whose batches are all alike"
            )
        x, y = (torch.stack(part) for part in zip(*pairs, strict=True))
        yield x, y


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


def _listed(shapes: Iterable[Any]) -> str:
    return " and ".join(sorted(str(tuple(x)) for x, _ in shapes))


def _streams(loader: DataLoader) -> bool:
    """Whether the data set is one that is iterated, not indexed by a sampler."""
    return isinstance(loader.dataset, IterableDataset)


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _cast(tensor: Tensor, dtype: torch.dtype | None, device: torch.device | str) -> Tensor:
    if tensor.is_floating_point():
        return tensor.to(device=device, dtype=dtype)
    return tensor.to(device=device)


def _tensor(array: Any, what: str) -> Tensor:
    """Return a tensor; NumPy's float64 becomes torch's default type, tensors keep theirs."""
    if array is None:
        raise ValueError(f"{what} are missing, got None; give (inputs, targets)")
    try:
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what} cannot be read as an array of numbers: {error}") from None
    if tensor.dim() == 0:
        raise ValueError(
            f"{what} must be an array with one row per example, got the number {tensor}"
        )
    if isinstance(array, Tensor):
        return tensor
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
