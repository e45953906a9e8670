"""Rank-one members: one weight for all, and two vectors for each.

    member m's weight:  W ∘ (s_m r_mᵀ),    W (x ∘ r_m) ∘ s_m + b_m  for a linear layer

W is trained in common; r (by input channel), s (by output channel), biases and norms are a
member's own. An embedding has s alone. Attention has a pair for its three projections together and
one for the last.

Shapes: `B` batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.nets.conversion.conversion import (
    Conversion,
    Sample,
    last_layers,
    private,
    require_gradients,
)

Adapter = str | float
"""How an adapter starts: "sign" (±1), "normal" (N(1, 0.5²)), "near" (N(1, 0.1²)) or one number."""


class RankOneLinear(nn.Linear):
    """A linear layer between two adapters."""

    r: nn.Parameter
    s: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        out = F.linear(x * self.r, self.weight) * self.s
        return out if self.bias is None else out + self.bias


class Latent(nn.Module):
    """An autoencoder of a vector: mean and log-variance of a code, and the vector from the code.

    Args:
        size: entries of the vector. hidden: entries of the code. like: type and device.
        factor: of the code's standard deviation in draws.
    """

    def __init__(self, size: int, hidden: int, like: Tensor, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.encoder = nn.Linear(size, hidden, device=like.device, dtype=like.dtype)
        self.mean = nn.Linear(hidden, hidden, device=like.device, dtype=like.dtype)
        self.log_variance = nn.Linear(hidden, hidden, device=like.device, dtype=like.dtype)
        self.decoder = nn.Linear(hidden, size, device=like.device, dtype=like.dtype)
        nn.init.ones_(self.decoder.bias)  # so that the network begins as the one given

    def forward(self, r: Tensor) -> Tensor:
        """Return a draw of the vector; its mean code's in evaluation mode."""
        h = torch.relu(self.encoder(r))
        code = self.mean(h)
        if self.training:
            std = torch.exp(0.5 * self.log_variance(h))
            code = code + self.factor * std * torch.randn_like(code)
        return self.decoder(code)  # type: ignore[no-any-return]


class LatentLinear(RankOneLinear):
    """A linear layer whose first adapter is drawn from a code."""

    latent: Latent

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        out = F.linear(x * self.latent(self.r), self.weight) * self.s
        return out if self.bias is None else out + self.bias


class _RankOneConvolution:
    """What the convolutions below share: adapters by channel."""

    def _adapted(self: Any, x: Tensor) -> Tensor:
        tail = (1,) * len(self.kernel_size)
        r = self.latent(self.r) if "latent" in self._modules else self.r
        out = self._plain(x * r.view(-1, *tail)) * self.s.view(-1, *tail)
        return out if self.bias is None else out + self.bias.view(-1, *tail)

    def _plain(self: Any, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight, None)  # type: ignore[no-any-return]


class _RankOneTransposed(_RankOneConvolution):
    def _plain(self: Any, x: Tensor) -> Tensor:
        convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
        return convolve[len(self.kernel_size) - 1](  # type: ignore[no-any-return]
            x, self.weight, None, self.stride, self.padding, self.output_padding, self.groups,
            self.dilation,
        )  # fmt: skip


def _adapted_class(kind: type[nn.Module], way: type[_RankOneConvolution]) -> type[nn.Module]:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self._adapted(x)  # type: ignore[no-any-return]

    return type(f"RankOne{kind.__name__}", (way, kind), {"forward": forward})


class RankOneEmbedding(nn.Embedding):
    """A table with an adapter of its features."""

    s: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        """Map numbers (...) to features (..., D)."""
        return super().forward(x) * self.s


class RankOneAttention(nn.MultiheadAttention):
    """Attention whose three projections have adapters; torch reads their weight in many places, so
    it is made whole here."""

    in_proj_shared: nn.Parameter
    r: nn.Parameter
    s: nn.Parameter

    @property
    def in_proj_weight(self) -> Tensor:  # type: ignore[override]
        """The member's own weight (3 E, E)."""
        return self.in_proj_shared * self.s[:, None] * self.r


class RankOneProjection(nn.modules.linear.NonDynamicallyQuantizableLinear):
    """The last projection of attention, of which torch takes the weight, not the forward pass."""

    shared: nn.Parameter
    r: nn.Parameter
    s: nn.Parameter

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The member's own weight."""
        return self.shared * self.s[:, None] * self.r


LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: RankOneLinear,
    nn.Embedding: RankOneEmbedding,
    nn.MultiheadAttention: RankOneAttention,
    **{
        kind: _adapted_class(kind, _RankOneConvolution)
        for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    },
    **{
        kind: _adapted_class(kind, _RankOneTransposed)
        for kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    },
}
OWN = (
    nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.PReLU,
)  # fmt: skip
"""Layers whose few parameters are each member's own."""


class Adapters:
    """What is asked for.

    Attributes:
        method: for messages. first, rest: how adapters r start, of layers that see the inputs and
            of others. outputs: how adapters s start. own_heads: whether last layers are each
            member's own. latent: entries of a code from which adapters r of linear layers and
            convolutions are drawn, and the factor of its standard deviation; None without.
    """

    def __init__(
        self,
        method: str,
        first: Adapter,
        rest: Adapter,
        outputs: Adapter,
        *,
        own_heads: bool,
        latent: tuple[int, float] | None = None,
    ) -> None:
        self.method, self.first, self.rest, self.outputs = method, first, rest, outputs
        self.own_heads, self.latent = own_heads, latent


