"""Many networks as one: parameters and buffers of M members with a leading member axis.

A `Stack` is built from a factory, a list of modules or one trained module. It evaluates all members
in one call, `outputs = stack(x)` with shape (M, B, ...), computes the gradient of each member's own
loss, and converts back to ordinary modules. How the members are evaluated (`execution`) changes the
speed, not the numbers; see `core/execution.py`.

Shapes: `M` modes (members), `B` batch, `K` network outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polymode.core.modules import (
    MakeNet,
    Tensors,
    aliases_of,
    assign,
    channels_to_last,
    check_same,
    differing,
    lookup,
    members_from,
    named_tensors,
    plain_attributes,
    with_registered_tensors,
)
from polymode.core.registry import suggest
from polymode.core.rng import fold

EXECUTIONS = ("auto", "batched", "loop", "threads", "chunked")


class Stack:
    """M networks of one architecture.

    Args:
        networks: a factory called once a member under the member's own random stream; or a list of
            modules; or one module (copied, so that the caller's module is never changed).
        num_modes: how many members a factory makes; with modules it is their number.
        seed: member k is initialised from the stream (seed, k), whatever `num_modes` is. The stream
            is torch's; a factory that draws from NumPy or `random` seeds those itself.
        execution: "auto" (measured on the first batch), "batched", "loop", "threads" or "chunked".
        chunk_size: members whose computation is held in memory at a time, with "chunked" and
            "auto"; by default as many as half of the free memory holds.

    Attributes:
        params: trainable network parameters, name -> leaf tensor (M, ...).
        frozen: parameters that do not require gradients, name -> (M, ...).
        buffers: name -> (M, ...), also tensors that a module keeps as plain attributes.
        extra: further trainable tensors that belong to members but not to the network (learned
            noise), name -> (M, ...).
        seeds: one random stream a member, for dropout and other noise in the forward pass.
    """

    def __init__(
        self,
        networks: MakeNet | nn.Module | Sequence[nn.Module],
        num_modes: int | None = None,
        *,
        seed: int = 0,
        execution: str = "auto",
        chunk_size: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if execution not in EXECUTIONS:
            raise ValueError(
                f"`execution` must be one of {', '.join(EXECUTIONS)}, got '{execution}'."
                + suggest(execution, EXECUTIONS)
            )
        if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
            raise ValueError(f"`chunk_size` must be an integer of at least 1, got {chunk_size!r}")
        self.execution = execution
        self.chunk_size = chunk_size
        self.channels_last: bool | None = None  # memory format of convolutions; None: not decided
        self.training = False
        self.extra: Tensors = {}
        self._passes = 0
        modules, self.num_modes = members_from(networks, num_modes, seed)
        self.seeds = [fold(seed, "member", k) for k in range(self.num_modes)]
        self._gather(modules, dtype, torch.device(device))
        self._forget_views()

    # ---------------------------------------------------------------- building

    def _gather(
        self, modules: Iterable[nn.Module], dtype: torch.dtype | None, device: torch.device
    ) -> None:
        """Copy the members' tensors into stacked ones, member by member."""
        self._apart: dict[
            int, nn.Module
        ] = {}  # members whose plain attributes differ from member 0's
        self._apart_keys: set[str] = set()
        for k, module in enumerate(modules):
            module = with_registered_tensors(module)
            tensors = named_tensors(module)
            if k == 0:
                first, first_state = tensors, plain_attributes(module)
                self._aliases = aliases_of(module)
                self._second_names = [
                    (other, name) for name, names in self._aliases.items() for other in names[1:]
                ]
                stacked = {
                    name: torch.empty(
                        (self.num_modes, *tensor.shape),
                        dtype=dtype if dtype and tensor.is_floating_point() else tensor.dtype,
                        device=device,
                    )
                    for name, tensor in tensors.items()
                }
            else:
                check_same(first, tensors, k)
                attributes = differing(first_state, plain_attributes(module))
                if attributes:
                    self._apart[k] = copy.deepcopy(module)
                    self._apart_keys |= attributes
            for name, tensor in tensors.items():
                stacked[name][k] = tensor.detach()
            if k == 0:
                self.template = copy.deepcopy(module)
        parameters = dict(self.template.named_parameters())
        self.params = {
            n: stacked[n].requires_grad_() for n, p in parameters.items() if p.requires_grad
        }
        self.frozen = {n: stacked[n] for n, p in parameters.items() if not p.requires_grad}
        self.buffers = {n: t for n, t in stacked.items() if n not in parameters}
        for module in (self.template, *self._apart.values()):
            module.to("meta").requires_grad_(False)
        self.eval()

    @classmethod
    def allocate(cls, network: MakeNet | nn.Module, num_modes: int, **options: Any) -> Stack:
        """Return a stack to load into: the first member is `network`, the others hold no values."""
        module = network if isinstance(network, nn.Module) else network()
        stack = cls(module, **options)
        stack.num_modes = num_modes
        stack.seeds = [fold(options.get("seed", 0), "member", k) for k in range(num_modes)]
        stack._gather([module], options.get("dtype"), torch.device(options.get("device", "cpu")))
        stack._forget_views()
        return stack

    def add_parameters(self, extra: Mapping[str, Tensor]) -> None:
        """Add trainable tensors (M, ...) that belong to the members but not to the network."""
        for name, tensor in extra.items():
            assert tensor.shape[0] == self.num_modes, name
            reference = next(iter({**self.params, **self.frozen}.values()), tensor)
            value = tensor.detach().to(reference.device, reference.dtype)
            self.extra[name] = value.clone().requires_grad_()
        self._forget_views()

    # ---------------------------------------------------------------- what it holds

    def __len__(self) -> int:
        return self.num_modes

    def __repr__(self) -> str:
        kind = type(self.template).__name__
        return (
            f"Stack({self.num_modes} × {kind}, {self.num_parameters:,} trainable parameters each,"
            f" execution='{self.execution}')"
        )

    @property
    def num_parameters(self) -> int:
        """Trainable network parameters of one member."""
        return sum(p[0].numel() for p in self.params.values())

    @property
    def members_differ(self) -> list[str]:
        """Plain attributes, other than tensors, in which the members' modules differ."""
        return sorted(self._apart_keys) if self._apart else []

    @property
    def dtype(self) -> torch.dtype:
        return next(
            (t.dtype for t in self._all() if t.is_floating_point()), torch.get_default_dtype()
        )

    @property
    def device(self) -> torch.device:
        return next((t.device for t in self._all()), torch.device("cpu"))

    def _all(self) -> Iterator[Tensor]:
        for group in (self.params, self.frozen, self.buffers, self.extra):
            yield from group.values()

    def leaves(self) -> list[Tensor]:
        """Return the trainable stacked tensors, what an optimiser is given."""
        return [*self.params.values(), *self.extra.values()]

    def tensors(self) -> Tensors:
        """Return everything by name, sharing memory: "network/..." and "extra/..."."""
        network = {**self.params, **self.frozen, **self.buffers}
        named = {f"network/{name}": tensor.detach() for name, tensor in network.items()}
        return named | {f"extra/{name}": tensor.detach() for name, tensor in self.extra.items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values into the stack; names and shapes must be those of `tensors()`."""
        mine = self.tensors()
        check_same(mine, tensors, None)
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(tensors[name])

    def members(self) -> list[nn.Module]:
        """Return the members as ordinary modules with memory of their own, in evaluation mode."""
        return [self._build_module(k, share=False).eval() for k in range(self.num_modes)]

    def __getitem__(self, which: slice | Sequence[int]) -> Stack:
        """Return a stack of some members; a slice shares memory, a list of indices copies."""
        chosen = list(range(self.num_modes))[which] if isinstance(which, slice) else list(which)
        if not chosen:
            raise ValueError(f"no member chosen of {self.num_modes}")
        part = object.__new__(Stack)
        part.__dict__.update(self.__dict__)
        index = which if isinstance(which, slice) else torch.tensor(chosen)
        for group in ("params", "frozen", "buffers", "extra"):
            trainable = group in ("params", "extra")
            tensors = {
                name: t.detach()[index].requires_grad_(trainable)
                for name, t in getattr(self, group).items()
            }
            setattr(part, group, tensors)
        part.num_modes = len(chosen)
        part.seeds = [self.seeds[k] for k in chosen]
        if self._apart:
            part._apart = {n: self._apart.get(k, self.template) for n, k in enumerate(chosen)}
        part.template = copy.deepcopy(self.template)
        part._forget_views()
        if self.channels_last and not isinstance(which, slice):
            part.lay_out(True)  # indexing by a list does not keep the format
        return part

    def clone(self) -> Stack:
        """Return a stack with memory of its own."""
        return self[list(range(self.num_modes))]

    def lay_out(self, channels_last: bool) -> None:
        """Keep convolution weights in channels_last format, member by member, or as they are."""
        self.channels_last = channels_last
        if channels_last:
            for tensor in (*self.params.values(), *self.frozen.values()):
                if tensor.dim() == 5:
                    tensor.data = channels_to_last(tensor.data)
            self._forget_memory()

    # ---------------------------------------------------------------- mode

    def train(self, mode: bool = True) -> Stack:
        """Set training mode: batch statistics of each member for BatchNorm, dropout on."""
        self.training = mode
        self.template.train(mode)
        for module in getattr(self, "_modules", {}).values():
            module.train(mode)
        return self

    def eval(self) -> Stack:
        return self.train(False)

    # ---------------------------------------------------------------- evaluation

    def __call__(self, x: Tensor, *, own: bool = False, step: int | None = None) -> Tensor:
        """Return the outputs of all members, (M, B, ...).

        Args:
            x: inputs (B, ...) shared by all members, or (M, B, ...) if `own`.
            own: whether `x` has the member axis.
            step: number of the random stream for dropout and the like; by default each call takes
                the next one.

        Differentiable with respect to `params`, `extra` and `x`.
        """
        return execution.outputs(self, x, own, self._next(step))

    def gradients(
        self,
        loss: Callable[[Tensor, Tensor, Tensors], Tensor],
        x: Tensor,
        y: Tensor,
        *,
        own: bool = False,
        step: int | None = None,
    ) -> Tensor:
        """Set `.grad` of every leaf to the gradient of each member's own loss; return the losses
        (M,).

        `loss(outputs, y, extra)` maps outputs (..., B, K) to losses (...), with or without the
        member axis. The gradients
        are not scaled by the number of members: member k's are those of training it alone.
        """
        return execution.gradients(self, loss, x, y, own, self._next(step))

    @property
    def num_threads(self) -> int:
        """Threads within an operation that suit the gradients of this stack, once that is known."""
        plan = self._plans.get("gradients")
        return (plan.num_threads if plan else None) or torch.get_num_threads()

    def _next(self, step: int | None) -> int:
        if step is None:
            step, self._passes = self._passes, self._passes + 1
        return step

    # ---------------------------------------------------------------- members as modules

    def _forget_memory(self) -> None:
        """Drop what shares the stacked tensors' memory."""
        self._modules: dict[int, nn.Module] = {}
        self._prefixes: dict[tuple[bool, bool], Any] = {}
        self._quick: dict[tuple[bool, bool], Any] = {}
        self._leaf_views: dict[int, list[Tensor]] = {}
        self._parts: dict[tuple[int, bool], list[tuple[Stack, int, int]]] = {}
        self._grads: tuple[list[Tensor], list[list[Tensor]]] | None = None

    def _forget_views(self) -> None:
        """Drop all that was derived from the stacked tensors."""
        self._forget_memory()
        self._forwards: dict[bool, Any] = {}
        self._chains: dict[bool, Any] = {}
        self._random: dict[bool, bool] = {}
        self._plans: dict[str, Any] = {}

    def module(self, k: int) -> nn.Module:
        """Return member k as a module that shares the stack's memory."""
        if k not in self._modules:
            self._modules[k] = self._build_module(k, share=True).train(self.training)
        return self._modules[k]

    def _build_module(self, k: int, *, share: bool) -> nn.Module:
        module = copy.deepcopy(self._apart.get(k, self.template))
        for name, stacked in {**self.params, **self.frozen}.items():
            value = stacked.detach()[k]
            parameter = nn.Parameter(value if share else value.clone(), name in self.params)
            for alias in self._aliases[name]:
                assign(module, alias, parameter)
        for name, stacked in self.buffers.items():
            for alias in self._aliases[name]:
                assign(module, alias, stacked[k] if share else stacked[k].clone())
        return module

    def extra_of(self, k: int) -> Tensors:
        """Return member k's extra parameters as leaves that share the stack's memory."""
        return dict(zip(self.extra, self.leaf_views(k)[len(self.params) :], strict=True))

    def leaf_views(self, k: int) -> list[Tensor]:
        """Return member k's trainable tensors, in the order of `leaves()`, sharing memory."""
        if k not in self._leaf_views:
            parameters = dict(self.module(k).named_parameters(remove_duplicate=False))
            views: list[Tensor] = [parameters[name] for name in self.params]
            views += [t.detach()[k].requires_grad_() for t in self.extra.values()]
            self._leaf_views[k] = views
        return self._leaf_views[k]

    def write_back_buffers(self, k: int) -> None:
        """Take over buffers that member k's forward pass bound anew, not changed in place."""
        module = self.module(k)
        for name, stacked in self.buffers.items():
            current = lookup(module, name)
            if current.data_ptr() != stacked[k].data_ptr():
                stacked[k].copy_(current.detach())
                for alias in self._aliases[name]:
                    assign(module, alias, stacked[k])


from polymode.core import execution  # noqa: E402  (at the end, because it needs `Stack` itself)
