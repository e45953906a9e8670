"""One architecture: what all stacks of it share, whatever their values.

A `Network` holds the module without values and the programs made from it: the forward pass as
batched products, the quick form of one member, the network cut after its first convolution. Each
is made once for every mode, not once for every stack, so a stack that was drawn a moment ago runs
at once.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from polymode.core.threads import PerThread
from polymode.tracing.calling import Calling, call_by
from polymode.tracing.graph import silent, trace
from polymode.tracing.modules import aliases_of, average_by_tensors, set_mode, tie_again

Made = TypeVar("Made")


class Network:
    """A module without values.

    Attributes:
        template: the module on torch's "meta" device, in evaluation mode.
        aliases: first name of each tensor -> all its names (weight tying).
        second_names: pairs (other name, first name).
        plans: by number of samples and of modes, how a stack is evaluated, see
            `stack/fast/plan.py`.
    """

    def __init__(self, module: nn.Module) -> None:
        self.aliases = aliases_of(module)
        self.second_names = [
            (alias, name) for name, names in self.aliases.items() for alias in names[1:]
        ]
        self.template = without_values(module)
        self.plans: dict[tuple[int, int], dict[str, Any]] = {}
        self._programs: dict[tuple[str, str], object] = {}
        self._making = _Lock()
        self._templates: PerThread[dict[str, nn.Module]] = PerThread(dict)

    def call_by(self, calling: Calling | None) -> None:
        """Set how the network is called, before stacks of it were run."""
        call_by(self.template, calling)
        self._programs.clear()
        self._templates = PerThread(dict)

    def template_in(self, mode: str) -> nn.Module:
        """Return the module in a mode, this thread's own: `functional_call` puts tensors into it
        while it runs, but leaves it as it was."""
        templates = self._templates()
        if mode not in templates:
            template = set_mode(silent(copy.deepcopy(self.template)), mode)
            templates[mode] = average_by_tensors(template) if mode == "train" else template
        return templates[mode]

    def program(self, what: str, mode: str, make: Callable[[nn.Module], Made]) -> Made:
        """Return what `make` makes of the module in a mode, made once for all threads."""
        key = what, mode
        if key not in self._programs:
            with self._making:
                if key not in self._programs:
                    self._programs[key] = make(self.template_in(mode))
        return self._programs[key]  # type: ignore[return-value]

    @property
    def keeps_plain_state(self) -> bool:
        """Whether a forward pass may change more than tensors: it has no graph in some mode."""
        return any(
            self.program("graph", mode, lambda template: trace(template) is None)
            for mode in ("eval", "train")
        )


class _Lock:
    """A lock that copies of its holder do not share."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __deepcopy__(self, memo: object) -> _Lock:
        return _Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Lock, ()


def without_values(module: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode whose tensors have shapes but no values."""
    copies: dict[int, Any] = {  # of plain parameters, so that large ones are never copied
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=False)
        for p in module.parameters()
        if type(p) is nn.Parameter
    }
    empty = silent(copy.deepcopy(module, copies)).to("meta").requires_grad_(False).eval()
    return tie_again(empty, aliases_of(module))
