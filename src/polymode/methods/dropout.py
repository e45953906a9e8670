"""MC dropout: a network trained with dropout, and predictions with dropout left on.

    L(θ) = E_z [ Σ_n −log p(y_n | f_θ(x_n, z)) ] + (λ/2) ‖θ‖²,        λ = `prior_precision`
    p(y | x) ≈ (1/L) Σ_l p(y | f_θ(x, z_l)),        z ~ the network's own noise

Training with dropout minimises a variational bound whose approximate posterior switches units off
at random: this is its α = 0, the variational objective. One noise z per example is drawn in each
step. In a prediction, sample l has one z_l for all inputs, so it is one function of x, and
predictions do not depend on the batch size. `samples_per_mode` is L, `num_modes` trains several
networks.

Any noise that the network's forward pass draws counts: dropout as a layer, as a function or inside
attention, DropConnect, Gaussian noise. It is found by looking at a pass, not by the classes of
layers. Normalisation layers predict with their running statistics while the noise stays on.

The prior is that of `map`: θ ~ N(0, λ⁻¹ I) over all trainable parameters, so λ/N is the weight
decay of a mean loss. In the papers' terms, a length-scale l and a layer whose inputs are kept with
probability p have λ = p l² (for regression with a known precision τ, the mean squared error takes
weight decay p l² / (τ N)).

Limits: the noise does not shrink with more data unless rates are learned; the mean over samples of
a trained network is what dropout approximates by switching the noise off.
Reference: Y. Gal, Z. Ghahramani, Dropout as a Bayesian approximation, ICML 2016.

Shapes: `M` modes, `L` samples per mode, `B` batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from polymode.core.execution import streams_of
from polymode.core.stack import Stack
from polymode.methods import map as map_
from polymode.methods.map import MAP, State
from polymode.methods.method import METHODS, Method, Problem
from polymode.posterior import Noisy


@dataclass(frozen=True, kw_only=True)
class Dropout(MAP):
    """Options of `dropout`: those of `map`, and

    Args:
        samples_per_mode: L noisy passes of each network in a prediction, ≥ 1.
    """

    samples_per_mode: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_integer("samples_per_mode", 1)


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
    return map_.init(config, problem, stack)


def finish(config: Dropout, problem: Problem, state: State) -> Noisy:
    """Return the networks with their noise on."""
    return Noisy(state.stack, config.samples_per_mode)


METHODS.register(
    "dropout",
    summary="networks that predict with their dropout left on",
    kind="one mode",
    needs="noise",
    equation="p(y | x) ≈ (1/L) Σₗ p(y | f(x, zₗ; θ)),  z ~ the network's noise",
    cost="1 × training, L × prediction",
    limits="The noise does not shrink with more data unless rates are learned; one mode.",
    paper="Gal & Ghahramani 2016",
    bibtex="""@inproceedings{gal2016dropout,
  title={Dropout as a {Bayesian} approximation: representing model uncertainty in deep learning},
  author={Gal, Yarin and Ghahramani, Zoubin},
  booktitle={International Conference on Machine Learning}, year={2016}}""",
)(Method(Dropout, init, map_.step, finish))
