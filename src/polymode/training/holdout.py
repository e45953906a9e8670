"""Examples that members leave out of their training: when to stop, and how large the noise is.

Member k leaves out fold k mod 10 of the examples, so no example is lost to the ensemble, and member
k is the same whatever the number of members is. At moments spread over the training each member is
scored on its own fold; at the end it gets the weights back that scored best, and learned noise is
set to what fits the errors on the fold, since errors on examples that were trained on are too
small. Members that share their batches leave out one fold together. Where there are data for
validation, they take the fold's place and nothing is left out.

Scores are computed so rarely that they cost about a twentieth of the training. All of it is a
function of the step, and the best weights so far are part of a checkpoint.

Shapes: `M` modes, `B` batch, `H` examples held out by a member, `D` target dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polymode.core.options import Config, option
from polymode.core.rng import generator
from polymode.distributed import ranks
from polymode.likelihoods.components import Categories
from polymode.likelihoods.kinds import Likelihood
from polymode.stack.stack import Stack
from polymode.training.batches import Pair, spans
from polymode.training.data import Data
from polymode.training.history import outputs_of, spread_rows
from polymode.training.loaders import Loader
from polymode.training.options import Passes

FOLDS = 10
LARGEST = 1000  # examples of a fold: more would tell little more and cost data
FEWEST = 40  # examples to train on: below, a fold of a tenth says nothing
SHORTEST = 100  # steps: below, there is nothing to choose between
MOMENTS = 100  # at most
PER_MOMENT = 10  # steps at least
COST = 0.15  # examples scored for one that is trained on, which costs three times as much
BATCH = 256  # rows at a time
NEWTON_STEPS = 20
CLOSE = 1e-6  # slope of the mean NLL by the log-scale


@dataclass(frozen=True, kw_only=True)
class HeldOut(Config):
    """Options of training that is judged on held-out examples:"""

    holdout: float | None = option(
        None,
        ge=0,
        le=0.5,
        doc="share of the data that each member leaves out, to keep the weights that are best on"
        " it and to set learned noise",
        none="is a tenth, at most 1,000 examples",
        more="Member k leaves out fold k mod 10. Validation data of the task take the fold's place;"
        " then nothing is left out. None leaves out nothing, either, of fewer than 40 examples, in"
        " fewer than 100 steps, and of a loader whose examples have no numbers. 0 trains on"
        " everything to the last step.",
    )


class WithoutFolds:
    """Training data of which every member leaves out the examples of a fold.

    Args:
        data: all examples. folds: (M, H) numbers of those that each member leaves out; one row
            where all leave out the same.
    """

    def __init__(self, data: Data, folds: Tensor) -> None:
        self.data, self.folds = data, folds
        everything = torch.ones(len(folds), len(data), dtype=torch.bool)
        everything.scatter_(1, folds, False)
        self.rows = everything.nonzero()[:, 1].view(len(folds), -1)
        self.can_reorder = data.can_reorder

    def __len__(self) -> int:
        return self.rows.shape[1]

    def num_batches(self, batch_size: int) -> int:
        if isinstance(self.data, Loader):
            return self.data.only(self.rows[0]).num_batches(batch_size)
        return len(spans(len(self), batch_size))

    def epoch(self, batch_size: int, seed: int, start: int = 0) -> Iterator[Pair]:
        """Yield the shuffled batches of one pass over what is left by the first fold."""
        return self.data.epoch(batch_size, seed, start, rows=self.rows[0])

    def epoch_each(self, batch_size: int, seeds: Sequence[int], start: int = 0) -> Iterator[Pair]:
        """Yield batches (M, B, ...), every member's from what its own fold leaves."""
        return self.data.epoch_each(batch_size, seeds, start, rows=self.rows)

    def held_out(self, batch_size: int) -> Iterator[Pair]:
        """Yield the held-out examples (M, B, ...), or (1, B, ...) where all leave out the same."""
        return self.data.batches_each(batch_size, self.folds)


Source = Data | WithoutFolds  # what the training loop reads


