"""Spectral norms of hidden layers, held below a bound by projection after each step.

    W ← W min(1, c / σ(W)),        σ(W) = max ‖W u‖ / ‖u‖

σ of a linear layer is that of its matrix, of a convolution that of the whole linear map from images
to images, padding and stride included, at the size of images that the network sees. It is estimated
by one step of power iteration from the vector u of the step before; at the end of a training by a
decomposition for matrices, and by 100 steps for convolutions.

Reference: T. Miyato, T. Kataoka, M. Koyama, Y. Yoshida, Spectral normalization for generative
    adversarial networks, ICLR 2018; as a projection, Liu et al., NeurIPS 2020, Algorithm 1.

Shapes: `M` modes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polymode.core.rng import fold, private_stream
from polymode.core.warn import warn
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.tracing.operations import repeat_rows

CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
FINAL_STEPS = 100


class Layer(NamedTuple):
    """A layer whose norm is bounded.

    Attributes:
        map: the layer without bias and values, None for a matrix.
        shape: of its input for one example; of a matrix its number of columns.
    """

    map: nn.Module | None
    shape: tuple[int, ...]


def bounded_layers(stack: Stack, x: Tensor, but: str | None) -> dict[str, Layer]:
    """Return the linear layers and convolutions that are trained, but for the head, by the names of
    their weights."""
    return stack.network.program(
        f"bounded layers but {but}", "eval", lambda _: _layers(stack, x, but)
    )


def _layers(stack: Stack, x: Tensor, but: str | None) -> dict[str, Layer]:
    module = stack.views.build(0, share=False).eval()
    shapes: dict[str, Any] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, path=path: shapes.update({path: tuple(args[0].shape[1:])})
        )
        for path, layer in module.named_modules()
        if isinstance(layer, CONVOLUTIONS)
    ]
    with torch.no_grad(), private_stream(0):
        module(repeat_rows(x[:1], 2))
    for hook in hooks:
        hook.remove()
    layers: dict[str, Layer] = {}
    for path, layer in stack.template.named_modules():
        name = f"{path}.weight" if path else "weight"
        if name not in stack.params or path == but:
            continue
        if isinstance(layer, nn.Linear):
            layers[name] = Layer(None, (layer.in_features,))
        elif path in shapes:
            plain = copy.deepcopy(layer)
            plain.bias = None
            layers[name] = Layer(plain, shapes[path])
    return layers


def warn_of_unbounded(method: str, stack: Stack, layers: Mapping[str, Layer], but: str) -> None:
    """Warn of matrices that no bound holds for, by name."""
    lookups = {f"{path}.weight" for path, layer in stack.template.named_modules()
               if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))}  # fmt: skip
    left = [
        name
        for name, tensor in stack.params.items()
        if tensor.dim() > 2 and name not in {*layers, *lookups, f"{but}.weight"}
    ]
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        warn(
            f"`norm_bound` of {method} holds for nn.Linear and convolutions, and not for"
            f" {', '.join(left[:3])}{more}: the network may stretch distances there",
        )


def first_vectors(stack: Stack, layers: Mapping[str, Layer]) -> Tensors:
    """Return where power iterations begin, one direction per member and layer."""
    vectors: Tensors = {}
    for name, layer in layers.items():
        rows = []
        for seed in stack.seeds:
            stream = torch.Generator().manual_seed(fold(seed, "spectral", name))
            rows.append(torch.randn(layer.shape, generator=stream, dtype=torch.float64))
        vectors[name] = _unit(torch.stack(rows)).to(stack.params[name].detach())
    return vectors


@torch.no_grad()
def project(
    stack: Stack, layers: Mapping[str, Layer], vectors: Tensors, bound: float, final: bool = False
) -> None:
    """Scale weights whose norm is above the bound, in place, and move the vectors on."""
    for name, layer in layers.items():
        weight, vector = stack.params[name], vectors[name]
        for _ in range(FINAL_STEPS if final and layer.map is not None else 1):
            norm, following = _power_step(layer, weight.detach(), vector)
            vector.copy_(following)
        if final and layer.map is None:
            norm = torch.linalg.matrix_norm(weight.detach(), ord=2)
        factor = (bound / norm.clamp_min(1e-30)).clamp(max=1.0)
        weight.mul_(factor.view(-1, *(1,) * (weight.dim() - 1)))


def _power_step(layer: Layer, weight: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return ‖W u‖ (M,) of unit vectors u, and Wᵀ W u as unit vectors."""
    if layer.map is None:
        image = torch.bmm(weight, vector.unsqueeze(-1))
        back = torch.bmm(weight.mT, image).squeeze(-1)
        return image.flatten(1).norm(dim=1), _unit(back)
    norms, backs = [], []
    for matrix, u in zip(weight, vector, strict=True):
        with torch.enable_grad():
            u = u.unsqueeze(0).requires_grad_()
            image = functional_call(layer.map, {"weight": matrix}, (u,))
            (back,) = torch.autograd.grad(image, u, image.detach())
        norms.append(image.detach().norm())
        backs.append(back.squeeze(0))
    return torch.stack(norms), _unit(torch.stack(backs))


def _unit(vectors: Tensor) -> Tensor:
    """Return vectors (M, ...) of norm 1."""
    norms = vectors.flatten(1).norm(dim=1).clamp_min(1e-30)
    return vectors / norms.view(-1, *(1,) * (vectors.dim() - 1))
