"""An exponential moving average (EMA) of the weights of a run, one network per mode.

    θ̄_t = Σ_{i ≤ t} β^{t−i} θ_i / Σ_{i ≤ t} β^{t−i},        β = `decay`

θ_i are the weights after step i. The divisor is Adam's correction of the start: the initial weights
have no share, whatever β is. About the last 1 / (1 − β) steps count. Without `decay` these are a
tenth of the run, between 10 and 10,000 steps, so that the average keeps its meaning in short and
long runs. The training itself does not know of the average.

A likelihood's own parameters (learned noise) are averaged, too. Networks with running statistics
(BatchNorm) get those of one pass over the training inputs at the end: the run's belong to other
weights. Where examples are held out (see `map`), it is the average that is scored on them, with the
statistics of the moment, and the best average that is kept.

Limits: a point, so no epistemic uncertainty within a mode; with a rate that falls to 0 the last
weights are about as good as their average.
References: B. Polyak, A. Juditsky, Acceleration of stochastic approximation by averaging, SIAM J.
    Control Optim. 30(4), 1992; A. Tarvainen, H. Valpola, Mean teachers are better role models,
    NeurIPS 2017, for the exponential form.

Shapes: `M` modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polymode.core.options import option
from polymode.methods import map as map_
from polymode.methods.map import MAP, Info
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.swa import State, average_in, averaged, start
from polymode.posterior import Samples
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

SHARE, SHORTEST, LONGEST = 0.1, 10, 10_000  # of the steps, that count without a `decay`


@dataclass(frozen=True, kw_only=True)
class EMA(MAP):
    """Options of `ema`: those of `map`, and"""

    keeps_best_of_intervals: ClassVar[bool] = True  # `step` scores the averages itself
    decay: float | None = option(
        None,
        ge=0,
        lt=1,
        doc="β, the weight of the average in each step",
        none="is 1 − 1/n for n a tenth of all steps, at least 10 and at most 10,000",
        more="0 is the last weights. Large runs on images use 0.999 to 0.9999.",
    )


def decay_of(config: EMA, problem: Problem) -> float:
    """Return β as it is taken."""
    if config.decay is not None:
        return config.decay
    steps = SHARE * config.total_steps(problem.steps_per_epoch)
    return 1 - 1 / min(max(steps, SHORTEST), LONGEST)


def init(config: EMA, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step."""
    return start(config, problem, stack)


def step(config: EMA, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every member, and move its average."""
    plain = map_.State(state.stack, state.optimization, state.step)
    plain, info = map_.step(config, problem, plain, batch)
    state = state._replace(step=plain.step)
    decay = decay_of(config, problem)
    average_in(state, (1 - decay) / (1 - decay**state.step))
    if problem.selection is not None and state.step in problem.selection.evidence.moments:
        problem.selection.add(state.step, with_average(state))
    return state, info


def with_average(state: State) -> Stack:
    """Return the networks with the averages in place of their weights."""
    average, params = list(state.average.values()), state.stack.params
    extra = dict(zip(state.stack.extra, average[len(params) :], strict=True))
    averaged_params = dict(zip(params, average, strict=False))
    return state.stack.with_tensors(averaged_params, extra=extra)


def finish(config: EMA, problem: Problem, state: State) -> Samples:
    """Return the averaged networks: the best of them, which the state ends with, where they were
    scored."""
    if state.step == 0:
        return Samples(state.stack)
    selection = problem.selection
    is_best = selection is not None and bool(selection.score.isfinite().all())
    average = state.stack.leaves() if is_best else list(state.average.values())
    return averaged(state.stack, average, config, problem)


METHODS.register(
    "ema",
    summary="an exponential moving average of the weights along a run",
    kind="one mode",
    equation="θ̄_t ∝ Σᵢ β^(t−i) θᵢ",
    cost="1 × training, 1 × prediction",
    limits="A point estimate: no epistemic uncertainty within a mode; weights can be averaged only"
    " along one run.",
    paper="Polyak & Juditsky 1992; Tarvainen & Valpola 2017",
    bibtex="""@article{polyak1992acceleration,
  title={Acceleration of stochastic approximation by averaging},
  author={Polyak, Boris T. and Juditsky, Anatoli B.},
  journal={SIAM Journal on Control and Optimization}, volume={30}, number={4}, year={1992}}
@inproceedings{tarvainen2017mean,
  title={Mean teachers are better role models: weight-averaged consistency targets improve
    semi-supervised deep learning results},
  author={Tarvainen, Antti and Valpola, Harri},
  booktitle={Advances in Neural Information Processing Systems}, year={2017}}""",
)(Method(EMA, init, step, finish))