@dataclass(frozen=True)
class Evidence:
    """What members are scored on, and when.

    Attributes:
        moments: steps after which they are.
        examples: number of examples H.
        by_member: whether each member has examples of its own.
        batches: returns the examples, (x, y) in batches.
        source: where they come from, for people.
    """

    moments: frozenset[int]
    examples: int
    by_member: bool
    batches: Callable[[], Iterator[Pair]]
    source: str


@dataclass(frozen=True)
class Division:
    """Training data, and the evidence that was taken out of them or comes from elsewhere."""

    train: Source
    evidence: Evidence | None


def divide(
    data: Data, val: Data | None, config: Any, seed: int, num_modes: int, *, one_fold: bool = False
) -> Division:
    """Return what is trained on and what is held out, by the options of the method.

    With `one_fold` all members leave out the same examples, as they must where they train weights
    in common: those would see a member's own fold through the others.
    """
    share = getattr(config, "holdout", 0.0)
    per_epoch = data.num_batches(config.batch_size)
    steps = config.total_steps(per_epoch)
    if share == 0 or steps == 0 or (share is None and steps < SHORTEST):
        return Division(data, None)
    if val is not None:
        pairs = spread_rows(val, min(len(val), LARGEST))
        size = sum(len(y) for _, y in pairs)
        moments = _moments(steps, size, len(data) * config.num_epochs(per_epoch))
        return Division(
            data, Evidence(moments, size, False, lambda: iter(pairs), "validation data")
        )
    if share is None and (len(data) < FEWEST or not data.can_divide):
        return Division(data, None)
    if not data.can_divide:
        raise ValueError(
            "`holdout` needs examples that can be told apart, but a pass of this loader has no"
            " numbers of examples. Give arrays, a Dataset, a DataLoader with the usual samplers, or"
            " validation data: pm.Task(val=...); holdout=0 trains on everything"
        )
    size = _fold_size(len(data), share)
    own = config.data_order == "own" and data.can_reorder
    folds = _folds(len(data), size, seed, num_modes if own and not one_fold else None)
    folds = folds.expand(num_modes, -1) if own else folds
    train = WithoutFolds(data, folds)
    per_epoch = train.num_batches(config.batch_size)
    steps = config.total_steps(per_epoch)
    moments = _moments(steps, size, len(train) * config.num_epochs(per_epoch))
    personal = own and not one_fold
    source = "a fold of its own for each member" if personal else "one fold for all members"
    batches = partial(train.held_out, BATCH) if own else partial(_first_of, train)
    return Division(train, Evidence(moments, size, own, batches, source))


def _first_of(train: WithoutFolds) -> Iterator[Pair]:
    """Yield the batches of the one fold that all members leave out."""
    for x, y in train.held_out(BATCH):
        yield x[0], y[0]


