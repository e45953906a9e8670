"""The networks that a posterior's predictions are made of, as one stack: weights, not passes.

Samples, Gaussians and the like are drawn. Of a posterior that drops units at random, sample l is
the network whose dropped units are cut off: a mask z after a layer is the same as the next layer's
incoming weights times z,

    W (z ⊙ h) = (W diag z) h,

so the stack returned needs no noise and is the same function as the noisy sample.

Shapes: `M` modes, `L` samples per mode, `S = M L`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polymode.core.checks import check_call
from polymode.posterior import Noisy, Posterior
from polymode.posterior.weights import changing_tensors
from polymode.stack.execution import noise_of, streams_of
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors, set_mode

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_KEEPS = (nn.ReLU, nn.Identity, nn.LeakyReLU)  # f(z h) = z f(h) for z ≥ 0


@torch.no_grad()
def networks_of(post: Posterior, samples_per_mode: int | None = None, *, seed: int = 0) -> Stack:
    """Return S networks, sample by sample: of each mode its first, then of each its second.

    Args:
        post: whose samples. samples_per_mode: L; by default that of its predictions. seed: of them.
    """
    check_call(networks_of, locals())
    weights = post.weights[:] if post.weights.kind == "shards" else post.weights
    number = post._samples(samples_per_mode)
    if isinstance(weights.inner, Noisy):
        draws = [_without_noise(weights.draw(j, seed), post) for j in range(number)]
    else:
        draws = [changing_tensors(weights.draw(j, seed)) for j in range(number)]
    together = {name: torch.cat([draw[name] for draw in draws]) for name in draws[0]}
    return weights.stack.repeated(number, together).set_mode("eval")


def _without_noise(stack: Stack, post: Posterior) -> Tensors:
    """Return the tensors of a noisy stack with its masks multiplied into the weights."""
    x = torch.zeros(1, *post.input_shape, dtype=stack.dtype, device=stack.device)
    streams = streams_of(stack, x, False, 0)
    tensors = {name: tensor.clone() for name, tensor in changing_tensors(stack).items()}
    if streams is None:
        return tensors
    for k in range(stack.num_modes):
        module = set_mode(stack.views.build(k, share=False), "noisy")
        masks = _masks(module, x, streams[k : k + 1])
        for name, mask in masks.items():
            tensors[f"network/{name}"][k] *= mask
    return tensors


def _masks(module: nn.Module, x: Tensor, streams: object) -> dict[str, Tensor]:
    """Return what each dropout layer multiplies the following layer's weights by, (1, inputs)."""
    leaves = [(n, m) for n, m in module.named_modules() if not list(m.children())]
    masks: dict[str, Tensor] = {}
    hooks, drawn = [], {}
    for place, (name, leaf) in enumerate(leaves):
        if not isinstance(leaf, _DROPOUT):
            continue
        target = next((n for n, m in leaves[place + 1 :] if not isinstance(m, _KEEPS)), None)
        follower = dict(leaves).get(target or "")
        if not isinstance(follower, nn.Linear) or not isinstance(module, nn.Sequential):
            raise ValueError(
                f"the noise of '{name}' ({type(leaf).__name__}) cannot be written as weights: only"
                " dropout before a dense layer of an nn.Sequential can. Compare another posterior"
            )
        # ones go in, so that what comes out is the mask itself
        hooks.append(leaf.register_forward_pre_hook(lambda _, args: (torch.ones_like(args[0]),)))
        drawn[name] = f"{target}.weight"

        def keep(_: nn.Module, args: object, out: Tensor, name: str = name) -> None:
            masks[drawn[name]] = out.reshape(1, -1).clone()

        hooks.append(leaf.register_forward_hook(keep))
    with noise_of(streams, stacked=False):  # type: ignore[arg-type]
        module(x)
    for hook in hooks:
        hook.remove()
    return masks
