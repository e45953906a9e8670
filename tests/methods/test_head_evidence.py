"""`prior_precision="auto"` against dense evidence in float64, and what it depends on."""

from __future__ import annotations

import math
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Bernoulli, Categorical, Gaussian
from polymode.methods import METHODS, head_evidence
from polymode.methods.head_evidence import _Head, classes_prior, highest, regression_prior

STREAM = torch.Generator().manual_seed(0)
SHORT = {"epochs": 2, "batch_size": 16, "progress": "silent"}
DECADE = torch.linspace(-2, 4, 601).tolist()


def features(number: int, size: int) -> Tensor:
    x = torch.randn(number, size, generator=STREAM).double()
    return torch.cat([x, torch.ones(number, 1).double()], 1)


def dense_evidence(phi: Tensor, y: Tensor, precision: float, noise: float) -> float:
    """log N(y; 0, noise² + Φ Φᵀ / λ) of every column, by the covariance of the targets."""
    covariance = noise**2 * torch.eye(len(phi)).double() + phi @ phi.mT / precision
    law = torch.distributions.MultivariateNormal(torch.zeros(len(phi)).double(), covariance)
    return float(law.log_prob(y.mT).sum())


@pytest.mark.parametrize(("number", "size"), [(40, 6), (12, 30)])
def test_regression_with_known_noise_is_where_the_exact_evidence_is_largest(number, size) -> None:
    phi = features(number, size)
    y = phi @ torch.randn(size + 1, 2, generator=STREAM).double() * 0.3
    y = y + 0.5 * torch.randn(y.shape, generator=STREAM).double()
    precision, evidence = regression_prior((phi, y), Gaussian(noise=0.5))
    assert evidence == pytest.approx(dense_evidence(phi, y, precision, 0.5), rel=1e-9)
    on_grid = {e: dense_evidence(phi, y, 10**e, 0.5) for e in DECADE}
    assert abs(math.log10(precision) - max(on_grid, key=on_grid.get)) < 0.011  # its spacing


def test_learned_noise_is_where_the_exact_evidence_is_largest() -> None:
    phi = features(40, 4)
    y = phi @ torch.randn(5, 2, generator=STREAM).double()
    y = y + torch.tensor([0.3, 1.2]).double() * torch.randn(y.shape, generator=STREAM).double()
    shared = regression_prior((phi, y), Gaussian(noise="learned"))
    apart = regression_prior((phi, y), Gaussian(noise="learned_per_output"))

    def best(columns: Tensor, precision: float) -> float:
        return highest(lambda e: dense_evidence(phi, columns, precision, 10**e), 0.0, close=1e-3)[1]

    for factor in (0.9, 1.0, 1.1):
        together = best(y, factor * shared[0])
        alone = best(y[:, :1], factor * apart[0]) + best(y[:, 1:], factor * apart[0])
        if factor == 1.0:
            assert shared[1] == pytest.approx(together, abs=1e-3)
            assert apart[1] == pytest.approx(alone, abs=1e-3)
        else:
            assert together < shared[1]
            assert alone < apart[1]


@pytest.mark.parametrize("classes", [1, 3])
def test_evidence_of_classes_is_laplaces_with_the_blocks_of_the_classes(classes) -> None:
    """Against the Hessian by autograd; with all of it the evidence is larger or the same."""
    phi = features(50, 3)
    likelihood = Bernoulli() if classes == 1 else Categorical()
    y = torch.randint(0, max(classes, 2), (50,), generator=STREAM)
    head = _Head(phi, y, likelihood, classes)

    def loss(weights: Tensor) -> Tensor:
        logits = phi @ weights.view(-1, classes)
        if classes == 1:
            return F.binary_cross_entropy_with_logits(logits[:, 0], y.double(), reduction="sum")
        return F.cross_entropy(logits, y, reduction="sum")

    for precision in (0.3, 20.0):
        evidence = head.log_evidence(precision)
        weights = (head.basis @ head.weights).flatten()
        slope = torch.func.grad(loss)(weights) + precision * weights
        assert slope.abs().max() < 1e-2
        curvature = torch.autograd.functional.hessian(loss, weights)
        hessian = curvature / precision + torch.eye(len(weights)).double()
        best = -float(loss(weights)) - 0.5 * precision * float(weights.square().sum())
        blocks = [hessian[c::classes, c::classes].logdet() for c in range(classes)]
        assert evidence == pytest.approx(best - 0.5 * float(sum(blocks)), abs=1e-4)
        assert evidence <= best - 0.5 * float(hessian.logdet()) + 1e-4


