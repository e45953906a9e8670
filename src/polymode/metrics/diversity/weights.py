r"""How alike the weights of the modes are; `M` modes."""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.posterior import Posterior

COLUMNS_BYTES = 2**25  # of the float64 copy of some columns of the weights


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
