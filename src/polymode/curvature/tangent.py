"""One network, ready to be differentiated with respect to its weights without a Jacobian.

A forward pass notes what every known operation multiplies (`curvature/derivatives.py`). Gradients
of the outputs then come back to the results of these operations alone, never to the weights, and
each parameter's derivatives are the two parts of a `Record`.

`survey` looks at a few examples first. It finds where the examples are in each tensor by its sizes
at two batch sizes, and compares every parameter's derivatives with those of single examples. What
does not agree, or enters in a way that is not known, is differentiated example by example: exact,
slower, and a diagonal block where others have Kronecker factors.

Shapes: `R` cotangents, `B` batch, `K` outputs, `P` parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from polymode.core.quiet import without_warning
from polymode.core.rng import generator
from polymode.core.text import first_line
from polymode.curvature.derivatives import Build, Call
from polymode.curvature.plain_operations import plain_operations
from polymode.curvature.records import Record, joined
from polymode.curvature.watch import Look, Watch
from polymode.stack.stack import Stack
from polymode.tracing.attention import plain_attention
from polymode.tracing.modules import Tensors
from polymode.tracing.operations import repeat_rows

_COMPARED = 8  # examples whose outputs are compared with those of single ones
_DEPENDENT = 1e-2  # relative difference: other sizes of batches are rounded in another order
_ROUNDING = {torch.float64: 1e-7, torch.float32: 2e-3}
_NUMBERS = 2**26  # of gradients that are held at a time, 256 MB in float32


class Survey(NamedTuple):
    """What is known of the operations of a network.

    Attributes:
        kinds: parameter -> "matrix", "bias", "element", "single" (example by example) or "unused".
        layouts: of each call of a known operation, see `Layout`.
        copies: whether the network changes tensors in place that are needed as they were.
        shared: parameters that enter at more than one position.
        loops: whether single examples are taken in a loop: torch.func cannot follow this network.
        last: the parameters of the last layer.
        numbers: of the results that gradients come back to, per example.
    """

    kinds: dict[str, str]
    layouts: list[str | None]
    copies: bool
    shared: frozenset[str] = frozenset()
    loops: bool = False
    last: tuple[str, ...] = ()
    numbers: int = 0

    @property
    def singles(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind == "single"]


class Pass(NamedTuple):
    """A forward pass: outputs (B, K), and what brings cotangents back.

    `pull(cotangents (R, B, K))` yields (parameter, record), one after another: a record's windows
    are made when it is its turn.
    """

    outputs: Tensor
    pull: Callable[[Tensor], Iterator[tuple[str, Record]]]


class Tangent:
    """Member k of a stack at its weights, in evaluation mode.

    It is a network of its own that shares the stack's memory, without hooks, so that an interrupt
    leaves nothing behind.
    """

    def __init__(self, stack: Stack, k: int, survey: Survey, wanted: list[str]) -> None:
        self.module = member(stack, k)
        self.survey, self.wanted = survey, wanted
        named = dict(self.module.named_parameters())
        self.params: Tensors = {name: named[name] for name in stack.params}
        self._everything = {id(tensor): name for name, tensor in self.params.items()}
        noted = {n for n in wanted if survey.kinds[n] in ("matrix", "bias", "element")}
        self._noted = {i: name for i, name in self._everything.items() if name in noted}
        self._singles = [name for name in wanted if survey.kinds[name] == "single"]

    def __call__(self, x: Tensor) -> Pass:
        """Evaluate the network; differentiable with respect to x where that requires gradients."""
        return self.passed(x, *self.watched(x))

    def passed(self, x: Tensor, outputs: Tensor, calls: list[Call]) -> Pass:
        """Return the pass at x whose outputs and calls are these of `watched`."""
        further = torch.is_grad_enabled() and x.requires_grad

        def pull(cotangents: Tensor) -> Iterator[tuple[str, Record]]:
            grads = _gradients(outputs, [call.result for call in calls], cotangents, further)
            builds: dict[str, list[tuple[Build, Tensor]]] = {}
            for call, grad in zip(calls, grads, strict=True):
                for entry in call.entries:
                    name = self._noted[id(entry.parameter)]
                    builds.setdefault(name, []).append((entry.build, grad))
            del grads
            for name in list(builds):
                with torch.set_grad_enabled(further):
                    record = joined([build(grad) for build, grad in builds.pop(name)])
                yield name, record if further else record.detached()
            if self._singles:
                yield from self._single(x, cotangents, further)

        return Pass(outputs if further else outputs.detach(), pull)

    def watched(self, x: Tensor) -> tuple[Tensor, list[Call]]:
        """Return outputs (B, ...) with their graph, and the known calls of wanted parameters."""
        survey = self.survey
        watch = Watch(self._noted, self._everything, survey.layouts, len(x), survey.copies)
        with torch.enable_grad(), plain_attention(), watch:
            outputs = self.module(x.clone() if survey.copies else x)
        return outputs, watch.calls

    def parts(self, num_examples: int, num_cotangents: int) -> Iterator[slice]:
        """Yield ranges of examples whose gradients fit into a bounded memory together."""
        numbers = self.survey.numbers + sum(self.params[name].numel() for name in self._singles)
        step = max(1, _NUMBERS // max(1, num_cotangents * numbers))
        for start in range(0, num_examples, step):
            yield slice(start, min(start + step, num_examples))

    def _single(self, x: Tensor, cotangents: Tensor, further: bool) -> Iterator[tuple[str, Record]]:
        """Differentiate with respect to the rest, example by example."""
        params = {name: self.params[name].detach() for name in self._singles}

        def of_one(example: Tensor, cotangents_of_one: Tensor) -> Tensors:
            def outputs(params: Tensors) -> Tensor:
                with plain_attention(), plain_operations():
                    return functional_call(self.module, params, (example[None],))[0]

            back = vjp(outputs, params)[1]
            if self.survey.loops:
                rows = [back(v)[0] for v in cotangents_of_one]
                return {name: torch.stack([row[name] for row in rows]) for name in params}
            return vmap(back)(cotangents_of_one)[0]

        with torch.set_grad_enabled(further):
            if self.survey.loops:
                rows = [of_one(e, v) for e, v in zip(x, cotangents.unbind(1), strict=True)]
                grads = {name: torch.stack([row[name] for row in rows], 1) for name in params}
            else:
                with without_warning("There is a performance drop"):  # slow there, but right
                    grads = vmap(of_one, in_dims=(0, 1), out_dims=1)(x, cotangents)
            for name, grad in grads.items():  # (R, B, ...)
                moving = grad.reshape(len(cotangents), 1, len(x), 1, -1)
                ones = moving.new_ones(1, 1, 1, 1).expand(1, len(x), 1, 1)
                yield name, Record(moving, ones, 1)


def member(stack: Stack, k: int) -> nn.Module:
    """Return member k in evaluation mode as a module of its own whose tensors are the stack's."""
    return stack.views.build(k, share=True).eval().requires_grad_(False)


