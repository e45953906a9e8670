"""Where batches come from: tensors in memory, or a loader of the user's own.

Both give the same: `epoch(...)` yields the shuffled batches of one pass as a pure function of a seed, so that a run can
resume in the middle of an epoch; `batches(...)` yields them in order. `B` batch, `M` modes, `N` examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from polymode.core.rng import generator

Pair = tuple[Tensor, Tensor]

_PERMUTE_WHOLE_BELOW = 2**26  # bytes: below, one gather an epoch and slices are cheaper than a gather a batch


def spans(num_examples: int, batch_size: int) -> list[tuple[int, int]]:
    """Return the (start, stop) of each batch; a last batch of one example joins the one before it.

    A batch of one has no batch statistics, so it would break networks with BatchNorm at N = k B + 1.

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
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Arrays:
        """Return the data on `device`, floating-point tensors as `dtype`; integers stay integers."""
        return Arrays(_cast(self.x, dtype, device), _cast(self.y, dtype, device))

    def num_batches(self, batch_size: int) -> int:
        return len(spans(len(self), batch_size))

    def batches(self, batch_size: int) -> Iterator[Pair]:
        """Yield (x, y) in order, views of the data."""
        for start, stop in spans(len(self), batch_size):
            yield self.x[start:stop], self.y[start:stop]

    def epoch(self, batch_size: int, seed: int, start: int = 0) -> Iterator[Pair]:
        """Yield the batches of one shuffled pass, from batch number `start` on."""
        order = torch.randperm(len(self), generator=generator(seed)).to(self.x.device)
        todo = spans(len(self), batch_size)[start:]
        if self.x.element_size() * self.x.nelement() < _PERMUTE_WHOLE_BELOW:
            x, y = self.x[order], self.y[order]
            for i, j in todo:
                yield x[i:j], y[i:j]
        else:
            for i, j in todo:
                yield self.x[order[i:j]], self.y[order[i:j]]

    def epoch_each(self, batch_size: int, seeds: Sequence[int], start: int = 0) -> Iterator[Pair]:
        """Yield batches (M, B, ...) in which every member has its own order, one seed a member."""
        orders = torch.stack([torch.randperm(len(self), generator=generator(s)) for s in seeds])
        orders = orders.to(self.x.device)
        for i, j in spans(len(self), batch_size)[start:]:
            rows = orders[:, i:j]
            yield self.x[rows], self.y[rows]

    def fingerprint(self) -> str:
        """Return a hash of shapes, types and values."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (self.x, self.y):
            digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(memoryview(flat.view(torch.uint8).numpy()))
        return digest.hexdigest()


class Loader:
    """A `DataLoader` (or another iterable that can be iterated anew) of (inputs, targets) pairs.

    The loader keeps its own batch size, workers and transforms. Its shuffling is made a function of the seed: the
    loader's generator, or torch's global one where it has none, is set at the start of every pass and put back after.
    """

    def __init__(self, loader: Iterable[Any], *, num_examples: int | None = None) -> None:
        if hasattr(loader, "__next__"):
            raise ValueError(
                "the loader is an iterator, which can be passed over once; give a DataLoader, a"
                " Dataset, arrays, or an object whose __iter__ starts anew"
            )
        self.loader = loader
        self._dtype: torch.dtype = torch.get_default_dtype()
        self._device: torch.device | str = "cpu"
        self._num_examples = num_examples

    def __len__(self) -> int:
        if self._num_examples is None:
            dataset = getattr(self.loader, "dataset", None)
            try:
                self._num_examples = len(dataset)  # type: ignore[arg-type]
            except TypeError:
                self._num_examples = sum(len(pair(batch)[0]) for batch in self.loader)
            if self._num_examples == 0:
                raise ValueError("the data set is empty: 0 examples")
        return self._num_examples

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Loader:
        """Return a loader whose batches come on `device`, floating-point tensors as `dtype`."""
        moved = Loader(self.loader, num_examples=self._num_examples)
        moved._dtype, moved._device = dtype, device
        return moved

    def num_batches(self, batch_size: int) -> int:
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return sum(1 for _ in self.loader)

    def batches(self, batch_size: int) -> Iterator[Pair]:
        for batch in self.loader:
            x, y = pair(batch)
            yield _cast(x, self._dtype, self._device), _cast(y, self._dtype, self._device)

    def epoch(self, batch_size: int, seed: int, start: int = 0) -> Iterator[Pair]:
        """Yield the loader's batches of one pass whose shuffling is set by `seed`."""
        own = getattr(self.loader, "generator", None)
        stream = own if isinstance(own, torch.Generator) else torch.default_generator
        before = stream.get_state()
        stream.manual_seed(seed)
        try:
            for number, batch in enumerate(self.batches(batch_size)):
                if number >= start:
                    yield batch
        finally:
            stream.set_state(before)

    def epoch_each(self, batch_size: int, seeds: Sequence[int], start: int = 0) -> Iterator[Pair]:
        raise ValueError(
            "data_order='own' draws M different orders and needs the data as arrays; a loader has"
            " one order. Give arrays or data_order='shared'"
        )

    def fingerprint(self) -> str:
        return f"loader of {len(self)} examples"


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
            f"the loader yields a {type(batch).__name__}{size}; polymode takes (inputs, targets) pairs"
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
    if isinstance(source, torch.utils.data.TensorDataset) and len(source.tensors) == 2:
        return Arrays(*source.tensors)
    if isinstance(source, (tuple, list)):
        if len(source) != 2:
            raise ValueError(
                f"data in memory is a pair (inputs, targets), got a {type(source).__name__} of {len(source)}"
            )
        return Arrays(_tensor(source[0], "inputs"), _tensor(source[1], "targets"))
    if isinstance(source, torch.utils.data.Dataset) and hasattr(source, "__len__"):
        if len(source) == 0:
            raise ValueError("the data set is empty: 0 examples")
        return _DatasetLoader(source)
    lone = isinstance(source, (dict, str, bytes, Tensor)) or hasattr(source, "__array__")
    if hasattr(source, "__iter__") and not lone:
        return Loader(source)
    raise ValueError(
        f"cannot read data from a {type(source).__name__}; give (inputs, targets) arrays, a Dataset"
        " or a DataLoader"
    )


