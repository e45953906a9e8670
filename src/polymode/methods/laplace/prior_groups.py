"""Groups of weights that share a prior precision; those that normalisation makes scale-free.

A set S of weights is *normalised* when f(θ' + k θ_S) = f(θ' + θ_S) for all k > 0: scaling it
changes nothing, so its size says nothing, and its regulariser must be its own (recommendation 2 and
proposition 3 of the reference). Such sets are read from the network's graph. Let k scale one weight
tensor and follow the factor: linear and convolutional layers, ReLU, pooling, reshaping and means
hand it on (biases on its way have to be scaled along), a sum hands it on if all its terms have it,
a normalisation layer swallows it. Where it meets a softmax, a GELU, a product with another scaled
tensor or the output, the weight is in no normalised set. So

- a convolution before a norm is a set by itself, with its bias;
- in pre-activation networks and transformers all that adds to one residual stream is one set: stem
  or embedding, positions, and the last layer of each branch;
- scales and shifts of a norm are a set where a ReLU and a linear layer lead to another norm;
- FixUp networks and networks without norms have none.

Sets may overlap (w1, b1, b2 and w2, b2 of two linear layers before a norm). The groups are the
finest partition of which every set is a union, and one group `rest` for all else: then the prior of
every set can follow its scale.

Limits: the small constant eps of a norm is taken for 0. Running statistics of BatchNorm have to be
those of the scaled network. A network without a graph (see `stack/fast/rewrite.py`) is refused.
Reference: J. Antorán, D. Janz, J. Allingham, E. Daxberger, R. Barbano, E. Nalisnick,
    J. M. Hernández-Lobato, Adapting the linearised Laplace model evidence for modern deep learning,
    ICML 2022.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import fx

from polymode.stack.stack import Stack
from polymode.tracing.graph import traced
from polymode.tracing.operations import is_linear, normalises, operation_at

KINDS = ("single", "per_layer", "per_group")
REST = "rest"

# what operations do to a factor of their input, by their kind, where their degree is 1
_HAND_ON = {
    "elementwise": "pass", "random": "pass", "slopes": "pass", "moving": "pass", "padding": "pass",
    "pooling": "pass", "reduction": "pass", "sum": "sum", "join": "sum",
}  # fmt: skip
_PRODUCTS = ("product", "matrix product", "quotient")


def prior_groups(stack: Stack, kind: str) -> dict[str, str]:
    """Return the group of every trainable parameter of the network, by name.

    Args:
        kind: "single" (one group, `all`), "per_layer" (weight and bias of a layer together) or
            "per_group" (see above).
    """
    names = list(stack.params)
    if kind == "single":
        return dict.fromkeys(names, "all")
    if kind == "per_layer":
        return {name: name.rpartition(".")[0] or name for name in names}
    assert kind == "per_group", kind
    return _atoms(names, normalised_sets(stack))


def normalised_sets(stack: Stack) -> list[frozenset[str]]:
    """Return the sets of parameters whose common scale does not matter, each once."""
    scales = _Scales(stack)
    found = (scales.set_of(name) for name in stack.params)
    return list(dict.fromkeys(each for each in found if each is not None))


def _atoms(names: Iterable[str], sets: list[frozenset[str]]) -> dict[str, str]:
    """Return the finest partition of which all sets are unions, named after its first member."""
    members: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        inside = tuple(number for number, each in enumerate(sets) if name in each)
        members.setdefault(inside, []).append(name)
    titles: dict[str, list[str]] = {}
    for inside, atom in members.items():
        layer = atom[0].rpartition(".")[0]
        title = REST if not inside else layer if layer and layer not in titles else atom[0]
        titles[title] = atom
    return {name: title for title, atom in titles.items() for name in atom}


class _Infeasible(Exception):
    """The factor reaches what does not hand it on."""


class _Scales:
    """Follows a factor k through the graph of a network."""

    def __init__(self, stack: Stack) -> None:
        self.trainable = set(stack.params)
        template = stack.network.template_in("eval")
        try:
            self.module, self.graph = traced(template, normalises)
        except Exception as error:  # fx has no one kind of error for what it cannot do
            raise ValueError(
                "prior='per_group' reads the normalised weights from the network's graph, which"
                f" {type(template).__name__} does not have ({str(error).splitlines()[0]});"
                " use prior='per_layer'"
            ) from error
        first = {alias: name for name, every in stack.network.aliases.items() for alias in every}
        self.weights: dict[fx.Node, dict[str, str]] = {}  # of a layer: role -> first name
        self.uses: dict[str, list[fx.Node]] = {}
        for node in self.graph.nodes:
            self.weights[node] = {role: first[path] for role, path in self._paths(node)}
            for name in self.weights[node].values():
                self.uses.setdefault(name, []).append(node)

    def _paths(self, node: fx.Node) -> Iterator[tuple[str, str]]:
        if node.op == "call_module":
            layer = self.module.get_submodule(str(node.target))
            for role, _ in layer.named_parameters():
                yield role, f"{node.target}.{role}"
        elif node.op == "get_attr":
            owner, _, leaf = str(node.target).rpartition(".")
            if leaf in self.module.get_submodule(owner)._parameters:
                yield "value", str(node.target)

    def set_of(self, name: str) -> frozenset[str] | None:
        """Return the normalised set that grows from one parameter, None where there is none."""
        try:
            return frozenset(_Factor(self, name).scaled)
        except _Infeasible:
            return None

    def kind(self, node: fx.Node) -> str:
        """Return what a node does to a factor of its input."""
        if node.op in ("placeholder", "output", "get_attr"):
            return node.op
        if node.op == "call_module":
            layer = self.module.get_submodule(str(node.target))
            if normalises(layer):
                return "norm"
            if is_linear(layer):
                return "linear"
        operation = operation_at(node, self.module)
        if operation is None:
            return "opaque"
        if operation.kind in (*_PRODUCTS, "shape"):
            return operation.kind
        return _HAND_ON.get(operation.kind, "opaque") if operation.degree == 1 else "opaque"

    def joins(self, node: fx.Node) -> bool:
        """Whether a node puts tensors beside each other, with numbers that say where."""
        operation = operation_at(node, self.module)
        return operation is not None and operation.kind == "join"


class _Factor:
    """One factor on its way: which parameters and which results of layers have it."""

    def __init__(self, scales: _Scales, name: str) -> None:
        self.scales = scales
        self.scaled: set[str] = set()
        self.results: set[fx.Node] = set()
        self.forward: list[fx.Node] = []
        self.open: list[fx.Node] = []  # results whose origin is to be explained
        self._scale(name)
        while self.forward or self.open:
            if self.forward:  # first: what the factor reaches needs no other explanation
                self._hand_on(self.forward.pop())
            else:
                self._explain(self.open.pop())
        if not all(map(self._has_one_factor, self.results)):
            raise _Infeasible

    def _scale(self, name: str) -> None:
        """Give a parameter the factor."""
        if name in self.scaled:
            return
        if name not in self.scales.trainable or name not in self.scales.uses:
            raise _Infeasible
        self.scaled.add(name)
        for node in self.scales.uses[name]:
            self._add(node)

    def _add(self, node: fx.Node) -> None:
        """Give a result the factor."""
        if node not in self.results:
            self.results.add(node)
            self.forward.append(node)
            self.open.append(node)

    def _hand_on(self, node: fx.Node) -> None:
        for user in node.users:
            kind = self.scales.kind(user)
            if kind in ("output", "opaque"):
                raise _Infeasible
            if kind not in ("norm", "shape"):
                self._add(user)

    def _inputs(self, node: fx.Node) -> list[fx.Node]:
        return [source for source in node.all_input_nodes if self.scales.kind(source) != "shape"]

    def _explain(self, node: fx.Node) -> None:
        """Let the inputs and weights of a layer give its result the factor."""
        kind, weights = self.scales.kind(node), self.scales.weights[node]
        inputs = self._inputs(node)
        if kind in ("linear", "pass") and not inputs:
            raise _Infeasible
        if kind == "get_attr" and weights:
            self._scale(weights["value"])
        elif kind == "norm" and weights:
            for name in weights.values():
                self._scale(name)
        elif kind == "linear":
            for role, name in weights.items():
                if role != "weight" or inputs[0] not in self.results:
                    self._scale(name)
        elif kind == "pass":
            self._add(inputs[0])
        elif kind == "sum":
            if not self.scales.joins(node) and any(_is_constant(term) for term in node.args):
                raise _Infeasible
            for source in inputs:
                self._add(source)
        elif kind in _PRODUCTS:
            parameters = [source for source in inputs if source.op == "get_attr"]
            if not any(source in self.results for source in inputs):
                if len(parameters) != 1:
                    raise _Infeasible
                self._add(parameters[0])
        else:
            raise _Infeasible

    def _has_one_factor(self, node: fx.Node) -> bool:
        """Whether what enters a result has the factor once: others than sums may have it twice."""
        kind, weights = self.scales.kind(node), self.scales.weights[node]
        scaled = [source in self.results for source in self._inputs(node)]
        if kind == "linear":
            return scaled[0] != (weights["weight"] in self.scaled)
        if kind == "pass":  # neither places nor slopes may have it
            return scaled[0] and not any(scaled[1:]) and not self.scaled & {*weights.values()}
        if kind in _PRODUCTS:
            terms = [*node.args, *node.kwargs.values()]
            having = [isinstance(term, fx.Node) and term in self.results for term in terms]
            return having.count(True) == 1 and (kind != "quotient" or having[0])
        return True


def _is_constant(argument: Any) -> bool:
    """Whether a term of a sum is a number other than 0."""
    return isinstance(argument, (int, float)) and argument != 0