def _gradients(
    outputs: Tensor, results: list[Tensor], cotangents: Tensor, further: bool
) -> list[Tensor]:
    """Return the gradients (R, ...) of each result, one backward pass per cotangent."""
    if not results:
        return []
    rows: list[Sequence[Tensor]] = []
    stacked: list[Tensor] = []
    for number, cotangent in enumerate(cotangents):
        more = further or number + 1 < len(cotangents)
        grads = torch.autograd.grad(
            outputs, results, cotangent, retain_graph=more, create_graph=further,
            allow_unused=True, materialize_grads=True,
        )  # fmt: skip
        if further:
            rows.append(grads)
            continue
        if not number:
            stacked = [grad.new_empty(len(cotangents), *grad.shape) for grad in grads]
        for place, grad in zip(stacked, grads, strict=True):  # at once: it is in the caches still
            place[number] = grad
    return [torch.stack(grad) for grad in zip(*rows, strict=True)] if further else stacked


def survey(stack: Stack, x: Tensor) -> Survey:
    """Look at how the parameters of a stack's networks enter, on the first inputs of x (B, ...)."""
    module = member(stack, 0)
    named = dict(module.named_parameters())
    names = {id(named[name]): name for name in stack.params}
    probe = (x if len(x) >= 3 else repeat_rows(x, 3))[:3].detach()
    _require_independent_examples(module, x[:_COMPARED].detach())
    looks = []
    for batch in (2, 3):
        with torch.no_grad(), Look(names) as look:
            module(probe[:batch].clone())
        looks.append(look)
    kinds = {name: "unused" for name in stack.params} | dict.fromkeys(looks[1].used, "single")
    if len(looks[0].shapes) != len(looks[1].shapes):  # it does not do the same for every batch
        return Survey(kinds, [None] * len(looks[1].shapes), True, loops=True)
    layouts = [_layout(*pair) for pair in zip(looks[0].shapes, looks[1].shapes, strict=True)]
    unknown = looks[0].unknown | looks[1].unknown
    copies = any(look.changes_in_place for look in looks)
    return _checked(stack, probe, Survey(kinds, layouts, copies), unknown)


