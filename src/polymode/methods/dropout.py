"""MC dropout: a network trained with dropout, and predictions with dropout left on.

    L̃_α(θ) = (λ/2) ‖θ‖² − (1/α) Σ_n log (1/K) Σ_k p(y_n | f_θ(x_n, z_nk))^α,   λ = `prior_precision`
    L̃_0(θ) = (λ/2) ‖θ‖² − (1/K) Σ_k Σ_n log p(y_n | f_θ(x_n, z_nk)),           K = `num_passes`
    p(y | x) ≈ (1/L) Σ_l p(y | f_θ(x, z_l)),        z ~ the network's own noise

Training with dropout minimises a variational bound whose approximate posterior switches units off
at random: α = 0. With α > 0, an α-divergence takes the place of the Kullback-Leibler divergence: a
datum that some of the K passes explain is explained, so that the approximation spreads instead of
shrinking to what fits everywhere. Every pass and example has a noise z_nk of its own. In a
prediction, sample l has one z_l for all inputs, so it is one function of x, and predictions do not
depend on the batch size. `samples_per_mode` is L, `num_modes` trains several networks.

The K passes of a step are one pass over rows that are repeated K times from the first random
operation on; what comes before it is computed once (`stack/fast/passes.py`).

Any noise that the network's forward pass draws counts: dropout as a layer, as a function or inside
attention, DropConnect, Gaussian noise. It is found by looking at a pass, not by the classes of
layers. Noise that a whole batch shares (DropConnect) is drawn anew for each pass. Normalisation
layers predict with their running statistics while the noise stays on.

The prior is that of `map`: θ ~ N(0, λ⁻¹ I) over all trainable parameters, so λ/N is torch's
`weight_decay` for a mean of −log p, and λ/2N the factor of ‖θ‖². For a mean of ½ (y − f)² with
known precision τ both are divided by τ; for a mean of (y − f)² they are doubled as well. In the
papers' terms a weight matrix M = θ/p, with torch's division by the keep probability p in it, and
prior N(0, l⁻² I) has the term p l² ‖M‖²/2: λ = l²/p. A network that multiplies by masks of 0 and 1
without the division has λ = p l².

Where paper and code disagree: the sign of log τ and the constant log K, see
`methods/alpha_divergence.py`. The step from the power energy of Hernández-Lobato et al. to L̃_α
takes α/N → 0, so α = 1 on a handful of data is off by O(α/N).
Limits: the noise does not shrink with more data, since its rate is fixed (`concrete_dropout` learns
it); α > 0 costs K passes from the first random operation on.
References: Y. Gal, Z. Ghahramani, Dropout as a Bayesian approximation, ICML 2016. Y. Li, Y. Gal,
    Dropout inference in Bayesian neural networks with alpha-divergences, ICML 2017.

Shapes: `M` modes, `K` passes in training, `L` samples per mode, `B` batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.core.warn import warn
from polymode.likelihoods.kinds import Likelihood
from polymode.methods import map as map_
from polymode.methods.alpha_divergence import alpha_loss
from polymode.methods.map import MAP, Info, State, add_prior
from polymode.methods.method import METHODS, Method, Problem
from polymode.posterior import Noisy
from polymode.stack.execution import streams_of
from polymode.stack.fast.passes import gradients_of_passes
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors, set_mode
from polymode.tracing.noise import shapes_drawn
from polymode.tracing.operations import repeat_rows
from polymode.training.loop import Batch


@dataclass(frozen=True, kw_only=True)
class Dropout(MAP):
    """Options of `dropout`: those of `map`, and"""

    alpha: float = option(
        0.0,
        ge=0,
        doc="α of the divergence",
        more="0 is variational inference, 1 the log predictive likelihood; 0.5 and 1 are the"
        " paper's.",
    )
    num_passes: int | None = option(
        None,
        ge=1,
        doc="K noisy passes of each example in a training step",
        none="is 1 for alpha = 0 and 10 otherwise, as in the paper",
        more="With one pass alpha has no effect, and a warning says so.",
    )
    samples_per_mode: int = option(
        30,
        ge=1,
        doc="L noisy passes of each network in a prediction",
        more="`predict(samples_per_mode=...)` overrides it.",
    )

    @property
    def passes(self) -> int:
        """K as it is taken."""
        return passes_of(self.num_passes, self.alpha)


def passes_of(num_passes: int | None, alpha: float) -> int:
    """Return K: without `num_passes` the paper's 10, or 1 where alpha makes no use of more."""
    if num_passes is None:
        return 10 if alpha else 1
    return num_passes


