r"""TFB: the largest isotropic spread of trained weights that costs at most ε, without training.

    q(θ) = N(θ̃, s² I),   s = max { s : E_q[ℓ(θ)] ≤ ℓ(θ̃) + ε }          ℓ: mean −log p on the anchor

θ̃ are the trained weights: networks that are given are taken as they are, factories are trained as
by `map`. The anchor are the validation data of the task; without any, the training data, on which
a network looks surer than it is. The mean over q is taken over draws θ̃ + s z whose z are the same
for all s, so that the cost is a smooth function of s. s is doubled from 10⁻⁴ of the
weights' root mean square until ε is exceeded, and then found by bisection of log s. It is one
number per mode.

With ε a Lagrangian of the bound of variational inference among isotropic Gaussians, the largest s
is the optimum for some weight of the prior: that is the argument of the paper, which therefore
needs no prior. Its Gaussian is isotropic in the low-rank coordinates of an adapter, after a
singular value decomposition; here it is isotropic in the weights that are trained, whatever they
are.

Limits: one number for all weights, however different their curvature is; the choice of ε takes
the place of a prior. Weights of very different scale, such as those of normalisation, share it.
Running statistics of normalisation layers stay as they are.
Reference: H. Shi, Y. Wang, L. Han, H. Zhang, H. Wang, Training-Free Bayesianization for Low-Rank
    Adapters of Large Language Models, NeurIPS 2025.

Shapes: `M` modes, `S` draws, `B` batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.methods import map as map_
from polymode.methods.map import Trained
from polymode.methods.method import METHODS, Method, Problem
from polymode.posterior import Gaussian
from polymode.stack.stack import Stack
from polymode.training.data import Data
from polymode.training.holdout import HeldOut

SMALLEST = 1e-4  # of the root mean square of the weights, where the search begins
DOUBLINGS, HALVINGS = 24, 12


@dataclass(frozen=True, kw_only=True)
class TFB(HeldOut, Trained):
    """Options of `tfb`: those of `map`, and"""

    epsilon: float = option(
        0.01,
        gt=0,
        doc="ε, what the spread may cost, nats per observation of the anchor",
    )
    anchor_draws: int = option(10, ge=1, doc="draws by which the cost of a spread is measured")
    samples_per_mode: int = option(30, ge=1, doc="L networks of a mode in a prediction")


def finish(config: TFB, problem: Problem, state: map_.State) -> Gaussian:
    """Return the widest Gaussian around each network that costs at most ε."""
    stack = state.stack.clone().eval()
    anchor = problem.data if problem.validation is None else problem.validation
    if anchor is None:
        raise ValueError("tfb needs data to measure by: give Problem(..., data=task.train)")
    spread = widest(config, problem, stack, anchor)
    std = {
        name: spread.to(t.dtype).view(-1, *(1,) * (t.dim() - 1)).expand_as(t).clone()
        for name, t in stack.params.items()
    }
    return Gaussian(stack, std, None, config.samples_per_mode)


@torch.no_grad()
def widest(config: TFB, problem: Problem, stack: Stack, anchor: Data) -> Tensor:
    """Return the largest s of each mode, (M,) float64."""
    squares = map_.squared_norms(stack).double() / max(stack.num_parameters, 1)
    low = SMALLEST * squares.sqrt().clamp_min(1e-6)
    allowed = cost(config, problem, stack, anchor, torch.zeros_like(low)) + config.epsilon
    high, is_open = low.clone(), torch.ones_like(low, dtype=torch.bool)
    for _ in range(DOUBLINGS):
        fits = cost(config, problem, stack, anchor, high) <= allowed
        is_open &= fits
        if not is_open.any():
            break
        low = torch.where(is_open, high, low)
        high = torch.where(is_open, 2 * high, high)
    for _ in range(HALVINGS):
        middle = (low * high).sqrt()
        fits = cost(config, problem, stack, anchor, middle) <= allowed
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return low


def cost(config: TFB, problem: Problem, stack: Stack, anchor: Data, spread: Tensor) -> Tensor:
    """Return the mean over draws of the mean −log p on the anchor, (M,); infinite where it is
    none."""
    likelihood = problem.likelihood
    total = torch.zeros(stack.num_modes, dtype=torch.float64, device=spread.device)
    number = 0.0
    draws = config.anchor_draws if spread.any() else 1
    moved = [_moved(stack, spread, draw) for draw in range(draws)]
    for x, y in anchor.batches(config.batch_size):
        observations = likelihood.num_observations(y)
        number += observations
        for networks in moved:
            outputs = networks(x)
            losses = likelihood.nll(outputs, y, networks.extra).double()
            total += observations * losses / draws
    return torch.nan_to_num(total / number, nan=torch.inf, posinf=torch.inf)


def _moved(stack: Stack, spread: Tensor, draw: int) -> Stack:
    """Return the networks at θ̃ + s z, z by the number of the draw."""
    noise = stack.normal("tfb", draw)
    return stack.with_tensors(
        {
            name: t.detach() + spread.to(t.dtype).view(-1, *(1,) * (t.dim() - 1)) * noise[name]
            for name, t in stack.params.items()
        }
    )


METHODS.register(
    "tfb",
    summary="the widest isotropic Gaussian around trained weights that costs at most ε",
    kind="one mode",
    equation="q = N(θ̃, s² I),  s = max { s : E_q[−log p] ≤ −log p(θ̃) + ε }",
    cost="1 × training (none for trained networks), then about 25 × anchor_draws passes over the"
    " validation data; L × prediction",
    limits="One number for all weights, however different their curvature; ε takes the place of a"
    " prior.",
    paper="Shi et al. 2025",
    bibtex="""@inproceedings{shi2025training,
  title={Training-Free {Bayesianization} for Low-Rank Adapters of Large Language Models},
  author={Shi, Haizhou and Wang, Yibin and Han, Ligong and Zhang, Huan and Wang, Hao},
  booktitle={Advances in Neural Information Processing Systems}, year={2025}}""",
)(Method(TFB, map_.init, map_.step, finish, post_hoc=True))
