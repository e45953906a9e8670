"""EMA and SWA: the averages are those of the weights on the way, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import EMA, SWA, Problem, ema, swa
from polymode.stack.stack import Stack
from polymode.training.data import Arrays
from polymode.training.holdout import Selection
from polymode.training.loop import Batch

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(40, 2, generator=STREAM, dtype=torch.float64)
Y = X[:, :1].sin() + 0.1 * torch.randn(40, 1, generator=STREAM, dtype=torch.float64)
LIKELIHOOD = Gaussian(noise="learned")
DATA = Arrays(X, Y)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def path(core: Any, config: Any) -> tuple[Any, Problem, list[list[Tensor]]]:
    """Return the state after a loop written out, and all leaves after each step."""
    problem = Problem(LIKELIHOOD, 40, 1, 4, DATA)
    state = core.init(config, problem, Stack(net, 2, dtype=torch.float64))
    state.stack.train()
    seen = []
    for number in range(4 * config.epochs):
        rows = slice(10 * (number % 4), 10 * (number % 4) + 10)
        state, _ = core.step(config, problem, state, Batch(X[rows], Y[rows]))
        seen.append([leaf.detach().clone() for leaf in state.stack.leaves()])
    return state, problem, seen


def assert_statistics_are_those_of_the_data(stack: Stack) -> None:
    """Running statistics are averages over the batches of a pass with these very weights."""
    for member in stack.members():
        statistics = member[1]
        hidden = member[0](X).split(10)
        mean = torch.stack([h.mean(0) for h in hidden]).mean(0)
        variance = torch.stack([h.var(0) for h in hidden]).mean(0)
        torch.testing.assert_close(statistics.running_mean, mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(statistics.running_var, variance, rtol=1e-12, atol=1e-12)


def test_swa_is_the_mean_of_the_snapshots() -> None:
    """Of those after steps 8, 11, 14, 17 and 20, noise included."""
    config = SWA(epochs=5, batch_size=10, lr=0.05, burn_in=5, thinning=3, num_snapshots=5)
    state, problem, seen = path(swa, config)
    stack = swa.finish(config, problem, state).stack
    for leaf, *snapshots in zip(stack.leaves(), *seen[7::3], strict=True):
        torch.testing.assert_close(leaf, torch.stack(snapshots).mean(0), rtol=1e-12, atol=1e-14)
    assert len(seen[7::3]) == 5
    assert_statistics_are_those_of_the_data(stack)


@pytest.mark.parametrize("decay", [None, 0.0, 0.7])
def test_ema_is_the_weighted_mean_of_all_steps(decay) -> None:
    """With weights β^(t − i), normalised; 1 − 1/10 without a decay in a run of 20 steps."""
    config = EMA(epochs=5, batch_size=10, lr=0.05, decay=decay)
    state, problem, seen = path(ema, config)
    stack = ema.finish(config, problem, state).stack
    beta = 0.9 if decay is None else decay
    weights = torch.tensor([beta ** (19 - step) for step in range(20)], dtype=torch.float64)
    for leaf, *steps in zip(stack.leaves(), *seen, strict=True):
        mean = torch.tensordot(weights / weights.sum(), torch.stack(steps), 1)
        torch.testing.assert_close(leaf, mean, rtol=1e-12, atol=1e-14)
    assert_statistics_are_those_of_the_data(stack)


def test_the_training_does_not_know_of_the_average() -> None:
    """The last weights are those of `map`, bit by bit."""
    problem = Problem(LIKELIHOOD, 40, 1, 4, DATA)
    short = {"epochs": 3, "batch_size": 10}
    runs = (ema, EMA(**short)), (pm.methods.map, pm.methods.MAP(**short))
    last = [path(core, config)[2][-1] for core, config in runs]
    assert all(torch.equal(a, b) for a, b in zip(*last, strict=True))
    assert problem.selection is None


def test_of_averages_the_best_on_held_out_examples_is_kept(monkeypatch) -> None:
    """Without running statistics its score there is what was recorded, and no later one is lower;
    the average of the last steps of so large a rate is another one."""
    smooth = lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()  # noqa: E731
    task = pm.Task(train=(X, Y), val=(X[:20] * 1.1, Y[:20]), likelihood=Gaussian(noise=0.3),
                   target_scaling=None)  # fmt: skip
    scored: list[tuple[float, dict[str, Tensor]]] = []
    plain = Selection._compare

    def recorded(self: Selection, number: int, stack: Stack) -> None:
        nll = float(self._scored(stack)[0])
        scored.append((nll, {n: t.detach().clone() for n, t in stack.params.items()}))
        plain(self, number, stack)

    monkeypatch.setattr(Selection, "_compare", recorded)
    post = pm.fit("ema", net=smooth, task=task, epochs=60, batch_size=10, lr=0.1, num_modes=1,
                  progress="silent")  # fmt: skip
    best = min(scored, key=lambda pair: pair[0])
    assert len(scored) > 3
    for name, tensor in post.stack.params.items():
        assert torch.equal(tensor, best[1][name])
    assert post.config["stopping"]["nll"] == [best[0]]
