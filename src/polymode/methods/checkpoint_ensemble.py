"""Checkpoint ensembles: networks of chosen epochs, or steps, of one run.

    p(y | x) ≈ (1/L) Σ_l p(y | f_{θ_l}(x)),   θ_l = weights after epoch (or step) e_l

A step is that of `map`, with any optimiser and schedule. Which networks are kept is said by `at`,
numbers of epochs or steps (`unit`); else they are spread over the run by `burn_in`, `thinning` and
`samples_per_mode`, as samples of a chain are. `num_modes` runs start from initialisations of their
own. With a schedule of cycles use `snapshot`.

The paper weighs checkpoints the same and picks those with the best validation scores. Here they are
picked by number; where examples are held out (see `map`), a checkpoint has the weights that were
best on them since the one before, with the noise that fits the errors there, and the run goes on
from it. So checkpoints are spread over the run. `holdout=0` keeps what the run has at e_l. Running
statistics of normalisation layers are kept as they are at the moment.

Limits: networks of one run are alike, less diverse than as many runs; no law that they sample.
Reference: H. Chen, S. Lundberg, S.-I. Lee, Checkpoint ensembles: ensemble methods from a single
    training process, arXiv:1710.03282, 2017.

Shapes: `M` modes (runs), `L` samples per mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from polymode.core.checks import Rule
from polymode.core.options import option, rule
from polymode.methods.map import MAP, Info
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.keeping import kept_samples
from polymode.methods.sampling.map_run import State, go_on, start
from polymode.posterior.weights import Samples
from polymode.stack.stack import Stack
from polymode.training.loop import Batch
from polymode.training.options import kept_steps


def _left_out(spread: str) -> Rule:
    """Return the rule that `at` leaves nothing to say for an option that spreads the networks."""
    return rule(
        f"`at` of {{name}} says which networks are kept: leave out {spread}",
        lambda config: config.at is None or getattr(config, spread) is None,
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointEnsemble(MAP):
    """Options of `checkpoint_ensemble`: those of `map`, and"""

    keeps_best_of_intervals: ClassVar[bool] = True
    at: Sequence[int] | None = option(
        None,
        rule=rule("ascending whole numbers from 1", lambda at: _ascends(at)),
        doc="numbers of the epochs or steps after which the networks are kept",
        none="spreads them by `burn_in`, `thinning` and `samples_per_mode`",
    )
    unit: str = option("epoch", choices=("epoch", "step"), doc="what `at` counts")
    burn_in: int | None = option(
        None, ge=0, doc="steps before the first that is kept", none="is half of all"
    )
    thinning: int | None = option(
        None, ge=1, doc="steps from one to the next", none="spreads them evenly"
    )
    samples_per_mode: int | None = option(
        None,
        ge=1,
        doc="networks L that each run keeps",
        none="is 20, or as many as there are steps for",
    )
    rules = (
        rule(
            "`unit` of {name} belongs to `at`: give both or none",
            lambda config: config.at is not None or config.unit == "epoch",
        ),
        *(_left_out(spread) for spread in ("burn_in", "thinning", "samples_per_mode")),
    )


def _ascends(at: object) -> bool:
    """Whether these are whole numbers from 1, each larger than the one before."""
    if not isinstance(at, Sequence) or not all(type(number) is int for number in at):
        return False
    return len(at) > 0 and at[0] > 0 and all(a < b for a, b in zip(at, at[1:], strict=False))


def steps_kept(config: CheckpointEnsemble, problem: Problem) -> Sequence[int]:
    """Return the numbers of steps after which networks are kept."""
    total = config.total_steps(problem.steps_per_epoch)
    if config.at is None or total == 0:
        return kept_steps(total, config.burn_in, config.thinning, config.samples_per_mode)
    unit = problem.steps_per_epoch if config.unit == "epoch" else 1
    steps = tuple(number * unit for number in config.at)
    if steps[-1] > total:
        raise ValueError(
            f"`at` of CheckpointEnsemble names {config.unit} {config.at[-1]}, but there are"
            f" {total // unit}; take more epochs, or an earlier {config.unit}"
        )
    return steps


def init(config: CheckpointEnsemble, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step."""
    return start(config, problem, stack, steps_kept(config, problem))


def step(
    config: CheckpointEnsemble, problem: Problem, state: State, batch: Batch
) -> tuple[State, Info]:
    """Take one step, and keep networks where it is time."""
    return go_on(config, problem, state, batch, steps_kept(config, problem))


def finish(config: CheckpointEnsemble, problem: Problem, state: State) -> Samples:
    """Return the networks that were kept; those of the state where no step was taken."""
    return kept_samples(state.stack, state.kept, steps_kept(config, problem), state.step)


METHODS.register(
    "checkpoint_ensemble",
    summary="networks of chosen epochs of one run",
    kind="one mode",
    equation="p(y | x) ≈ (1/L) Σₗ p(y | f(x; θₗ)),  θₗ = weights after epoch e_l",
    cost="1 × training, L × prediction",
    limits="Networks of one run are alike; they sample no law that is known.",
    paper="Chen et al. 2017",
    bibtex="""@article{chen2017checkpoint,
  title={Checkpoint ensembles: ensemble methods from a single training process},
  author={Chen, Hugh and Lundberg, Scott and Lee, Su-In},
  journal={arXiv:1710.03282}, year={2017}}""",
)(Method(CheckpointEnsemble, init, step, finish))
