"""Networks whose outputs their free weights cannot give: evidence, λ and variance against matrices.

The twin writes J out in float64 and maximises the evidence of h = c + J θ over one λ.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import polymode as pm
from polymode.methods.laplace.linear_model import TOLERANCE, distance

STREAM = torch.Generator().manual_seed(3)
X = torch.randn(30, 2, generator=STREAM, dtype=torch.float64)
NOISE = 0.2
VALUES = (2 * X[:, :1]).sin() + NOISE * torch.randn(30, 1, generator=STREAM).double()
LABELS = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()
LABELS[::5] = (LABELS[::5] + 1) % 3  # noise, so that no network is sure


class Wrapped(nn.Module):
    """A network with something beside it that does not train."""

    def __init__(self, kind: str, inner: nn.Sequential) -> None:
        super().__init__()
        self.kind, self.inner = kind, inner
        if kind == "adapter":  # W x + B A x beside the frozen W
            inner.requires_grad_(False)
            self.down = nn.Parameter(0.5 * torch.randn(2, 6).double())
            self.up = nn.Parameter(0.5 * torch.randn(6, 2).double())
        if kind == "frozen head":
            inner[2].requires_grad_(False).weight.mul_(3)
        if kind == "frozen trunk":
            inner[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "adapter":
            hidden = self.inner[0](x).tanh()
            return self.inner[2]((hidden + hidden @ self.down.T @ self.up.T).tanh())
        made = self.inner(x)
        if self.kind == "affine":
            slope = torch.arange(1, made.shape[-1] + 1).to(made)
            return 5 * made + (100 if len(slope) == 1 else 1) * slope  # another constant per class
        if self.kind == "trend":
            return made + 3 * x[:, :1] * torch.arange(1, made.shape[-1] + 1).to(made)
        return made


def network(kind: str, outputs: int) -> Wrapped:
    """Return a network trained on its targets, by a line search that no processor's rounding leads
    astray, and with so much decay that the evidence of each kind has its maximum at a finite λ."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        inner = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs)).double()
        net, y = Wrapped(kind, inner), targets(kind, outputs > 1)
    free = [p for p in net.parameters() if p.requires_grad]
    optimiser = torch.optim.LBFGS(free, max_iter=30, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        made = net(X)
        fit = nn.functional.cross_entropy(made, y) if outputs > 1 else (made - y).square().mean()
        fit = fit + 1e-2 * sum(p.square().sum() for p in free)
        fit.backward()
        return fit

    optimiser.step(loss)
    return net


def targets(kind: str, classes: bool) -> Tensor:
    if classes:
        return LABELS
    return {"affine": 5 * VALUES + 100, "trend": VALUES + 3 * X[:, :1]}.get(kind, VALUES)


class Twin(NamedTuple):
    """The dense linear model: rows J (N, K, S), shift c and outputs f (N, K)."""

    rows: Tensor
    shift: Tensor
    outputs: Tensor
    observed: Tensor
    noise: float | None

    @classmethod
    def of(cls, net: nn.Module, y: Tensor, noise: float | None, chosen=None, offset=True) -> Twin:
        params = {n: p.detach() for n, p in net.named_parameters() if p.requires_grad}
        made = jacrev(lambda p: functional_call(net, p, (X,)))(params)
        rows = torch.cat([made[n].reshape(*made[n].shape[:2], -1) for n in params], -1)
        point = torch.cat([p.flatten() for p in params.values()])
        if chosen is not None:
            rows, point = rows[..., chosen], point[chosen]
        outputs = net(X).detach()
        return cls(rows, outputs - rows @ point if offset else 0 * outputs, outputs, y, noise)

    def fit(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p, its gradient and curvature at outputs h (N, K)."""
        if self.noise is not None:
            error = self.observed - h
            constant = -error.numel() * math.log(self.noise * math.sqrt(2 * math.pi))
            value = constant - error.square().sum() / (2 * self.noise**2)
            unit = torch.eye(h.shape[-1]).to(h).expand(len(h), -1, -1)
            return value, error / self.noise**2, unit / self.noise**2
        logs = h.log_softmax(-1)
        probs = logs.exp()
        one_hot = torch.nn.functional.one_hot(self.observed, h.shape[-1]).to(h)
        bent = torch.diag_embed(probs) - probs.unsqueeze(-1) * probs.unsqueeze(-2)
        return (logs * one_hot).sum(), one_hot - probs, bent

    def hessian(self, at: Tensor, precision: float) -> Tensor:
        curvature = torch.einsum("nkp,nkl,nlq->pq", self.rows, self.fit(at)[2], self.rows)
        return curvature + precision * torch.eye(len(curvature)).to(curvature)

    def log_evidence(self, precision: float) -> float:
        theta = self.rows.new_zeros(self.rows.shape[-1])
        for _ in range(1 if self.noise is not None else 40):
            h = self.shift + self.rows @ theta
            _, slope, _ = self.fit(h)
            gradient = torch.einsum("nkp,nk->p", self.rows, slope) - precision * theta
            step = torch.linalg.solve(self.hessian(h, precision), gradient)
            if step.norm() < 1e-9 * (1 + theta.norm()):
                break
            damping = 1.0  # Newton, halved where it does not climb
            while damping > 1e-6 and self._posterior(theta + damping * step, precision) < (
                self._posterior(theta, precision) - 1e-12
            ):
                damping /= 2
            theta = theta + damping * step
        spread = self.hessian(self.outputs, precision).logdet() - len(theta) * math.log(precision)
        return float(self._posterior(theta, precision) - 0.5 * spread)

    def _posterior(self, theta: Tensor, precision: float) -> Tensor:
        return self.fit(self.shift + self.rows @ theta)[0] - 0.5 * precision * theta.square().sum()

    def maximum(self) -> tuple[float, float]:
        """Return (λ, log E) at the maximum: a grid, then golden sections of the best interval."""
        grid = torch.linspace(-12, 9, 22, dtype=torch.float64)
        best = int(torch.tensor([self.log_evidence(float(t.exp())) for t in grid]).argmax())
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
        ratio = (math.sqrt(5) - 1) / 2
        while high - low > 3e-3:
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            if self.log_evidence(math.exp(left)) > self.log_evidence(math.exp(right)):
                high = right
            else:
                low = left
        place = math.exp((low + high) / 2)
        return place, self.log_evidence(place)

    def variance(self, precision: float) -> Tensor:
        """Return J H⁻¹ Jᵀ, (N, K, K)."""
        inverse = torch.linalg.inv(self.hessian(self.outputs, precision))
        return torch.einsum("nkp,pq,nlq->nkl", self.rows, inverse, self.rows)


def fitted(net: nn.Module, y: Tensor, noise: float | None, **options) -> pm.Posterior:
    if noise is None:
        task = pm.Task(train=(X, y), likelihood="categorical")
    else:
        likelihood = pm.likelihoods.Gaussian(noise=noise)
        task = pm.Task(train=(X, y), likelihood=likelihood, target_scaling=None)
    return pm.fit("laplace", net=net, task=task, progress="silent", **options)


def compare(post: pm.Posterior, twin: Twin) -> float:
    """Compare with the twin at its maximum, and return its λ.

    λ is searched for to one per cent of an update and θ* to 0.05 nats.
    """
    precision, value = twin.maximum()
    weights = post.weights.inner  # of what is not frozen
    for value_of_mode in weights.precision.values():
        assert float(value_of_mode) == pytest.approx(precision, rel=0.05)
    assert weights.log_evidence[0] == pytest.approx(value, abs=0.06)
    moments = weights.moments(post.weights.prepare(X))
    assert moments is not None
    expected = twin.variance(precision)
    expected = expected if twin.rows.shape[1] > 1 else expected[..., 0]
    torch.testing.assert_close(
        moments.spread[0], expected, rtol=0.05, atol=0.01 * float(expected.abs().max())
    )
    return precision


@pytest.mark.cpu_seconds(10)
@pytest.mark.parametrize("classes", [False, True], ids=["values", "classes"])
@pytest.mark.parametrize("kind", ["frozen head", "frozen trunk", "affine", "trend", "adapter"])
def test_what_a_frozen_part_gives_is_not_asked_of_the_weights(kind, classes) -> None:
    noise = None if classes else NOISE * (5 if kind == "affine" else 1)
    net, y = network(kind, 3 if classes else 1), targets(kind, classes)
    post = fitted(net, y, noise, structure="full")
    precision = compare(post, Twin.of(net, y, noise))
    without = Twin.of(net, y, noise, offset=False)
    if kind == "frozen trunk":  # its linear head gives all: the two are one model
        assert without.maximum()[0] == pytest.approx(precision, rel=0.01)
    else:  # the same model without c is far from it
        assert abs(without.maximum()[1] - post.weights.log_evidence[0]) > 0.5


@pytest.mark.cpu_seconds(10)
@pytest.mark.parametrize("classes", [False, True], ids=["values", "classes"])
def test_a_subnetwork_leaves_the_rest_of_the_network_what_it_is(classes) -> None:
    """Targets around 30: without the rest, λ is smaller by more than four orders of magnitude."""
    net = network("plain", 3 if classes else 1)
    y, noise = (LABELS, None) if classes else (VALUES + 30, NOISE)
    if not classes:
        with torch.no_grad():
            net.inner[2].bias += 30
    chosen = [0, 3, 6, 9, 12, 18, 20, 25, 30] if classes else [12, 14, 16]
    post = fitted(net, y, noise, structure="subnetwork", subnetwork=chosen)
    precision = compare(post, Twin.of(net, y, noise, chosen))
    if not classes:
        assert Twin.of(net, y, noise, chosen, offset=False).maximum()[0] < 1e-4 * precision


@pytest.mark.cpu_seconds(10)
def test_a_subnetwork_with_the_last_layer_needs_no_offset() -> None:
    net = network("plain", 1)
    chosen = [0, 4, *range(18, 25)]
    post = fitted(net, VALUES, NOISE, structure="subnetwork", subnetwork=chosen)
    compare(post, Twin.of(net, VALUES, NOISE, chosen, offset=False))


@pytest.mark.cpu_seconds(10)
def test_a_trend_after_the_last_layer() -> None:
    """Structure "last_layer", whose products go through the network there."""
    net = network("trend", 1)
    post = fitted(net, targets("trend", False), NOISE, structure="last_layer")
    compare(post, Twin.of(net, targets("trend", False), NOISE, list(range(18, 25))))


@pytest.mark.cpu_seconds(10)
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_network_with_a_linear_head_stays_a_linear_model(outputs) -> None:
    classes = outputs > 1
    y, noise = (LABELS, None) if classes else (VALUES, NOISE)
    net = network("plain", outputs)
    post = fitted(net, y, noise, structure="full")
    compare(post, Twin.of(net, y, noise, offset=False))


def measured(net: nn.Module, logits: bool = False, x: Tensor = X) -> float:
    params = {n: p.detach() for n, p in net.named_parameters() if p.requires_grad}
    made = jacrev(lambda p: functional_call(net, p, (x,)))(params)
    rows = torch.cat([made[n].reshape(*made[n].shape[:2], -1) for n in params], -1)
    sizes = [p.numel() for p in params.values()]
    point = torch.cat([p.flatten() for p in params.values()])
    ends = list(itertools.accumulate(sizes))
    slices = {
        name: slice(end - size, end) for name, size, end in zip(params, sizes, ends, strict=True)
    }
    batches = [(rows[s : s + 7], net(x[s : s + 7]).detach()) for s in range(0, len(x), 7)]
    return distance(lambda vector, part: part @ vector, point, slices, batches, logits=logits)


class Head(nn.Module):
    """What gives the outputs: heads, sums of them, a scale, normalised logits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.trunk = nn.Linear(2, 6)
        self.first, self.second = nn.Linear(6, 2), nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.tensor(1.7))
        if kind == "scale":
            self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x).tanh()
        if self.kind == "two heads":
            return torch.cat([self.first(hidden), self.second(x)], -1)
        if self.kind == "sum":
            return self.first(hidden) + self.second(x)
        if self.kind == "scale":
            return self.scale * self.first(hidden)
        if self.kind == "small":
            return self.first(hidden) * torch.tensor([1e5, 1.0]).to(x) + torch.tensor([0, 0.5])
        made = self.first(hidden)
        return made.log_softmax(-1) if self.kind == "log_softmax" else made