def _fold_size(num_examples: int, share: float | None) -> int:
    size = int(num_examples * share) if share else min(num_examples // FOLDS, LARGEST)
    if not 0 < size < num_examples:
        raise ValueError(
            f"holdout={share:g} of {num_examples} examples is {size} of them; take more, or"
            " holdout=0 to train on everything"
        )
    return size


def _folds(num_examples: int, size: int, seed: int, num_modes: int | None) -> Tensor:
    """Return the examples that each member leaves out, (M, size), or (1, size) for all alike."""
    order = torch.randperm(num_examples, generator=generator(seed, "folds"))
    folds = order[: num_examples // size * size].view(-1, size)[:FOLDS]
    numbers = [0] if num_modes is None else [ranks.mode_number(k) for k in range(num_modes)]
    return folds[torch.tensor(numbers) % len(folds)]


def _moments(steps: int, examples: int, trained: int) -> frozenset[int]:
    """Return the steps after which members are scored; the last is one of them."""
    number = min(MOMENTS, steps // PER_MOMENT, int(COST * trained / examples))
    number = max(number, 1)
    return frozenset(round(steps * k / number) for k in range(1, number + 1))


class Selection:
    """Scores members during the training, and keeps the best weights of each.

    Args:
        evidence: what they are scored on. passes: options of the method, which say whether members
            stop at one step, and whether the method asks for the best weights of every interval.
    """

    def __init__(
        self, evidence: Evidence, likelihood: Likelihood, stack: Stack, passes: type[Passes]
    ) -> None:
        self.evidence, self.likelihood = evidence, likelihood
        self.together, self.by_interval = passes.stops_together, passes.keeps_best_of_intervals
        self.score = torch.full((stack.num_modes,), torch.inf, dtype=torch.float64)
        self.step = torch.zeros(stack.num_modes, dtype=torch.int64)
        self.best = {name: tensor.clone() for name, tensor in _what_changes(stack).items()}

    @torch.no_grad()
    def add(self, step: int, stack: Stack) -> None:
        """Score the members if this is a moment, and keep those that are better than before."""
        if step in self.evidence.moments:
            self._compare(step, stack)

    @torch.no_grad()
    def add_within(self, step: int, stack: Stack, ends: Sequence[int]) -> None:
        """Do the same within an interval; at its end, give each member the best weights of it.

        Args:
            ends: last steps of the intervals, ascending. Members are scored at each of them.
        """
        if step - 1 in ends:
            self.score.fill_(torch.inf)
        if step in ends or step in self.evidence.moments:
            self._compare(step, stack)
        if step in ends:
            self.restore(stack)

    def _compare(self, step: int, stack: Stack) -> None:
        scores, noise = self._scored(stack)
        better = scores < self.score
        if self.together:
            better[:] = bool(ranks.gather(scores).mean() < ranks.gather(self.score).mean())
        self.score[better], self.step[better] = scores[better], step
        for name, tensor in (_what_changes(stack) | noise).items():
            chosen = better[: len(tensor)].to(tensor.device)  # one row of what members share
            self.best[name][chosen] = tensor[chosen]

    def _scored(self, stack: Stack) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's mean NLL on its examples (M,), and the noise that was taken.

        With learned noise that is the maximum of the likelihood on these very examples: so the
        network is judged by its errors, and not by what it took them to be.
        """
        evidence = self.evidence
        parts = [(outputs_of(stack, x, own=evidence.by_member), y) for x, y in evidence.batches()]
        if not self.likelihood.learns:
            sums = [
                self.likelihood.log_prob(outputs, y, stack.extra).double().flatten(1).sum(1)
                for outputs, y in parts
            ]
            numbers = [_observations(self.likelihood, outputs, y) for outputs, y in parts]
            losses = -torch.stack(sums).sum(0) / sum(numbers)
            return losses.cpu().nan_to_num(torch.inf), {}
        outputs = torch.cat([part for part, _ in parts], 1)
        y = torch.cat([part for _, part in parts], 1 if evidence.by_member else 0)
        noise = fitted_noise(self.likelihood, outputs, y, stack)
        losses = self.likelihood.nll(outputs, y, {**stack.extra, **noise})
        named = {f"extra/{name}": tensor for name, tensor in noise.items()}
        return losses.double().cpu().nan_to_num(torch.inf), named

    @torch.no_grad()
    def set_noise(self, stack: Stack) -> None:
        """Set learned noise to what fits the errors of these networks on the held-out examples."""
        if self.likelihood.learns:
            stack.eval()
            for name, tensor in self._scored(stack)[1].items():
                stack.tensors()[name].copy_(tensor)

    def restore(self, stack: Stack) -> None:
        """Give each member its best weights back."""
        if self.score.isfinite().all():
            for name, tensor in _what_changes(stack).items():
                tensor.copy_(self.best[name])

    @torch.no_grad()
    def gain(self, stack: Stack) -> Tensor | None:
        """Return by how much members are better than the best constant on their examples, (n,).

        In nats for classes; for values in squared units of the targets' standard deviation. None
        where an example has several observations, or weights.
        """
        if self.likelihood.num_axes:
            return None
        parts = list(self.evidence.batches())
        if not all(isinstance(y, Tensor) for _, y in parts):
            return None
        by_member = self.evidence.by_member
        outputs = torch.cat([outputs_of(stack, x, own=by_member) for x, _ in parts], 1)
        y = torch.cat([part for _, part in parts], 1 if by_member else 0)
        stack.eval()
        return ranks.gather(_gain(self.likelihood, outputs, y, stack).flatten())

    def tensors(self) -> dict[str, Tensor]:
        """Return all that the rest of the run needs, (M, ...) each."""
        return {"score": self.score, "step": self.step} | {
            f"best/{name}": tensor for name, tensor in self.best.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `tensors` gave."""
        saved = self.tensors()
        if saved.keys() != tensors.keys():
            raise ValueError("its best weights are those of another network")
        for name, tensor in saved.items():
            tensor.copy_(tensors[name])

    def facts(self) -> dict[str, Any]:
        """Return what is worth knowing of it afterwards, JSON-safe, for all ranks' members."""
        return {
            "on": self.evidence.source,
            "examples": self.evidence.examples,
            "steps": ranks.gather(self.step).tolist(),
            "nll": ranks.gather(self.score).tolist(),
        }


def _gain(likelihood: Likelihood, outputs: Tensor, y: Tensor, stack: Stack) -> Tensor:
    """Return what outputs (M, B, K) gain over the best constant at targets, (M, B)."""
    if y.dim() < (2 if likelihood.classification else 3):  # members have the same examples
        y = y.expand(len(outputs), *y.shape)
    if likelihood.classification:
        classes = int(y.max()) + 1
        counts = torch.stack([torch.bincount(row, minlength=classes) for row in y])
        shares = (counts / counts.sum(1, keepdim=True)).log()
        return likelihood.log_prob(outputs, y, stack.extra) - shares.gather(1, y)
    components = likelihood.components(outputs, stack.extra)
    assert not isinstance(components, Categories)
    centred = y - y.mean(1, keepdim=True)
    scale = centred.square().mean((0, 1)).clamp_min(1e-30)
    errors = (components.loc - y).square()
    return ((centred.square() - errors) / scale).sum(-1)


def _observations(likelihood: Likelihood, outputs: Tensor, y: Any) -> Tensor | float:
    """Return how many observations the examples of outputs (M, B, ...) have, (M,) or one number."""
    return outputs.shape[1] / likelihood.examples_per_observation(y)


def _what_changes(stack: Stack) -> dict[str, Tensor]:
    """Return all that training changes, (M, ...) each, sharing memory."""
    network = {
        f"network/{name}": t.detach() for name, t in [*stack.params.items(), *stack.buffers.items()]
    }
    network |= {f"network/{name}": t.detach() for name, t in stack.common.items()}
    return network | {f"extra/{name}": t.detach() for name, t in stack.extra.items()}


def fitted_noise(
    likelihood: Likelihood, outputs: Tensor, y: Tensor, stack: Stack
) -> dict[str, Tensor]:
    """Return the learned noise that maximises the likelihood of outputs (M, H, D), by Newton."""
    number = torch.as_tensor(_observations(likelihood, outputs, y)).unsqueeze(-1)
    spread = (likelihood.squared_errors(outputs, y) / number).sqrt()
    start = likelihood.init(stack.num_modes, spread.shape[-1], torch.float64, spread.cpu())
    noise = {name: tensor.to(outputs.device) for name, tensor in start.items()}
    wide = outputs.double()
    with torch.enable_grad():
        for _ in range(NEWTON_STEPS):
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in noise.items()}
            loss = likelihood.nll(wide, y, leaves).sum()
            slopes = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
            if all(slope.abs().max() < CLOSE for slope in slopes):  # at once for Gaussian noise
                break
            total = torch.stack([slope.sum() for slope in slopes]).sum()
            bends = torch.autograd.grad(total, list(leaves.values()))
            noise = {
                name: tensor.detach() - (slope / bend.clamp_min(0.1)).detach().clamp(-1, 1)
                for (name, tensor), slope, bend in zip(leaves.items(), slopes, bends, strict=True)
            }
    return {name: tensor.to(stack.extra[name].dtype) for name, tensor in noise.items()}
