"""Mean-field variational inference: known optima, moments of the estimators, the divergence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import VI, Problem, vi
from polymode.methods.variational.gaussian_layers import (
    KINDS,
    layers_to_change,
    make_gaussian,
    make_plain,
)
from polymode.methods.variational.priors import add_kl_gradient, kl_divergence
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

SILENT = {"progress": "silent", "dtype": torch.float64}
NOISE, N, D = 0.5, 100, 3


def conjugate() -> tuple[pm.Task, Tensor, Tensor]:
    """Linear regression with correlated inputs: the task, the posterior's mean and precision."""
    stream = torch.Generator().manual_seed(0)
    mix = torch.tensor([[1, 0, 0], [0.6, 0.8, 0], [0.3, 0.2, 0.9]], dtype=torch.float64)
    x = torch.randn(N, D, generator=stream, dtype=torch.float64) @ mix.T
    y = x @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    y = y + NOISE * torch.randn(N, generator=stream, dtype=torch.float64)
    precision = x.T @ x / NOISE**2 + torch.eye(D, dtype=torch.float64)
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2)
    task = pm.Task(train=(x, y[:, None]), likelihood=Gaussian(noise=NOISE), target_scaling=None)
    return task, mean, precision


def linear() -> nn.Module:
    return nn.Linear(D, 1, bias=False)


@pytest.mark.cpu_seconds(6)
@pytest.mark.parametrize("estimator", sorted(KINDS))
def test_reaches_the_mean_field_optimum(estimator) -> None:
    """The optimum has the posterior's mean and the diagonal of its precision, not of its covariance
    (whose standard deviations are 6 to 18 % larger here). Eight modes are eight independent runs;
    their mean is within 4 standard errors plus 1 % of σ, false-alarm rate below 1e-3 in all."""
    task, mean, precision = conjugate()
    post = pm.fit(
        "vi", net=linear, task=task, num_modes=8, epochs=1000, batch_size=N, lr=0.02, std_lr=0.02,
        schedule="cosine", estimator=estimator, **SILENT,
    )  # fmt: skip
    std = precision.diag().rsqrt()
    found = post.stack.params["weight"].detach().squeeze(1)
    log_std = post.weights.std["weight"].squeeze(1).log()
    error = (found - mean) / std
    for values in (error, log_std - std.log()):
        bound = 4 * values.std(0) / math.sqrt(len(values)) + 0.01
        assert (values.mean(0).abs() < bound).all(), values.mean(0)
    assert (log_std.mean(0).exp() < 0.97 * torch.linalg.inv(precision).diag().sqrt()).all()


@pytest.mark.parametrize("estimator", ["local", "flipout"])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(5, 3), (5,)),
        (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (4, 6, 6)),
        (lambda: nn.Conv1d(2, 3, 3, padding="same", padding_mode="circular", bias=False), (2, 7)),
    ],
)
def test_outputs_have_the_moments_of_gaussian_weights(estimator, layer, shape) -> None:
    """Against 4,000 draws of the weights themselves; means within 5 standard errors and variances
    within 5 of theirs (σ² √(2/n)) at every output, false-alarm rate below 1e-3 in all."""
    torch.manual_seed(0)
    number = 4000
    module = nn.Sequential(layer()).double()
    module = make_gaussian(module, ["0"], estimator, math.log(0.3)).train()
    x = torch.randn(1, *shape, dtype=torch.float64)
    drawn = torch.cat([module(x) for _ in range(number)]).detach()
    gaussian = module[0]
    mean = gaussian.affine(x, gaussian.weight, gaussian.bias)[0].detach()
    bias = None if gaussian.bias is None else torch.full_like(gaussian.bias, 0.09)
    variance = gaussian.affine(x**2, torch.full_like(gaussian.weight, 0.09), bias)[0].detach()
    assert ((drawn.mean(0) - mean).abs() < 5 * (variance / number).sqrt()).all()
    assert ((drawn.var(0) / variance - 1).abs() < 5 * math.sqrt(2 / number) * 1.5).all()


def test_flipout_decorrelates_examples() -> None:
    """Two examples with equal inputs have uncorrelated outputs; one shared draw of weights would
    give correlation 1. Within 5 standard errors, 1/√n each."""
    torch.manual_seed(0)
    module = make_gaussian(nn.Sequential(nn.Linear(4, 1)).double(), ["0"], "flipout", -1.0).train()
    x = torch.randn(1, 4, dtype=torch.float64).expand(2, 4)
    pairs = torch.stack([module(x).flatten() for _ in range(2000)]).detach()
    assert abs(torch.corrcoef(pairs.T)[0, 1]) < 5 / math.sqrt(2000)