def plan(sample: Sample, adapters: Adapters) -> Conversion:
    """Return which layers get adapters, and which parameters members share."""
    layers, common = {}, []
    kinds = tuple(LAYERS)
    last = last_layers(sample, kinds) if adapters.own_heads else set()
    first = _first_layers(sample)
    listed = {name for name, _ in sample.module.named_parameters()}  # tied ones once
    done: list[str] = []
    coded: list[str] = []
    for path, layer in sample.module.named_modules():
        names = [f"{path}.{n}".lstrip(".") for n, _ in layer.named_parameters(recurse=False)]
        inside = path.startswith(tuple(f"{p}." for p in done if p))
        if not sample.trained.intersection(names) or inside or isinstance(layer, OWN):
            continue
        if type(layer) not in LAYERS:
            _refuse_unless_small(path, layer, adapters.method)
            continue
        if isinstance(layer, nn.MultiheadAttention):
            if not layer._qkv_same_embed_dim:
                _refuse(path, layer, adapters.method)
            done.append(path)
        elif "weight" not in layer._parameters:  # a hook makes it of another
            _refuse(path, layer, adapters.method)
        if path in last:
            continue
        layers[path] = [adapters.first if path in first else adapters.rest, adapters.outputs]
        shared = ["in_proj_shared", "out_proj.shared"] if path in done else ["weight"]
        shared = [f"{path}.{name}".lstrip(".") for name in shared]
        common += [n for n in shared if n in listed or not n.endswith("weight")]
        if adapters.latent and path not in done and not isinstance(layer, nn.Embedding):
            coded.append(path)
            parts = product(("encoder", "mean", "log_variance", "decoder"), ("weight", "bias"))
            common += [f"{path}.latent.{part}.{kind}".lstrip(".") for part, kind in parts]
    numbers: dict[str, Any] = {"layers": layers, "common": common}
    if adapters.latent:
        numbers |= {"coded": coded, "latent": list(adapters.latent)}
    return Conversion("rank_one", numbers)


def _first_layers(sample: Sample) -> set[str]:
    """Return the layers whose inputs depend on nothing that is trained."""
    first: set[str] = set()

    def look(path: str) -> Any:
        def hook(_layer: Any, args: Any, kwargs: Any) -> None:
            values = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
            if values and not any(value.requires_grad for value in values):
                first.add(path)

        return hook

    with private(sample) as module:
        hooks = [
            layer.register_forward_pre_hook(look(path), with_kwargs=True)
            for path, layer in module.named_modules()
            if type(layer) in LAYERS
        ]
        try:
            outputs = module(sample.x.clone())
        finally:
            for hook in hooks:
                hook.remove()
        require_gradients(outputs)
    return first


def _refuse_unless_small(path: str, layer: nn.Module, method: str) -> None:
    """Refuse a layer with matrices. Vectors, single numbers and what has one row, as positions
    have, are each member's own."""
    for parameter in layer._parameters.values():
        matrix = parameter is not None and sum(size > 1 for size in parameter.shape) > 1
        if matrix and parameter is not None and len(parameter) > 1:
            _refuse(path, layer, method)


def _refuse(path: str, layer: nn.Module, method: str) -> None:
    kind = type(layer).__name__
    raise ValueError(
        f"{method} has no conversion for '{path or kind}' ({kind}): its weights cannot be shared"
        " between adapters; write it with nn.Linear, convolutions, nn.Embedding or"
        " nn.MultiheadAttention, or take deep_ensemble"
    )


def apply(module: nn.Module, numbers: Mapping[str, Any]) -> None:
    """Give layers adapters, in place."""
    for block in module.modules():
        if isinstance(block, nn.TransformerEncoderLayer):
            block.activation_relu_or_gelu = 0  # torch's fast path would read weights past adapters
    for path, (r, s) in numbers["layers"].items():
        layer: Any = module.get_submodule(path)
        if type(layer) is nn.MultiheadAttention:
            _adapt_attention(layer, r, s)
            continue
        weight, groups = layer.weight, getattr(layer, "groups", 1)
        transposed = isinstance(layer, nn.modules.conv._ConvTransposeNd)
        n_out, n_in = weight.shape[0], weight.shape[1] * groups
        if transposed:
            n_out, n_in = weight.shape[1] * groups, weight.shape[0]
        layer.__class__ = LAYERS[type(layer)]
        if isinstance(layer, nn.Embedding):
            layer.s = _adapter(s, n_in, weight)
        else:
            layer.r, layer.s = _adapter(r, n_in, weight), _adapter(s, n_out, weight)
        if path in numbers.get("coded", ()):
            hidden, factor = numbers["latent"]
            layer.latent = Latent(n_in, hidden, weight, factor)
            if isinstance(layer, nn.Linear):
                layer.__class__ = LatentLinear


def _adapt_attention(layer: Any, r: Adapter, s: Adapter) -> None:
    weight = layer._parameters.pop("in_proj_weight")
    layer.__class__ = RankOneAttention
    layer.in_proj_shared = weight
    layer.r = _adapter(r, weight.shape[1], weight)
    layer.s = _adapter(s, weight.shape[0], weight)
    last = layer.out_proj
    weight = last._parameters.pop("weight")
    last.__class__ = RankOneProjection
    last.shared = weight
    last.r, last.s = (_adapter(start, len(weight), weight) for start in (r, s))


def _adapter(start: Adapter, size: int, like: Tensor) -> nn.Parameter:
    """Return a new adapter, drawn from torch's global stream where it is random."""
    if start == "near":
        values = 1 + 0.1 * torch.randn(size, dtype=like.dtype, device=like.device)
    elif start == "sign":
        values = torch.randint(2, (size,), device=like.device).to(like.dtype) * 2 - 1
    elif start == "normal":
        values = 1 + 0.5 * torch.randn(size, dtype=like.dtype, device=like.device)
    else:
        values = like.new_full((size,), float(start))
    return nn.Parameter(values)
