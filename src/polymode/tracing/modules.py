"""The modules that a stack is made of: where they come from, what they hold, how to put it back.

A module holds parameters, buffers and plain attributes. Tensors are addressed by name; a tensor
that is held under several names (weight tying) has one first name and aliases.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from polymode.core.memory import refuse_huge
from polymode.core.rng import fold_each, global_stream, private_stream

Tensors = dict[str, Tensor]
MakeNet = Callable[[], nn.Module]


def members_from(
    networks: MakeNet | nn.Module | Sequence[nn.Module],
    num_modes: int | None,
    seed: int,
    modes: slice = slice(None),
) -> tuple[Iterable[nn.Module], range]:
    """Return the members one by one, and which they are: of all, those in `modes`."""
    if isinstance(networks, nn.Module):
        require_plain(networks)
        if num_modes not in (None, 1):
            raise ValueError(
                f"{num_modes} members cannot be made of one module: they would be identical. Give a"
                " factory, e.g. net=lambda: MyNet(), or a list of modules"
            )
        return [networks], range(1)
    if isinstance(networks, Sequence):
        modules = list(networks)
        if not modules or not all(isinstance(m, nn.Module) for m in modules):
            raise ValueError("a list of networks must hold at least one nn.Module and nothing else")
        if num_modes not in (None, len(modules)):
            raise ValueError(f"`num_modes` is {num_modes}, but {len(modules)} modules were given")
        if len({id(m) for m in modules}) < len(modules):
            raise ValueError(
                "the list holds the same module twice; members must be different objects"
            )
        for module in modules:
            require_plain(module)
        return modules[modes], range(len(modules))[modes]
    if not callable(networks):
        raise ValueError(
            f"a network must be a factory, an nn.Module or a list of modules, got a"
            f" {type(networks).__name__}"
        )
    count = 1 if num_modes is None else num_modes
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"`num_modes` must be an integer of at least 1, got {count!r}")
    numbers = range(count)[modes]
    return _from_factory(networks, numbers, seed), numbers


def _from_factory(make_net: MakeNet, numbers: range, seed: int) -> Iterator[nn.Module]:
    first: nn.Module | None = None
    streams = fold_each(seed, "init", numbers.stop, numbers.start)
    for k, stream in zip(numbers, streams, strict=True):
        large = not_too_large() if first is None else nullcontext()
        with global_stream(stream), private_stream(stream, follows=True), large:
            module = make_net()
        if not isinstance(module, nn.Module):
            raise ValueError(f"the factory returned a {type(module).__name__}, not an nn.Module")
        require_plain(module)
        if module is first:
            raise ValueError(
                f"the factory returned the same network for members {numbers.start} and {k}; it"
                " must build a new one at each call: net=lambda: MyNet()"
            )
        first = first or module  # kept alive, so that identities stay comparable
        yield module


def not_too_large() -> refuse_huge:
    """Return a block in which no network is built that does not fit into the memory."""
    return refuse_huge("the network is too large", "Take smaller layers, or fewer outputs")


def require_plain(module: nn.Module) -> None:
    """Refuse what cannot be stacked: compiled programs, and layers without plain parameters."""
    for path, layer in module.named_modules():
        where = f"'{path}' of the network" if path else "the network"
        if isinstance(layer, torch.jit.ScriptModule):
            raise ValueError(
                f"{where} is a TorchScript module, whose weights cannot be replaced; give the"
                " module that it was made of, and script the posterior's members afterwards"
            )
        if isinstance(layer, nn.DataParallel):
            raise ValueError(
                f"{where} is wrapped in nn.DataParallel, and polymode spreads its members itself;"
                " give what it wraps, net.module"
            )
        if "quantized" in type(layer).__module__:
            raise ValueError(
                f"{where} is a quantised {type(layer).__name__}, whose weights are integers without"
                " gradients; give the network in floating point, and quantise it after fitting"
            )
        if any(isinstance(hook, WeightNorm) for hook in layer._forward_pre_hooks.values()):
            raise ValueError(
                f"{where} has torch.nn.utils.weight_norm, which keeps a weight that cannot be"
                " copied; use torch.nn.utils.parametrizations.weight_norm"
            )
    for name, tensor in named_tensors(module).items():
        if isinstance(tensor, nn.Parameter) and tensor.is_complex():
            raise ValueError(
                f"'{name}' of the network is {tensor.dtype}, and posteriors are over real numbers;"
                " keep torch.view_as_real of it, and view it as complex in `forward`"
            )
    _require_shapes(module)


def _require_shapes(module: nn.Module) -> None:
    """Refuse layers that find their size at the first batch."""
    for name, tensor in named_tensors(module).items():
        if is_lazy(tensor):
            raise ValueError(
                f"'{name}' of the network has no shape yet: it belongs to a lazy layer. Give its"
                " sizes, or run one batch through the network first, inside the factory if there"
                " is one: net(x[:1])"
            )


def with_registered_tensors(module: nn.Module) -> nn.Module:
    """Return the module, or a copy in which tensors kept as plain attributes are buffers.

    So they are stacked like the rest; the module that was given stays as it is.
    """
    plain = [
        (path, name)
        for path, sub in module.named_modules()
        for name, value in vars(sub).items()
        if isinstance(value, Tensor)
    ]
    if not plain:
        return module
    module = copy.deepcopy(module)
    for path, name in plain:
        sub = module.get_submodule(path)
        value = vars(sub)[name]
        delattr(sub, name)
        sub.register_buffer(name, value.detach(), persistent=False)
    return module


def named_tensors(module: nn.Module) -> Tensors:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def aliases_of(module: nn.Module) -> dict[str, list[str]]:
    """Map each tensor's first name to all names under which the module holds it (weight tying)."""
    names: dict[int, list[str]] = {}
    for listing in (module.named_parameters, module.named_buffers):
        for name, tensor in listing(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
    return {group[0]: group for group in names.values()}


def tie_again(module: nn.Module, aliases: Mapping[str, list[str]]) -> nn.Module:
    """Make tensors of one group one tensor again: `to("meta")` and `to_empty` part them."""
    held: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    held |= dict(module.named_buffers(remove_duplicate=False))
    for first, group in aliases.items():
        for name in group[1:]:
            path, _, leaf = name.rpartition(".")
            owner = module.get_submodule(path)
            place = owner._parameters if leaf in owner._parameters else owner._buffers
            place[leaf] = held[first]  # type: ignore[assignment]
    return module


def check_same(first: Mapping[str, Tensor], tensors: Mapping[str, Tensor], k: int | None) -> None:
    who = "the given tensors" if k is None else f"member {k}"
    expected = "the network" if k is None else "member 0"
    missing, surplus = sorted(set(first) - set(tensors)), sorted(set(tensors) - set(first))
    if missing or surplus:
        what = f"lacks '{missing[0]}'" if missing else f"has an unexpected '{surplus[0]}'"
        raise ValueError(
            f"architectures differ: {who} {what} ({len(missing)} missing, {len(surplus)} unexpected"
            f" tensors compared with {expected})"
        )
    for name, tensor in first.items():
        if tensor.shape != tensors[name].shape:
            raise ValueError(
                f"architectures differ: '{name}' has shape {tuple(tensors[name].shape)} in {who}"
                f" and {tuple(tensor.shape)} in {expected}"
            )


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that torch does not manage and that may steer a forward pass."""
    plain = (int, float, bool, str, bytes, tuple, list, type(None))
    return {
        f"{path}.{key}".lstrip("."): value
        for path, sub in module.named_modules()
        for key, value in vars(sub).items()
        if isinstance(value, plain) and not key.startswith("_")
    }


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    return {key for key in set(first) | set(second) if first.get(key) != second.get(key)}


MODES = ("train", "eval", "noisy")
_STILL = "_keeps_its_statistics"
_STAYS = "_stays_in_evaluation"


def keep_still(module: nn.Module, but: Collection[str]) -> None:
    """Let all layers stay in evaluation mode but those at some paths, and what is in these."""
    starts = tuple(f"{path}." for path in but)
    for path, layer in module.named_modules():
        if path not in but and not path.startswith(starts):
            layer.__dict__[_STAYS] = True


def keeps_statistics(layer: nn.Module) -> bool:
    """Whether normalisation uses its running statistics in every mode."""
    return bool(layer.__dict__.get(_STILL))


def keep_statistics(module: nn.Module, frozen: Collection[str]) -> None:
    """Let normalisation whose parameters are all frozen use its running statistics in training, and
    leave them alone: a frozen body then computes the same in every mode."""
    still = {id(p) for name, p in module.named_parameters() if name in frozen}
    for layer in normalisation_layers(module):
        parameters = list(layer.parameters(recurse=False))
        if parameters and all(id(p) in still for p in parameters):
            layer.__dict__[_STILL] = True
        else:
            layer.__dict__.pop(_STILL, None)


def set_mode(module: nn.Module, mode: str) -> nn.Module:
    """Put a module into a mode and return it.

    "train" and "eval" are torch's. "noisy" is training mode with frozen normalisation: what is
    random stays random (dropout as a layer, as a function or inside attention, DropConnect), while
    layers with running statistics use these and leave them alone, and spectral normalisation leaves
    its vectors alone. Layers of `keep_statistics` stay in evaluation mode in training, those of
    `keep_still` always.
    """
    module.train(mode != "eval")
    if mode == "train":
        for layer in module.modules():
            if keeps_statistics(layer):
                layer.eval()
    if mode == "noisy":
        spectral = [layer for layer in module.modules() if isinstance(layer, _SpectralNorm)]
        for layer in [*normalisation_layers(module), *spectral]:
            layer.eval()
    for layer in module.modules() if mode != "eval" else ():
        if layer.__dict__.get(_STAYS):
            layer.training = False
    return module


def normalisation_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers that keep running statistics."""
    return [
        layer
        for layer in module.modules()
        if isinstance(layer, _NormBase) or "running_mean" in layer._buffers
    ]


def average_by_tensors(module: nn.Module) -> nn.Module:
    """Let BatchNorm with `momentum=None` take its cumulative average without Python numbers.

    torch reads the number of batches as a Python number, which several members at once do not have.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.momentum is None and layer.track_running_stats:
            layer.forward = MethodType(_cumulative_batch_norm, layer)  # type: ignore[method-assign]
    return module


def _cumulative_batch_norm(layer: Any, x: Tensor) -> Tensor:
    """BatchNorm in training, running statistics the averages over all batches so far."""
    mean, var = layer.running_mean.clone(), layer.running_var.clone()
    out = F.batch_norm(x, mean, var, layer.weight, layer.bias, True, 1.0, layer.eps)
    layer.num_batches_tracked.add_(1)
    for running, latest in ((layer.running_mean, mean), (layer.running_var, var)):
        running.add_((latest - running) / layer.num_batches_tracked)
    return out


def shallow_copy(module: nn.Module) -> nn.Module:
    """Return a copy with places for tensors of its own; all else is the same objects.

    A deep copy would take longer than a step of a small network. For modules whose forward pass
    changes nothing but tensors.
    """
    shared = object.__new__(type(module))
    shared.__dict__.update(module.__dict__)
    for group in ("_parameters", "_buffers", "_modules"):
        shared.__dict__[group] = dict(module.__dict__[group])
    for name, child in module._modules.items():
        shared._modules[name] = None if child is None else shallow_copy(child)
    return shared


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def channels_to_last(images: Tensor) -> Tensor:
    """Return a copy of (..., C, H, W) whose memory holds the channels last.

    The strides say so also for one channel, where `.contiguous` would leave them and kernels then
    take the slower format for the whole network.
    """
    *leading, channels, height, width = images.shape
    memory = images.new_empty(*leading, height, width, channels)
    return memory.movedim(-1, -3).copy_(images)


def is_channels_last(stacked: Tensor) -> bool:
    """Whether (M, O, C, H, W) lies in memory as `channels_to_last` lays it out."""
    channels, width = stacked.shape[2], stacked.shape[4]
    return stacked.stride()[2:] == (1, width * channels, channels)


def assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    owner, leaf = _owner(module, name)
    group = owner._parameters if leaf in owner._parameters else owner._buffers
    group[leaf] = tensor  # type: ignore[assignment]


def lookup(module: nn.Module, name: str) -> Tensor:
    owner, leaf = _owner(module, name)
    return owner._buffers[leaf]  # type: ignore[return-value]
