"""`prior_precision="auto"` for whole networks: λ that `laplace_map` ends with on one member.

A copy of the first member is trained as by `laplace_map`, with one λ for all weights: at intervals
λ ← γ / ‖θ‖², γ the number of weights that the data determine. The evidence of the linear model at
θ* (`laplace`) is not taken: its λ belongs to the tangent's weights, far from θ̃, and networks that
are trained with it learn too little (yacht: λ = 373, NLL 4.2; here 33 and .7).

It costs one training more, whatever the number of members. λ helps where functions are smooth and
noise is small (yacht, energy), and costs a little elsewhere (concrete, sine), so it is no default:
docs/decisions/0025.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from polymode.methods import laplace_map
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.events import Observer
from polymode.training.loop import run

UPDATES = 10  # of λ, where the number of epochs is given


def online_prior(
    config: Any, problem: Problem, stack: Stack, observers: tuple[Observer, ...] = ()
) -> tuple[float, dict[str, Any]]:
    """Return λ, and what is said of the choice.

    Args:
        config: options of the method, of which batches and epochs are taken.
        problem: with all training data. stack: the networks before training; it is not changed.
    """
    assert problem.data is not None
    if stack.common:
        raise ValueError(
            "prior_precision='auto' trains a copy of one member to find λ, but these members train"
            " weights in common; give a number"
        )
    total = config.total_steps(problem.steps_per_epoch)
    every = None if config.epochs is None else max(1, total // UPDATES)
    options = laplace_map.LaplaceMAP(
        prior="single", epochs=config.epochs, batch_size=config.batch_size, evidence_every=every,
        augment=config.augment,
    )  # fmt: skip
    try:
        state = laplace_map.init(options, problem, stack[[0]])
        state = run(
            partial(laplace_map.step, options, problem), state, problem.data, options,
            seed=problem.seed, what="prior of the first member", observers=observers,
        )  # fmt: skip
    except (ValueError, ArithmeticError) as error:
        raise ValueError(
            "prior_precision='auto' trains a member as by laplace_map to find λ, which is not"
            f" possible here: {error}"
        ) from error
    precision = next(iter(state.precision.values()))[0]
    facts = {"by": "online evidence of the first member", "examples": len(problem.data)}
    return float(f"{float(precision):.3g}"), facts
