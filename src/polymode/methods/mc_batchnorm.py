"""MC batch normalisation: predictions under the statistics of random training batches.

    p(y | x) ≈ (1/L) Σ_l p(y | f_θ(x; μ_l, σ_l²)),   (μ_l, σ_l²) of a training batch, at each layer

A network with BatchNorm is trained as by `map`. In training each batch is normalised by its own
means and variances, so an output depends on which examples are beside it: noise that Teye et al.
read as an approximate posterior. For sample l a random training batch goes through the network in
training mode, and the statistics that each BatchNorm layer uses for it are kept: variances without
Bessel's correction, as in that pass. A prediction is then a function of x, whatever is beside it.

The L sets of statistics are chosen once, a function of (seed, mode, l), and saved; all samples of a
mode have the same weights. Post-hoc: networks that are given are taken as they are, so that the
statistics of a trained network's own data are all it takes.

Limits: the spread is that of batches of `statistics_batch_size`; it does not shrink with more data,
and it is no posterior of the weights; large batches leave next to none. Layers with statistics per
example (LayerNorm, GroupNorm, InstanceNorm) have no such noise. Teye et al. train with the batch
size that they predict with, and so should you.
Reference: M. Teye, H. Azizpour, K. Smith, Bayesian uncertainty estimation for batch normalized deep
    networks, ICML 2018.

Shapes: `M` modes, `L` samples per mode, `B` batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.core.rng import fold
from polymode.core.safe_files import TensorForm
from polymode.methods import map as map_
from polymode.methods.map import MAP, State
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.keeping import require_room
from polymode.posterior.weights import KINDS, Weights, form_of
from polymode.stack.stack import Stack
from polymode.stack.statistics import BATCH_NORMS, set_batch_statistics
from polymode.tracing.modules import Tensors, keeps_statistics

STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True, kw_only=True)
class MCBatchNorm(MAP):
    """Options of `mc_batchnorm`: those of `map`, and"""

    samples_per_mode: int = option(
        30, ge=1, doc="L batches whose statistics are kept, of each network"
    )
    statistics_batch_size: int | None = option(
        None,
        ge=2,
        doc="examples of such a batch",
        none="is `batch_size`, as in training",
        more="Fewer examples are noisier.",
    )


def init(config: MCBatchNorm, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; refuses a network without BatchNorm."""
    names = names_of_statistics(stack)
    if not names:
        raise ValueError(
            f"mc_batchnorm needs a network with BatchNorm, but this {type(stack.template).__name__}"
            " has no nn.BatchNorm1d, 2d or 3d with running statistics that are trained; put one"
            " between its layers, or take dropout or swag"
        )
    size = sum(tensor.numel() * tensor.element_size() for tensor in names.values())
    require_room(config.samples_per_mode * size, stack, "statistics of mc_batchnorm")
    return map_.init(config, problem, stack)


def names_of_statistics(stack: Stack) -> Tensors:
    """Return the statistics (M, C) of all BatchNorm layers, by the names of buffers."""
    return {
        name: stack.buffers[name]
        for path, layer in stack.template.named_modules()
        if isinstance(layer, BATCH_NORMS) and not keeps_statistics(layer)
        for name in (f"{path}.{kind}" if path else kind for kind in STATISTICS)
        if name in stack.buffers
    }


class BatchStatistics(Weights):
    """Networks that normalise by the statistics of chosen batches.

    Args:
        stack: one network per mode.
        statistics: means and variances (M, L, C) by the names of buffers.
    """

    kind = "batch_statistics"

    def __init__(self, stack: Stack, statistics: Tensors) -> None:
        self.stack, self.statistics = stack, statistics
        self.samples_per_mode = self.most = next(iter(statistics.values())).shape[1]

    def draw(self, number: int, seed: int) -> Stack:
        assert 0 <= number < self.samples_per_mode, number
        drawn = {name: tensor[:, number] for name, tensor in self.statistics.items()}
        return self.stack.with_tensors({}, drawn)

    def __getitem__(self, modes: slice) -> BatchStatistics:
        statistics = {name: tensor[modes] for name, tensor in self.statistics.items()}
        return BatchStatistics(self.stack[modes], statistics)

    def tensors(self) -> Tensors:
        named = {f"statistics/{name}": tensor for name, tensor in self.statistics.items()}
        return self.stack.tensors() | named

    @classmethod
    def layout(
        cls, stack: Stack, forms: Mapping[str, TensorForm], numbers: dict[str, Any]
    ) -> dict[str, TensorForm]:
        """L sets of statistics of every BatchNorm layer."""
        samples = numbers["samples_per_mode"]
        if type(samples) is not int or samples < 1:
            raise ValueError(f"`samples_per_mode` must be at least 1, got {samples!r:.40}")
        return {
            f"statistics/{name}": form_of(tensor, (len(tensor), samples, *tensor.shape[1:]))
            for name, tensor in names_of_statistics(stack).items()
        }

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> BatchStatistics:
        statistics = {name.removeprefix("statistics/"): t for name, t in tensors.items()}
        return cls(stack, statistics)


KINDS[BatchStatistics.kind] = BatchStatistics


def finish(config: MCBatchNorm, problem: Problem, state: State) -> BatchStatistics:
    """Return the networks with the statistics of L random batches each."""
    stack = state.stack
    samples, size = config.samples_per_mode, config.statistics_batch_size or config.batch_size
    scratch = stack.with_tensors({}, {name: t.clone() for name, t in stack.buffers.items()})
    kept: dict[str, list[Tensor]] = {name: [] for name in names_of_statistics(stack)}
    for k in range(stack.num_modes):
        batches = islice(random_batches(problem, size, stack.seeds[k]), samples)
        rows: dict[str, list[Tensor]] = {name: [] for name in kept}
        for number, x in enumerate(batches):
            set_batch_statistics(scratch, k, x, number)
            for name, tensors in rows.items():
                tensors.append(scratch.buffers[name][k].clone())
        for name, tensors in rows.items():
            kept[name].append(torch.stack(tensors))
    return BatchStatistics(stack, {name: torch.stack(rows) for name, rows in kept.items()})


def random_batches(problem: Problem, size: int, seed: int) -> Iterator[Tensor]:
    """Yield inputs (B, ...) of shuffled passes over the training data without end; a last batch
    that is smaller than the others is left out."""
    assert problem.data is not None
    for number in count():
        largest = 0
        for x, _ in problem.data.epoch(size, fold(seed, "batch statistics", number)):
            if len(x) >= largest:
                largest = len(x)
                yield x


METHODS.register(
    "mc_batchnorm",
    summary="predictions under the batch statistics of random training batches",
    kind="one mode",
    needs="BatchNorm",
    equation="p(y | x) ≈ (1/L) Σₗ p(y | f(x; θ, μₗ, σₗ²)),  (μₗ, σₗ²) of a random training batch",
    cost="1 × training, L × prediction",
    limits="The noise is that of the batch size, does not shrink with more data, and is no"
    " posterior of the weights; networks with BatchNorm only.",
    paper="Teye et al. 2018",
    bibtex="""@inproceedings{teye2018bayesian,
  title={{Bayesian} uncertainty estimation for batch normalized deep networks},
  author={Teye, Mattias and Azizpour, Hossein and Smith, Kevin},
  booktitle={International Conference on Machine Learning}, year={2018}}""",
)(Method(MCBatchNorm, init, map_.step, finish, post_hoc=True))
