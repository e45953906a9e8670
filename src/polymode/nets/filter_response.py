"""Filter response normalisation: no statistics of the batch, so every example is by itself.

    nu^2 = mean over pixels of x^2,    y = gamma x / sqrt(nu^2 + eps) + beta,    z = max(y, tau)

for each channel of each example. The last step, a ReLU with a learned threshold tau (TLU), belongs
to the layer; where a network has an activation of its own (SiLU), that follows.

Source: S. Singh, S. Krishnan, "Filter response normalization layer: eliminating batch dependence in
the training of deep neural networks", CVPR 2020. With TLU and SiLU after it, it is the layer of the
ResNet-20 that P. Izmailov et al., "What are Bayesian neural network posteriors really like?",
ICML 2021, sampled by HMC. `B` batch, `C` channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FilterResponseNorm2d(nn.Module):
    """Normalise each channel of each image by its root mean square, and threshold.

    3 C parameters: gamma starts at 1, beta and tau at 0, each of shape (1, C, 1, 1).

    Args:
        num_features: C, channels.
        eps: added to the mean square; the paper's 1e-6. On maps of 1x1 pixels, where the normalised
            value is nearly a sign, gradients vanish.

    >>> FilterResponseNorm2d(2)(torch.full((1, 2, 3, 3), 5.0)).unique()
    tensor([1.], grad_fn=<...>)
    """

    normalises = True  # one step of a graph, see `tracing/operations.py`

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        shape = (1, num_features, 1, 1)
        self.gamma = nn.Parameter(torch.ones(shape))
        self.beta = nn.Parameter(torch.zeros(shape))
        self.tau = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        mean_square = x.square().mean((-2, -1), keepdim=True)
        y = self.gamma * (x * torch.rsqrt(mean_square + self.eps)) + self.beta
        return torch.maximum(y, self.tau)

    def extra_repr(self) -> str:
        return f"{self.gamma.shape[1]}, eps={self.eps}"
