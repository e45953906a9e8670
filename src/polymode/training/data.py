"""Where batches come from: tensors in memory, images as bytes, or a loader of the user's own.

All give the same: `epoch(...)` yields the shuffled batches of one pass as a pure function of a
seed, so that a run can resume in the middle of an epoch; `batches(...)` yields them in order.
`B` batch, `C` channels, `M` modes, `N` examples.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from polymode.core.rng import generator, global_stream
from polymode.core.rows import (
    Inputs,
    as_rows,
    is_several,
    leaves_of,
    map_leaves,
    num_bytes,
    stacked,
)
from polymode.likelihoods.scaling import Scaling

Pair = tuple[Any, Tensor]  # inputs, a tensor or `Rows`, and targets
TARGET_NAMES = ("labels", "label", "targets", "target", "y")  # of targets among named inputs

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
    """Inputs `x` (N, ...), one tensor or `Rows`, and targets `y` (N, ...) in memory."""

    def __init__(self, x: Inputs, y: Tensor) -> None:
        if len(x) != len(y):
            raise ValueError(f"inputs and targets differ in length: {len(x):,} and {len(y):,}")
        if len(x) == 0:
            raise ValueError("the data set is empty: 0 examples")
        self._stored: Any = x
        self.y = y

    @property
    def x(self) -> Any:
        """All inputs (N, ...) as a network takes them."""
        return self._inputs(self._stored)

    def _inputs(self, rows: Any) -> Any:
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

    def epoch(self, batch_size: int, seed: int, start: int = 0) -> Iterator[Pair]:
        """Yield the batches of one shuffled pass, from batch number `start` on."""
        stored, targets = self._stored, self.y
        order = torch.randperm(len(self), generator=generator(seed)).to(stored.device)
        todo = spans(len(self), batch_size)[start:]
        if num_bytes(stored) < _PERMUTE_WHOLE_BELOW:
            x, y = stored.index_select(0, order), targets.index_select(0, order)
            for i, j in todo:
                yield self._inputs(x[i:j]), y[i:j]
        else:
            for i, j in todo:  # whole rows are copied: far faster than indexing by a tensor
                rows = order[i:j]
                yield self._inputs(stored.index_select(0, rows)), targets.index_select(0, rows)

    def epoch_each(self, batch_size: int, seeds: Sequence[int], start: int = 0) -> Iterator[Pair]:
        """Yield batches (M, B, ...) in which every member has its own order, one seed a member."""
        orders = torch.stack([torch.randperm(len(self), generator=generator(s)) for s in seeds])
        orders = orders.to(self._stored.device)
        for i, j in spans(len(self), batch_size)[start:]:
            rows = orders[:, i:j]
            x, y = (t.index_select(0, rows.flatten()) for t in (self._stored, self.y))
            yield self._inputs(x.unflatten(0, rows.shape)), y.unflatten(0, rows.shape)

    @property
    def can_reorder(self) -> bool:
        """Whether passes with other seeds come in another order."""
        return True

    def fingerprint(self) -> str:
        """Return a hash of names, shapes, types and values."""
        names = () if isinstance(self._stored, Tensor) else self._stored.named()
        return _digest(*leaves_of(self._stored), self.y, names=names)


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

    def _inputs(self, rows: Any) -> Any:
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
        return sum(len(inputs_alone(batch, self.target)) for batch in self.loader)

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
            x = inputs_alone(batch, self.target)
            yield _cast(x, self._dtype, self._device)

    def epoch(self, batch_size: int, seed: int, start: int = 0) -> Iterator[Pair]:
        """Yield the loader's batches of one pass whose shuffling is set by `seed`."""
        stream = global_stream(seed, *self._generators())
        for number, batch in enumerate(_each_within(stream, self.loader)):
            if number >= start:
                yield self._ready(batch)

    def epoch_each(self, batch_size: int, seeds: Sequence[int], start: int = 0) -> Iterator[Pair]:
        """Yield batches (M, B, ...): every member makes a pass of its own through the loader.

        What a transform draws at random is then a function of the member's seed alone, too. Batches
        that differ in size come as `Ragged`.
        """
        alone = copy.copy(self)
        alone.loader = _without_persistent_workers(self.loader)
        passes = [alone.epoch(batch_size, seed, start) for seed in seeds]
        for pairs in zip(*passes, strict=True):
            yield stacked([x for x, _ in pairs]), stacked([y for _, y in pairs])

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
        x, y = pair(batch, self.target)
        if self._check is not None:
            x, y = self._check(x, y)
        if self._scaling is not None:
            y = self._scaling(y)
        x, y = _cast(x, self._dtype, self._device), _cast(y, self._dtype, self._device)
        return (x if self._function is None else self._function(x)), y