def test_softmax_head_is_within_a_hundredth_of_the_best_on_a_grid() -> None:
    """In the NLL of 2,000 other examples; λ = 1, the default, is worse by more than a tenth."""
    weights = 0.2 * torch.randn(41, 4, generator=STREAM).double()
    phi, other = features(150, 40), features(2000, 40)

    def labels(inputs: Tensor) -> Tensor:
        return torch.multinomial((inputs @ weights).softmax(1), 1, generator=STREAM)[:, 0]

    y, z = labels(phi), labels(other)
    precision, _ = classes_prior((phi, y), Categorical(), 4)
    head = _Head(phi, y, Categorical(), 4)

    def score(value: float) -> float:
        head.log_evidence(value)
        return float(F.cross_entropy(other @ head.basis @ head.weights, z))

    best = min(score(10**e) for e in torch.linspace(-1, 3, 17).tolist())
    assert score(precision) < best + 0.01
    assert score(1.0) > best + 0.1


X = torch.randn(60, 4, generator=STREAM)
LABELS = (X[:, 0] + 0.5 * torch.randn(60, generator=STREAM) > 0).long()


def new_body() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh()).requires_grad_(False)


BODY = new_body()


def net() -> nn.Module:
    return nn.Sequential(BODY, nn.Linear(8, 2))


def fit(method: str = "map", **options) -> pm.Posterior:
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    return pm.fit(
        method, **({"net": net, "task": task, "prior_precision": "auto"} | SHORT | options)
    )


def test_the_choice_depends_on_the_data_alone(tmp_path) -> None:
    """Not on seed, method, number of members, nor on whether the body is cut off."""
    post = fit()
    chosen = post.config["prior_precision"]
    assert chosen > 0
    same = [
        fit(seed=5), fit(num_modes=3), fit("sghmc"), fit(augment=lambda x, stream: x),
        fit("laplace"),
    ]  # fmt: skip
    assert [other.config["prior_precision"] for other in same] == [chosen] * len(same)
    fixed = fit(prior_precision=chosen)
    assert torch.equal(fixed.predict(X).mean, post.predict(X).mean)
    post.save(tmp_path)
    config = pm.load(tmp_path, net=net).config
    assert config["prior_precision"] == chosen
    assert config["prior_choice"]["examples"] == 60


def test_the_same_data_are_searched_once(monkeypatch) -> None:
    """Other labels, one label changed, are other data."""
    calls: list[int] = []
    search = head_evidence.classes_prior
    monkeypatch.setattr(
        head_evidence, "classes_prior", lambda *args: calls.append(1) or search(*args)
    )
    monkeypatch.setattr(head_evidence, "_CHOSEN", {})
    first, again = fit(), fit("sghmc", seed=3)
    assert len(calls) == 1
    assert first.config["prior_choice"] == again.config["prior_choice"]
    labels = LABELS.clone()
    labels[0] = (labels[0] + 1) % (int(LABELS.max()) + 1)
    other = fit(task=pm.Task(train=(X, labels), likelihood="categorical"))
    assert len(calls) == 2
    assert (
        other.config["prior_choice"]["log_evidence"] != first.config["prior_choice"]["log_evidence"]
    )


def test_a_run_that_goes_on_has_the_same_prior(tmp_path) -> None:
    first, second = fit(checkpoint=tmp_path), fit(checkpoint=tmp_path)
    assert first.config["prior_precision"] == second.config["prior_precision"]
    assert torch.equal(first.predict(X).mean, second.predict(X).mean)