class Tied(nn.Module):
    """A layer called twice, one used without a call, one that shares its weight, one as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.bare, self.usual = (nn.Linear(4, 4) for _ in range(3))
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(x)) @ self.bare.weight
        return self.usual(self.second(self.first(x)))


def test_layers_that_share_weights_are_drawn_as_weights() -> None:
    assert layers_to_change(Tied(), torch.randn(2, 4), "local") == ["usual"]
    x, y = torch.randn(32, 4), torch.randint(4, (32,))
    task = pm.Task(train=(x, y), likelihood="categorical")
    post = pm.fit("vi", net=Tied, task=task, epochs=2, progress="silent")
    assert post.weights.std.keys() == post.stack.params.keys()
    assert all(torch.isfinite(t).all() for t in post.weights.std.values())
    assert {"bare.weight", "twice.bias", "usual.weight"} <= post.weights.std.keys()


def test_layers_are_put_back() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    names = list(module.state_dict())
    make_gaussian(module, ["0", "2"], "local", -3.0)
    assert len(list(module.state_dict())) == 2 * len(names)
    make_plain(module)
    assert [type(layer) for layer in module] == [nn.Conv2d, nn.Flatten, nn.Linear]
    assert list(module.state_dict()) == names


def test_divergence_against_torch_and_its_gradient_against_autograd() -> None:
    torch.manual_seed(0)
    means = [torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)]
    spreads = [(torch.randn_like(mean) - 1).requires_grad_() for mean in means]
    means = [mean.requires_grad_() for mean in means]
    prior = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 4.0**-0.5)
    expected = sum(
        torch.distributions.kl_divergence(torch.distributions.Normal(m, s.exp()), prior)
        .flatten(1)
        .sum(1)
        for m, s in zip(means, spreads, strict=True)
    )
    found = kl_divergence(means, spreads, 4.0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    slopes = torch.autograd.grad(found.sum() * 0.1, [*means, *spreads])
    for leaf in [*means, *spreads]:
        leaf.grad = torch.zeros_like(leaf)
    add_kl_gradient(means, spreads, 4.0, 0.1)
    for leaf, slope in zip([*means, *spreads], slopes, strict=True):
        torch.testing.assert_close(leaf.grad, slope, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("precision", "share", "ratio"),
    [(2.0, 0.3, 0.2), (math.exp(2), 0.25, math.exp(-5)), (1.0, 0.5, 0.01)],
)
def test_mixture_divergence_against_integration(precision, share, ratio) -> None:
    """Dense integration on a grid, the slopes by differences of it; the second prior is one of the
    paper's. From a q far narrower than the narrow part to one as wide as the wide one."""
    grid = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    wide = torch.distributions.Normal(0.0, precision**-0.5).log_prob(grid) + math.log(share)
    narrow = torch.distributions.Normal(0.0, ratio * precision**-0.5).log_prob(grid)
    prior = torch.logaddexp(wide, narrow + math.log1p(-share))

    def exact(mean: float, log_std: float) -> float:
        density = (
            -0.5 * ((grid - mean) / math.exp(log_std)) ** 2 - log_std - 0.5 * math.log(math.tau)
        )
        return torch.trapezoid(density.exp() * (density - prior), grid).item()

    for mean, std in ((0.0, 0.003), (0.01, 0.02), (0.1, 0.1), (0.4, 0.28), (-1.5, 0.2), (0.2, 1.0)):
        pair = [torch.tensor([[v]]).double().requires_grad_() for v in (mean, math.log(std))]
        found = kl_divergence(pair[:1], pair[1:], precision, (share, ratio))
        assert found.item() == pytest.approx(exact(mean, math.log(std)), abs=1e-4)
        slopes = torch.autograd.grad(found.sum(), pair)
        step = 1e-4 * std, 1e-4
        for number, slope in enumerate(slopes):
            ends = [[mean, math.log(std)] for _ in range(2)]
            for end, sign in zip(ends, (1, -1), strict=True):
                end[number] += sign * step[number]
            expected = (exact(*ends[0]) - exact(*ends[1])) / (2 * step[number])
            assert slope.item() * step[number] == pytest.approx(
                expected * step[number], abs=1e-3 * step[1]
            )