class Examples(Loader):
    """A map-style `Dataset`: batches of the size that is asked for, shuffled here."""

    def __init__(self, dataset: Dataset, target: str | None = None) -> None:
        super().__init__(DataLoader(dataset), target)
        self.dataset = dataset

    def _count(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    @property
    def can_reorder(self) -> bool:
        """Whether passes with other seeds come in another order."""
        return True

    def num_batches(self, batch_size: int) -> int:
        return len(spans(len(self), batch_size))

    def batches(self, batch_size: int) -> Iterator[Pair]:
        yield from self._over(list(range(len(self))), batch_size, 0)

    def inputs(self, batch_size: int) -> Iterator[Any]:
        rows = [list(range(i, j)) for i, j in spans(len(self), batch_size)]
        for batch in DataLoader(self.dataset, batch_sampler=rows):
            x = inputs_alone(batch, self.target)
            yield _cast(x, self._dtype, self._device)

    def epoch(self, batch_size: int, seed: int, start: int = 0) -> Iterator[Pair]:
        order = torch.randperm(len(self), generator=generator(seed)).tolist()
        stream = global_stream(seed)  # for transforms that draw
        yield from _each_within(stream, self._over(order, batch_size, start))

    def _over(self, order: list[int], batch_size: int, start: int) -> Iterator[Pair]:
        rows = [order[i:j] for i, j in spans(len(self), batch_size)]
        for number, batch in enumerate(DataLoader(self.dataset, batch_sampler=rows)):
            if number >= start:
                yield self._ready(batch)


Data = Arrays | Loader


def pair(batch: Any, target: str | None = None) -> Pair:
    """Return (inputs, targets) of one batch of a loader, or say what came instead."""
    if isinstance(batch, Mapping):
        inputs, y = without_target(batch, target)
        if y is None:
            raise ValueError(
                f"the loader yields dictionaries with the keys {_listed(batch)}, and none of them"
                f" is a target ({_listed(TARGET_NAMES)}); name it, as in pm.Task(target='...')"
            )
        x: Any = as_rows(inputs, _leaf)
    elif not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(
            f"the loader yields {_kind(batch)}; polymode takes (inputs, targets) pairs, such as"
            " ((a, b), y) for several inputs, or dictionaries. Weights of examples are not inputs"
        )
    else:
        x, y = batch
        x = as_rows(x, _leaf) if is_several(x) else x
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
        return as_rows(without_target(batch, target)[0], _leaf)
    if isinstance(batch, (tuple, list)) and len(batch) == 1:
        return inputs_alone(batch[0], target)
    return pair(batch, target)[0]


def first_inputs(data: Any, number: int) -> Any:
    """Return the first inputs, at most `number`, of inputs alone, of arrays or of a loader."""
    if isinstance(data, Arrays):
        return data.head(number)[0]
    if isinstance(data, Loader):
        with global_stream(None):
            return next(data.inputs(number))[:number]
    return data[:number]


def without_target(batch: Mapping[str, Any], target: str | None) -> tuple[dict[str, Any], Any]:
    """Return named inputs without their targets, and the targets, None where there are none.

    Two possible names of targets at once are refused; `target` settles which it is, and the other
    is then an input.
    """
    if target is not None:
        if target not in batch:
            raise ValueError(
                f"the data have no '{target}', which `target` names; they have {_listed(batch)}"
            )
        names = [target]
    else:
        names = [name for name in TARGET_NAMES if name in batch]
    if len(names) > 1:
        raise ValueError(
            f"the data have {_listed(names)}, any of which may be the targets; name one, as in"
            f" pm.Task(target='{names[0]}')"
        )
    inputs = {key: value for key, value in batch.items() if key not in names}
    return inputs, batch[names[0]] if names else None


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def as_data(source: Any, target: str | None = None) -> Data:
    """Return `source` as data: an (x, y) pair of arrays or tensors, named arrays among which the
    targets are called `target`, a `Dataset`, or a loader."""
    if isinstance(source, (Arrays, Loader)):
        return source
    if isinstance(source, TensorDataset) and len(source.tensors) == 2:
        return Arrays(*source.tensors)
    if isinstance(source, Mapping):
        inputs, y = without_target(source, target)
        if y is None:
            raise ValueError(
                f"the data have the names {_listed(source)}, and none of them is a target"
                f" ({_listed(TARGET_NAMES)}); name it, as in pm.Task(target='...')"
            )
        return Arrays(as_rows(inputs, _leaf), _tensor(y, "targets"))
    if isinstance(source, (tuple, list)):
        if len(source) != 2:
            raise ValueError(
                "data in memory is a pair (inputs, targets), such as ((a, b), y) for several"
                f" inputs, got a {type(source).__name__} of {len(source)}"
            )
        return Arrays(as_inputs(source[0], "inputs"), _tensor(source[1], "targets"))
    if isinstance(source, Dataset) and hasattr(source, "__len__"):
        if len(source) == 0:
            raise ValueError("the data set is empty: 0 examples")
        return Examples(source, target)
    lone = isinstance(source, (str, bytes, Tensor)) or hasattr(source, "__array__")
    if hasattr(source, "__iter__") and not lone:
        return Loader(source, target)
    raise ValueError(
        f"cannot read data from a {type(source).__name__}; give (inputs, targets) arrays, a Dataset"
        " or a DataLoader"
    )


def as_inputs(source: Any, what: str = "inputs") -> Inputs:
    """Return arrays in memory as inputs: one tensor, or `Rows` of named ones or of a tuple."""
    return as_rows(source, _leaf) if is_several(source) else _tensor(source, what)


def _leaf(array: Any, name: str) -> Tensor:
    return _tensor(array, f"inputs '{name}'")


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


def _digest(*tensors: Tensor, names: Iterable[str] = ()) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        digest.update(name.encode())
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _cast(x: Any, dtype: torch.dtype | None, device: torch.device | str) -> Any:
    """Return tensors on a device, floating-point ones as `dtype`."""
    return map_leaves(
        x, lambda t: t.to(device=device, dtype=dtype) if t.is_floating_point() else t.to(device)
    )


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
