"""Thin networks: every hidden width times a factor, as the members of a Packed-Ensemble are.

    hidden width w becomes ⌈⌊α w⌋ / M⌉ (α = `alpha`, M = `num_modes`)

Inputs and outputs keep their sizes. Where M does not divide α w, the width is rounded up, as in the
first code of the authors; a grouped convolution is rounded up to a multiple of its groups. What a
layer takes in is seen in a pass through the thin network itself, so flattened images and
concatenations come out right. With γ > 1 (`gamma`), layers between the first and the last have γ
sub-groups; fewer where they do not divide the widths, or, of convolutions, where a sub-group would
have less than 64 channels, the authors' rule.

Weights start as the first units of the network that was given, times √(fan-in / thin fan-in), so a
unit's input keeps the variance that the user's initialisation gave it; biases, and layers that
start at zero, stay as they are. With α = M and γ = 1 the network is the one that was given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from polymode.core.text import first_line
from polymode.nets.conversion.conversion import Conversion, Sample, last_layers, private
from polymode.tracing.modules import aliases_of, tie_again

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
TABLES = (nn.Embedding, nn.EmbeddingBag)
WIDE = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, *TABLES, nn.MultiheadAttention)
BY_CHANNEL = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm,
)  # fmt: skip
BY_SHAPE = (nn.LayerNorm, nn.RMSNorm)
FEWEST_CHANNELS = 64  # of a sub-group of a convolution

_NO_CONVERSION = (nn.RNNBase, nn.RNNCellBase, nn.Bilinear)


class GroupedLinear(nn.Module):
    """A linear layer in groups: outputs of a group see the inputs of theirs, weight (out, in/g)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        weight = self.weight.unflatten(0, (self.groups, -1))
        out = torch.einsum("...gi,goi->...go", x.unflatten(-1, (self.groups, -1)), weight)
        out = out.flatten(-2)
        return out if self.bias is None else out + self.bias


