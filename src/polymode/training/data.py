"""Where batches come from: tensors in memory, images as bytes, or a loader of the user's own.

All give the same: `epoch(...)` yields the shuffled batches of one pass as a pure function of a
seed, so that a run can resume in the middle of an epoch; `batches(...)` yields them in order.
`B` batch, `C` channels, `M` modes, `N` examples.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    Dataset,
    TensorDataset,
)

from polymode.core.rng import generator, global_stream
from polymode.core.rows import Inputs, as_rows, is_several, leaves_of, num_bytes
from polymode.likelihoods.scaling import Scaling
from polymode.training.batches import Pair, as_leaf, as_tensor, cast, listed, spans
from polymode.training.loaders import (
    TARGET_NAMES,
    Examples,
    Loader,
    without_target,
)

_PERMUTE_WHOLE_BELOW = (
    2**26
)  # bytes: below, one gather an epoch and slices are cheaper than a gather a batch


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
        return Arrays(cast(self._stored, dtype, device), cast(self.y, dtype, device))

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
        if num_bytes(stored) < _PERMUTE_WHOLE_BELOW:
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
        """Return a hash of names, shapes, types and values."""
        names = () if isinstance(self._stored, Tensor) else self._stored.named()
        return _digest(*leaves_of(self._stored), *leaves_of(self.y), names=names)


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
        moved = Pixels(self._stored.to(device), cast(self.y, dtype, device), self.scaling)
        moved._dtype = dtype
        moved._prepare()
        return moved

    def fingerprint(self) -> str:
        """Return a hash of shapes, types and values, the scaling included."""
        return _digest(self._stored, self.y, self.scaling.shift, self.scaling.scale)


Data = Arrays | Loader


def first_inputs(data: Any, number: int) -> Any:
    """Return the first inputs, at most `number`, of inputs alone, of arrays or of a loader."""
    if isinstance(data, Arrays):
        return data.head(number)[0]
    if isinstance(data, Loader):
        with global_stream(None):
            return next(data.inputs(number))[:number]
    return data[:number]


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
                f"the data have the names {listed(source)}, and none of them is a target"
                f" ({listed(TARGET_NAMES)}); name it, as in pm.Task(target='...')"
            )
        return Arrays(as_rows(inputs, as_leaf), as_tensor(y, "targets"))
    if isinstance(source, (tuple, list)):
        if len(source) != 2:
            raise ValueError(
                "data in memory is a pair (inputs, targets), such as ((a, b), y) for several"
                f" inputs, got a {type(source).__name__} of {len(source)}"
            )
        return Arrays(as_inputs(source[0], "inputs"), as_tensor(source[1], "targets"))
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
    return as_rows(source, as_leaf) if is_several(source) else as_tensor(source, what)


def _digest(*tensors: Tensor, names: Iterable[str] = ()) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        digest.update(name.encode())
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