class _DatasetLoader(Loader):
    """A map-style Dataset: batches of the size that training or prediction asks for."""

    def __init__(self, dataset: torch.utils.data.Dataset, *, num_examples: int | None = None) -> None:
        super().__init__(DataLoader(dataset), num_examples=num_examples)
        self.dataset = dataset

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Loader:
        moved = _DatasetLoader(self.dataset, num_examples=len(self))
        moved._dtype, moved._device = dtype, device
        return moved

    def num_batches(self, batch_size: int) -> int:
        return len(spans(len(self), batch_size))

    def _over(self, order: Sequence[int], batch_size: int, start: int = 0) -> Iterator[Pair]:
        rows = [list(order[i:j]) for i, j in spans(len(self), batch_size)[start:]]
        inner = Loader(DataLoader(self.dataset, batch_sampler=rows))
        inner._dtype, inner._device = self._dtype, self._device
        yield from inner.batches(batch_size)

    def batches(self, batch_size: int) -> Iterator[Pair]:
        yield from self._over(range(len(self)), batch_size)

    def epoch(self, batch_size: int, seed: int, start: int = 0) -> Iterator[Pair]:
        order = torch.randperm(len(self), generator=generator(seed)).tolist()
        yield from self._over(order, batch_size, start)


def _cast(tensor: Tensor, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    if tensor.is_floating_point():
        return tensor.to(device=device, dtype=dtype)
    return tensor.to(device=device)


def _tensor(array: Any, what: str) -> Tensor:
    """Return a tensor; NumPy's float64 becomes torch's default type, tensors keep theirs."""
    try:
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what} cannot be read as an array of numbers: {error}") from None
    if tensor.dim() == 0:
        raise ValueError(f"{what} must be an array with one row an example, got the number {tensor}")
    if isinstance(array, Tensor):
        return tensor
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor
