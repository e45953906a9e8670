"""Parts of a network that are built alike and may change places as a whole.

Two experts whose outputs are added up are an example. Such an exchange moves weights between
tensors, which elements of the group of symmetries do not; it is named instead.

Every node of the graph has a description: what it calls, with which shapes of parameters, on inputs
of which description. Where a sum, a product, a maximum or a concatenation takes two nodes of one
description that have different parameters, they are such branches.
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from polymode.tracing.operations import operation_at


def alike_branches(graph: fx.Graph, module: nn.Module) -> list[str]:
    """Return a line for each two branches that may change places."""
    numbers: dict[Any, int] = {}
    described: dict[fx.Node, int] = {}
    behind: dict[fx.Node, dict[str, None]] = {}  # parameters that a node depends on
    lines = []
    for node in graph.nodes:
        own = _parameters(node, module)
        behind[node] = {}
        for source in node.all_input_nodes:
            behind[node] |= behind[source]
        behind[node] |= dict.fromkeys(own)
        about = _about(node, module, described, [tuple(shape) for shape in own.values()])
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
    for k, one in enumerate(nodes):
        for other in nodes[k + 1 :]:
            mine = [p for p in behind[one] if p not in behind[other]]
            theirs = [p for p in behind[other] if p not in behind[one]]
            if described[one] == described[other] and mine and theirs:
                first, second = (p[0].rpartition(".")[0] or p[0] for p in (mine, theirs))
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