class Thinning:
    """What is asked for: α, M and γ, and which layers have no sub-groups."""

    def __init__(
        self, alpha: float, num_modes: int, gamma: int = 1, ungrouped: frozenset[str] = frozenset()
    ) -> None:
        self.alpha, self.num_modes, self.gamma = alpha, num_modes, gamma
        self.ungrouped = ungrouped

    def width(self, width: int, multiple: int = 1) -> int:
        """Return the thin form of a hidden width, a multiple of a number that divides it."""
        thin = -(-int(self.alpha * width) // self.num_modes)
        return min(width, -(-max(thin, 1) // multiple) * multiple)

    def groups(self, n_in: int, n_out: int, fewest: int) -> int:
        """Return the number of sub-groups of a layer."""
        groups = self.gamma
        while groups > 1 and (n_in % groups or n_out % groups or n_in // groups < fewest):
            groups -= 1
        return groups


def plan(sample: Sample, thinning: Thinning) -> Conversion | None:
    """Return the sizes of the thin network, None where it is the one given."""
    if thinning.alpha == thinning.num_modes and thinning.gamma == 1:
        return None
    _require_conversions(sample)
    last = last_layers(sample, WIDE)
    with private(sample) as module:
        wanted = module(sample.x.clone()).shape
    numbers: dict[str, Any] = {"layers": {}, "norms": {}, "parameters": {}}
    _plan_parameters(sample, last, thinning, numbers["parameters"])
    apply(sample.module, {**numbers, "layers": {}})
    where = [""]
    with private(sample) as module:
        hooks = [
            layer.register_forward_pre_hook(
                _Measure(path, path in last, sample.trained, thinning, numbers, where),
                with_kwargs=True,
            )
            for path, layer in _layers(module)
        ]
        try:
            outputs = module(sample.x.clone())
        except (RuntimeError, ValueError, IndexError) as error:
            raise _misfit(where[0], first_line(error), thinning) from None
        finally:
            for hook in hooks:
                hook.remove()
    if outputs.shape != wanted:
        shapes = f"outputs {tuple(outputs.shape)}, not {tuple(wanted)}"
        raise _misfit(where[0], shapes, thinning)
    return Conversion("thin", numbers)


def _misfit(where: str, what: str, thinning: Thinning) -> ValueError:
    return ValueError(
        f"packed cannot make this network thinner: with alpha={thinning.alpha:g} and num_modes="
        f"{thinning.num_modes} the pass stops at '{where}' ({what}); take alpha=num_modes, whose"
        " members are whole networks, or numbers that divide the widths, or other layers"
    )


def _layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers to resize; what is inside of attention goes with it."""
    inside = {
        id(part)
        for layer in module.modules()
        if isinstance(layer, nn.MultiheadAttention)
        for part in layer.modules()
        if part is not layer
    }
    kinds = (*WIDE, *BY_CHANNEL, *BY_SHAPE)
    return [
        (path, layer)
        for path, layer in module.named_modules()
        if isinstance(layer, kinds) and id(layer) not in inside
    ]


def _require_conversions(sample: Sample) -> None:
    """Refuse layers that cannot be made thinner, by name."""
    for path, layer in sample.module.named_modules():
        odd = isinstance(layer, _NO_CONVERSION) or parametrize.is_parametrized(layer)
        if isinstance(layer, nn.MultiheadAttention):
            odd = odd or not layer._qkv_same_embed_dim or layer.bias_k is not None
        trains = any(f"{path}.{name}".lstrip(".") in sample.trained for name, _ in
                     layer.named_parameters())  # fmt: skip
        if odd and trains:
            kind = type(layer).__name__
            raise ValueError(
                f"packed has no conversion for '{path or kind}' ({kind}): its width cannot be"
                " changed; take alpha=num_modes, whose members are whole networks, or deep_ensemble"
            )


def _plan_parameters(
    sample: Sample, last: set[str], thinning: Thinning, planned: dict[str, int]
) -> None:
    """Plan parameters that belong to no layer, such as positions and gains: their last axis of more
    than one entry is thin if it is as long as some layer is wide."""
    layers = dict(_layers(sample.module))
    hidden = {
        _out(layer)
        for path, layer in layers.items()
        if path not in last and isinstance(layer, WIDE) and _is_trained(sample.trained, path, layer)
    }
    inside = tuple(f"{path}." for path in layers)
    for name, parameter in sample.module.named_parameters():
        if name in sample.trained and not f"{name}.".startswith(inside):
            axis = _axis(parameter)
            if axis is not None and parameter.shape[axis] in hidden:
                planned[name] = thinning.width(parameter.shape[axis])


def widths(module: nn.Module) -> dict[str, int]:
    """Return the widths of layers that become thin."""
    return {path: _out(layer) for path, layer in _layers(module) if isinstance(layer, WIDE)}


def _is_trained(trained: frozenset[str], path: str, layer: nn.Module) -> bool:
    return any(f"{path}.{name}".lstrip(".") in trained for name, _ in layer.named_parameters())


def _axis(parameter: Tensor) -> int | None:
    """Return the last axis of more than one entry."""
    return next((a for a in reversed(range(parameter.dim())) if parameter.shape[a] > 1), None)


def _out(layer: Any) -> int:
    for name in ("out_features", "out_channels", "embedding_dim", "embed_dim"):
        if hasattr(layer, name):
            return int(getattr(layer, name))
    raise AssertionError(type(layer))


class _Measure:
    """Before a layer runs: size it for what arrives, and note the sizes."""

    def __init__(
        self,
        path: str,
        is_last: bool,
        trained: frozenset[str],
        thinning: Thinning,
        numbers: dict[str, Any],
        where: list[str],
    ) -> None:
        self.path, self.is_last, self.trained = path, is_last, trained
        self.thinning, self.numbers, self.where = thinning, numbers, where

    def __call__(self, layer: Any, args: Any, kwargs: Any) -> None:
        self.where[0] = self.path
        if self.path in self.numbers["layers"] or self.path in self.numbers["norms"]:
            return  # it is called once more
        has_parameters = any(True for _ in layer.parameters())
        if has_parameters and not _is_trained(self.trained, self.path, layer):
            return
        x = args[0] if args else next(iter(kwargs.values()))
        if isinstance(layer, BY_CHANNEL):
            shape = [x.shape[1] if x.dim() > 1 else x.shape[0]]
            self.numbers["norms"][self.path] = shape
            _resize_norm(layer, shape)
        elif isinstance(layer, BY_SHAPE):
            shape = list(x.shape[-len(layer.normalized_shape) :])
            self.numbers["norms"][self.path] = shape
            _resize_norm(layer, shape)
        else:
            sizes = self._sizes(layer, x)
            self.numbers["layers"][self.path] = sizes
            n_in, n_out, groups = sizes
            _resize(layer, n_in, n_out, 1 if isinstance(layer, nn.Linear) else groups)

    def _sizes(self, layer: Any, x: Tensor) -> list[int]:
        """Return inputs, outputs and sub-groups of a layer."""
        if isinstance(layer, TABLES):
            width = layer.embedding_dim
            return [layer.num_embeddings, width if self.is_last else self.thinning.width(width), 1]
        if isinstance(layer, nn.MultiheadAttention):
            return [x.shape[-1], x.shape[-1], 1]
        convolution = not isinstance(layer, nn.Linear)
        axis = -1 - (len(layer.kernel_size) if convolution else 0)
        n_in, wide = x.shape[axis], _out(layer)
        before = getattr(layer, "groups", 1)
        depthwise = 1 < before == layer.in_channels
        multiple = (n_in if depthwise else before) if convolution else 1
        n_out = wide
        if not self.is_last:
            n_out = n_in * (wide // before) if depthwise else self.thinning.width(wide, multiple)
        free = before == 1 and x.requires_grad and not self.is_last
        if not free or self.path in self.thinning.ungrouped:
            return [n_in, n_out, n_in if depthwise else before]
        if not convolution and type(layer) is not nn.Linear:
            return [n_in, n_out, 1]
        fewest = FEWEST_CHANNELS if convolution else 1
        return [n_in, n_out, self.thinning.groups(n_in, n_out, fewest)]


def apply(module: nn.Module, numbers: Mapping[str, Any]) -> None:
    """Make a network thin in place."""
    aliases = aliases_of(module)
    for name, width in numbers["parameters"].items():
        path, _, leaf = name.rpartition(".")
        owner, parameter = module.get_submodule(path), module.get_parameter(name)
        axis = _axis(parameter)
        if axis is not None:
            _replace(owner, leaf, parameter.narrow(axis, 0, width))
    for path, shape in numbers["norms"].items():
        _resize_norm(module.get_submodule(path), shape)
    for path, (n_in, n_out, groups) in numbers["layers"].items():
        layer = module.get_submodule(path)
        _resize(layer, n_in, n_out, groups)
        if isinstance(layer, nn.Linear) and groups > 1:
            owner, _, leaf = path.rpartition(".")
            bias = None if layer.bias is None else layer.bias.detach()
            grouped = GroupedLinear(layer.weight.detach(), bias, groups)
            setattr(module.get_submodule(owner), leaf, grouped)
    _tie(module, aliases)


def _tie(module: nn.Module, aliases: Mapping[str, list[str]]) -> None:
    """Tie parameters again that were tied before; refuse those that now differ in shape."""
    held: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    held |= dict(module.named_buffers(remove_duplicate=False))
    for first, *tied in aliases.values():
        for name in tied:
            if held[name].shape != held[first].shape:
                raise ValueError(
                    f"packed cannot keep '{name}' and '{first}' one tensor, since they become"
                    f" {tuple(held[name].shape)} and {tuple(held[first].shape)}; untie them, or"
                    " take alpha=num_modes"
                )
    tie_again(module, aliases)


def _replace(owner: nn.Module, name: str, values: Tensor) -> None:
    """Put other values in a parameter's or a buffer's place."""
    values = values.detach().clone()
    if name in owner._parameters:
        before = owner._parameters[name]
        assert before is not None
        owner._parameters[name] = nn.Parameter(values, before.requires_grad)
    else:
        owner._buffers[name] = values


def _resize_norm(layer: Any, shape: list[int]) -> None:
    """Give a normalisation layer another number of channels, or another shape."""
    if isinstance(layer, BY_SHAPE):
        if tuple(shape) == tuple(layer.normalized_shape):
            return
        layer.normalized_shape = tuple(shape)
    else:
        name = "num_channels" if isinstance(layer, nn.GroupNorm) else "num_features"
        if getattr(layer, name) == shape[0]:
            return
        if isinstance(layer, nn.GroupNorm) and shape[0] % layer.num_groups:
            raise ValueError(f"{layer.num_groups} groups do not divide {shape[0]} channels")
        setattr(layer, name, shape[0])
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = getattr(layer, name, None)
        if tensor is not None:
            _replace(layer, name, tensor[tuple(slice(size) for size in shape)])


def _resize(layer: Any, n_in: int, n_out: int, groups: int) -> None:
    """Give a layer other sizes: its first units, scaled so that outputs keep their variance."""
    if isinstance(layer, TABLES):
        if layer.embedding_dim != n_out:
            layer.embedding_dim = n_out
            _replace(layer, "weight", layer.weight[:, :n_out])
        return
    if isinstance(layer, nn.MultiheadAttention):
        if layer.embed_dim != n_in:
            _resize_attention(layer, n_in)
        return
    if isinstance(layer, nn.Linear):
        before = layer.in_features, layer.out_features, 1
        layer.in_features, layer.out_features = n_in, n_out
    else:
        before = layer.in_channels, layer.out_channels, layer.groups
        if n_in % groups or n_out % groups:
            raise ValueError(f"{groups} groups do not divide {n_in} and {n_out} channels")
        layer.in_channels, layer.out_channels, layer.groups = n_in, n_out, groups
    if before == (n_in, n_out, groups):
        return
    rows, columns = n_out, n_in // groups
    if isinstance(layer, TRANSPOSED):
        rows, columns = n_in, n_out // groups
    scale = math.sqrt(before[0] / before[2] / (n_in / groups))
    _replace(layer, "weight", layer.weight[:rows, :columns] * scale)
    if layer.bias is not None:
        _replace(layer, "bias", layer.bias[:n_out])


def _resize_attention(layer: nn.MultiheadAttention, width: int) -> None:
    if width % layer.num_heads:
        raise ValueError(f"{layer.num_heads} heads do not divide {width} features")
    wide = layer.embed_dim
    scale = math.sqrt(wide / width)
    weight = layer.in_proj_weight.unflatten(0, (3, wide))[:, :width, :width] * scale
    _replace(layer, "in_proj_weight", weight.flatten(0, 1))
    if layer.in_proj_bias is not None:
        _replace(layer, "in_proj_bias", layer.in_proj_bias.view(3, wide)[:, :width].flatten())
    layer.embed_dim = layer.kdim = layer.vdim = width
    layer.head_dim = width // layer.num_heads
    _resize(layer.out_proj, width, width, 1)