def init(config: Dropout, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; refuses a network that draws nothing."""
    noisy, x = stack[[0]].set_mode("noisy"), next(problem.inputs(config.batch_size))
    if streams_of(noisy, x, False, 0) is None:
        raise ValueError(
            f"dropout needs a network that draws noise in training, but a pass of this"
            f" {type(stack.template).__name__} draws nothing. Add nn.Dropout(0.1) between its"
            " layers (pm.nets.mlp and pm.nets.lenet take dropout=0.1), or call F.dropout(h, p,"
            " self.training) in its forward method"
        )
    refuse_moving_buffers(stack, x)
    warn_of_idle_alpha(config)
    return map_.init(config, problem, stack)


def refuse_moving_buffers(stack: Stack, x: Tensor) -> None:
    """Refuse a network whose buffers change in a pass with its noise on: predictions would, too."""
    module = set_mode(stack.views.build(0, share=False), "noisy")
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    shapes_drawn(module, repeat_rows(x[:1], 2))
    moved = [n for n, tensor in module.named_buffers() if not torch.equal(tensor, before[n])]
    if moved:
        raise ValueError(
            f"a pass of this {type(stack.template).__name__} with its noise on changes"
            f" {len(moved)} of its buffers ({', '.join(moved[:3])}), so predictions would change"
            " them, too. Normalise with nn.BatchNorm1d or the like, which are frozen there, not by"
            " F.batch_norm(..., training=self.training)"
        )


def warn_of_idle_alpha(config: Dropout) -> None:
    """Warn where alpha has no effect."""
    if config.alpha and config.passes == 1:
        warn(
            f"alpha={config.alpha:g} has no effect with num_passes=1: the objective is then that"
            " of alpha=0. Take num_passes=10, or leave both out",
        )


def step(config: Dropout, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step on L̃_α / N of every member."""
    if config.passes == 1:
        return map_.step(config, problem, state, batch)
    stack, optimization, number = state
    loss = loss_of_passes(problem.likelihood, config.passes, config.alpha)
    losses = gradients_of_passes(
        stack, config.passes, loss, batch.x, batch.y, own=batch.own, step=number
    )
    losses = add_prior(losses, stack, config.prior_precision / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, number + 1), Info(losses)


def loss_of_passes(
    likelihood: Likelihood, passes: int, alpha: float
) -> Callable[[Tensor, Tensor, Tensors], Tensor]:
    """Return the loss of outputs (..., K B, C), pass by pass, and targets of the B examples."""
    axis = likelihood.batch_axis

    def loss(outputs: Tensor, y: Tensor, extra: Tensors) -> Tensor:
        if alpha == 0:  # the mean over all rows
            return likelihood.nll(outputs, torch.cat([y] * passes, axis), extra)
        log_likelihoods = likelihood.log_prob(outputs, torch.cat([y] * passes, axis), extra)
        objective = alpha_loss(log_likelihoods.unflatten(-1, (passes, -1)), alpha)
        return objective * likelihood.examples_per_observation(y)

    return loss


def finish(config: Dropout, problem: Problem, state: State) -> Noisy:
    """Return the networks with their noise on."""
    return Noisy(state.stack, config.samples_per_mode)


METHODS.register(
    "dropout",
    summary="networks that predict with their dropout left on; α-divergences",
    kind="one mode",
    needs="noise",
    equation="L̃ = (λ/2)‖θ‖² − (1/α) Σₙ log (1/K) Σₖ p(yₙ | f(xₙ, zₙₖ; θ))^α,"
    "  p(y | x) ≈ (1/L) Σₗ p(y | f(x, zₗ; θ)),  z ~ the network's noise",
    cost="1 × training (K × behind the noise for α > 0), L × prediction behind the noise",
    limits="The noise does not shrink with more data, since its rate is fixed; one mode.",
    paper="Gal & Ghahramani 2016; Li & Gal 2017",
    bibtex="""@inproceedings{gal2016dropout,
  title={Dropout as a {Bayesian} approximation: representing model uncertainty in deep learning},
  author={Gal, Yarin and Ghahramani, Zoubin},
  booktitle={International Conference on Machine Learning}, year={2016}}
@inproceedings{li2017dropout,
  title={Dropout inference in {Bayesian} neural networks with alpha-divergences},
  author={Li, Yingzhen and Gal, Yarin},
  booktitle={International Conference on Machine Learning}, year={2017}}""",
)(Method(Dropout, init, step, finish))
