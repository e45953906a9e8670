"""Layers with Gaussian weights, whose forward pass in training draws outputs or weights.

    local      y = W̄ x + b̄ + √(Σ_W x² + σ_b²) ε              one ε per output and example
    flipout    y = W̄ x + b̄ + ((σ_W E) (x r)) s + σ_b ε       one E per batch, r, s = ±1 per example

Both have the mean and variance of outputs with W ~ N(W̄, Σ_W) drawn for each example, but not the
covariance between positions that share a kernel (convolutions, sequences). The local form has the
smaller variance of gradients. Flipout keeps one matrix per batch and turns its signs.

A layer changes its class in place and gets `weight_log_std` and `bias_log_std`, so that everything
else about it stays; `make_plain` takes that back. Layers that are called more than once in a pass,
that share a parameter or have a frozen one, and modules that use a layer's weights without calling
it, are left as they are.

References: D. Kingma, T. Salimans, M. Welling, Variational dropout and the local reparameterization
    trick, NeurIPS 2015. Y. Wen, P. Vicol, J. Ba, D. Tran, R. Grosse, Flipout, ICLR 2018.

Shapes: `B` batch, `I` and `O` features or channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.stack.fast.dense import linear_each

SUFFIX = "_log_std"
_Affine = Callable[..., Tensor]
_LEAST = 1e-16  # of a variance, so that its root has a gradient where all inputs are 0


class _Linear(nn.Linear):
    weight_log_std: Tensor
    bias_log_std: Tensor | None

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def signs(self, like: Tensor) -> Tensor:
        """Return ±1 for each example and feature."""
        return _signs(like)


class _Convolution(nn.modules.conv._ConvNd):
    weight_log_std: Tensor
    bias_log_std: Tensor | None

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(x, weight, bias)  # type: ignore[operator,no-any-return]

    def signs(self, like: Tensor) -> Tensor:
        """Return ±1 for each example and channel."""
        first = like.flatten(2)[:, :, 0]
        return _signs(first)[(...,) + (None,) * (like.dim() - 2)]


def _signs(like: Tensor) -> Tensor:
    return (torch.rand_like(like) < 0.5).to(like.dtype).mul(2).sub(1)


class _Local:
    """Draws outputs, with the moments that Gaussian weights give them."""

    def forward(self: Any, x: Tensor) -> Tensor:
        tensors = {name: getattr(self, name) for name in self._parameters}  # fx sees attributes
        return self.draw(self.affine, tensors, x)

    def draw(self: Any, affine: _Affine, tensors: dict[str, Any], x: Tensor) -> Tensor:
        mean = affine(x, tensors["weight"], tensors.get("bias"))
        if not self.training:
            return mean
        spread = tensors.get("bias_log_std")
        bias = None if spread is None else (2 * spread).exp()
        variance = affine(x * x, (2 * tensors["weight_log_std"]).exp(), bias)
        return mean + variance.clamp_min(_LEAST).sqrt() * torch.randn_like(mean)


class _Flipout:
    """Draws one matrix of deviations per batch, and signs per example."""

    def forward(self: Any, x: Tensor) -> Tensor:
        mean = self.affine(x, self.weight, self.bias)
        if not self.training:
            return mean
        deviation = self.weight_log_std.exp() * torch.randn_like(self.weight)
        out = mean + self.affine(x * self.signs(x), deviation, None) * self.signs(mean)
        if self.bias is None:
            return out
        first = mean if isinstance(self, nn.Linear) else mean.flatten(2)[:, :, 0]
        noise = self.bias_log_std.exp() * torch.randn_like(first)
        return out + noise[(...,) + (None,) * (mean.dim() - noise.dim())]


class LocalLinear(_Local, _Linear):
    def for_all_members(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        """The same for a stack: parameters (M, ...) by name, inputs (M, B, ..., I)."""
        return self.draw(linear_each, tensors, x)


class LocalConv1d(_Local, _Convolution, nn.Conv1d): ...


class LocalConv2d(_Local, _Convolution, nn.Conv2d): ...


class LocalConv3d(_Local, _Convolution, nn.Conv3d): ...


class FlipoutLinear(_Flipout, _Linear): ...


class FlipoutConv1d(_Flipout, _Convolution, nn.Conv1d): ...


class FlipoutConv2d(_Flipout, _Convolution, nn.Conv2d): ...


class FlipoutConv3d(_Flipout, _Convolution, nn.Conv3d): ...


KINDS: dict[str, dict[type[nn.Module], type[nn.Module]]] = {
    "local": {
        nn.Linear: LocalLinear, nn.Conv1d: LocalConv1d, nn.Conv2d: LocalConv2d,
        nn.Conv3d: LocalConv3d,
    },
    "flipout": {
        nn.Linear: FlipoutLinear, nn.Conv1d: FlipoutConv1d, nn.Conv2d: FlipoutConv2d,
        nn.Conv3d: FlipoutConv3d,
    },
    "weights": {},
}  # fmt: skip


def layers_to_change(module: nn.Module, x: Tensor, estimator: str) -> list[str]:
    """Return the paths of layers that may draw for themselves, seen in a pass over `x`."""
    kinds, calls = KINDS[estimator], Counter[str]()
    candidates = {path: sub for path, sub in module.named_modules() if type(sub) in kinds}

    def count(path: str) -> Any:
        return lambda *_: calls.update([path])

    hooks = [sub.register_forward_hook(count(path)) for path, sub in candidates.items()]
    try:
        with torch.no_grad():
            module(x)
    finally:
        for hook in hooks:
            hook.remove()
    named = module.named_parameters(remove_duplicate=False)
    uses = Counter(id(parameter) for _, parameter in named)
    return [
        path
        for path, sub in candidates.items()
        if calls[path] == 1
        and sub._parameters.keys() == {"weight", "bias"}  # not those that make their weight anew
        and all(p.requires_grad and uses[id(p)] == 1 for p in sub.parameters(recurse=False))
    ]


def make_gaussian(module: nn.Module, paths: list[str], estimator: str, log_std: float) -> nn.Module:
    """Let these layers draw, with standard deviations of exp(`log_std`); changes the module."""
    for path in paths:
        layer = module.get_submodule(path)
        for name, mean in list(layer.named_parameters(recurse=False)):
            layer.register_parameter(
                f"{name}{SUFFIX}", nn.Parameter(torch.full_like(mean, log_std))
            )
        layer.__class__ = KINDS[estimator][type(layer)]
    return module


def make_plain(module: nn.Module) -> nn.Module:
    """Take back `make_gaussian`: layers that draw nothing, with the means as weights."""
    plain = {drawn: kind for kinds in KINDS.values() for kind, drawn in kinds.items()}
    for layer in module.modules():
        if type(layer) in plain:
            for name in [n for n in layer._parameters if n.endswith(SUFFIX)]:
                delattr(layer, name)
            layer.__class__ = plain[type(layer)]
    return module
