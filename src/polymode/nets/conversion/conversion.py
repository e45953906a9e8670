"""What all conversions share: their description, and how networks get it and keep it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.rng import fold, global_stream, private_stream
from polymode.core.rows import Inputs, shapes_of
from polymode.core.text import first_line
from polymode.stack.trainable import Choice, trained_names
from polymode.tracing.calling import Calling, Output, called_by, calling_for
from polymode.tracing.modules import aliases_of, require_plain, tie_again
from polymode.training.data import Data

HOMES = {
    "thin": "thin",
    "rank_one": "rank_one",
    "masked": "masked",
    "joint": "joint",
    "random_features": "random_features",
}
"""Kinds of conversions, and the files that have them."""
_MARK = "polymode_conversion"


class Conversion(NamedTuple):
    """What is done to a network.

    Attributes:
        kind: which conversion. numbers: sizes and choices by name, JSON-safe.
    """

    kind: str
    numbers: Mapping[str, Any]


class Sample(NamedTuple):
    """A network to convert, with a few inputs.

    Attributes:
        module: a copy in evaluation mode that may be changed.
        x: inputs (B, ...). trained: names of the parameters that will be trained.
        calling: how the network is called.
    """

    module: nn.Module
    x: Inputs
    trained: frozenset[str]
    calling: Calling


Plan = Callable[[Sample], Conversion | None]


def conversion_of(module: nn.Module) -> Conversion | None:
    """Return how a network, or the one inside it, was converted; None where it was not."""
    for layer in module.modules():
        if _MARK in vars(layer):
            return Conversion(*vars(layer)[_MARK])
    return None


def conversion_from(saved: Mapping[str, Any] | None) -> Conversion | None:
    """Return what a manifest holds of a conversion."""
    if saved is None:
        return None
    if saved["kind"] not in HOMES:
        raise ValueError(f"this release has no conversion '{saved['kind']:.40}'")
    return Conversion(saved["kind"], saved["numbers"])


def convert(module: nn.Module, conversion: Conversion | None) -> nn.Module:
    """Return the network converted; the one given stays as it is, and shares what is unchanged."""
    if conversion is None or conversion_of(module) is not None:
        return module
    held: dict[int, Any] = {id(p): p for p in module.parameters()}
    changed = copy.deepcopy(module, held)
    import_module(f"polymode.nets.conversion.{HOMES[conversion.kind]}").apply(
        changed, conversion.numbers
    )
    setattr(changed, _MARK, (conversion.kind, dict(conversion.numbers)))
    return changed


def convert_networks(
    networks: Any, plan: Plan, data: Data, trainable: Choice, output: Output, *, seed: int = 0
) -> Any:
    """Return networks, as `Stack` takes them, converted as planned for the first of them.

    Args:
        networks: a factory, a module or a list of modules.
        data: whose first inputs go through the network.
        trainable: see `trained_names`. output: see `calling_for`.
        seed: of what a conversion draws for modules; a factory's members have their own streams.
    """
    listed = networks if isinstance(networks, Sequence) else [networks]
    if not all(isinstance(network, nn.Module) for network in listed):
        with global_stream(0), private_stream(0, follows=True):
            first = networks()
    else:
        first = listed[0]
    if not isinstance(first, nn.Module):
        return networks  # the stack says what is wrong
    require_plain(first)
    conversion = None
    if conversion_of(first) is None:
        conversion = plan(_seen(first, data, trainable, output))
    held: dict[str, nn.Parameter] = {}
    if not isinstance(networks, (nn.Module, Sequence)):
        return lambda: _share(convert(networks(), conversion), held)
    results = []
    for k, network in enumerate(listed):
        with global_stream(fold(seed, "convert", k)):
            results.append(_share(convert(network, conversion), held))
    return results[0] if isinstance(networks, nn.Module) else results


def common_names(module: nn.Module) -> list[str]:
    """Return the parameters that members train in common, by the names of the whole network."""
    for path, layer in module.named_modules():
        if _MARK in vars(layer):
            numbers = vars(layer)[_MARK][1]
            return [f"{path}.{name}".lstrip(".") for name in numbers.get("common", [])]
    return []


def but_common(choice: Choice) -> Choice:
    """Return the same choice of parameters to train without those that are trained in common."""

    def names(module: nn.Module) -> list[str]:
        common = set(common_names(module))
        return [name for name in trained_names(module, choice) if name not in common]

    return names


def _share(module: nn.Module, held: dict[str, nn.Parameter]) -> nn.Module:
    """Give a converted network those of its parameters in common that `held` has, or hold them."""
    aliases = aliases_of(module)
    for name in common_names(module):
        if name not in held:
            held[name] = nn.Parameter(module.get_parameter(name).detach().clone(), False)
        parameter = held[name]
        path, _, leaf = name.rpartition(".")
        module.get_submodule(path)._parameters[leaf] = parameter
    return tie_again(module, aliases)


def _seen(module: nn.Module, data: Data, trainable: Choice, output: Output) -> Sample:
    trained = frozenset(trained_names(module, trainable))
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    x = next(data.to(like.dtype, like.device).batches(2))[0][:2]
    module = copy.deepcopy(module).to(like.dtype).eval()  # parts may be of another type
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)
    calling = calling_for(module, shapes_of(x), output) or Calling(output)
    return Sample(module, x, trained, calling)


@contextmanager
def private(sample: Sample) -> Iterator[nn.Module]:
    """Let a network be run as it will be called, with noise of a stream of its own."""
    with torch.enable_grad(), private_stream(0), called_by(sample.module, sample.calling):
        yield sample.module


def require_gradients(outputs: Any) -> None:
    """Refuse a network that torch cannot differentiate."""
    if isinstance(outputs, Tensor) and outputs.requires_grad:
        try:
            outputs.sum().backward()
        except RuntimeError as error:
            raise ValueError(
                f"the network cannot be differentiated: {first_line(error)}; where it writes in"
                " place, take h = h + y for h += y, and inplace=False"
            ) from None


def last_layers(sample: Sample, kinds: tuple[type[nn.Module], ...]) -> set[str]:
    """Return the layers of these kinds whose results reach the output through no other of them,
    found on the way back from the output of a pass."""
    results: dict[Any, str] = {}
    order: list[str] = []

    def remember(path: str) -> Callable[[Any, Any, Any], None]:
        def hook(_layer: Any, _inputs: Any, out: Any) -> None:
            result = out[0] if isinstance(out, tuple) else out
            order.append(path)
            if isinstance(result, Tensor) and result.grad_fn is not None:
                results[result.grad_fn] = path

        return hook

    with private(sample) as module:
        hooks = [
            layer.register_forward_hook(remember(path))
            for path, layer in module.named_modules()
            if isinstance(layer, kinds)
        ]
        try:
            output = module(sample.x.clone())
        finally:
            for hook in hooks:
                hook.remove()
    if not isinstance(output, Tensor) or output.grad_fn is None:
        return set(order[-1:])
    last: set[str] = set()
    nodes: list[Any] = [output.grad_fn]
    visited: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node in results:
            last.add(results[node])
        else:
            nodes += [following for following, _ in node.next_functions]
    return last or set(order[-1:])
