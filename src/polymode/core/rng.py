"""Random streams by name: every number is a function of the seed and of its purpose.

A stream is addressed by a path, `fold(seed, "init", member)`, instead of being passed on from one
draw to the next. Therefore member 3 draws the same numbers in stacks of 4 and of 40, and a run that
resumes at step 1,000 needs no saved generator state.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def fold(seed: int, *path: int | str) -> int:
    """Return the seed of the stream `path` below `seed`, an integer in [0, 2**63).

    >>> fold(0, "init", 3) == fold(0, "init", 3), fold(0, "init", 3) == fold(0, "init", 4)
    (True, False)
    """
    address = "/".join([str(int(seed)), *(str(part) for part in path)])
    digest = hashlib.blake2b(address.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def fold_each(seed: int, name: str, count: int, first: int = 0) -> Iterator[int]:
    """Yield `fold(seed, name, k)` for `first` ≤ k < `count`, no two of which torch starts alike.

    Its CPU generators take 32 bits of a seed, so among 93,000 streams one pair is alike by chance.
    The later one of such a pair is then that of (name, k, "again", 1), or 2, ...
    """
    used: set[int] = set()
    for k in range(count):
        stream, again = fold(seed, name, k), 0
        while stream % 2**32 in used:
            again += 1
            stream = fold(seed, name, k, "again", again)
        used.add(stream % 2**32)
        if k >= first:
            yield stream


def generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a CPU generator at the start of the stream `path` below `seed`."""
    return torch.Generator().manual_seed(fold(seed, *path))


_GLOBAL = threading.RLock()  # held while torch's global stream is set here


class global_stream:
    """Start torch's global CPU stream, and `extra` ones, at `seed`; put them back after.

    Entered again, it continues where it was left. One thread at a time is inside: do not wait there
    for anything that another thread may hold. `torch.manual_seed` would also record the call for
    every kind of accelerator, which takes longer than building a small network.

    Args:
        seed: None begins where the streams are.
    """

    def __init__(self, seed: int | None, *extra: torch.Generator) -> None:
        self._seed, self._streams = seed, (torch.default_generator, *extra)
        self._inside: list[Tensor] | None = None

    def __enter__(self) -> None:
        _GLOBAL.acquire()
        self._outside = [stream.get_state() for stream in self._streams]
        for place, stream in enumerate(self._streams):
            if self._inside is not None:
                stream.set_state(self._inside[place])
            elif self._seed is not None:
                stream.manual_seed(self._seed)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside = [stream.get_state() for stream in self._streams]
        for stream, state in zip(self._streams, self._outside, strict=True):
            stream.set_state(state)
        _GLOBAL.release()


class private_stream(TorchDispatchMode):
    """Let what this thread draws from torch's global CPU stream come from a stream of its own.

    Other threads neither disturb it nor notice.

    Args:
        seed: what it starts at.
        follows: whether `torch.manual_seed` and the like are obeyed. Then the block is inside of
            `global_stream(seed)`: the global stream shows where this one is, and is looked at
            before each draw. That others have drawn from it meanwhile is ignored, unless it was
            set again just before.
    """

    def __init__(self, seed: int, *, follows: bool = False) -> None:
        super().__init__()
        self._stream = torch.Generator().manual_seed(seed)
        self._follows = follows
        self._shown = {_bytes(self._stream)} if follows else set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or not _on_cpu(args, kwargs):
            return func(*args, **kwargs)
        if not self._follows:
            return self._draw(func, args, kwargs)
        state = torch.default_generator.get_state()
        again = state.numpy().tobytes() in self._shown
        if again or torch.default_generator.initial_seed() != self._stream.initial_seed():
            self._stream.set_state(state)
            self._shown.add(_bytes(self._stream))
        result = self._draw(func, args, kwargs)
        torch.default_generator.set_state(self._stream.get_state())
        self._shown.add(_bytes(self._stream))
        return result

    def _draw(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        names = [argument.name for argument in func._schema.arguments]
        if "generator" not in names:
            last = func._overloadname
            twin = "generator" if last == "default" else f"{last}_generator"
            if twin not in func.overloadpacket.overloads():
                return self._swap(func, args, kwargs)
            func = getattr(func.overloadpacket, twin)
        elif kwargs.get("generator") is not None or len(args) > names.index("generator"):
            return func(*args, **kwargs)
        return func(*args, **{**kwargs, "generator": self._stream})

    def _swap(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an operation that takes no generator, on the global stream."""
        with global_stream(None):
            torch.default_generator.set_state(self._stream.get_state())
            result = func(*args, **kwargs)
            self._stream.set_state(torch.default_generator.get_state())
        return result


def _bytes(stream: torch.Generator) -> bytes:
    state: bytes = stream.get_state().numpy().tobytes()
    return state


def _on_cpu(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation works on the processor."""
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    device = tensors[0].device if tensors else kwargs.get("device")
    return torch.device(device or "cpu").type == "cpu"
