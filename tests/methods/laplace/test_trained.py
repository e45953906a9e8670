"""The evidence at the trained weights: dense formula, finite differences, MacKay's fixed point."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import polymode as pm
from polymode.curvature.tangent import survey
from polymode.likelihoods.kinds import Categorical, Gaussian
from polymode.methods.laplace.curvature import Curvature, Setting, curvature
from polymode.methods.laplace.gaussian import by_parameter, choose, log_evidence
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.data import Arrays

from .small_problem import LABELS, STRUCTURES, VALUES, X, fit, net

NOISE = 0.4


def made(structure: str, likelihood) -> tuple[Curvature, dict[str, Tensor]]:
    regression = not likelihood.classification
    stack = Stack(net(2 if regression else 3), dtype=torch.float64)
    data = Arrays(X, VALUES if regression else LABELS)
    problem = Problem(likelihood, 40, 2 if regression else 3, 1, data)
    some = torch.arange(0, stack.num_parameters, 2)
    found = curvature(Setting(structure, rank=5), problem, stack, 0, survey(stack, X), some)
    return found, {name: tensor.detach()[0] for name, tensor in stack.params.items()}


def names_of(found: Curvature) -> list[str]:
    return [name for block in found.blocks for name in block.names]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_evidence_by_its_formula(structure) -> None:
    found, params = made(structure, Categorical())
    precision = {n: torch.tensor(0.3 + 0.2 * k).double() for k, n in enumerate(names_of(found))}
    value = log_evidence(found, params, precision)
    with torch.no_grad():
        expected = -torch.nn.functional.cross_entropy(net()(X), LABELS, reduction="sum")
    for block in found.blocks:
        index = getattr(block, "index", None) or (slice(None),) * len(block.names)
        prior = torch.cat([precision[n].expand(s) for n, s in zip(block.names, block.sizes,
                                                                  strict=True)])  # fmt: skip
        theta = torch.cat([params[n].flatten()[i] for n, i in zip(block.names, index, strict=True)])
        logdets = torch.logdet(block.matrix() + prior.diag()) - prior.log().sum()
        expected = expected - 0.5 * (logdets + (prior * theta.square()).sum())
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_with_respect_to_precision_and_noise(structure) -> None:
    """Against central differences, whose error is below 1e-6 of the value here."""
    found, params = made(structure, Gaussian(noise=NOISE))
    names = names_of(found)

    def value(log_precision: Tensor, log_noise: Tensor) -> Tensor:
        half = log_precision.new_tensor([float(k % 2) for k in range(len(names))])
        each = (log_precision[0] + half * (log_precision[1] - log_precision[0])).exp()
        factor = (2 * (math.log(NOISE) - log_noise)).exp()
        return log_evidence(found, params, dict(zip(names, each, strict=True)), factor)

    point = torch.tensor([0.2, 0.9], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor(-0.5, dtype=torch.float64, requires_grad=True)
    gradients = torch.autograd.grad(value(point, noise), [point, noise])
    for k, slope in enumerate([*gradients[0], gradients[1]]):
        shift = torch.zeros(2, dtype=torch.float64)
        if k < 2:
            shift[k] = 1e-4
        more = torch.tensor(1e-4 if k == 2 else 0.0).double()
        with torch.no_grad():
            up, down = value(point + shift, noise + more), value(point - shift, noise - more)
        assert float(slope) == pytest.approx(float(up - down) / 2e-4, rel=1e-5, abs=1e-6)


def test_asking_for_the_evidence_changes_nothing() -> None:
    found, params = made("kron", Gaussian(noise=NOISE))
    one = dict.fromkeys(names_of(found), torch.tensor(1.0).double())
    first = log_evidence(found, params, one)
    log_evidence(found, params, {n: 5 * p for n, p in one.items()}, 3.0)
    assert torch.equal(log_evidence(found, params, one), first)


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(noise=NOISE)], ids=str)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_fixed_point_has_no_slope(structure, likelihood) -> None:
    """Per layer, and with the noise of the regression."""
    found, params = made(structure, likelihood)
    groups = {name: name.split(".")[0] for name in names_of(found)}
    learns = not likelihood.classification
    precisions, factor, value, steps = choose(found, params, groups, 1.0, learns)
    assert 1 < steps < 120
    logs = {g: torch.tensor(math.log(v)).double().requires_grad_() for g, v in precisions.items()}
    log_factor = torch.tensor(math.log(factor)).double().requires_grad_()
    at = {name: logs[group].exp() for name, group in groups.items()}
    evidence = log_evidence(found, params, at, log_factor.exp())
    assert float(evidence.detach()) == pytest.approx(value)
    slopes = torch.autograd.grad(evidence, [*logs.values(), *([log_factor] if learns else [])])
    assert max(abs(float(slope)) for slope in slopes) < 1e-3
    flat = by_parameter(groups, dict.fromkeys(precisions, 1.0), X)
    assert value > float(log_evidence(found, params, flat))


def test_fit_takes_the_prior_and_the_noise_that_were_found() -> None:
    task = pm.Task(train=(X, VALUES), likelihood=Gaussian(noise="learned"))
    given = pm.fit("map", net=net(2), task=task, epochs=300, lr=0.02, progress="silent")
    post = fit(net=given, task=task, evidence="trained", prior="per_layer")
    with torch.no_grad():
        errors = (post.stack(X)[0] - VALUES).square().sum()
    known = sum(post.weights.posteriors[0].effective().values())  # MacKay's noise at the maximum
    noise = float(post.stack.extra["log_noise"].detach().exp())
    assert noise == pytest.approx(float(errors / (VALUES.numel() - known)) ** 0.5, rel=1e-5)
    layers = post.weights.precision
    assert torch.equal(layers["0.weight"], layers["0.bias"])
    assert not torch.equal(layers["0.weight"], layers["2.weight"])
    assert len(post.weights.log_evidence) == 1
    single = fit(net=given, task=task, evidence="trained").weights.log_evidence[0]
    assert post.weights.log_evidence[0] > single  # more to choose from
