"""VBLL: its bound against exact evidences, its predictions against sums written out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods import Bernoulli, Categorical, Gaussian
from polymode.likelihoods.kinds import Likelihood
from polymode.methods import vbll
from polymode.methods.last_layer.head_weights import HeadWeights

STREAM = torch.Generator().manual_seed(0)
N, P, D = 12, 3, 2
PHI = torch.cat([torch.randn(N, P - 1, generator=STREAM, dtype=torch.float64), torch.ones(N, 1)], 1)
Y = torch.randn(N, D, generator=STREAM, dtype=torch.float64)
LABELS = torch.randint(2, (N,), generator=STREAM)
PRECISION = 0.7


def lower_bound(likelihood: Likelihood, y: Tensor, joint: Tensor, extra: dict) -> Tensor:
    """Return L of one mode, in nats, for means (1, K, P)."""
    split = {"weight": joint[..., :-1], "bias": joint[..., -1]}
    loss = vbll.expected_nll(likelihood)(PHI[:, :-1].expand(1, -1, -1), y, {**split, **extra})
    return (-N * loss - vbll.divergence(joint, extra, PRECISION)).squeeze()


def as_extra(root: Tensor) -> dict[str, Tensor]:
    """Return the parameters of a lower triangular root (1, K, P, P)."""
    scale = root.diagonal(dim1=-2, dim2=-1)
    return {vbll.LOG_SCALE: scale.log(), vbll.LOWER: root / scale.unsqueeze(-1)}


def random_posterior(outputs: int, number: int) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(number)
    joint = torch.randn(1, outputs, P, generator=stream, dtype=torch.float64)
    root = torch.randn(1, outputs, P, P, generator=stream, dtype=torch.float64).tril()
    root.diagonal(dim1=-2, dim2=-1).abs_()
    return joint, 0.5 * root


def test_of_values_the_bound_is_the_evidence_at_its_optimum_and_below_elsewhere() -> None:
    """With the exact posterior of each output, its value is the exact log evidence, to 1e-10, and
    its gradient 0; 200 other Gaussians are below."""
    likelihood = Gaussian(noise=(0.5, 1.3))
    evidence, means, roots = 0.0, [], []
    for noise, y in zip((0.5, 1.3), Y.T, strict=True):
        marginal = noise**2 * torch.eye(N, dtype=torch.float64) + PHI @ PHI.T / PRECISION
        zeros = torch.zeros(N, dtype=torch.float64)
        normal = torch.distributions.MultivariateNormal(zeros, marginal)
        evidence += float(normal.log_prob(y))
        precision = PRECISION * torch.eye(P, dtype=torch.float64) + PHI.T @ PHI / noise**2
        means.append(torch.linalg.solve(precision, PHI.T @ y) / noise**2)
        roots.append(torch.linalg.cholesky(torch.linalg.inv(precision)))
    joint = torch.stack(means)[None].requires_grad_()
    extra = {n: t.requires_grad_() for n, t in as_extra(torch.stack(roots)[None]).items()}
    best = lower_bound(likelihood, Y, joint, extra)
    assert best.item() == pytest.approx(evidence, abs=1e-10)
    slopes = torch.autograd.grad(best, [joint, *extra.values()])
    assert max(slope.abs().max() for slope in slopes) < 1e-10
    for number in range(200):
        other, root = random_posterior(D, number)
        assert lower_bound(likelihood, Y, other, as_extra(root)) < evidence


def test_of_classes_the_bound_is_below_the_evidence() -> None:
    """The evidence of logistic regression with three weights by a sum over a grid of spacing 0.4,
    whose error is far below 1e-6; 200 random Gaussians, and one that was optimised, are below. Two
    classes with the same weights of opposite sign and twice λ are the same model."""
    axis = torch.arange(-8, 8.01, 0.4, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis, axis)
    signs = 2 * LABELS - 1
    log_joint = F.logsigmoid(grid @ PHI.T * signs).sum(1) - 0.5 * PRECISION * grid.square().sum(1)
    constant = 1.5 * math.log(PRECISION / (2 * math.pi)) + 3 * math.log(0.4)
    evidence = float(log_joint.logsumexp(0) + constant)
    for number in range(200):
        joint, root = random_posterior(1, number)
        assert lower_bound(Bernoulli(), LABELS, joint, as_extra(root)) < evidence
    joint, root = random_posterior(1, 0)
    extra = as_extra(root)
    leaves = [t.detach().requires_grad_() for t in (joint, *extra.values())]
    search = torch.optim.LBFGS(leaves, max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        value = -lower_bound(
            Bernoulli(), LABELS, leaves[0], dict(zip(extra, leaves[1:], strict=True))
        )
        value.backward()
        return value

    search.step(loss)
    best = -loss().item()
    assert evidence - 1 < best < evidence


@pytest.mark.parametrize("classes", [2, 4])
def test_of_classes_each_expectation_is_below_what_integration_gives(classes) -> None:
    """Against means over 20,000 draws, whose standard error is below 0.05: no bound may exceed the
    mean by five of them. False alarms: 24 × 3e-7."""
    stream = torch.Generator().manual_seed(classes)
    mean = torch.randn(1, N, classes, generator=stream, dtype=torch.float64)
    variance = torch.rand(1, N, classes, generator=stream, dtype=torch.float64) * 3
    labels = torch.randint(classes, (N,), generator=stream)
    noise = torch.randn(20_000, N, classes, generator=stream, dtype=torch.float64)
    logs = (mean + variance.sqrt() * noise).log_softmax(-1)
    logs = logs[:, torch.arange(N), labels]
    for n in range(N):
        cost = vbll.bound(
            Categorical(), mean[:, n : n + 1], variance[:, n : n + 1], labels[n : n + 1], {}
        )
        assert -float(cost) < float(logs[:, n].mean() + 5 * logs[:, n].std() / 20_000**0.5)
    one = mean[..., :1], variance[..., :1]
    signs = 2.0 * (labels % 2) - 1
    draws = F.logsigmoid(signs * (one[0] + one[1].sqrt() * noise[..., :1]).squeeze(-1))
    for n in range(N):
        cost = vbll.bound(Bernoulli(), *(t[:, n : n + 1] for t in one), labels[n : n + 1] % 2, {})
        assert -float(cost) < float(draws[:, n].mean() + 5 * draws[:, n].std() / 20_000**0.5)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))


@pytest.mark.parametrize("covariance", ["dense", "diagonal"])
def test_predictions_are_those_of_the_gaussian_written_out(covariance) -> None:
    """Means, variances and their epistemic share, mode by mode; draws have this covariance: entries
    of 4,000 draws are within 6 standard errors. False alarms: below 72 × 2e-9."""
    x = torch.randn(20, 2, generator=STREAM, dtype=torch.float64)
    task = pm.Task(train=(x, x.sin()), likelihood=Gaussian(noise=0.3), target_scaling=None)
    post = pm.fit("vbll", net=net, task=task, num_modes=2, epochs=40, lr=0.01, seed=1,
                  covariance=covariance, dtype=torch.float64, progress="silent")  # fmt: skip
    weights = post.weights
    assert isinstance(weights, HeadWeights)
    prediction = post.predict(x)
    for mode, member in enumerate(post.members):
        phi = torch.cat([member[:2](x), torch.ones(20, 1)], 1)
        roots = weights.root[mode] if covariance == "dense" else weights.root[mode].diag_embed()
        variance = torch.stack([(phi @ r @ r.T * phi).sum(1) for r in roots], 1)
        torch.testing.assert_close(prediction.loc[mode], member(x).detach())
        torch.testing.assert_close(prediction.scale[mode].square(), (variance + 0.09).detach())
        share = (variance / (variance + 0.09)).detach()
        torch.testing.assert_close(prediction.epistemic[mode], share)
    drawn = [weights.draw(number, 3).params for number in range(4000)]
    rows = torch.stack([torch.cat([d["2.weight"], d["2.bias"].unsqueeze(-1)], -1) for d in drawn])
    expected = (
        weights.root @ weights.root.mT
        if covariance == "dense"
        else weights.root.square().diag_embed()
    )
    centred = (
        rows
        - torch.cat(
            [post.stack.params["2.weight"], post.stack.params["2.bias"].unsqueeze(-1)], -1
        ).detach()
    )
    measured = torch.einsum("nmki,nmkj->mkij", centred, centred) / 4000
    spread = expected.diagonal(dim1=-2, dim2=-1)
    error = ((spread.unsqueeze(-1) * spread.unsqueeze(-2) + expected.square()) / 4000).sqrt()
    assert ((measured - expected).abs() <= 6 * error).all()


def test_training_raises_the_bound_to_near_the_evidence() -> None:
    """Of a linear model: 900 steps of Adam on all data leave less than 0.05 nats."""
    evidence = 0.0
    marginal = 0.25 * torch.eye(N, dtype=torch.float64) + PHI @ PHI.T / PRECISION
    for y in Y.T:
        zeros = torch.zeros(N, dtype=torch.float64)
        evidence += float(torch.distributions.MultivariateNormal(zeros, marginal).log_prob(y))
    task = pm.Task(train=(PHI[:, :-1], Y), likelihood=Gaussian(noise=0.5), target_scaling=None,
                   input_scaling=None)  # fmt: skip
    post = pm.fit(
        "vbll", net=lambda: nn.Sequential(nn.Identity(), nn.Linear(P - 1, D)), task=task,
        num_modes=1, prior_precision=PRECISION, epochs=900, batch_size=N, lr=0.02,
        schedule="linear", dtype=torch.float64, progress="silent", execution="loop",
    )  # fmt: skip
    reached = -N * post.history.train_loss[-1][0]
    assert evidence - 0.05 < reached < evidence + 1e-9


def test_what_has_no_closed_form_is_refused_in_one_line() -> None:
    x = torch.randn(8, 2, generator=STREAM)
    student = pm.likelihoods.StudentT(df=4.0, scale=1.0)
    for task, build, text in (
        (pm.Task(train=(x, x), likelihood=student), net, 
         "for the likelihood student_t, only.*take laplace or vi"),
        (pm.Task(train=(x, x), likelihood="heteroscedastic_gaussian"),
         lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4)), "likelihood het"),
        (pm.Task(train=(x, x), likelihood=Gaussian(noise=1.0)),
         lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh()), "ends in a linear layer"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text) as error:
            pm.fit("vbll", net=build, task=task, epochs=1, progress="silent")
        assert "\n" not in str(error.value)
    frozen = net()
    frozen[2].requires_grad_(False)
    task = pm.Task(train=(x, x), likelihood=Gaussian(noise=1.0))
    with pytest.raises(ValueError, match=r"its '2.weight' is frozen"):
        pm.fit("vbll", net=frozen, task=task, epochs=1, progress="silent")
