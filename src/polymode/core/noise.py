"""Randomness inside a network's forward pass, with a stream of its own for each member.

Dropout layers, dropout inside attention, `torch.randn_like` in a forward method: they all end in a
few random operations of ATen. `MemberNoise` catches those below autograd and below `vmap`, and
fills the result from the streams of the members it works for. So a member sees the same masks
whether it is evaluated alone, in a batch of ten, or in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from polymode.core.rng import fold

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


def _sized(name: str) -> Callable[..., tuple[Tensor, _Fill]]:
    """An ATen operation that returns noise of a given size."""
    return lambda size, **kw: (
        torch.empty(size, dtype=kw.get("dtype"), device=kw.get("device")),
        lambda out, g: getattr(out, name)(generator=g),
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
}


class MemberNoise(TorchDispatchMode):
    """Within this context every random operation draws from the streams `seeds`.

    With `stacked` the operation's result has a leading member axis of len(seeds), each slice drawn
    from its own stream; without it there is one seed and the whole result is drawn from it.
    """

    def __init__(self, seeds: Sequence[int], *, stacked: bool) -> None:
        super().__init__()
        assert stacked or len(seeds) == 1
        self._seeds = [int(seed) for seed in seeds]
        self._stacked = stacked
        self._calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _is_idle(func, args):
            return func(*args, **kwargs)
        if func not in _DRAWS:
            raise ValueError(
                f"the network calls the random operation {func}, for which members have no own"
                f" streams. Known: {', '.join(str(known) for known in _DRAWS)}"
            )
        out, fill = _DRAWS[func](*args, **kwargs)
        shares = out.unbind(0) if self._stacked else (out,)
        if len(shares) != len(self._seeds):
            raise ValueError(
                f"{func} drew a tensor of shape {tuple(out.shape)} where the first axis should be"
                f" the {len(self._seeds)} members; use execution='loop' for this network"
            )
        self._calls += 1
        for share, seed in zip(shares, self._seeds, strict=True):
            stream = torch.Generator(device=out.device).manual_seed(
                (seed + self._calls * _GOLDEN) % 2**63
            )
            if share.is_contiguous():
                fill(share, stream)
            else:  # the order of filling must not depend on the memory format
                filled = torch.empty(share.shape, dtype=share.dtype, device=share.device)
                fill(filled, stream)
                share.copy_(filled)
        return out


def _is_idle(func: Any, args: Any) -> bool:
    """Operations that carry the tag of randomness but draw nothing: dropout switched off."""
    return func is _aten.dropout.default and not args[2]


def step_seeds(seeds: Sequence[int], step: int) -> list[int]:
    """Return the members' stream seeds for one pass number `step`."""
    return [fold(seed, "pass", step) for seed in seeds]


class _Watch(TorchDispatchMode):
    """Notices whether anything random is called."""

    drew = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not _is_idle(func, args):
            self.drew = True
        return func(*args, **(kwargs or {}))


@contextmanager
def watch() -> Iterator[_Watch]:
    """Tell by `.drew` whether anything random ran in this context; torch's stream is put back."""
    state = torch.random.get_rng_state()
    watcher = _Watch()
    try:
        with watcher:
            yield watcher
    finally:
        torch.random.set_rng_state(state)