def test_the_divergence_is_summed_and_weighs_as_one_nth() -> None:
    """With no data term (targets that do not depend on the weights) the posterior is the prior: the
    peers' KL, averaged over layers or without N, has another optimum or another pull."""
    x = torch.zeros(50, 3, dtype=torch.float64)
    task = pm.Task(train=(x, x[:, :1]), likelihood=Gaussian(noise=1.0), target_scaling=None)
    post = pm.fit(
        "vi", net=linear, task=task, epochs=1500, batch_size=50, lr=0.05, std_lr=0.05,
        schedule="cosine", prior_precision=4.0, **SILENT,
    )  # fmt: skip
    torch.testing.assert_close(
        post.weights.std["weight"], torch.full((1, 1, 3), 0.5, dtype=torch.float64), rtol=1e-3,
        atol=0,
    )  # fmt: skip
    assert post.stack.params["weight"].detach().abs().max() < 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"estimator": "weights"},
        {"mixture": (0.5, 0.2)},
        {"temperature": 0.25, "kl_weight": 3.0},
        {"temperature": 0.25, "kl_weight": 3.0, "mixture": (0.5, 0.2)},
        {"temperature": 4.0, "alpha": 0.5, "num_passes": 3},
    ],
)
def test_gradients_against_differences(options) -> None:
    """Of the whole objective with the noise held: what a step follows, for μ and for log σ."""
    task, _, _ = conjugate()
    config = VI(lr=1e-12, std_lr=1e-12, batch_size=N, optimizer="sgd", **options)
    problem = Problem(task.likelihood, N, 1, 1, task.train)
    x, y = next(task.train.batches(N))

    def objective(shift: tuple[str, float] | None) -> tuple[float, dict[str, Tensor]]:
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        for number, parameter in enumerate(net.parameters()):
            parameter.data = torch.linspace(-1, 1, parameter.numel()).double().view_as(parameter)
            parameter.data += 0.1 * number
        state = vi.init(config, problem, Stack(net, seed=1))
        groups = dict(zip(("mean", "log_std"), vi.parameters_of(state.stack), strict=True))
        if shift is not None:
            with torch.no_grad():
                groups[shift[0]]["0.weight"].view(-1)[5] += shift[1]
        state.stack.train()
        _, info = vi.step(config, problem, state, Batch(x, y))
        slopes = {k: g["0.weight"].grad.view(-1)[5] for k, g in groups.items()}
        return info.loss.item(), slopes

    _, slopes = objective(None)
    for group, slope in slopes.items():
        up, down = (objective((group, step))[0] for step in (1e-5, -1e-5))
        assert slope.item() == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-9)


def test_alpha_needs_passes_and_draws_for_each_example() -> None:
    with pytest.raises(ValueError, match="no effect with num_passes=1"):
        VI(alpha=0.5, num_passes=1)
    with pytest.raises(ValueError, match="num_passes=10 needs draws for each example"):
        VI(alpha=0.5, estimator="weights")
    with pytest.raises(
        ValueError, match="`prior_precision` of VI must be 'auto' or a finite number > 0"
    ):
        VI(prior_precision=0)
    with pytest.raises(ValueError, match="`mixture` of VI must be None or two numbers"):
        VI(mixture=(0.5, 2.0))
    for field in ("temperature", "kl_weight"):
        with pytest.raises(ValueError, match=f"`{field}` of VI must be > 0, got 0"):
            VI(**{field: 0})


def test_alpha_widens_the_posterior() -> None:
    """A linear model, 20 targets of noise 1 under a likelihood of noise 0.3: α = 1 explains each
    datum by some of its draws, so σ is larger than at α = 0. The ratio is above 2; 1.2 is asked."""
    stream = torch.Generator().manual_seed(1)
    x = torch.randn(20, 3, generator=stream, dtype=torch.float64)
    y = torch.randn(20, 1, generator=stream, dtype=torch.float64)
    task = pm.Task(train=(x, y), likelihood=Gaussian(noise=0.3), target_scaling=None)
    std = [
        pm.fit(
            "vi", net=linear, task=task, epochs=400, batch_size=20, lr=0.02, std_lr=0.05,
            alpha=alpha, **SILENT,
        ).weights.std["weight"].mean()
        for alpha in (0.0, 1.0)
    ]  # fmt: skip
    assert std[1] > 1.2 * std[0]