@torch.no_grad()
def _require_independent_examples(module: nn.Module, x: Tensor) -> None:
    """Refuse a network in which the outputs of an example depend on the rest of its batch.

    One that draws, even in evaluation mode, has other outputs each time and is not judged.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is None:
            raise ValueError(
                f"'{name}' of the network normalises by the statistics of each batch, also in"
                " evaluation mode, so the curvature of single examples is not defined; take"
                " track_running_stats=True, or nn.GroupNorm"
            )
    together, again = module(x), module(x)
    alone = torch.cat([module(example[None]) for example in x])
    off = (together - alone).abs().max()
    if bool((together == again).all()) and off > _DEPENDENT * alone.abs().max() + 1e-12:
        raise ValueError(
            f"the outputs of an example depend on the rest of its batch: the same {len(x)} examples"
            f" together and one by one differ by {float(off):.2g}, so the curvature of single"
            " examples is not defined; let the network treat each row of a batch by itself"
        )


def underivable(module: nn.Module, error: RuntimeError) -> str:
    """Say why torch cannot differentiate a network, and what to change."""
    text, remedy = first_line(error), "look at what the network does beside its layers"
    if "inplace operation" in text:
        names = [n for n, layer in module.named_modules() if getattr(layer, "inplace", False)]
        text = text.partition(":")[0]
        layers = f", or inplace=False in {', '.join(map(repr, names))}" if names else ""
        remedy = f"take h = h + y instead of h += y{layers}"
    elif "checkpoint" in text:
        text, remedy = (
            "torch.utils.checkpoint computes layers again in the backward pass",
            "call the layers themselves where the network is not in training",
        )
    elif "doesn't have storage" in text:
        text, remedy = "torch.func does not take packed sequences", "mask padded steps instead"
    return f"the network cannot be differentiated in its weights ({text}): {remedy}"


def _layout(of_two: torch.Size, of_three: torch.Size) -> str | None:
    """Return where the examples are, from the sizes with 2 and with 3 of them."""
    changed = [axis for axis, (a, b) in enumerate(zip(of_two, of_three, strict=False)) if a != b]
    if len(of_two) != len(of_three) or len(changed) != 1:
        return None
    a, b = of_two[changed[0]], of_three[changed[0]]
    if changed == [0] and 3 * a == 2 * b:
        return "first"
    return "second" if changed == [1] and (a, b) == (2, 3) else None


def _checked(stack: Stack, probe: Tensor, first: Survey, unknown: set[str]) -> Survey:
    """Return the survey with the kinds that hold against single examples."""
    hopeful = first._replace(
        kinds={n: kind if n in unknown or kind == "unused" else "matrix"
               for n, kind in first.kinds.items()}
    )  # fmt: skip
    tangent = Tangent(stack, 0, hopeful, list(stack.params))
    watch = Watch(tangent._noted, tangent._everything, first.layouts, len(probe), first.copies)
    with torch.enable_grad(), watch:
        outputs = tangent.module(probe.clone())
    stream = generator(0, "survey")
    cotangent = torch.randn(outputs.shape, generator=stream, dtype=torch.float64).to(outputs)
    records_of: dict[str, list[Record]] = {}
    entered: dict[str, set[str]] = {}
    try:
        grads = _gradients(outputs, [call.result for call in watch.calls], cotangent[None], False)
    except RuntimeError as error:
        raise ValueError(underivable(tangent.module, error)) from error
    with torch.no_grad():
        for call, grad in zip(watch.calls, grads, strict=True):
            for entry in call.entries:
                name = tangent._noted[id(entry.parameter)]
                try:
                    records_of.setdefault(name, []).append(entry.build(grad))
                except (RuntimeError, NotImplementedError):
                    watch.beyond.add(name)
                entered.setdefault(name, set()).add(entry.kind)
    truth = _one_by_one(tangent, probe, cotangent)
    kinds, shared = dict(first.kinds), set()
    for name, records in records_of.items():
        if name in unknown | watch.beyond or not _agree(records, truth[name]):
            continue
        same = len(entered[name]) == 1 and len({r.fixed_first for r in records}) == 1
        kinds[name] = next(iter(entered[name])) if same else "single"
        if sum(record.positions for record in records) > 1:
            shared.add(name)
    matrices = [c for c in watch.calls if any(entry.kind == "matrix" for entry in c.entries)]
    last = matrices[-1].entries if matrices else []
    complete = first._replace(
        kinds=kinds,
        shared=frozenset(shared),
        last=tuple(tangent._noted[id(entry.parameter)] for entry in last),
        numbers=sum(call.result.numel() for call in watch.calls) // len(probe),
    )
    return complete if not complete.singles else _followed(stack, probe, complete)


def _agree(records: list[Record], truth: Tensor) -> bool:
    if len({record.size for record in records} | {truth[0].numel()}) > 1:
        return False
    jacobian = sum(record.jacobian()[0] for record in records)
    assert isinstance(jacobian, Tensor)
    off = (jacobian - truth.reshape(len(truth), -1)).abs().max()
    return bool(off <= _ROUNDING[truth.dtype] * truth.abs().max() + 1e-12)


def _one_by_one(tangent: Tangent, x: Tensor, cotangent: Tensor) -> Tensors:
    """Return the gradient of each example by itself, (B, ...), in a plain loop."""
    leaves = {n: p.detach().clone().requires_grad_() for n, p in tangent.params.items()}
    rows = []
    for example, row in zip(x, cotangent, strict=True):
        with torch.enable_grad():
            outputs = functional_call(tangent.module, leaves, (example[None].clone(),))
        rows.append(
            torch.autograd.grad(
                outputs, list(leaves.values()), row[None], allow_unused=True,
                materialize_grads=True,
            )
        )  # fmt: skip
    stacked = [torch.stack(column) for column in zip(*rows, strict=True)]
    return dict(zip(leaves, stacked, strict=True))


def _followed(stack: Stack, probe: Tensor, survey: Survey) -> Survey:
    """Return the survey with a loop where torch.func cannot take examples together, or takes them
    wrongly: with two cotangents of three examples no axes can be mixed up unseen."""
    tangent = Tangent(stack, 0, survey, survey.singles)
    outputs, pull = tangent(probe)
    stream = generator(0, "survey", "followed")
    shape = (2, *outputs.shape)
    cotangents = torch.randn(shape, generator=stream, dtype=torch.float64).to(outputs)
    looped = survey._replace(loops=True)
    try:
        plain = dict(Tangent(stack, 0, looped, survey.singles)(probe).pull(cotangents))
    except RuntimeError as error:
        raise ValueError(underivable(tangent.module, error)) from error
    try:
        for name, record in pull(cotangents):
            expected = plain[name].moving
            off = (record.moving - expected).abs().max()
            if off > _ROUNDING[expected.dtype] * expected.abs().max() + 1e-12:
                return looped
    except (RuntimeError, ValueError, NotImplementedError):
        return looped
    return survey
