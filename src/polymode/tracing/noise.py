"""Randomness inside a network's forward pass, with a stream of its own for each member.

Dropout layers, dropout inside attention, `torch.randn_like` in a forward method: they all end in a
few random operations of ATen. `MemberNoise` catches those below autograd and below `vmap`, and
fills the result from the streams of the members it works for. So a member sees the same masks
whether it is evaluated alone, in a batch of ten, or in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from polymode.core.rng import fold, private_stream
from polymode.core.rows import copies_of_first
from polymode.tracing.attention import is_fused

_aten = torch.ops.aten
_GOLDEN = 0x9E3779B97F4A7C15
_Fill = Callable[[Tensor, torch.Generator], Any]


def _in_place(name: str) -> Callable[..., tuple[Tensor, _Fill]]:
    """An ATen operation that fills its first argument (`bernoulli_`, `normal_`, ...)."""
    return lambda like, *args, **kw: (
        like,
        lambda out, g: getattr(out, name)(*args, **{**kw, "generator": g}),
    )


def _like(name: str) -> Callable[..., tuple[Tensor, _Fill]]:
    """An ATen operation that returns noise of its first argument's shape."""
    return lambda like, *args, **kw: (
        torch.empty_like(like, dtype=kw.get("dtype")),
        lambda out, g: getattr(out, name)(*args, generator=g),
    )


def _sized(name: str, usual: torch.dtype | None = None) -> Callable[..., tuple[Tensor, _Fill]]:
    """An ATen operation that returns noise of a given size, its last argument."""
    return lambda *args, **kw: (
        torch.empty(args[-1], dtype=kw.get("dtype") or usual, device=kw.get("device")),
        lambda out, g: getattr(out, name)(*args[:-1], generator=g),
    )


# operation -> (arguments -> tensor to fill, how to fill one member's share of it)
_DRAWS: dict[Any, Callable[..., tuple[Tensor, _Fill]]] = {
    _aten.bernoulli_.float: _in_place("bernoulli_"),
    _aten.normal_.default: _in_place("normal_"),
    _aten.uniform_.default: _in_place("uniform_"),
    _aten.exponential_.default: _in_place("exponential_"),
    _aten.bernoulli.p: _like("bernoulli_"),
    _aten.rand_like.default: _like("uniform_"),
    _aten.randn_like.default: _like("normal_"),
    _aten.rand.default: _sized("uniform_"),
    _aten.randn.default: _sized("normal_"),
    _aten.normal.float_float: _sized("normal_"),
    _aten.randint.default: _sized("random_", torch.int64),
    _aten.randint.low: _sized("random_", torch.int64),
}
_UNIFORM, _NORMAL = _aten.rand_like.default, _aten.randn_like.default
# operation whose parameters may differ between examples -> its result, made of one of the above,
# which is what examples share
_MADE_OF: dict[Any, Callable[..., Tensor]] = {
    _aten.bernoulli.default: lambda draw, p, **_: (draw(_UNIFORM, p) < p).to(p.dtype),
    _aten.bernoulli_.Tensor: lambda draw, out, p, **_: out.copy_(draw(_UNIFORM, out) < p),
    _aten.normal.Tensor_float: lambda draw, mean, std=1.0, **_: mean + std * draw(_NORMAL, mean),
    _aten.normal.float_Tensor: lambda draw, mean, std, **_: mean + std * draw(_NORMAL, std),
    _aten.normal.Tensor_Tensor: lambda draw, mean, std, **_: mean + std * draw(_NORMAL, mean + std),
}


class BatchAxis(NamedTuple):
    """Where the examples of a batch are in a tensor of noise: entry b · `per` + i of `axis` belongs
    to example b. `axis` is None for noise that the whole batch shares, such as DropConnect's."""

    axis: int | None
    per: int = 1


class Streams:
    """Random streams of one forward pass, one per member, or several.

    With `pinned`, where each tensor that is drawn has its batch axis, all examples get the same
    noise: a member is then one function of its inputs, whatever the batch. With several streams
    per member the rows of a batch are as many groups of equal size, one behind another, and all
    examples of a group get the same noise.

    Args:
        seeds: of each member, (M,) or (M, L).
    """

    def __init__(
        self, seeds: Sequence[int | Sequence[int]], pinned: Sequence[BatchAxis] | None = None
    ) -> None:
        self.seeds = [(member,) if isinstance(member, int) else tuple(member) for member in seeds]
        self.pinned = pinned

    def __getitem__(self, members: slice) -> Streams:
        return Streams(self.seeds[members], self.pinned)


