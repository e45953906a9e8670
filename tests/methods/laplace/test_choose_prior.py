"""The prior that `laplace` takes: blocks and conjugate gradients against kernels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import polymode as pm
from polymode import nets
from polymode.core.likelihoods import Categorical, Gaussian
from polymode.core.linalg.tangent import survey
from polymode.core.stack import Stack
from polymode.methods.laplace.curvature import Setting, curvature
from polymode.methods.laplace.evidence import _evidence, _mask, choose_prior
from polymode.methods.laplace.evidence_dual import DualEvidence, kernels_between
from polymode.methods.laplace.evidence_search import Search, maximise, starting_precision
from polymode.methods.laplace.groups import prior_groups
from polymode.methods.laplace.linear_model import Tangent
from polymode.methods.laplace.linear_model_observed import observed
from polymode.methods.method import Problem

STREAM = torch.Generator().manual_seed(1)
X = torch.randn(30, 2, generator=STREAM, dtype=torch.float64)
LABELS = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()
VALUES = X.sin().sum(1, keepdim=True) + 0.1 * torch.randn(30, 1, generator=STREAM).double()
OPTIONS = SimpleNamespace(prior="per_group", evidence="linear", batch_size=12)


def problem(kind: str) -> tuple[Problem, Stack]:
    size = 3 if kind == "classes" else 1
    make = lambda: nets.mlp((2,), size, hidden=(6,), norm="layer")  # noqa: E731
    stack = Stack(make, seed=2, dtype=torch.float64)
    likelihood = Categorical() if kind == "classes" else Gaussian(noise="learned")
    targets = LABELS if kind == "classes" else VALUES
    data = (
        pm.Task(train=(X, targets), likelihood=likelihood, target_scaling=None).train
        if (kind != "classes")
        else pm.Task(train=(X, targets), likelihood=likelihood).train
    )
    stack.add_parameters(likelihood.init(1, size, torch.float64, torch.full((1, size), 0.3)))
    return Problem(likelihood, 30, size, 1, data), stack


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_blocks_and_gradients_find_what_kernels_find(kind) -> None:
    """With the full structure both are exact: the same value, γ and θ* at given λ; the same
    maximum."""
    task, stack = problem(kind)
    known = survey(stack, X)
    found = curvature(Setting(structure="full"), task, stack, 0, known)
    tangent = Tangent(stack)
    groups = prior_groups(stack, "per_group")
    structured = _evidence(OPTIONS, task, found, stack, 0, tangent, groups, None)
    index = tangent.index(groups)
    jacobian = tangent.jacobian(X)
    kernels = kernels_between(jacobian, jacobian, index)
    targets = LABELS if kind == "classes" else VALUES
    data = observed(task.likelihood, targets, 0.3)
    dual = DualEvidence(tangent, kernels, index, tangent.outputs(X), tangent.shift(X), data)
    assert structured.names == list(index)
    precision = torch.linspace(0.5, 2.0, len(index), dtype=torch.float64)
    beta = torch.ones(int(kind == "values"), dtype=torch.float64)
    ours, exact = structured(precision, beta), dual(precision, beta / 0.09)
    assert ours.value == pytest.approx(exact.value, abs=1e-3)
    torch.testing.assert_close(ours.effective, exact.effective, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.squares, exact.squares, rtol=1e-2, atol=1e-4)
    chosen = choose_prior(OPTIONS, task, found, stack)
    start = starting_precision(dual.sizes, dual.point_squares)
    best = maximise(dual, start, beta / 0.09, Search(learn_noise=kind == "values"))
    assert chosen.report["log_evidence"] == pytest.approx(best.terms.value, abs=0.05)
    if kind == "values":
        assert 0.3 * chosen.factor**-0.5 == pytest.approx(float(best.beta) ** -0.5, rel=0.02)
    rows = chosen.report["groups"]
    assert list(rows) == list(index)
    assert chosen.report["pruned"] == [name for name, row in rows.items() if row["pruned"]]


def test_a_subnetwork_has_an_optimum_of_its_own() -> None:
    """Only its weights are free: θ* is zero elsewhere."""
    task, stack = problem("classes")
    chosen = torch.arange(0, stack.num_parameters, 3)
    found = curvature(Setting(structure="subnetwork"), task, stack, 0, survey(stack, X), chosen)
    tangent = Tangent(stack)
    mask = _mask(found.blocks, tangent)
    assert mask is not None and mask.nonzero().flatten().equal(chosen)
    groups = prior_groups(stack, "single")
    evidence = _evidence(OPTIONS, task, found, stack, 0, tangent, groups, mask)
    evidence(torch.ones(1, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
    assert evidence.theta is not None
    assert (evidence.theta[~mask] == 0).all() and (evidence.theta[mask] != 0).any()
    assert float(evidence.sizes) == len(chosen)


@pytest.mark.filterwarnings("ignore:the evidence switched:UserWarning")
def test_fit_takes_the_prior_of_the_linear_model() -> None:
    """Two lines, post hoc; the evidence at θ* is above that at θ̃, and λ differs."""
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    torch.manual_seed(0)
    net = nets.mlp((2,), 3, hidden=(6,), norm="layer").double()
    found = {
        evidence: pm.fit(
            "laplace", net=net, task=task, structure="kron", prior="per_group",
            evidence=evidence, progress="silent",
        ).weights
        for evidence in ("trained", "linear")
    }  # fmt: skip
    values = {name: weights.log_evidence[0] for name, weights in found.items()}
    assert values["linear"] > values["trained"] + 1
    assert not torch.allclose(*(w.precision["0.weight"] for w in found.values()), rtol=0.1)
