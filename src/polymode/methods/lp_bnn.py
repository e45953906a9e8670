"""LP-BNN: BatchEnsemble whose rank-one vectors are drawn from a latent code.

    h = relu(E r_m),    q(z | r_m) = N(A h, diag exp(B h)),    r̂_m = D z,    z ~ q
    member m's layer:   W (x ∘ r̂_m) ∘ s_m + b_m
    loss of a member:   −log p(y | x) + (w / N) Σ_layers [ KL(q(z | r_m) ‖ N(0, 1)) + ‖r̂_m − r_m‖² ]

E, A, B and D (biases left out above) are a layer's and, as W, shared by the members; r, s, b and
norms are a member's own. The Kullback-Leibler divergence is in closed form,
½ Σ (μ² + σ² − 1 − log σ²); the squared error is taken at the mean code. Prediction draws codes
anew, `samples_per_mode` of each member. w is `kl_weight`.

Where paper, its code and this differ: in the authors' code r stays as it was drawn, and only its
code is trained; here r is trained, as the paper's objective has it. Draws multiply σ by
`std_factor`, 0.01 as in their code, which the paper does not name. The decoder's bias starts at 1,
so that members begin as the network given. Embeddings and attention have plain vectors.
Limits: with the published factor draws of one member hardly differ; its spread is between members.
Reference: G. Franchi, A. Bursuc, E. Aldea, S. Dubuisson, I. Bloch, Encoding the latent posterior of
    Bayesian neural networks for uncertainty quantification, IEEE TPAMI 2023 (arXiv 2020).

Shapes: `M` modes, `H` entries of a code, `C` entries of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.methods.batch_ensemble import add_prior
from polymode.methods.map import MAP, Info, State, init
from polymode.methods.method import METHODS, Method, Problem
from polymode.nets.conversion import Conversion, rank_one
from polymode.nets.conversion.conversion import Sample
from polymode.posterior import Noisy, Weights
from polymode.stack.stack import Stack
from polymode.training.loop import Batch


@dataclass(frozen=True, kw_only=True)
class LPBNN(MAP):
    """Options of `lp_bnn`: those of `map`, with four members, and"""

    usual_modes = 4
    stops_together = True
    hidden: int = option(32, ge=1, doc="entries of a layer's latent code")
    std_factor: float = option(0.01, gt=0, doc="factor of the code's standard deviation in draws")
    kl_weight: float = option(1.0, ge=0, doc="weight of divergence and reconstruction in the loss")
    samples_per_mode: int = option(4, ge=1, doc="draws of each member in a prediction")


def convert(config: LPBNN, num_modes: int, sample: Sample) -> Conversion:
    """Return how the network gets vectors and their codes."""
    latent = config.hidden, config.std_factor
    asked = rank_one.Adapters("lp_bnn", "near", "near", "near", own_heads=False, latent=latent)
    return rank_one.plan(sample, asked)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(N(mean, diag exp log_variance) ‖ N(0, 1)), summed over the last axis."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


def latent_loss(stack: Stack) -> Tensor:
    """Return divergence and squared error of all codes of each member, (M,)."""
    total = torch.zeros(len(stack), dtype=stack.dtype, device=stack.device)
    shared = {name: leaf[0] for name, leaf in stack.common.items()}
    for name, r in stack.params.items():
        path = name.removesuffix(".r") if name.endswith(".r") else name.removesuffix("r")
        start = f"{path}.latent.".lstrip(".")
        if not name.endswith("r") or f"{start}encoder.weight" not in shared:
            continue

        def layer(part: str, x: Tensor, start: str = start) -> Tensor:
            return x @ shared[f"{start}{part}.weight"].T + shared[f"{start}{part}.bias"]

        h = torch.relu(layer("encoder", r))
        mean = layer("mean", h)
        error = (layer("decoder", mean) - r).square().sum(-1)
        total = total + divergence(mean, layer("log_variance", h)) + error
    return total


def step(config: LPBNN, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step: members on their own losses, what they share on the mean of these."""
    stack, optimization, number = state
    loss = problem.likelihood.nll
    losses = stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
    losses = add_prior(losses, stack, config.prior_precision / problem.num_examples)
    if config.kl_weight:
        losses = losses + _add_latent(stack, config.kl_weight / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, number + 1), Info(losses)


def _add_latent(stack: Stack, strength: float) -> Tensor:
    """Add the gradient of the latent loss; return its values (M,)."""
    leaves = [*stack.params.values(), *stack.common.values()]
    values = strength * latent_loss(stack)
    if not values.requires_grad:
        return values
    grads = torch.autograd.grad(values.sum(), leaves, allow_unused=True)
    for leaf, grad in zip(leaves, grads, strict=True):
        if grad is not None and leaf.grad is not None:
            leaf.grad += grad / (len(stack) if len(leaf) < len(stack) else 1)
    return values.detach()


def finish(config: LPBNN, problem: Problem, state: State) -> Weights:
    """Networks that draw their codes."""
    return Noisy(state.stack.settled(), config.samples_per_mode)


METHODS.register(
    "lp_bnn",
    summary="networks that share one weight between rank-one factors drawn from latent codes",
    kind="many modes",
    equation="W ∘ (sₘ r̂ₘᵀ),  r̂ₘ = decode(z),  z ~ q(z | rₘ)",
    cost="M × training, M L × prediction; parameters of one network, vectors and autoencoders",
    limits="With the published factor draws of one member hardly differ: the spread is between"
    " members, which share all but vectors.",
    paper="Franchi et al. 2023",
    bibtex="""@article{franchi2023encoding,
  title={Encoding the Latent Posterior of {Bayesian} Neural Networks for Uncertainty
    Quantification},
  author={Franchi, Gianni and Bursuc, Andrei and Aldea, Emanuel and Dubuisson, S{\\'e}verine and
    Bloch, Isabelle},
  journal={IEEE Transactions on Pattern Analysis and Machine Intelligence}, year={2023}}""",
)(Method(LPBNN, init, step, finish, convert=convert, uses_inputs=lambda config: True))
