"""`Info.loss` is what a member minimises by itself, per example, or the energy that it samples:

    nll on the batch + (λ/2N) ‖θ‖²

with what a method has in place of the prior: of `vi` and `ivon` the divergence, of
`concrete_dropout` that of its masks. A new method is held to the first unless it is named below.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import METHODS, Problem
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

N, RATE = 24, 0.2
ELSEWHERE = {  # what takes no network as it is, or minimises something else; see their own tests
    "evidential", "masksembles", "mc_batchnorm", "mimo", "sngp", "vbll",
}  # fmt: skip
HELD = [name for name in METHODS.names() if name not in ELSEWHERE]
STREAM = torch.Generator().manual_seed(0)
X = torch.randn(N, 3, generator=STREAM, dtype=torch.float64)
Y = (X[:, 0] > 0).long()
TASK = pm.Task(train=(X, Y), likelihood="categorical")
ROWS = slice(0, 8)  # a batch is a third of the data: the prior weighs as one N-th of those


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(RATE), nn.Linear(5, 2))


class Step:
    """One step of a method on two networks of unequal norm, with the losses that it told.

    `hmc` stays where it is with a step of 1e-12, and `ivon` draws its own mean with a Hessian of
    1e14, so that every loss is one at the weights before the step.
    """

    def __init__(self, method: str, steps: int = 1, **options: Any) -> None:
        core = METHODS.get(method).value
        usual: dict[str, Any] = {"num_modes": 2, "epochs": 4, "batch_size": 8}
        usual |= {"hmc": {"lr": 1e-12}, "ivon": {"hessian_init": 1e14}}.get(method, {})
        net = noisy if METHODS.get(method).metadata.get("needs") == "noise" else mlp
        config = core.config(**(usual | options))
        problem = Problem(TASK.likelihood, N, 2, 3, TASK.train)
        stack = Stack(net, 2, dtype=torch.float64, seed=3)
        with torch.no_grad():
            for tensor in stack.params.values():
                tensor[1] *= 2
        self.state = core.init(config, problem, stack)
        self.state.stack.train()
        for _ in range(steps):
            self.theta = {name: t.detach().clone() for name, t in stack.params.items()}
            self.before = self.state
            batch = Batch(X, Y) if method == "hmc" else Batch(X[ROWS], Y[ROWS])
            self.state, self.info = core.step(config, problem, self.state, batch)

    def squares(self, *names: str) -> Tensor:
        """Return ‖θ‖² of these parameters or of all, (2,)."""
        chosen = names or tuple(self.theta)
        return torch.stack([self.theta[n].flatten(1).square().sum(1) for n in chosen]).sum(0)

    @property
    def num_weights(self) -> int:
        return sum(tensor[0].numel() for tensor in self.theta.values())


def nll(params: dict[str, Tensor], rows: slice) -> Tensor:
    """Return the mean of −log p over some data, one network at a time, (2,)."""
    found = []
    for k in range(2):
        own = {name: tensor[k] for name, tensor in params.items()}
        outputs = torch.func.functional_call(mlp().double(), own, X[rows])
        found.append(nn.functional.cross_entropy(outputs, Y[rows]))
    return torch.stack(found)


def rise(method: str, step: Step) -> Tensor:
    """Return by how much N × the loss shall rise as λ goes from 1 to 3."""
    squares = step.squares()
    if method in ("vi", "ivon"):
        std = 0.02 if method == "vi" else 0.0
        return squares + step.num_weights * (std**2 - 0.5 * math.log(3))
    if method == "concrete_dropout":
        return squares + step.squares("3.weight") * (1 / (1 - RATE) - 1)
    return squares


@pytest.mark.parametrize("method", [*HELD, "evidential"])
def test_the_prior_is_part_of_the_loss_as_one_nth(method) -> None:
    weak, strong = (Step(method, prior_precision=value) for value in (1.0, 3.0))
    found = (strong.info.loss - weak.info.loss) * N
    torch.testing.assert_close(found, rise(method, weak), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", HELD)
def test_the_rest_is_the_mean_of_the_batch(method) -> None:
    """λ = 1 and networks without random layers; `ivon` with a flat prior, λ = 0."""
    if METHODS.get(method).metadata.get("needs") == "noise" or method == "vi":
        pytest.skip("its data term is one of chance")
    step = Step(method, prior_precision=0.0 if method == "ivon" else 1.0)
    rest = step.squares() / (2 * N)
    if method == "ivon":  # −H(q)/N of σ² = 1/(N h): a flat prior has density 1
        rest = torch.full((2,), -math.log(math.tau * math.e / (N * 1e14)) / N).double()
        rest = rest * step.num_weights / 2
    expected = nll(step.theta, slice(None) if method == "hmc" else ROWS) + rest
    torch.testing.assert_close(step.info.loss, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["dropout", "concrete_dropout"])
def test_several_passes_have_the_prior_too(method) -> None:
    weak, strong = (Step(method, prior_precision=v, alpha=0.5) for v in (1.0, 3.0))
    found = (strong.info.loss - weak.info.loss) * N
    torch.testing.assert_close(found, rise(method, weak), rtol=1e-9, atol=1e-9)


def test_concrete_dropout_has_the_entropy_of_each_members_own_rates() -> None:
    """Two steps that differ in the rates of mode 1 alone, with noise that is no part of it: of the
    loss what is left is λ/(2(1 − p)) ‖W‖² − D H(p), by hand."""
    from polymode.methods.concrete_dropout import Layer, divergences

    weight = torch.randn(2, 2, 5, generator=STREAM, dtype=torch.float64)
    bias = torch.randn(2, 2, generator=STREAM, dtype=torch.float64)
    rates = torch.tensor([0.1, 0.6], dtype=torch.float64)
    odds = {"drop": (rates / (1 - rates)).log()}
    layers = {"drop": Layer(("weight",), 5)}
    found = divergences({"weight": weight, "bias": bias}, odds, layers, 3.0)
    entropy = -(rates * rates.log() + (1 - rates) * (1 - rates).log())
    expected = 1.5 * weight.flatten(1).square().sum(1) / (1 - rates)
    expected = expected + 1.5 * bias.square().sum(1) - 5 * entropy
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_the_precisions_that_evidence_found_are_those_of_the_loss() -> None:
    """`laplace_map` after an update of λ, one per layer and member."""
    step = Step("laplace_map", steps=2, burn_in=0, evidence_every=1, prior_precision=2.0)
    precision = step.before.precision
    assert len({float(v) for t in precision.values() for v in t}) > 2
    prior = sum(precision[name] * step.squares(name) for name in step.theta) / (2 * N)
    torch.testing.assert_close(step.info.loss, nll(step.theta, ROWS) + prior, rtol=1e-9, atol=0)


@pytest.mark.parametrize("method", ["hmc", "mile"])
def test_the_energy_of_chains_does_not_know_the_temperature(method) -> None:
    """U(θ)/N at the weights after the step, for T = 0.25 as for 1."""
    options: dict[str, Any] = {"training_steps": 0} if method == "mile" else {"lr": 1e-3}
    step = Step(method, prior_precision=2.0, temperature=0.25, **options)
    step.theta = {name: t.detach() for name, t in step.state.stack.params.items()}
    energy = nll(step.theta, slice(None)) + step.squares() / N
    torch.testing.assert_close(step.info.loss, energy, rtol=1e-9, atol=0)


def test_vi_tells_its_whole_objective() -> None:
    """E_q[−log p] + w (KL + (1 − T) H), weighed by 1/N: at T = 0.25 and w = 3 beside T = w = 1."""
    plain, cold = Step("vi"), Step("vi", temperature=0.25, kl_weight=3.0)
    kl, size = plain.info.kl, plain.num_weights
    entropy = size * (math.log(0.02) + 0.5 * math.log(math.tau * math.e))
    torch.testing.assert_close(cold.info.kl, kl)
    change = 3 * (kl + 0.75 * entropy) - kl
    torch.testing.assert_close((cold.info.loss - plain.info.loss) * N, change)


def test_vi_and_ivon_have_one_objective() -> None:
    """The same Gaussian, T = 0.25: both tell nll + (KL + (1 − T) H)/N, with σ so small that the
    drawn networks are the mean ones."""
    std = 1e-7
    hessian = 0.25 / (std**2 * N) - 1 / N  # σ² = T/(N (h + λ/N))
    vi = Step("vi", temperature=0.25, initial_std=std, estimator="weights")
    ivon = Step("ivon", temperature=0.25, hessian_init=hessian)
    torch.testing.assert_close(vi.info.loss, ivon.info.loss, rtol=1e-6, atol=0)


def test_learned_noise_has_no_prior() -> None:
    """It is flat in log σ: doubling it changes the data term alone, so λ does not see it."""
    problem = Problem(Gaussian(noise="learned"), N, 1, 3)
    losses = []
    for value in (0.0, 4.0):
        core = METHODS.get("map").value
        config = core.config(prior_precision=value, epochs=1)
        state = core.init(config, problem, Stack(lambda: nn.Linear(3, 1), 2, dtype=torch.float64))
        squares = sum(p.detach().flatten(1).square().sum(1) for p in state.stack.params.values())
        _, info = core.step(config, problem, state, Batch(X, X[:, :1]))
        losses.append(info.loss)
    torch.testing.assert_close(losses[1] - losses[0], 2 * squares / N)
