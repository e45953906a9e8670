"""Follows a forward pass and notes the calls that have parameters among their arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from polymode.curvature.derivatives import Call, Layout, known, writes_into_input
from polymode.curvature.plain_operations import arguments, attention


class _Operations(TorchFunctionMode):
    """What both passes have in common: attention in steps, and calls with parameters."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            named = arguments(args, kwargs)
            if named is not None:
                with self:
                    return attention(named)
        names = {self.names[id(t)] for t in tensors_in((args, kwargs)) if id(t) in self.names}
        return self.call(func, args, kwargs, names) if names else func(*args, **kwargs)

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], names: set[str]) -> Any:
        raise NotImplementedError


class Look(_Operations):
    """A first look: the sizes of results, and what is not known or changed afterwards.

    Attributes:
        shapes: of the results of known operations, in order. unknown: parameters that enter
            otherwise. used: parameters that enter at all.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__(names)
        self.shapes: list[torch.Size] = []
        self.unknown: set[str] = set()
        self.used: set[str] = set()
        self._watched: list[tuple[Tensor, int]] = []
        self._writes = False

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], names: set[str]) -> Any:
        result = func(*args, **kwargs)
        if not any(True for _ in tensors_in(result)):
            return result  # it asked for a shape or a type
        self.used |= names
        if known(func) is None:
            self.unknown |= names
            return result
        self.shapes.append(result.shape)
        in_place = writes_into_input(func)
        self._writes |= in_place
        handed = result if in_place else result.clone()
        self._watched += [(t, t._version) for t in tensors_in((args, kwargs))]
        self._watched.append((handed, handed._version))
        return handed

    @property
    def changes_in_place(self) -> bool:
        """Whether arguments or results of known operations were changed, by them or later."""
        return self._writes or any(tensor._version != version for tensor, version in self._watched)


class Watch(_Operations):
    """A pass that notes the known calls, for derivatives.

    Args:
        names: id of a parameter -> its name, for the parameters that are wanted.
        layouts: of all known calls, in order, see `Layout`; None where it is not known.
        batch: B. copies: whether inputs are copied, because the network changes them later.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        everything: Mapping[int, str],
        layouts: Sequence[str | None],
        batch: int,
        copies: bool,
    ) -> None:
        super().__init__(everything)
        self.wanted, self.layouts, self.batch, self.copies = names, layouts, batch, copies
        self.calls: list[Call] = []
        self.beyond: set[str] = set()
        self._number = -1

    def call(self, func: Any, args: Any, kwargs: dict[str, Any], names: set[str]) -> Any:
        make = known(func)
        if make is None:
            return func(*args, **kwargs)
        self._number += 1
        layout = self.layouts[self._number]
        if layout is None or not any(name in names for name in self.wanted.values()):
            return func(*args, **kwargs)
        given = args
        if self.copies:
            args = tuple(self._copy(argument) for argument in args)
            kwargs = {key: self._copy(argument) for key, argument in kwargs.items()}
        try:
            call = make(func, args, kwargs, Layout(layout, self.batch, self._is_parameter))
        except NotImplementedError:
            self.beyond |= names
            return func(*given, **kwargs)
        result = call.result
        if not result.requires_grad:
            result = result.detach().requires_grad_()
        entries = [entry for entry in call.entries if id(entry.parameter) in self.wanted]
        self.calls.append(call._replace(result=result, entries=entries))
        if writes_into_input(func):
            return given[0].copy_(result)
        return result.clone() if self.copies else result

    def _is_parameter(self, tensor: Tensor) -> bool:
        return id(tensor) in self.names

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor) and not self._is_parameter(value):
            return value.clone()
        return value


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and dictionaries."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(tuple(values.values()))
