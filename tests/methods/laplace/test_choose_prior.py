"""The prior that `laplace` takes: blocks and conjugate gradients against kernels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import polymode as pm
from polymode import nets
from polymode.curvature.tangent import survey
from polymode.likelihoods.kinds import Categorical, Gaussian, StudentT
from polymode.methods.laplace import evidence as module
from polymode.methods.laplace.curvature import Setting, curvature
from polymode.methods.laplace.evidence import (
    Search,
    Terms,
    _evidence,
    _MacKay,
    choose_prior,
    free_weights,
    maximise,
    starting_precision,
)
from polymode.methods.laplace.evidence_dual import DualEvidence, kernels_between
from polymode.methods.laplace.linear_model import Tangent, observed
from polymode.methods.laplace.linear_model_solve import Products
from polymode.methods.laplace.prior_groups import prior_groups
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.events import Reporter

STREAM = torch.Generator().manual_seed(1)
X = torch.randn(30, 2, generator=STREAM, dtype=torch.float64)
LABELS = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()
VALUES = X.sin().sum(1, keepdim=True) + 0.1 * torch.randn(30, 1, generator=STREAM).double()
OPTIONS = SimpleNamespace(prior="per_group", evidence="linear", batch_size=12, prior_examples=None)


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


@pytest.mark.parametrize("structure", ["kron", "diag", "last_layer", "low_rank"])
@pytest.mark.parametrize("kind", ["classes", "values"])
def test_gradients_with_a_structure(kind, structure, monkeypatch) -> None:
    """With respect to every λ and the noise, at θ*, against central differences of the value."""
    monkeypatch.setattr(module, "_DECREASE", 1e-13)
    monkeypatch.setattr(module, "_FORCING", 1e-6)
    task, stack = problem(kind)
    found = curvature(Setting(structure=structure, rank=4), task, stack, 0, survey(stack, X))
    names = [name for block in found.blocks for name in block.names]
    tangent = Tangent(stack, names=[name for name in stack.params if name in names])
    rows = {x[0, 0].item(): tangent.jacobian(x) for x in X.split(OPTIONS.batch_size)}
    monkeypatch.setattr(tangent, "jvp", lambda v, x: rows[x[0, 0].item()] @ v)  # quicker
    monkeypatch.setattr(
        tangent, "vjp", lambda c, x: rows[x[0, 0].item()].flatten(0, 1).T @ c.flatten()
    )
    groups = prior_groups(stack, "per_layer")
    evidence = _evidence(OPTIONS, task, found, stack, 0, tangent, groups, None)
    number = len(evidence.names)
    noise = [0.7] if kind == "values" else []
    point = torch.tensor([*torch.linspace(0.5, 2.0, number), *noise], dtype=torch.float64).log()

    def at(place: torch.Tensor) -> Terms:
        return evidence(place[:number].exp(), place[number:].exp())

    slopes = torch.cat(at(point).gradient(point[:number].exp(), point[number:].exp()))
    for k, slope in enumerate(slopes.tolist()):
        shift = torch.zeros_like(point)
        shift[k] = 1e-3
        expected = (at(point + shift).value - at(point - shift).value) / 2e-3
        assert slope == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_a_last_layer_needs_one_pass_of_the_network(bias, monkeypatch) -> None:
    """Its inputs are kept: the same θ* and evidence as with products through the network."""
    task, stack = problem("classes")
    if not bias:
        stack = Stack(nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)),
                      dtype=torch.float64)  # fmt: skip
    setting = Setting(structure="last_layer")
    found = curvature(setting, task, stack, 0, survey(stack, X))
    tangent = Tangent(stack, names=[n for n in stack.params if n in found.blocks[0].names])
    groups = prior_groups(stack, "single")
    point = torch.ones(1, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    quick = _evidence(OPTIONS, task, found, stack, 0, tangent, groups, None)
    with monkeypatch.context() as patch:
        patch.setattr(tangent, "jvp", None)
        ours = quick(*point)
    with monkeypatch.context() as patch:
        patch.setattr(tangent, "last_inputs", lambda x: None)
        slow = _evidence(OPTIONS, task, found, stack, 0, tangent, groups, None)
    theirs = slow(*point)
    assert ours.value == pytest.approx(theirs.value, rel=1e-9)
    torch.testing.assert_close(quick.theta, slow.theta, rtol=1e-6, atol=1e-9)


def test_a_layer_that_others_follow_is_passed_through() -> None:
    stack = Stack(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), dtype=torch.float64)
    assert Tangent(stack).last_inputs(X) is None
    assert not stack.network.template_in("eval")[0]._forward_hooks


def test_the_search_tells_of_its_passes(monkeypatch) -> None:
    """One step per product with the Jacobian, the last of them the end; one search per mode."""
    monkeypatch.setattr(Reporter, "due", lambda self: True)
    products = []
    original = Products.transposed
    monkeypatch.setattr(
        Products, "transposed", lambda self, c: products.append(1) or original(self, c)
    )
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    events: list = []
    make = [nets.mlp((2,), 3, hidden=(4,)).double() for _ in range(2)]
    pm.fit("laplace", net=make, task=task, progress="silent", on_event=events.append)
    told = [event for event in events if "Jacobian" in event.what]
    assert {event.kind for event in told} == {"finish"}
    ends = [event for event in told if event.step == event.total]
    assert [event.what for event in ends] == [
        f"laplace, 2 modes: evidence of mode {k}, products with the Jacobian" for k in (0, 1)
    ]
    assert sum(event.step for event in ends) == len(products) > 10
    own = [event.step for event in told if event.what == ends[0].what]
    assert own == [*range(1, ends[0].total + 1), ends[0].total]


def test_a_subnetwork_has_an_optimum_of_its_own() -> None:
    """Only its weights are free: θ* is zero elsewhere."""
    task, stack = problem("classes")
    chosen = torch.arange(0, stack.num_parameters, 3)
    found = curvature(Setting(structure="subnetwork"), task, stack, 0, survey(stack, X), chosen)
    tangent = Tangent(stack)
    mask = free_weights(found.blocks, tangent)
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


def test_without_a_precision_the_evidence_at_the_linear_optimum_finds_it() -> None:
    """A precision that is given is taken as it is, also with the same value as the default of
    training; with an evidence beside it, it belongs to the training alone."""
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    task = pm.Task(train=(x, (x[:, 0] > 0).long()), likelihood="categorical")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()

    def found(**options) -> tuple[float, list[float] | None]:
        weights = pm.fit("laplace", net=net, task=task, progress="silent", **options).weights
        return float(weights.precision["0.weight"]), weights.log_evidence

    usual = found()
    assert usual == found(evidence="linear") == found(evidence="linear", prior_precision=7.0)
    assert usual[0] not in (1.0, found(evidence="trained")[0])
    assert found(prior_precision=1.0) == (1.0, None)
    with pytest.raises(ValueError, match="with a given `prior_precision` all"):
        found(prior="per_layer", prior_precision=1.0)


def test_a_likelihood_beyond_the_linear_model_takes_the_trained_weights() -> None:
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    likelihood = StudentT(df=4.0, scale=0.5)
    task = pm.Task(train=(x, x[:, :1]), likelihood=likelihood, target_scaling=None)
    with pytest.warns(UserWarning, match="no evidence for the likelihood student_t"):
        usual = pm.fit("laplace", net=nn.Linear(2, 1), task=task, progress="silent", seed=3)
    assert usual.weights.log_evidence is not None


def test_a_structure_that_counts_more_weights_than_values_keeps_the_noise() -> None:
    """γ beyond N says nothing of the noise: one update moves it tenfold at most, and back."""
    terms = Terms(
        0.0, torch.tensor([50.0]), torch.tensor([1.0]), torch.tensor([50.0]), torch.tensor([4.0]),
        torch.tensor([40.0]),
    )  # fmt: skip
    _, beta = _MacKay()(terms, torch.ones(1), torch.ones(1))
    assert float(beta) == pytest.approx(0.1)


def test_starts_that_cannot_be_better_are_not_looked_at() -> None:
    """The bound is above the evidence at any precision, and saves what lies below another."""
    seen: list[float] = []

    class Evidence:
        def __call__(self, precision: torch.Tensor, beta: torch.Tensor) -> Terms:
            seen.append(float(precision))
            none = torch.zeros(0)
            return Terms(-1.0, precision.new_zeros(1), precision.new_ones(1), none, none, none)

        def bound(self, precision: torch.Tensor, beta: torch.Tensor) -> float:
            return -2.0 if float(precision) < 1e-3 else 0.0

    maximise(Evidence(), torch.ones(1), torch.zeros(0), Search(steps=1))
    assert seen == [1.0, pytest.approx(0.01)]


@pytest.mark.parametrize("classes", [False, True], ids=["values", "classes"])
def test_examples_that_stand_for_several_give_the_prior_of_all(classes, monkeypatch) -> None:
    """Every example is there four times, and a quarter of them, each once, finds the same λ, where
    θ* is exact: as it is by default, to 0.05 nats and Newton steps to 30 %, the two ways of
    summing may part by some per cent of λ."""
    monkeypatch.setattr(module, "_DECREASE", 1e-8)
    monkeypatch.setattr(module, "_FORCING", 1e-4)
    stream = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=stream, dtype=torch.float64)
    noise = torch.randn(40, 1, generator=stream, dtype=torch.float64)
    y = (x[:, 0] + noise[:, 0] > 0).long() if classes else x[:, :1].sin() + 0.3 * noise
    likelihood = "categorical" if classes else pm.likelihoods.Gaussian(noise=0.3)
    task = pm.Task(
        train=(x.repeat_interleave(4, 0), y.repeat_interleave(4, 0)), likelihood=likelihood,
        target_scaling=None,
    )  # fmt: skip
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2 if classes else 1)).double()
    trained = pm.fit("map", net=net, task=task, epochs=100, lr=0.02, progress="silent", holdout=0)
    found = [
        pm.fit("laplace", net=trained, task=task, progress="silent", structure="kron",
               prior_examples=number).config["prior_precisions"][0]["all"]
        for number in (40, 160)
    ]  # fmt: skip
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_few_examples_do_not_say_what_the_noise_is() -> None:
    """Twenty examples that count eight times are fitted exactly by 33 weights; the noise stays that
    of the errors of all."""
    stream = torch.Generator().manual_seed(2)
    x = torch.randn(160, 2, generator=stream, dtype=torch.float64)
    y = x[:, :1].sin() + 0.5 * torch.randn(160, 1, generator=stream, dtype=torch.float64)
    task = pm.Task(train=(x, y), likelihood=pm.likelihoods.Gaussian(noise="learned"))
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    trained = pm.fit("map", net=net, task=task, epochs=60, lr=0.02, progress="silent", holdout=0)
    few = pm.fit("laplace", net=trained, task=task, progress="silent", structure="kron",
                 prior_examples=20)  # fmt: skip
    with torch.no_grad():
        errors = few.members[0](x) - y
    noise = float(few.stack.extra["log_noise"].detach().exp())
    assert noise == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-6)