def test_regression_is_in_units_of_training() -> None:
    """Targets a thousand times as large have the same λ, since they are scaled alike."""
    y = X[:, :1] + 0.3 * torch.randn(60, 1, generator=STREAM)
    law = pm.likelihoods.Gaussian(noise="learned")
    tasks = [pm.Task(train=(X, factor * y), likelihood=law) for factor in (1.0, 1000.0)]
    fits = [fit(net=lambda: nn.Linear(4, 1), task=task) for task in tasks]
    chosen = [post.config["prior_precision"] for post in fits]
    assert chosen[0] == pytest.approx(chosen[1], rel=0.01)


def test_features_that_say_nothing_have_a_large_prior_that_can_be_trained_with() -> None:
    """λ ends at ten times the largest curvature, and a sampler stays at the base rate."""
    y = torch.randint(0, 2, (60,), generator=STREAM)
    noise = torch.randn(60, 1, generator=STREAM)
    law = pm.likelihoods.Gaussian(noise="learned")
    post = fit("sghmc", task=pm.Task(train=(X, y), likelihood="categorical"), epochs=20)
    assert 10 < post.config["prior_precision"] <= 2.5 * 60 * 9  # features in (−1, 1), ones
    assert (post.predict(X).mean - 0.5).abs().max() < 0.3
    task = pm.Task(train=(X[torch.arange(60) % 7], noise), likelihood=law)
    assert fit(net=lambda: nn.Linear(4, 1), task=task).config["prior_precision"] <= 1e5


def test_what_is_not_covered_is_refused_in_one_line() -> None:
    def hidden() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    heavy = pm.Task(train=(X, X[:, 0]), likelihood=pm.likelihoods.StudentT(df=4.0, scale=0.1))
    wrong = [
        ({"net": hidden, "trainable": "head", "num_modes": 2}, "frozen weights of their own"),
        ({"net": net, "trainable": r"1\.weight"}, "only weight is trained"),
        ({"net": lambda: nn.Linear(4, 1), "task": heavy}, "the likelihood is student_t"),
    ]
    for options, why in wrong:
        with pytest.raises(ValueError, match=why) as error:
            fit(**options)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="as by laplace_map to find λ, which is not possible"):
        fit(net=hidden, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="must be 'auto' or a finite number ≥ 0, got 'aut'"):
        fit(prior_precision="aut")


@pytest.mark.parametrize("method", ["deep_ensemble", "sghmc"])
def test_a_whole_network_has_the_prior_of_online_laplace(method) -> None:
    """λ of `laplace_map` with one precision, on the first member; on all data, held out or not."""
    hidden = partial(pm.nets.mlp, (4,), 2, hidden=(8,))
    post = fit(method, net=hidden, epochs=40, seed=4)
    assert not METHODS.get(method).value.post_hoc
    every = 40 * (-(-60 // SHORT["batch_size"])) // 10
    alone = fit(
        "laplace_map", net=hidden, prior="single", prior_precision=1.0, epochs=40, seed=4,
        evidence_every=every,
    )  # fmt: skip
    expected = alone.config["trained_precisions"][0]["all"]
    assert expected > 0 and expected != 1
    assert post.config["prior_precision"] == float(f"{expected:.3g}")
    assert post.config["prior_choice"]["by"] == "online evidence of the first member"
    assert fit(method, net=hidden, epochs=40, seed=4, num_modes=3).config[
        "prior_precision"
    ] == post.config["prior_precision"]  # fmt: skip


def test_a_head_of_more_weights_than_examples_is_warned_of_where_it_is_sampled() -> None:
    wide = partial(nn.Linear, 4, 15)
    task = pm.Task(train=(X, LABELS), likelihood="categorical", target_size=15)
    with pytest.warns(UserWarning, match="75 weights of a linear layer .* and 60 examples"):
        fit("sghmc", net=wide, task=task, prior_precision=1.0)
    for method, options in (("map", {}), ("sghmc", {"prior_precision": 2.0})):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*weights of a linear layer")
            fit(method, net=wide, task=task, **{"prior_precision": 1.0, **options})
