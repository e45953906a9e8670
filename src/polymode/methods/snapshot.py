"""Snapshot ensembles: one run whose rate falls to zero again and again, a network at each bottom.

    lr_k = lr · ½ (1 + cos(π r)),   r = place of step k in its cycle, in [0, 1)
    p(y | x) ≈ (1/L) Σ_l p(y | f_{θ_l}(x)),   θ_l = weights at the end of cycle l

A step is that of `map`: SGD on the log-posterior. At the end of each of `num_cycles` cycles a
network is kept, and the large rate at the beginning of the next drives it elsewhere. The last L =
`samples_per_mode` of them predict. `num_modes` runs start from initialisations of their own.

The factor is that of the paper's equation 2; `schedule` names another one to be followed within
each cycle. Where the cycles do not divide the steps their lengths differ by one, while the paper
rounds up and cuts the last. Running statistics of normalisation layers are kept as they are at the
end of each cycle.

Where examples are held out (see `map`), a cycle ends with the weights that were best on them in the
cycle, with the noise that fits the errors there, and the next one begins with these. `holdout=0` is
the paper's.

Limits: networks of one run are alike, less diverse than as many runs; no law that they sample.
Reference: G. Huang, Y. Li, G. Pleiss, Z. Liu, J. Hopcroft, K. Weinberger, Snapshot ensembles: train
    1, get M for free, ICLR 2017.

Shapes: `M` modes (runs), `L` samples per mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polymode.core.options import option, rule
from polymode.methods.map import MAP, Info
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.cycles import cycle_ends, place
from polymode.methods.sampling.keeping import kept_samples
from polymode.methods.sampling.map_run import State, go_on, start
from polymode.posterior.weights import Samples
from polymode.stack.stack import Stack
from polymode.training.loop import Batch
from polymode.training.optimiser import MakeOptimizer, MakeSchedule


@dataclass(frozen=True, kw_only=True)
class Snapshot(MAP):
    """Options of `snapshot`: those of `map`, by default with SGD, and"""

    keeps_best_of_intervals: ClassVar[bool] = True
    optimizer: str | MakeOptimizer = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    clip_norm: float | None = 1.0
    schedule: str | MakeSchedule = option(
        "cosine",
        doc="factor of `lr`, from its beginning to its end in each cycle",
        more="'cosine' is the paper's. A function from the optimiser to a torch scheduler is not"
        " restarted: its cycles are its own.",
    )
    num_cycles: int = option(
        5,
        ge=1,
        doc="cycles of the learning rate, of equal length up to one step",
        more="The paper has 5 or 6.",
    )
    samples_per_mode: int | None = option(
        None,
        ge=1,
        doc="last L cycles whose networks are kept, at most `num_cycles`",
        none="keeps all",
    )
    rules = (
        rule(
            "`samples_per_mode` of {name} must be at most num_cycles={config.num_cycles}, a network"
            " of each cycle, got {config.samples_per_mode}",
            lambda config: (config.samples_per_mode or 1) <= config.num_cycles,
        ),
    )


def _ends(config: Snapshot, problem: Problem) -> tuple[int, ...]:
    total = config.total_steps(problem.steps_per_epoch)
    return cycle_ends(total, config.num_cycles)


def steps_kept(config: Snapshot, problem: Problem) -> tuple[int, ...]:
    """Return the last steps of the last L cycles."""
    return _ends(config, problem)[-(config.samples_per_mode or config.num_cycles) :]


def init(config: Snapshot, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step."""
    return start(config, problem, stack, steps_kept(config, problem))


def step(config: Snapshot, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step, at the rate of its place in the cycle."""
    before, length = place(_ends(config, problem), state.step)
    steps = steps_kept(config, problem)
    return go_on(config, problem, state, batch, steps, done=before / length)


def finish(config: Snapshot, problem: Problem, state: State) -> Samples:
    """Return the networks that were kept; those of the state where no step was taken."""
    return kept_samples(state.stack, state.kept, steps_kept(config, problem), state.step)


METHODS.register(
    "snapshot",
    summary="networks at the ends of cycles of the learning rate, one run",
    kind="one mode",
    equation="lr_k = lr ½ (1 + cos πr);  p(y | x) ≈ (1/L) Σₗ p(y | f(x; θₗ)), θₗ ends cycle l",
    cost="1 × training, L × prediction",
    limits="Networks of one run are alike; they sample no law that is known.",
    paper="Huang et al. 2017",
    bibtex="""@inproceedings{huang2017snapshot,
  title={Snapshot ensembles: train 1, get {M} for free},
  author={Huang, Gao and Li, Yixuan and Pleiss, Geoff and Liu, Zhuang and Hopcroft, John E. and
    Weinberger, Kilian Q.},
  booktitle={International Conference on Learning Representations}, year={2017}}""",
)(Method(Snapshot, init, step, finish))
