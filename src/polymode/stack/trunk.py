"""A network cut before all that is trained: a trunk that runs once, and the rest on its features.

Where all trained parameters lie in one submodule, or in the last layers of an `nn.Sequential`, that
is called once, with one tensor, and whose result is the network's, then what comes before is the
trunk. It is the same for all members, in evaluation mode, so its features are computed once: for
each batch, or for all of the data before training. What comes after, `late`, is a stack in the same
memory, whose tensors have the names that they have in the whole network.

    outputs = late(trunk(x))        equal bit by bit on the examples that the cut is tried with

Shapes: `M` modes, `B` batch, `N` examples.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polymode.core.memory import free_bytes, human
from polymode.core.rows import map_leaves
from polymode.stack.sharing import is_shared
from polymode.stack.stack import Stack
from polymode.tracing.modules import keep_still, set_mode
from polymode.tracing.network import Network
from polymode.tracing.noise import drawing, habits

ROWS = 3  # that a cut is tried with: more than one, so that statistics of a batch show
FEATURE_ROWS = 256  # rows of the data whose features are computed at a time


class Late(nn.Module):
    """The layers of a network from the cut on, under the names that they have in it.

    Args:
        module: the whole network. paths: of the layers, in the order in which they are called.
    """

    def __init__(self, module: nn.Module, paths: Sequence[str]) -> None:
        super().__init__()
        self.paths = tuple(paths)
        copies: dict[int, Any] = {}  # one for all, so that tied weights stay tied
        for path in paths:
            owner: nn.Module = self
            *outer, name = path.split(".")
            for part in outer:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.add_module(name, copy.deepcopy(module.get_submodule(path), copies))

    def forward(self, h: Tensor) -> Tensor:
        for path in self.paths:
            h = self.get_submodule(path)(h)
        return h


class Trunk:
    """What members compute alike before anything that is trained.

    Args:
        stack: the whole networks. paths: layers after the cut, see `Late`.

    Attributes:
        whole: the networks, in which the trunk stays in evaluation mode.
        late: the rest of them, in the same memory.
    """

    def __init__(self, stack: Stack, paths: Sequence[str]) -> None:
        self.paths, self._given = tuple(paths), stack
        template = copy.deepcopy(stack.template)
        keep_still(template, self.paths)
        self.whole = stack.on(Network(template)).set_mode("eval")
        self._network = Network(Late(template, self.paths))
        self.late = self.rest_of(self.whole)
        self._early = _without(self.whole.views.build(0, share=True), self.paths).eval()

    def __call__(self, x: Any) -> Tensor:
        """Return the features of inputs (B, ...), differentiable with respect to them."""
        features: Tensor = self._early(x)
        return features

    def rest_of(self, stack: Stack) -> Stack:
        """Return the part after the cut of a stack of whole networks, in the same memory."""
        late = stack.on(self._network)
        late.extra = dict(stack.extra)
        return late

    def grafted(self, late: Stack) -> Stack:
        """Return whole networks whose part after the cut is that of `late`, in the same memory."""
        network = self.whole.network
        if late.network is not self._network:  # rates that are learned, say
            network = late.network.program(
                f"grafted on {id(self)}", "eval", lambda module: self._graft(module)
            )
        stack = copy.copy(late)
        stack.network = network
        stack.frozen = self._early_tensors("frozen", late.num_modes) | late.frozen
        stack.buffers = self._early_tensors("buffers", late.num_modes) | late.buffers
        stack._renew()
        return stack

    def _graft(self, module: nn.Module) -> Network:
        template = copy.deepcopy(self.whole.template)
        for path in self.paths:
            template.set_submodule(path, copy.deepcopy(module.get_submodule(path)))
        return Network(template)

    def _early_tensors(self, group: str, num_modes: int) -> dict[str, Tensor]:
        """Return the trunk's tensors for some modes: all have the same."""
        tensors = getattr(self.whole, group)
        names = [name for name in tensors if name not in self.late.network.aliases]
        shared = {n: tensors[n][:1].expand(num_modes, *tensors[n].shape[1:]) for n in names}
        if group == "buffers":  # these may be written
            return {name: tensor.clone() for name, tensor in shared.items()}
        return shared

    def is_quiet(self, x: Any) -> bool:
        """Whether the trunk does the same in training: it draws nothing, and what it normalises
        with are statistics that stay."""
        module = _without(self._given.views.to_try(0), self.paths)
        with drawing() as drawn:
            trained = set_mode(module, "train")(x[:ROWS])
        return not drawn and torch.equal(trained, self(x[:ROWS]))

    def late_draws(self, x: Any) -> bool:
        """Whether the part after the cut draws random numbers in training."""
        module = set_mode(self.late.views.to_try(0), "train")
        with torch.no_grad():
            return habits(module, self(x[:ROWS])).draws


def trunk_of(stack: Stack, x: Any) -> Trunk | None:
    """Return the trunk of a stack's networks, None where these cannot be cut.

    Args:
        stack: in evaluation mode.
        x: some inputs, with which each cut is tried.
    """
    if not stack.params or not stack.frozen or stack.members_differ:
        return None
    for paths in _cuts(stack):
        if any(path == "" for path in paths) or not _has_shared_trunk(stack, paths):
            continue
        trunk = Trunk(stack, paths)
        if all(_is_right(trunk, some) for some in _trials(x)):
            return trunk
    return None


