r"""Diversity of the modes: how differently they react to inputs, and how alike their weights are.

With :math:`g_{mn} = \partial f_m(x_n)_c / \partial x_n`, the gradient of one output of member m at
input n, members that use the same features have parallel gradients, and members that use different
ones have orthogonal gradients, even where both predict the same. Members are the networks of the
modes, or their centres if samples are drawn. `M` modes, `B` batch, `C` classes, `D` outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.likelihoods.components import Components
from polymode.likelihoods.targets import check_labels
from polymode.posterior import Posterior
from polymode.prediction import CategoricalPrediction

GRADIENT_BYTES = 2**26  # of the float64 gradients of all members, per chunk of inputs
COLUMNS_BYTES = 2**25  # of the float64 copy of some columns of the weights


class GradientDistance(NamedTuple):
    """Cosine distances between the members' input gradients, in [0, 2], float64.

    Attributes:
        matrix: (M, M) mean over inputs, 0 on the diagonal.
        each: (B,) mean over the pairs of members; its mean is that of `matrix` over pairs.
        num_zero: how many of the M × B gradients were exactly 0.
    """

    matrix: Tensor
    each: Tensor
    num_zero: int


def input_gradient_distance(post: Posterior, x: Any, targets: Any = None) -> GradientDistance:
    r"""Return the mean pairwise distance :math:`1 - \cos(g_{in}, g_{jn})` of input gradients.

    Classifiers: the gradient of the logit of one class, the same for all members: the label, or
    without labels the class that the ensemble predicts. Regressions: the gradients of the D
    predicted locations, as one vector.

    A gradient of exactly 0 (an input where all ReLUs of a member are off) has no direction. Its
    distance is 1 to any other gradient and 0 to another zero; `num_zero` tells how many there were.

    Args:
        post: at least 2 members, with differentiable inputs.
        x: inputs (B, *input_shape).
        targets: labels (B,) for classifiers; regressions need none.

    Traps: of the logit, not of the log-probability, whose gradient also depends on how the other
    logits react, and differs most where members are unsure. Gradients of images are noisy: between
    independently trained networks the distance is large anywhere, so compare methods on the same
    network and data.

    Reference: T. Q. Trinh, M. Heinonen, L. Acerbi, S. Kaski, Input-gradient space particle
    inference for neural network ensembles, ICLR 2024, appendix D.
    """
    check_call(input_gradient_distance, locals())
    modes = post.num_modes
    if modes < 2:
        raise ValueError(f"`input_gradient_distance` needs at least 2 members, got {modes}")
    inputs = post._inputs(x)
    if not inputs.is_floating_point():
        raise ValueError(f"inputs must be floats to have gradients, got {inputs.dtype}")
    labels = _labels(post, inputs, targets)
    cosines = torch.zeros(modes, modes, dtype=torch.float64)
    distances, num_zero = [], 0
    heads = 1 if labels is not None else post.target_size
    batch = max(1, GRADIENT_BYTES // (8 * modes * heads * inputs[0].numel()))
    for start in range(0, len(inputs), batch):
        rows = slice(start, start + batch)
        units = _unit_gradients(post, inputs[rows], None if labels is None else labels[rows])
        zero = (units == 0).all(-1).double()
        cosines += units.flatten(1) @ units.flatten(1).T + zero @ zero.T
        zeros = zero.sum(0)
        alike = units.sum(0).square().sum(-1) - (modes - zeros) + zeros * (zeros - 1)
        distances.append(1.0 - alike / (modes * (modes - 1)))
        num_zero += int(zeros.sum())
    matrix = (1.0 - cosines / len(inputs)).clamp_(0.0, 2.0).fill_diagonal_(0.0)
    return GradientDistance(matrix, torch.cat(distances).clamp_(min=0.0), num_zero)


def _labels(post: Posterior, inputs: Tensor, targets: Any) -> Tensor | None:
    """Return the class (B,) whose logit is looked at; None for regressions."""
    if not post.likelihood.classification:
        if targets is not None:
            raise ValueError("regressions have no class to choose: leave out `targets`")
        return None
    if targets is None:
        prediction = post.predict(inputs)
        assert isinstance(prediction, CategoricalPrediction)
        return prediction.classes
    labels = check_labels(targets, post.target_size).to(post.stack.device)
    if len(labels) != len(inputs):
        raise ValueError(f"got {len(labels)} label(s) for {len(inputs)} input(s)")
    return labels


def _unit_gradients(post: Posterior, inputs: Tensor, labels: Tensor | None) -> Tensor:
    """Return normalised gradients, 0 where they vanish, (M, b, ·), float64 on the CPU."""
    members = []
    x = inputs.detach().requires_grad_()
    for k in range(post.num_modes):
        with torch.enable_grad():
            outputs = post.stack.module(k)(x)
            if labels is None:
                params = {name: t[k].detach() for name, t in post.stack.extra.items()}
                components = post.likelihood.components(outputs, params)
                assert isinstance(components, Components)
                heads = components.loc.sum(0).unbind()
            elif outputs.shape[-1] == 1:
                heads = (outputs.sum(),)  # one logit for two classes: its sign changes no angle
            else:
                heads = (outputs.gather(-1, labels[:, None]).sum(),)
            parts = [
                torch.autograd.grad(head, x, retain_graph=True, materialize_grads=True)[0]
                for head in heads
            ]
        members.append(torch.cat([part.flatten(1) for part in parts], 1).cpu().double())
        if not members[-1].isfinite().all():
            raise ValueError(f"member {k} has gradients that are not finite: drop it")
    gradients = torch.stack(members)
    largest = gradients.abs().amax(-1, keepdim=True)
    scaled = gradients / largest.where(largest > 0, 1.0)  # squares of tiny gradients would vanish
    return scaled / scaled.norm(dim=-1, keepdim=True).clamp_(min=1.0)


def weight_cosine(post: Posterior) -> Tensor:
    r"""Return :math:`\theta_i \cdot \theta_j / (|\theta_i| |\theta_j|)`, (M, M), in [-1, 1].

    :math:`\theta_m` are all trainable parameters of the network of mode m as one vector, where
    samples are drawn those of its centre: no buffers, no noise of the likelihood. In float64; a
    mode whose weights are all 0 has cosine 0 with the others, and the diagonal is 1.

    Traps: not invariant under the symmetries of networks. Permuting hidden units, or scaling a
    ReLU layer up and the next one down, leaves the function as it is and changes the cosine: two
    equal functions can have cosine near 0, so a small value shows no diversity. Members that
    started from different draws are nearly orthogonal whatever they learnt. What a large value
    shows is that members stayed close, as samples around one mode do.

    Reference: S. Fort, H. Hu, B. Lakshminarayanan, Deep ensembles: a loss landscape perspective,
    2019.
    """
    check_call(weight_cosine, locals())
    modes = post.num_modes
    products = torch.zeros(modes, modes, dtype=torch.float64)
    for stacked in post.stack.params.values():
        rows = stacked.detach().flatten(1)
        for part in rows.split(max(1, COLUMNS_BYTES // (8 * modes)), 1):
            part = part.cpu().double()
            products += part @ part.T
    lengths = products.diagonal().sqrt()
    lengths = lengths.where(lengths > 0, torch.inf)
    cosine = (products / lengths / lengths[:, None]).clamp_(-1.0, 1.0)
    return cosine.fill_diagonal_(1.0)
