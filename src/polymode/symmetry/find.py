"""Find the symmetries of a network from its traced graph.

The graph is walked once with tensors that have shapes but no values (`walk.py`; rules in
`layer_rules.py`, `operation_rules.py`). Units with the same record, that is the same places in the
same tensors and the same operations, form a group (`gather.py`). What was found is then tried: one
random element of the whole group acts on random weights in float64, and outputs must agree.

Sources: R. Hecht-Nielsen, "On the algebraic structure of feedforward network weight spaces", 1990
(permutations); B. Neyshabur, R. Salakhutdinov, N. Srebro, "Path-SGD", 2015 (scalings of ReLU
networks); O. Laurent, E. Aldea, G. Franchi, "A symmetry-aware exploration of Bayesian neural
network posteriors", ICLR 2024, which writes them down by hand for each architecture.
"""

from __future__ import annotations

import copy
import operator
from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from polymode.core.checks import check_call, shown
from polymode.posterior import Posterior
from polymode.stack.stack import Stack
from polymode.symmetry.gather import gather
from polymode.symmetry.layer_rules import attention, rule_for
from polymode.symmetry.operation_rules import follow
from polymode.symmetry.unit_groups import Symmetries
from polymode.symmetry.units import Value
from polymode.symmetry.walk import Call, Walk, each_in, meta
from polymode.tracing.calling import calling_of
from polymode.tracing.graph import traced
from polymode.tracing.modules import aliases_of, tie_again
from polymode.tracing.operations import function_of, name_of, normalises, operation, operation_at

_BATCH = 2
_SIDES = (8, 16, 28, 32, 64, 18, 24, 20, 12, 4, 40, 48, 96, 128, 224, 256, 1, 2, 3, 5, 6, 7)


def find(
    net: nn.Module | Stack | Posterior,
    input_shape: Sequence[int] | None = None,
    *,
    ignore_eps: bool = False,
    check: bool = True,
) -> Symmetries:
    """Return the permutation and scaling symmetries of a network.

    Args:
        net: a module, or a stack or posterior of such.
        input_shape: shape of one example. A posterior knows it; otherwise usual shapes are tried.
        ignore_eps: whether a scaling that a normalisation undoes only up to its eps (LayerNorm,
            GroupNorm, filter response norm) counts. The function then changes by about eps.
            BatchNorm is exact in any case: its running variance takes eps into account.
        check: whether the symmetries are tried on random weights.

    Raises:
        ValueError: if the network cannot be traced, for example where its Python code depends on
            the values of the data.

    >>> print(find(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))))
    Symmetries of Sequential: 1 group of units, e^1.8 = 10^0.8 permutations; 3 scalings
      permute  units  blocks
      0        3
      scale  number
      0      3
    """
    check_call(find, locals(), but=("net", "input_shape"))
    if isinstance(net, Posterior):
        input_shape = net.input_shape if input_shape is None else input_shape
        net = net.weights.like
    module = net.template if isinstance(net, Stack) else net
    _require_module(module)
    aliases = net.network.aliases if isinstance(net, Stack) else aliases_of(module)
    template = tie_again(copy.deepcopy(module).to("meta"), aliases).eval()
    template, graph = _traced(template)
    example = _example(template, graph, input_shape)
    symmetries = _found(template, graph, example, ignore_eps, type(module).__name__)
    if check:
        from polymode.symmetry.trials import verified

        buffers = {n: b for n, b in module.named_buffers() if not b.is_meta}
        symmetries = verified(symmetries, template, tuple(example.shape[1:]), ignore_eps, buffers)
    return symmetries


