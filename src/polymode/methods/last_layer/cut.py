"""Networks cut before their last linear layer: the body gives features, the head is the method's.

Shapes: `M` modes, `B` batch, `F` features, `K` outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.core.rng import private_stream
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors


def linear_head(stack: Stack, x: Tensor, pointwise: bool = False) -> str | None:
    """Return the path of the linear layer whose outputs are the network's, None where there is
    none whose weights are its own.

    Args:
        x: a few inputs. pointwise: whether a convolution that is linear at each position counts.
    """
    module = stack[[0]].module(0).eval()
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _, args, out, path=path: calls.setdefault(path, []).append((args[0], out))
        )
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear) or (pointwise and is_pointwise(layer))
    ]
    with torch.no_grad(), private_stream(0):
        outputs = module(x)
    for hook in hooks:
        hook.remove()
    for path, pairs in calls.items():
        groups = [names for names in stack.network.aliases.values() if len(names) > 1]
        tied = any(name in names for names in groups for name in names_of(path))
        layer = module.get_submodule(path)
        if pairs[-1][1] is outputs and len(pairs) == 1 and not tied and _is_plain(layer, *pairs[0]):
            return path
    return None


def _is_plain(layer: nn.Module, inputs: Tensor, outputs: Tensor) -> bool:
    """Whether a layer's result is that of its weight and bias alone."""
    if not isinstance(layer, nn.Linear) or outputs.is_meta:
        return True
    with torch.no_grad():
        return torch.equal(F.linear(inputs, layer.weight, layer.bias), outputs)


def is_pointwise(layer: nn.Module) -> bool:
    """Whether it is a convolution that is a linear layer at each position."""
    if not isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return False
    plain = not isinstance(layer.padding, str) and not any(layer.padding)
    return plain and layer.groups == 1 and {*layer.kernel_size, *layer.stride} == {1}


def require_head(stack: Stack, x: Tensor, method: str) -> str:
    """Return the path of the last linear layer, for one target per example, or refuse."""
    path = linear_head(stack, x)
    if path is None:
        raise no_head(method, type(stack.template).__name__)
    return path


def no_head(method: str, kind: str) -> ValueError:
    """Return the refusal of a network of this kind."""
    return ValueError(
        f"{method} needs a network that ends in a linear layer, but the outputs of this {kind} are"
        " not those of an nn.Linear with weights of its own; let its forward method end in one, or"
        " take laplace or swag"
    )


def names_of(head: str) -> tuple[str, str]:
    """Return the names of weight and bias of a layer."""
    return (f"{head}.weight", f"{head}.bias") if head else ("weight", "bias")


def require_trained(stack: Stack, head: str, method: str) -> None:
    """Refuse a head whose weights are frozen."""
    for name in names_of(head):
        if name in stack.frozen:
            raise ValueError(
                f"{method} is about the last linear layer, but its '{name}' is frozen: let"
                " `trainable` name it, such as trainable='head', or let it require gradients"
            )


def without_head(stack: Stack, head: str) -> Stack:
    """Return the stack without its last layer: its outputs are features, its tensors the same."""
    return stack.rebuilt(f"without {head}", lambda module: _headless(module, head))


def body_with_head(stack: Stack, head: str, names: Collection[str] | None = None) -> Stack:
    """Return the same for training: weight and bias of the head and the stack's further parameters,
    all of them or those that are named, are its `extra`, by "weight", "bias" and their names."""
    chosen = {name: tensor for name, tensor in stack.extra.items() if not names or name in names}
    more = head_params(stack, head) | chosen
    return stack.rebuilt(
        f"without {head}, to train it", lambda module: _headless(module, head), more
    )


def head_params(stack: Stack, head: str) -> Tensors:
    """Return the head's "weight" (M, K, F) and, where it has one, "bias" (M, K)."""
    tensors = {**stack.params, **stack.frozen}
    names = dict(zip(("weight", "bias"), names_of(head), strict=True))
    return {kind: tensors[name] for kind, name in names.items() if name in tensors}


def _headless(module: nn.Module, head: str) -> nn.Module:
    if not head:
        return nn.Identity()
    module.set_submodule(head, nn.Identity())
    return module


def checked_features(features: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """Return features (..., B, F) if they are what the head takes, or refuse."""
    weight = params["weight"]
    if features.dim() != weight.dim() or features.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"the last linear layer takes {weight.shape[-1]} features of an example, but this"
            f" network makes {tuple(features.shape)[-2:]} of a batch: it does not end in that layer"
            " for every batch; let its forward method end in one layer"
        )
    return features


def with_ones(features: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """Return features with a column of ones, where the head has a bias."""
    if "bias" not in params:
        return features
    return torch.cat([features, torch.ones_like(features[..., :1])], -1)


def joint_weight(params: Mapping[str, Tensor]) -> Tensor:
    """Return the head's weight (..., K, F) with its bias as the last column."""
    if "bias" not in params:
        return params["weight"]
    return torch.cat([params["weight"], params["bias"].unsqueeze(-1)], -1)
