"""Many networks as one: parameters and buffers of M members with a leading member axis.

A `Stack` is built from a factory, a list of modules or one trained module. It evaluates all members
in one call, `outputs = stack(x)` with shape (M, B, ...), computes the gradient of each member's own
loss, and converts back to ordinary modules. How the members are evaluated (`execution`) changes the
speed, not the numbers; see `stack/execution.py`. What stacks of one architecture share is a
`Network`; what shares a stack's memory is its `Views`.

Shapes: `M` modes (members), `B` batch, `K` network outputs, `P` parameters.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from polymode.core.registry import suggest
from polymode.core.rng import fold, fold_each
from polymode.core.threads import PerThread
from polymode.stack import common, execution
from polymode.stack.fast.plan import Plan
from polymode.stack.gathering import Types, gather
from polymode.stack.sharing import (
    digest,
    is_shared,
    last_channels,
    num_bytes,
    pick,
    replaced,
    spread,
)
from polymode.stack.statistics import recompute_statistics
from polymode.stack.trainable import Choice
from polymode.stack.views import Groups, Views
from polymode.tracing.calling import Calling, call_by, calling_of, remove_hooks
from polymode.tracing.modules import (
    MODES,
    MakeNet,
    Tensors,
    channels_to_last,
    check_same,
    is_channels_last,
    keep_statistics,
    keeps_statistics,
    members_from,
    normalisation_layers,
)
from polymode.tracing.network import Network

EXECUTIONS = ("auto", "measure", "batched", "loop", "threads", "chunked")


class Stack:
    """M networks of one architecture.

    Args:
        networks: a factory called once per member under the member's own random stream; or a list
            of modules; or one module (copied, so that the caller's module is never changed).
        num_modes: how many members a factory makes; with modules it is their number.
        seed: member k is initialised from the stream (seed, k), whatever `num_modes` is. The stream
            is torch's; a factory that draws from NumPy or `random` seeds those itself.
        execution: "auto" (a rule of layers and sizes), "measure" (the fastest on the first batch),
            "batched", "loop", "threads" or "chunked".
        chunk_size: members whose computation is held in memory at a time, with "chunked" and
            "auto"; by default as many as keep a gibibyte for their gradients.
        modes: which of them to hold here, all by default; the others are not built.
        trainable: which parameters are trained, see `trained_names`; by default those that require
            gradients. The others are frozen.

    Attributes:
        params: trainable network parameters, name -> leaf tensor (M, ...).
        frozen: parameters that are not trained, name -> (M, ...); those that all members have in
            common are one row in memory (`stack/sharing.py`), and are not written in place.
        buffers: name -> (M, ...), also tensors that a module keeps as plain attributes.
        common: parameters that members train together, name -> leaf (1, ...); `frozen` has the same
            memory as members see it (`stack/common.py`).
        extra: further trainable tensors that belong to members but not to the network (learned
            noise), name -> (M, ...).
        seeds: one random stream per member, for dropout and other noise in the forward pass.
        mode: "train", "eval" or "noisy" (random layers on, normalisation frozen).
        pinned: number of the random stream of all passes, or None: each pass has its own. Pinned
            noise is the same for all examples, so that a noisy member is one function of its input.
            With several numbers, as many groups of rows have one each.
        network: what it shares with all stacks of its architecture.
        views: what shares the memory of its tensors.
        plans: how it is evaluated, by kind of work, once that is chosen.
    """

    def __init__(
        self,
        networks: MakeNet | nn.Module | Sequence[nn.Module],
        num_modes: int | None = None,
        *,
        seed: int = 0,
        execution: str = "auto",
        chunk_size: int | None = None,
        dtype: torch.dtype | Types | None = None,
        device: torch.device | str = "cpu",
        modes: slice = slice(None),
        trainable: Choice = None,
    ) -> None:
        if execution not in EXECUTIONS:
            raise ValueError(
                f"`execution` must be one of {', '.join(EXECUTIONS)}, got '{execution}'."
                + suggest(execution, EXECUTIONS)
            )
        if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
            raise ValueError(f"`chunk_size` must be an integer of at least 1, got {chunk_size!r}")
        self.execution, self.chunk_size = execution, chunk_size
        self.channels_last: bool | None = None  # memory format of convolutions; None: not decided
        self.mode, self._passes = "eval", 0
        self.pinned: int | tuple[int, ...] | None = None
        self.extra: Tensors = {}
        self.common: Tensors = {}
        modules, numbers = members_from(networks, num_modes, seed, modes)
        self.num_modes = len(numbers)
        fresh = not isinstance(networks, (nn.Module, Sequence))
        self._gather(modules, dtype, device, trainable, fresh=fresh)
        self.seeds = list(fold_each(seed, "member", numbers.stop, numbers.start))

    def _gather(
        self,
        modules: Iterable[nn.Module],
        dtype: torch.dtype | Types | None = None,
        device: torch.device | str = "cpu",
        trainable: Choice = None,
        *,
        fresh: bool = False,
    ) -> None:
        """Copy the members' tensors into stacked ones."""
        gathered = gather(
            modules, self.num_modes, dtype, torch.device(device), trainable=trainable, fresh=fresh
        )
        self.network, self.params, self.frozen, self.buffers = gathered[:4]
        self._apart, self._apart_keys = gathered.apart, gathered.apart_keys
        self._renew()

    def _renew(self) -> None:
        """Forget what was derived from the tensors."""
        self._forget_memory()
        self.plans: dict[str, Plan] = {}

    def _forget_memory(self) -> None:
        """Drop what shares the stacked tensors' memory."""
        groups = Groups(self.params, self.frozen, self.buffers, self.extra, self.common)
        self._views = PerThread(partial(Views, self.network, groups, self._apart))

    @property
    def views(self) -> Views:  # modules of each thread's own
        return self._views()

    @classmethod
    def allocate(cls, network: MakeNet | nn.Module, num_modes: int, **options: Any) -> Stack:
        """Return a stack to load into: the first member is `network`, the others hold no values."""
        module = network if isinstance(network, nn.Module) else network()
        stack = cls(module, **options)
        stack.num_modes = num_modes
        tensors = {key: options[key] for key in ("dtype", "device", "trainable") if key in options}
        stack._gather([module], **tensors)
        stack.seeds = list(fold_each(options.get("seed", 0), "member", num_modes))
        return stack

    def add_parameters(self, extra: Mapping[str, Tensor]) -> None:
        """Add trainable tensors (M, ...) that belong to the members but not to the network."""
        for name, tensor in extra.items():
            assert tensor.shape[0] == self.num_modes, name
            reference = next(iter({**self.params, **self.frozen}.values()), tensor)
            self.extra[name] = tensor.detach().to(reference, copy=True).requires_grad_()
        self._renew()

    def drop_parameters(self, names: Collection[str]) -> None:
        """Drop some of the tensors that `add_parameters` added."""
        self.extra = {name: tensor for name, tensor in self.extra.items() if name not in names}
        self._renew()

    def __len__(self) -> int:
        return self.num_modes

    def __repr__(self) -> str:
        kind = type(self.template).__name__
        return (
            f"Stack({self.num_modes} × {kind}, {self.num_parameters:,} trainable parameters each,"
            f" execution='{self.execution}')"
        )

    @property
    def template(self) -> nn.Module:
        """The network without values."""
        return self.network.template

    @property
    def calling(self) -> Calling | None:
        """How networks are called with several inputs, and which of their results is the output."""
        return calling_of(self.template)

    def call_by(self, calling: Calling | None) -> Stack:
        """Set how the networks are called, before anything was made of them; return the stack."""
        self.network.call_by(calling)
        for module in self._apart.values():
            call_by(module, calling)
        self._renew()
        return self

    @property
    def num_parameters(self) -> int:
        """Trainable network parameters of one member, those that it shares among them."""
        return sum(p[0].numel() for p in (*self.params.values(), *self.common.values()))

    @property
    def trained(self) -> str:
        """How many parameters of a member are trained, and how the others are held, for people."""
        number = f"{self.num_parameters:,}"
        if not self.frozen:
            return f"{number} parameters"
        frozen = sum(t[0].numel() for n, t in self.frozen.items() if n not in self.common)
        once = all(is_shared(t) or len(t) == 1 for t in self.frozen.values())
        held = "the rest held once" if once else "the rest differs between members"
        return f"{number} of {frozen + self.num_parameters:,} parameters, {held}"

    @property
    def members_differ(self) -> list[str]:
        """Plain attributes, other than tensors, in which the members' modules differ."""
        return sorted(self._apart_keys) if self._apart else []

    @property
    def shares(self) -> bool:
        """Whether members have frozen parameters in common."""
        return self.num_modes > 1 and any(map(is_shared, self.frozen.values()))

    @property
    def num_bytes(self) -> int:
        """Memory of all tensors; what members share counts once."""
        return sum(map(num_bytes, self.tensors().values()))

    @property
    def differentiable(self) -> bool:
        """Whether outputs have gradients with respect to the parameters."""
        leaves = *self.params.values(), *self.common.values()
        return any(tensor.requires_grad for tensor in leaves)

    @property
    def has_statistics(self) -> bool:
        """Whether the network has layers with running statistics, as BatchNorm has, that training
        moves: those of frozen layers stay."""
        return any(
            "running_mean" in layer._buffers
            for layer in normalisation_layers(self.template)
            if not keeps_statistics(layer)
        )

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
        """Return the members' own trainable tensors (M, ...)."""
        return [*self.params.values(), *self.extra.values()]

    def all_leaves(self) -> list[Tensor]:
        """Return all that is trained, what an optimiser is given: with what members share, (1,
        ...)."""
        return [*self.params.values(), *self.common.values(), *self.extra.values()]

    def settled(self) -> Stack:
        """Return the stack after its training: what was trained in common is frozen."""
        template = copy.deepcopy(self.template)
        keep_statistics(template, self.frozen)  # as in networks that are loaded
        settled = self.on(Network(template))
        settled.common = {}
        settled._renew()
        return settled

    def tensors(self) -> Tensors:
        """Return everything by name, sharing memory: "network/..." and "extra/..."."""
        network = {**self.params, **self.frozen, **self.buffers}
        named = {f"network/{name}": tensor.detach() for name, tensor in network.items()}
        return named | {f"extra/{name}": tensor.detach() for name, tensor in self.extra.items()}

    def digest_of_frozen(self, k: int = 0) -> str:
        """Return a hash of names and values of what is frozen in member k."""
        digests = {name: digest(tensor[k : k + 1]) for name, tensor in self.frozen.items()}
        return hashlib.blake2b(repr(sorted(digests.items())).encode(), digest_size=16).hexdigest()

    def moving_tensors(self) -> Tensors:
        """Return those of `tensors` that training may change: all but what is frozen; one row (1,
        ...) of what is trained in common."""
        moving = {name: t for name, t in self.tensors().items() if not self._is_frozen(name)}
        return moving | {f"network/{name}": t.detach() for name, t in self.common.items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values into the stack; names and shapes must be those of `tensors()`.

        Frozen tensors are replaced where values differ, not written: others may hold them.
        """
        held = self.tensors()
        shared = {f"network/{name}": leaf for name, leaf in self.common.items()}
        tensors = {n: spread(t[:1], len(self)) if n in shared else t for n, t in tensors.items()}
        check_same(held, tensors, None)
        with torch.no_grad():
            for name, tensor in held.items():
                if not self._is_frozen(name):
                    tensor.copy_(tensors[name])
            for name, leaf in shared.items():
                leaf.copy_(tensors[name][:1])
        still = [name for name in self.frozen if name not in self.common]
        self.load_frozen({name: tensors[f"network/{name}"] for name in still})

    def load_frozen(self, tensors: Mapping[str, Tensor]) -> None:
        """Take other values (M, ...) of frozen parameters, shared where members have the same."""
        changed = {n: replaced(self.frozen[n].detach(), tensor) for n, tensor in tensors.items()}
        changed = {n: t for n, t in changed.items() if t.data_ptr() != self.frozen[n].data_ptr()}
        if changed:
            self.frozen = {**self.frozen, **changed}
            self._forget_memory()
            if self.channels_last:
                self.lay_out(True)

    def members(self) -> list[nn.Module]:
        """Return the members as ordinary modules with memory of their own, in evaluation mode."""
        built = (self.views.build(k, share=False).eval() for k in range(self.num_modes))
        return [remove_hooks(module) for module in built]

    # ---------------------------------------------------------------- other stacks from this one

    def __getitem__(self, which: slice | Sequence[int]) -> Stack:
        """Return a stack of some members; a slice shares memory, a list of indices copies."""
        chosen = list(range(self.num_modes))[which] if isinstance(which, slice) else list(which)
        if not chosen:
            raise ValueError(f"no member chosen of {self.num_modes}")
        index = which if isinstance(which, slice) else torch.tensor(chosen)

        def choose(name: str, tensor: Tensor) -> Tensor:
            if not isinstance(which, slice) and self._is_frozen(name):
                return pick(tensor.detach(), chosen)
            return tensor.detach()[index]

        part = self._members(chosen, choose)
        for leaf in part.leaves():
            leaf.requires_grad_()
        part._renew()
        if self.channels_last and not isinstance(which, slice):
            part.lay_out(True)  # indexing by a list does not keep the format
        return part

    def _members(self, chosen: list[int], choose: Callable[[str, Tensor], Tensor]) -> Stack:
        """Return a stack of these members, whose tensors are chosen by the names of `tensors()`."""
        part = copy.copy(self)
        for group in ("params", "frozen", "buffers", "extra"):
            start = "extra" if group == "extra" else "network"
            tensors = getattr(self, group)
            setattr(
                part, group, {name: choose(f"{start}/{name}", t) for name, t in tensors.items()}
            )
        part.num_modes = len(chosen)
        part.seeds = [self.seeds[k] for k in chosen]
        if self._apart:
            part._apart = {n: self._apart.get(k, self.template) for n, k in enumerate(chosen)}
        return part

    def _is_frozen(self, name: str) -> bool:
        """Whether a name of `tensors()` is that of a frozen parameter."""
        return name.startswith("network/") and name.removeprefix("network/") in self.frozen

    def clone(self) -> Stack:
        """Return a stack with memory of its own, but for what members share."""
        return self[list(range(self.num_modes))]

    def with_tensors(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor] | None = None,
        extra: Mapping[str, Tensor] | None = None,
    ) -> Stack:
        """Return the same networks with other values, (M, ...) by name.

        The tensors are taken as they are, with their graphs, so outputs are differentiable with
        respect to what they were made of. Names that are left out keep their values. Programs and
        plans are shared: nothing is traced or measured again.
        """
        changed = copy.copy(self)
        replacements = {"params": params, "buffers": buffers or {}, "extra": extra or {}}
        for group, values in replacements.items():
            held = getattr(self, group)
            for name, tensor in values.items():
                if name not in held or tensor.shape != held[name].shape:
                    need = tuple(held[name].shape) if name in held else "no such tensor"
                    raise ValueError(f"'{name}': {need} expected, got {tuple(tensor.shape)}")
            setattr(changed, group, {name: values.get(name, t) for name, t in held.items()})
        changed._forget_memory()
        if self.channels_last:
            changed.lay_out(True)
        return changed

    def repeated(self, times: int, tensors: Mapping[str, Tensor]) -> Stack:
        """Return a stack of `times` M networks whose values are `tensors`, (times M, ...) by the
        names of `tensors()`; what is left out is repeated. None of it requires gradients."""
        order = list(range(self.num_modes)) * times

        def choose(name: str, tensor: Tensor) -> Tensor:
            replacement = tensors.get(name)
            if replacement is not None:
                return replacement.detach()
            if times == 1:
                return tensor.detach()
            return pick(tensor.detach(), order) if self._is_frozen(name) else tensor.detach()[order]

        result = self._members(order, choose)
        result._forget_memory()
        if times > 1:
            result.plans = self.network.plans.setdefault((times, self.num_modes), {})
        if self.channels_last:
            result.lay_out(True)
        return result

    def on(self, network: Network, more: Tensors | None = None) -> Stack:
        """Return a stack in the same memory with another network; what that lacks is left out, and
        `more` parameters are taken as they are."""
        body = copy.copy(self)
        body.network = network
        body.params, body.frozen, body.buffers = (
            {name: tensor for name, tensor in group.items() if name in network.aliases}
            for group in ({**self.params, **(more or {})}, self.frozen, self.buffers)
        )
        body.common = {n: leaf for n, leaf in self.common.items() if n in network.aliases}
        body._renew()
        return body

    def rebuilt(
        self, name: str, change: Callable[[nn.Module], nn.Module], extra: Tensors | None = None
    ) -> Stack:
        """Return a stack in the same memory with another network, `change` of this one's, made once
        for each name. Tensors that the new network lacks are left out, and so is `extra`, in whose
        place others may be given."""
        if name not in self.views.derived:
            body = self.on(Network(change(copy.deepcopy(self.template))))
            body._apart = {k: change(copy.deepcopy(module)) for k, module in self._apart.items()}
            body.extra = dict(extra or {})
            body._renew()
            self.views.derived[name] = body
        body = self.views.derived[name]
        return body.set_mode(self.mode, self.pinned)

    def lay_out(self, channels_last: bool) -> None:
        """Keep convolution weights in channels_last format, member by member, or as they are."""
        self.channels_last = channels_last
        if not channels_last:
            return
        for group in (self.params, self.frozen):
            for name, tensor in group.items():
                if tensor.dim() == 5 and not is_channels_last(tensor):
                    if name in self.common:
                        common.lay_out_last(self, name)
                    elif group is self.frozen:
                        group[name] = last_channels(tensor)
                    elif tensor.is_leaf:
                        tensor.data = channels_to_last(tensor.data)
                    else:
                        group[name] = channels_to_last(tensor)
        self._forget_memory()

    @property
    def training(self) -> bool:
        return self.mode == "train"

    def set_mode(self, mode: str, pinned: int | tuple[int, ...] | None = None) -> Stack:
        """Set the mode ("train", "eval", "noisy") and the stream of its noise; return the stack."""
        assert mode in MODES, mode
        if mode != self.mode:
            self.views.set_mode(mode)
        self.mode, self.pinned = mode, pinned
        return self

    def train(self) -> Stack:
        """Set training mode: batch statistics of each member for BatchNorm, dropout on."""
        return self.set_mode("train")

    def eval(self) -> Stack:
        return self.set_mode("eval")

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
        member axis. The gradients are not scaled by the number of members: member k's are those of
        training it alone.
        """
        return execution.gradients(self, loss, x, y, own, self._next(step))

    def function(self) -> Callable[[Tensors, Tensor], Tensor]:
        """Return f(params (M, ...), x (B, ...)) -> outputs (M, B, ...), a pure function.

        It is evaluated in the stack's mode at call time, leaves buffers alone, and can be given to
        `torch.func.jvp`, `vjp`, `vmap` and their compositions.
        """
        return partial(execution.pure, self)

    def normal(self, *path: int | str) -> Tensors:
        """Return standard normal numbers like `params`, from the stream `path` of each member.

        Member k's numbers do not depend on the other members, nor on the memory format.
        """
        return dict(zip(self.params, self.as_leaves(self.normal_rows(*path)), strict=False))

    def normal_rows(self, *path: int | str) -> Tensor:
        """Return the same for all of `leaves()` in one tensor, a row per member."""
        size = sum(leaf.numel() for leaf in self.leaves()) // self.num_modes
        noise = torch.empty(self.num_modes, size, dtype=self.dtype)
        stream, start = torch.Generator(), fold(0, *path)  # one hash per call: this is a hot place
        for row, seed in zip(noise.unbind(0), self.seeds, strict=True):
            row.normal_(generator=stream.manual_seed((start + seed) % 2**63))
        return noise.to(self.device)

    def as_leaves(self, rows: Tensor) -> list[Tensor]:
        """Return rows (M, P), one number for each of a member's, as views like `leaves()`."""
        return self.views.like_leaves(rows)

    def recompute_statistics(self, batches: Iterable[Tensor]) -> None:
        """Set running statistics to their averages over batches (B, ...) of inputs."""
        recompute_statistics(self, batches)

    @property
    def num_threads(self) -> int:
        """Threads within an operation that suit the gradients of this stack, once that is known."""
        plan = self.plans.get("gradients")
        return (plan.num_threads if plan else None) or torch.get_num_threads()

    def _next(self, step: int | None) -> int:
        if step is None:
            step, self._passes = self._passes, self._passes + 1
        return step

    def module(self, k: int) -> nn.Module:
        """Return member k as a module that shares the stack's memory."""
        return self.views.module(k, self.mode)

    def extra_of(self, k: int) -> Tensors:
        """Return member k's extra parameters as leaves that share the stack's memory."""
        if not self.extra:
            return {}
        return dict(zip(self.extra, self.leaf_views(k)[len(self.params) :], strict=True))

    def leaf_views(self, k: int) -> list[Tensor]:
        """Return member k's trainable tensors, in the order of `leaves()`, sharing memory."""
        return self.views.leaves(k, self.mode)

    def common_views(self, k: int) -> list[Tensor]:
        """Return what members train in common, as member k has it, sharing memory."""
        return self.views.common_leaves(k, self.mode) if self.common else []

    def write_back_buffers(self, k: int) -> None:
        """Take over buffers that member k's forward pass in training mode bound anew."""
        if self.mode == "train" and self.buffers:
            self.views.write_back_buffers(k, self.mode)