@pytest.mark.parametrize("kind", ["plain", "two heads", "sum", "scale"])
def test_outputs_in_reach(kind) -> None:
    torch.manual_seed(0)
    assert measured(Head(kind).double()) <= TOLERANCE / 2 * 1.001
    assert measured(Head(kind), x=X.float()) <= TOLERANCE  # rounding


def test_outputs_out_of_reach() -> None:
    """An output is judged by its own size: one in 1e5 does not hide another's constant."""
    torch.manual_seed(0)
    assert measured(Head("small").double()) > 100 * TOLERANCE
    assert measured(network("frozen head", 1)) > 100 * TOLERANCE


def test_logits_of_a_softmax_have_no_level() -> None:
    """log_softmax takes off a number per example, which changes no probability."""
    torch.manual_seed(0)
    net = Head("log_softmax").double()
    assert measured(net, logits=True) <= TOLERANCE / 2 * 1.001
    assert measured(net, logits=False) > 10 * TOLERANCE


def test_few_examples_do_not_make_an_offset_look_like_weights() -> None:
    """Three values, ten tensors: their parts alone could be made to fit anything."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.Tanh())]
    net = nn.Sequential(nn.Linear(2, 4), *layers, nn.Linear(4, 1)).double()
    assert measured(net, x=X[:3]) <= TOLERANCE
    net[-1].requires_grad_(False)
    assert measured(net, x=X[:3]) > 10 * TOLERANCE
