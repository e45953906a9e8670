"""What shares the memory of stacked tensors: members as modules, their leaves and gradients.

All of it is made when it is first wanted and dropped together when the tensors are replaced. It
refers to the tensors, not to the stack, so that both are freed without the garbage collector.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode.stack.sharing import is_shared
from polymode.tracing.modules import Tensors, assign, lookup, set_mode, shallow_copy
from polymode.tracing.network import Network


class Groups(NamedTuple):
    """The tensors of a stack, see `Stack`."""

    params: Tensors
    frozen: Tensors
    buffers: Tensors
    extra: Tensors
    common: Tensors


class Views:
    """The members of one stack, one by one, as one thread holds them.

    Attributes:
        apart: modules of members whose plain attributes differ from those of member 0.
        parts: chunks of the stack, by size (`execution.chunks`).
        derived: stacks of other networks in the same memory, by name (`Stack.rebuilt`).
    """

    def __init__(
        self,
        network: Network,
        groups: Groups,
        apart: dict[int, nn.Module],
    ) -> None:
        self.network, self.apart = network, apart
        self.params, self.frozen, self.buffers, self.extra, self.common = groups
        self.parts: dict[int, list[Any]] = {}
        self.derived: dict[str, Any] = {}
        self._mode = "eval"
        self._modules: dict[int, nn.Module] = {}
        self._bound: dict[tuple[int, int], nn.Module] = {}
        self._leaves: dict[int, list[Tensor]] = {}
        self._rows: list[tuple[Tensor, list[Tensor]]] = []
        self._grads: tuple[list[Tensor], list[list[Tensor]]] | None = None
        self._shared: tuple[Any, Tensors] | None = None

    def module(self, k: int, mode: str) -> nn.Module:
        """Return member k as a module that shares the stack's memory."""
        if mode != self._mode:  # it was set in another thread
            self.set_mode(mode)
        if k not in self._modules:
            self._modules[k] = set_mode(self.build(k, share=True), mode)
        return self._modules[k]

    def like_leaves(self, rows: Tensor) -> list[Tensor]:
        """Return rows (M, P) as views like the trainable tensors. Those of the last two rows are
        kept: a sampler's momentum asks for the same in each step."""
        for held, views in self._rows:
            if held is rows:
                return views
        leaves = [*self.params.values(), *self.extra.values()]
        sizes = [leaf.numel() // len(rows) for leaf in leaves]
        parts = zip(rows.split(sizes, dim=1), leaves, strict=True)
        views = [part.view(leaf.shape) for part, leaf in parts]
        self._rows = [(rows, views), *self._rows[:1]]
        return views

    def to_try(self, k: int) -> nn.Module:
        """Return member k as a module for a trial pass: it may move what it likes, but refers to
        frozen parameters, which may be large."""
        return self.build(k, share=False, share_frozen=True)

    def build(self, k: int, *, share: bool, share_frozen: bool = False) -> nn.Module:
        """Return member k as a new module, with the stack's memory or memory of its own."""
        if share and k not in self.apart and not self.network.keeps_plain_state:
            module = shallow_copy(self.network.template)
        else:
            module = copy.deepcopy(self.apart.get(k, self.network.template))
        for name, stacked in {**self.params, **self.frozen}.items():
            value = stacked.detach()[k]
            trained = self.common.get(name, stacked)
            learns = name not in self.frozen or name in self.common
            learns = learns and (trained.requires_grad or not share)
            refers = share or (share_frozen and name in self.frozen)
            parameter = nn.Parameter(value if refers else value.clone(), learns)
            for alias in self.network.aliases[name]:
                assign(module, alias, parameter)
        for name, stacked in self.buffers.items():
            for alias in self.network.aliases[name]:
                assign(module, alias, stacked[k] if share else stacked[k].clone())
        return module

    def bound(self, program: nn.Module, k: int, mode: str) -> nn.Module:
        """Return a traced module, or a part of one, with the tensors of member k."""
        if (id(program), k) not in self._bound:
            bound, source = shallow_copy(program), self.module(k, mode)
            named: dict[str, Tensor] = dict(source.named_parameters(remove_duplicate=False))
            named |= dict(source.named_buffers(remove_duplicate=False))
            held = [name for name, _ in bound.named_parameters(remove_duplicate=False)]
            held += [name for name, _ in bound.named_buffers(remove_duplicate=False)]
            for name in held:
                assign(bound, name, named[name])
            self._bound[id(program), k] = bound
        return self._bound[id(program), k]

    def shared(self, still: Collection[str]) -> Tensors:
        """Return what all members have in common, without the member axis: frozen parameters that
        are one row, and buffers of the same values out of those that a pass leaves alone.

        Args:
            still: names of these buffers. They are compared again if one was written.
        """
        versions = [self.buffers[name]._version for name in still]
        if self._shared is None or self._shared[0] != versions:
            equal = [n for n in still if torch.equal(self.buffers[n], _first(self.buffers[n]))]
            rows = {n: t.detach()[0] for n, t in self.frozen.items() if is_shared(t)}
            self._shared = versions, rows | {name: self.buffers[name][0] for name in equal}
        return self._shared[1]

    def set_mode(self, mode: str) -> None:
        """Put the members that were built into a mode; programs have theirs already."""
        self._mode = mode
        for module in self._modules.values():
            set_mode(module, mode)

    def leaves(self, k: int, mode: str) -> list[Tensor]:
        """Return member k's trainable tensors, in the order of `Stack.leaves`, sharing memory."""
        if k not in self._leaves:
            parameters = dict(self.module(k, mode).named_parameters(remove_duplicate=False))
            leaves: list[Tensor] = [parameters[name] for name in self.params]
            leaves += [tensor.detach()[k].requires_grad_() for tensor in self.extra.values()]
            self._leaves[k] = leaves
        return self._leaves[k]

    def common_leaves(self, k: int, mode: str) -> list[Tensor]:
        """Return what members train in common, as member k has it, in the order of
        `Stack.common`."""
        parameters = dict(self.module(k, mode).named_parameters(remove_duplicate=False))
        return [parameters[name] for name in self.common]

    def write_back_buffers(self, k: int, mode: str) -> None:
        """Take over buffers that member k's forward pass bound anew, not changed in place."""
        module = self.module(k, mode)
        for name, stacked in self.buffers.items():
            current = lookup(module, name)
            if current.data_ptr() != stacked[k].data_ptr():
                stacked[k].copy_(current.detach())
                for alias in self.network.aliases[name]:
                    assign(module, alias, stacked[k])

    def grads(self, num_modes: int) -> list[list[Tensor]]:
        """Return where each member's gradients are written: views of the leaves' `.grad`."""
        leaves = [*self.params.values(), *self.extra.values()]
        if self._grads is None:
            grads = [torch.zeros_like(leaf) for leaf in leaves]
            self._grads = grads, [[grad[k] for grad in grads] for k in range(num_modes)]
        grads, views = self._grads
        for leaf, grad in zip(leaves, grads, strict=True):
            if leaf.grad is not grad:
                leaf.grad = grad
        return views


def _first(tensor: Tensor) -> Tensor:
    """Return the values of member 0 for all."""
    return tensor[:1].expand_as(tensor)