def _trials(x: Any) -> list[Any]:
    """Return inputs to try a cut with: networks may take another way for others, such as those of
    another sign."""
    first = x[:ROWS]
    opposite = map_leaves(first, lambda leaf: -leaf if leaf.is_floating_point() else leaf)
    return [first, x[-ROWS:], opposite]


def _cuts(stack: Stack) -> Iterator[tuple[str, ...]]:
    """Yield the layers that may come after a cut, the fewest first."""
    names = [alias for name in stack.params for alias in stack.network.aliases[name]]
    owners = [name.split(".")[:-1] for name in names]
    common: list[str] = []
    for parts in zip(*owners, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    for size in range(len(common), -1, -1):
        path = ".".join(common[:size])
        layer = stack.template.get_submodule(path)
        if type(layer) is nn.Sequential:
            children = [name for name, _ in layer.named_children()]
            trained = {owner[size] for owner in owners if len(owner) > size}
            first = min(map(children.index, trained & set(children)), default=0)
            start = f"{path}." if path else ""
            if first > 0:
                yield tuple(f"{start}{name}" for name in children[first:])
        if path:
            yield (path,)


def _has_shared_trunk(stack: Stack, paths: Sequence[str]) -> bool:
    """Whether there are parameters before the cut, and all members have the same tensors there."""
    starts = tuple(f"{path}." for path in paths)
    if any(
        len({n.startswith(starts) for n in names}) > 1 for names in stack.network.aliases.values()
    ):
        return False  # a weight of both parts
    frozen = [t for name, t in stack.frozen.items() if not name.startswith(starts)]
    buffers = [t for name, t in stack.buffers.items() if not name.startswith(starts)]
    if not frozen or not all(is_shared(t) or len(t) == 1 for t in frozen):
        return False
    return all(torch.equal(t, t[:1].expand_as(t)) for t in buffers)


class _Seen:
    """What a layer was called with in a pass, and what it returned."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, int]] = []

    def __call__(self, layer: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        version = out._version if isinstance(out, Tensor) else -1
        self.calls.append((args[0] if alone else None, out, version))


@torch.no_grad()
def _is_right(trunk: Trunk, x: Any) -> bool:
    """Whether the layers after the cut are a chain, called once, that ends in the network's result,
    and which gives the same bits from the features."""
    module = trunk.whole.views.build(0, share=True).eval()
    seen = [_Seen() for _ in trunk.paths]
    hooks = [
        module.get_submodule(path).register_forward_hook(layer, with_kwargs=True)
        for path, layer in zip(trunk.paths, seen, strict=True)
    ]
    try:
        result = module(x)
    finally:
        for hook in hooks:
            hook.remove()
    if any(len(layer.calls) != 1 for layer in seen):
        return False
    calls = [layer.calls[0] for layer in seen]
    follows = all(b[0] is a[1] for a, b in zip(calls, calls[1:], strict=False))
    h, (_, out, version) = calls[0][0], calls[-1]
    if not follows or h is None or len(h) != len(x) or not isinstance(result, Tensor):
        return False
    same = result.data_ptr() == out.data_ptr() and result._version == version
    if not same or result.shape != out.shape:
        return False
    try:
        features = trunk(x)
        rest = trunk.late.views.build(0, share=True).eval()(features)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
        return False
    return _equal(features, h) and _equal(rest, result)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits, NaN included."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _without(module: nn.Module, paths: Sequence[str]) -> nn.Module:
    """Return a network whose layers after the cut hand on what they get."""
    for path in paths:
        module.set_submodule(path, nn.Identity())
    return module


@torch.no_grad()
def features_of(trunk: Callable[[Any], Tensor], batches: Iterator[Any], number: int) -> Tensor:
    """Return the features (N, ...) of all inputs, block by block in their order, or say which of
    them are not finite.

    They are kept in memory if they take less than half of what is free, else in a temporary file
    that goes with the process: the numbers are the same, whatever is free.
    """
    kept: Tensor | None = None
    done = 0
    for x in batches:
        h = trunk(x)
        wrong = (~h.isfinite().flatten(1).all(1)).nonzero()
        if len(wrong):
            raise ValueError(
                f"the body's features of example {done + int(wrong[0])} are not finite: its weights"
                " or that input hold NaN, or numbers overflow on the way"
            )
        if kept is None:
            kept = _room(h, number)
        kept[done : done + len(h)] = h
        done += len(h)
    assert kept is not None
    assert done == number
    return kept


def _room(h: Tensor, number: int) -> Tensor:
    """Return an empty tensor for features like `h` of so many examples."""
    size = number * h[0].numel()
    need = size * h.element_size()
    if need <= 0.5 * free_bytes(h.device):
        return h.new_empty(number, *h.shape[1:])
    folder = tempfile.gettempdir()
    if h.device.type != "cpu" or need > 0.5 * shutil.disk_usage(folder).free:
        raise ValueError(
            f"the features of {number:,} examples need {human(need)}, more than half of what is"
            f" free in memory and in {folder}; give the data as a DataLoader, whose features are"
            " computed batch by batch"
        )
    with tempfile.NamedTemporaryFile(suffix=".features") as file:
        mapped = torch.from_file(file.name, shared=True, size=size, dtype=h.dtype)
    return mapped.view(number, *h.shape[1:])