def _require_module(module: object) -> None:
    """Refuse what is no module, and compiled ones, which have no Python to trace."""
    if not isinstance(module, nn.Module):
        makes = callable(module) and not isinstance(module, (str, Tensor))
        remedy = ": a function or class that makes one has to be called" if makes else ""
        raise ValueError(
            "`net` of find must be a module, a stack or a posterior, got a"
            f" {type(module).__name__}{remedy}"
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError("a scripted module cannot be traced; give the module it was made from")


def _traced(module: nn.Module) -> tuple[nn.Module, fx.Graph]:
    name = type(module).__name__
    if calling_of(module) is not None:
        raise ValueError(
            f"{name} takes several inputs, or returns more than one tensor: its symmetries are not"
            " found. Give the part of it that takes one tensor to another"
        )
    if any(m._forward_hooks or m._forward_pre_hooks for m in module.modules()):
        raise ValueError(
            f"{name} has forward hooks, whose effect a graph does not show; remove them"
        )
    try:
        return traced(module, normalises)
    except Exception as error:
        about = str(error).splitlines()[0].split(". ")[0] or type(error).__name__
        raise ValueError(
            f"the graph of {name} cannot be traced, so its symmetries are unknown: {about}. Python"
            " code in `forward` that depends on the values of tensors (if, while, int(...)) is the"
            " usual cause; use torch.where or move it out of the network"
        ) from error


def _example(module: nn.Module, graph: fx.Graph, shape: Sequence[int] | None) -> Tensor:
    """Return inputs without values that the network takes."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        names = ", ".join(str(node.target) for node in inputs)
        raise ValueError(f"the network must have one input, it has {len(inputs)}: {names}")
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    if shape is not None:
        if not isinstance(shape, Sequence) or not all(type(s) is int and s > 0 for s in shape):
            raise ValueError(
                "`input_shape` of find must be the shape of one example, such as (3, 32, 32), got"
                f" {shown(shape)}"
            )
        example = torch.empty(_BATCH, *shape, dtype=dtype, device="meta")
        try:
            with torch.device("meta"):
                module(example)
        except Exception as error:
            about = (str(error).splitlines() or [type(error).__name__])[0]
            if "meta tensor" in about:  # values were asked for, and there are none
                about += ". Code in `forward` reads values of tensors; use tensors' own operations"
            raise ValueError(
                f"the network does not take inputs of shape {tuple(shape)}: {about}"
            ) from error
        return example
    for guess in _guesses(module):
        example = torch.empty(_BATCH, *guess, dtype=dtype, device="meta")
        try:
            with torch.device("meta"):
                module(example)
        except Exception:
            continue
        return example
    raise ValueError(
        f"no usual shape of inputs suits {type(module).__name__}; give that of one example:"
        " find(net, input_shape=(3, 32, 32))"
    )


def _guesses(module: nn.Module) -> Iterator[tuple[int, ...]]:
    """Shapes that the first layers suggest, then images of usual sizes."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            yield (layer.in_features,)
            break
        if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            sides = len(layer.kernel_size)
            yield from ((layer.in_channels, *[side] * sides) for side in _SIDES)
            break
    for channels, side in product((1, 3, 2, 4), _SIDES):
        yield channels, side, side
    yield from product((8, 16), [p.shape[-1] for p in module.parameters() if p.dim() > 1])


def _found(
    module: nn.Module, graph: fx.Graph, example: Tensor, ignore_eps: bool, name: str
) -> Symmetries:
    """Walk the graph, and once more with parameters by axes if their entries do not move.

    Prototypes p (K, H) in sum_h (x_h - p_kh)^2 are an example: no entry moves alone, but rows and
    columns do.
    """
    by_axes: frozenset[str] = frozenset()
    while True:
        walk, shared = _walk(module, graph, example, ignore_eps, by_axes)
        symmetries = gather(walk, name, shared)
        stuck = by_axes | {n for n in walk.elements if not _moves(symmetries, n)}
        several = {n for n in stuck if sum(size > 1 for size in walk.elements[n][1].shape) > 1}
        if several <= by_axes:
            lines = alike_branches(graph, module)
            return replace(symmetries, unseen=(*symmetries.unseen, *lines)) if lines else symmetries
        by_axes |= several


def _moves(symmetries: Symmetries, name: str) -> bool:
    """Whether units of a tensor are in a group."""
    units = {int(unit) for group in symmetries.groups for unit in group.units.flat}
    return any(
        unit in units
        for place in symmetries.places
        if place.name == name
        for unit in np.unique(place.label).tolist()
    )


def _walk(
    module: nn.Module,
    graph: fx.Graph,
    example: Tensor,
    ignore_eps: bool,
    by_axes: frozenset[str],
) -> tuple[Walk, list[str]]:
    """Walk the graph; return the record, and names of what is used more than once."""
    aliases = aliases_of(module)
    names = {alias: first for first, group in aliases.items() for alias in group}
    walk, values = Walk(names, ignore_eps, by_axes), {}
    uses: dict[str, int] = {}
    with torch.device("meta"), torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = Value(example)
            elif node.op == "get_attr":
                values[node] = _attribute(module, str(node.target))
            elif node.op == "output":
                _pin_outputs(walk, each_in(node.args, lambda a: values.get(a, a)))
            else:
                if node.op == "call_module" and list(
                    module.get_submodule(str(node.target)).parameters()
                ):
                    uses[str(node.target)] = uses.get(str(node.target), 0) + 1
                values[node] = _step(walk, node, module, values)
    shared = [name for name, count in uses.items() if count > 1]
    tied = [" = ".join(group) for first, group in aliases.items()
            if len(group) > 1 and first.rpartition(".")[0] not in shared]  # fmt: skip
    return walk, [*shared, *tied]


def _attribute(module: nn.Module, name: str) -> Any:
    path, _, leaf = name.rpartition(".")
    value = getattr(module.get_submodule(path), leaf)
    if isinstance(value, nn.Parameter):
        return Value(value.detach(), raw=name)
    if isinstance(value, Tensor):
        return Value(value.detach().to("meta"))  # what is given, not learned, stays
    return value


def _pin_outputs(walk: Walk, outputs: Any) -> None:
    def pin(value: Any) -> Any:
        value = walk.adopt(value)
        if isinstance(value, Value):
            walk.scales.pin(value.scale)
            for label in value.moves:
                walk.moves.pin(label)
        return value

    each_in(outputs, pin)


def _step(walk: Walk, node: fx.Node, module: nn.Module, values: dict[fx.Node, Any]) -> Any:
    """Return the labelled result of one operation."""
    args, kwargs = (
        each_in(part, lambda a: values[a] if isinstance(a, fx.Node) else a)
        for part in (node.args, node.kwargs)
    )
    function = function_of(node, module)
    data = _named(function(*meta(args), **meta(kwargs)))
    if node.target is getattr:
        if not isinstance(args[0], Value):
            return getattr(args[0], args[1])  # a part of several results
        args, function = args[:1], operator.attrgetter(str(args[1]))
    call = Call("", node.name, function, args, kwargs, data, _uses_more_than_first(node))
    inputs = call.values()
    if not _has_tensor(data):
        return data
    if not inputs:
        zero = name_of(node.target) == "zeros"
        return each_in(data, lambda t: Value(t, zero=zero) if isinstance(t, Tensor) else t)
    readers = [operation_at(user, module) for user in node.users]
    if readers and all(reader and reader.kind == "shape" for reader in readers):
        return each_in(data, lambda t: Value(t) if isinstance(t, Tensor) else t)
    result = _by_rule(walk, node, call)
    if result is NotImplemented:
        kind = type(function).__name__ if isinstance(function, nn.Module) else call.name
        at = f" ({node.target})" if isinstance(function, nn.Module) else ""
        walk.give_up(f"{kind or node.target}{at}", inputs)
        result = each_in(data, lambda t: Value(t) if isinstance(t, Tensor) else t)
    number = iter(range(10**9))
    return each_in(
        result,
        lambda v: walk.touch(f"{node.name}/{next(number)}", v) if isinstance(v, Value) else v,
    )


def _by_rule(walk: Walk, node: fx.Node, call: Call) -> Any:
    """Return the labelled result by the rule of a layer or operation, or NotImplemented."""
    layer = call.function if isinstance(call.function, nn.Module) else None
    before = walk.written()
    try:
        if isinstance(layer, nn.MultiheadAttention):
            return attention(walk, call, layer, str(node.target))
        if layer is not None and (rule := rule_for(layer)) and isinstance(call.args[0], Value):
            x = walk.adopt(call.args[0])
            return rule(walk, call, layer, str(node.target), x)
        target: Any = node.args[1] if node.target is getattr else layer or node.target
        call.name = name_of(target) or ""
        call.operation = operation(target, call.args, call.kwargs)
        return follow(walk, call)
    except Exception:  # no rule for such a call: what it has written is held fixed
        walk.pin_since(before)
        return NotImplemented


def _named(data: Any) -> Any:
    """Return several results that have names, such as those of `max`, as a named tuple."""
    if type(data).__module__ != "torch.return_types":
        return data
    return namedtuple(type(data).__name__, type(data).__match_args__)(*data)


def _uses_more_than_first(node: fx.Node) -> bool:
    """Whether any but the first of several results is read."""

    def is_first(user: fx.Node) -> bool:
        if user.target is getattr:
            return str(user.args[1]) == "values"
        return user.target is operator.getitem and str(user.args[1]) == "0"

    return not all(is_first(user) for user in node.users)


def _has_tensor(data: Any) -> bool:
    tensors: list[bool] = []
    each_in(data, lambda t: tensors.append(isinstance(t, Tensor)))
    return any(tensors)


def alike_branches(graph: fx.Graph, module: nn.Module) -> list[str]:
    """Return a line for each two branches that are built alike and may change places as a whole.

    Two experts whose outputs are added up are an example. Their exchange moves weights between
    tensors, which elements of the group of symmetries do not; it is named instead. Every node of
    the graph is described by what it calls, with which shapes of parameters, on inputs of which
    description. Branches are two nodes of one description, with different parameters, that meet
    in a sum, a product, a maximum or a concatenation.
    """
    numbers: dict[Any, int] = {}
    described: dict[fx.Node, int] = {}
    behind: dict[fx.Node, dict[str, None]] = {}  # parameters that a node depends on
    lines = []
    for node in graph.nodes:
        parameters = _parameters(node, module)
        behind[node] = {}
        for source in node.all_input_nodes:
            behind[node] |= behind[source]
        behind[node] |= dict.fromkeys(parameters)
        about = _about(node, module, described, [tuple(shape) for shape in parameters.values()])
        described[node] = numbers.setdefault(about, len(numbers))
        lines += _alike(node, module, described, behind)
    return list(dict.fromkeys(lines))


def _alike(
    node: fx.Node,
    module: nn.Module,
    described: dict[fx.Node, int],
    behind: dict[fx.Node, dict[str, None]],
) -> list[str]:
    """Return lines on the inputs of one node, if they may change places."""
    entry = operation_at(node, module)
    if entry is None or entry.kind not in ("sum", "product", "join") or "sub" in entry.name:
        return []
    parts: Any = node.args[0] if entry.kind == "join" else node.args[:2]
    nodes = [part for part in parts if isinstance(part, fx.Node)] if _is_list(parts) else []
    lines = []
    for k, first_node in enumerate(nodes):
        for second_node in nodes[k + 1 :]:
            first_only = [p for p in behind[first_node] if p not in behind[second_node]]
            theirs = [p for p in behind[second_node] if p not in behind[first_node]]
            if described[first_node] == described[second_node] and first_only and theirs:
                first, second = (p[0].rpartition(".")[0] or p[0] for p in (first_only, theirs))
                lines.append(f"{entry.name} (branches {first} and {second} are alike)")
    return lines


def _is_list(parts: Any) -> bool:
    return isinstance(parts, (list, tuple))


def _parameters(node: fx.Node, module: nn.Module) -> dict[str, Any]:
    """Return shapes of the parameters that a node has, by name."""
    path = str(node.target)
    if node.op == "call_module":
        layer = module.get_submodule(path)
        return {f"{path}.{name}": p.shape for name, p in layer.named_parameters()}
    if node.op == "get_attr":
        home, _, leaf = path.rpartition(".")
        value = getattr(module.get_submodule(home), leaf)
        return {path: value.shape} if isinstance(value, nn.Parameter) else {}
    return {}


def _about(
    node: fx.Node, module: nn.Module, described: dict[fx.Node, int], shapes: list[tuple[int, ...]]
) -> tuple[Any, ...]:
    """Return what describes a node."""
    target: Any = str(node.target)
    if node.op == "call_module":
        target = repr(module.get_submodule(str(node.target)))
    elif node.op == "get_attr" and shapes:
        target = ""
    inputs = fx.node.map_arg((node.args, node.kwargs), lambda source: described[source])
    return node.op, target, repr(inputs), tuple(shapes)