class MemberNoise(TorchDispatchMode):
    """Within this context every random operation draws from the members' streams.

    With `stacked` the operation's result has a leading member axis, each slice drawn from its own
    stream; without it there is one stream and the whole result is drawn from it.
    """

    def __init__(self, streams: Streams, *, stacked: bool) -> None:
        super().__init__()
        assert stacked or len(streams.seeds) == 1
        self._streams = streams
        self._stacked = stacked
        self._calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        if func in _MADE_OF:
            return _MADE_OF[func](self._draw, *args, **kwargs)
        if func not in _DRAWS:
            raise ValueError(
                f"the network calls the random operation {func}, for which members have no own"
                f" streams. Known: {', '.join(map(str, (*_DRAWS, *_MADE_OF)))}"
            )
        out, fill = _DRAWS[func](*args, **kwargs)
        seeds, pinned = self._streams.seeds, self._streams.pinned
        shares = out.unbind(0) if self._stacked else (out,)
        if len(shares) != len(seeds):
            raise ValueError(
                f"{func} drew a tensor of shape {tuple(out.shape)} where the first axis should be"
                f" the {len(seeds)} members; use execution='loop' for this network"
            )
        batch = BatchAxis(None)
        if pinned is not None:
            if self._calls >= len(pinned):
                raise ValueError(
                    f"the network draws more than {len(pinned)} times in this pass, but did not"
                    " when it was first looked at; what it draws must not depend on the inputs"
                )
            batch = pinned[self._calls]
        self._calls += 1
        stream = torch.Generator(device=out.device)
        for share, member_seeds in zip(shares, seeds, strict=True):
            if batch.axis is None and share.is_contiguous():
                fill(share, self._at(stream, member_seeds[0]))
                continue
            shape = list(share.shape)
            if batch.axis is not None:
                shape[batch.axis] = batch.per
            # the order of filling must not depend on the memory format
            filled = torch.empty(len(member_seeds), *shape, dtype=share.dtype, device=share.device)
            for group, seed in zip(filled.unbind(0), member_seeds, strict=True):
                fill(group, self._at(stream, seed))
            if batch.axis is None:
                share.copy_(filled[0])
            else:
                share = share.unflatten(batch.axis, (len(member_seeds), -1, batch.per))
                share.copy_(filled.movedim(0, batch.axis).unsqueeze(batch.axis + 1))
        return out

    def _draw(self, func: Any, like: Tensor) -> Tensor:
        """Return noise of a tensor's shape, drawn as if the network did."""
        drawn: Tensor = self.__torch_dispatch__(func, (), (like,))
        return drawn

    def _at(self, stream: torch.Generator, seed: int) -> torch.Generator:
        """Return the generator at the start of this call's numbers."""
        return stream.manual_seed((seed + self._calls * _GOLDEN) % 2**63)


class NoDraws(TorchDispatchMode):
    """Within this context a random operation is an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _draws(func, args, kwargs or {}):
            raise RuntimeError(f"{func} draws where nothing may be drawn")
        return func(*args, **(kwargs or {}))


def _draws(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags and not _is_idle(func, args, kwargs)


def _is_idle(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Operations that carry the tag of randomness but draw nothing: dropout switched off, and the
    fused kernels of attention without dropout."""
    if func is _aten.dropout.default:
        return not args[2]
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            usual = kwargs.get("dropout_p", argument.default_value)
            return not (args[place] if place < len(args) else usual)
    return False


def pinned_seeds(seeds: Sequence[int], numbers: Sequence[int]) -> list[list[int]]:
    """Return the members' stream seeds for passes that stand in one batch, (M, L)."""
    return [[fold(seed, "pass", number) for number in numbers] for seed in seeds]


def step_seeds(seeds: Sequence[int], step: int) -> list[int]:
    """Return the members' stream seeds for one pass number `step`."""
    return [fold(seed, "pass", step) for seed in seeds]


class _Watch(TorchDispatchMode):
    """Notices what random operations draw, the shape of each tensor in their order, and whether
    attention runs a fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        self.attends = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.attends = self.attends or is_fused(func)
        if _draws(func, args, kwargs):
            first = result[0] if isinstance(result, (tuple, list)) else result
            self.shapes.append(tuple(first.shape))
        return result


@contextmanager
def drawing() -> Iterator[list[tuple[int, ...]]]:
    """Note the shapes of what is drawn meanwhile; torch's stream is left alone."""
    with private_stream(0), torch.no_grad(), _Watch() as watcher:
        yield watcher.shapes


class Habits(NamedTuple):
    """What a forward pass does beside arithmetic.

    Attributes:
        draws: whether it draws random numbers. attends: whether attention runs a fused kernel.
    """

    draws: bool
    attends: bool


def habits(module: nn.Module, x: Tensor) -> Habits:
    """Return those of a pass of two examples: BatchNorm in training wants two."""
    with private_stream(0), torch.no_grad(), _Watch() as watcher:
        module(copies_of_first(x, 2))
    return Habits(bool(watcher.shapes), watcher.attends)


def shapes_drawn(module: nn.Module, x: Tensor) -> list[tuple[int, ...]]:
    """Return the shapes of what a forward pass draws; torch's stream is left alone."""
    with drawing() as shapes:
        module(x)
    return shapes


def batch_axes(module: nn.Module, x: Tensor) -> list[BatchAxis]:
    """Return where the batch is in each tensor that a forward pass draws.

    Found by passes of two and of three examples: the axis that grows with them is the batch.
    """
    of_two, of_three = (shapes_drawn(module, copies_of_first(x, n)) for n in (2, 3))
    if len(of_two) != len(of_three):
        raise ValueError(
            f"the network draws {len(of_two)} times for two examples and {len(of_three)} times for"
            " three; what it draws must not depend on the batch size"
        )
    return [_batch_axis(a, b) for a, b in zip(of_two, of_three, strict=True)]


def _batch_axis(of_two: tuple[int, ...], of_three: tuple[int, ...]) -> BatchAxis:
    grown = [axis for axis, (a, b) in enumerate(zip(of_two, of_three, strict=True)) if a != b]
    if not grown:
        return BatchAxis(None)
    axis = grown[0]
    if len(grown) > 1 or 3 * of_two[axis] != 2 * of_three[axis]:
        raise ValueError(
            f"the network draws noise of shape {of_two} for two examples and {of_three} for three:"
            " it cannot be the same for every example"
        )
    return BatchAxis(axis, of_two[axis] // 2)
