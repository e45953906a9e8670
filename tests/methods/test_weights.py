"""Weights of observations: an integer weight is as many equal rows, for whatever is computed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import polymode as pm
from polymode.likelihoods import Gaussian, Likelihood, Positions
from polymode.likelihoods.kinds import as_likelihood

STREAM = torch.Generator().manual_seed(0)
N = 16
X = torch.randn(N, 3, generator=STREAM, dtype=torch.float64)
LABELS = (X[:, 0] + 0.5 * torch.randn(N, generator=STREAM).double() > 0).long()
VALUES = X[:, :2].sin()
WEIGHTS = torch.randint(0, 4, (N,), generator=STREAM)
TIMES = WEIGHTS.clamp(min=0)
WHOLE = {"epochs": 20, "data_order": "shared", "dtype": torch.float64, "progress": "silent"}


class OneBatch:
    """Arrays, always in the same order and together."""

    def __init__(self, *batch: Tensor) -> None:
        self.batch = batch

    def __iter__(self):
        yield self.batch


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def both(method: str, y: Tensor, likelihood: Likelihood | str, **options):
    """The posterior of weighted rows and that of repeated ones."""
    given = {"likelihood": likelihood, "target_scaling": None}
    weighted = pm.Task(train=(X, y), weights=WEIGHTS, **given)
    repeated = pm.Task(train=OneBatch(X.repeat_interleave(TIMES, 0), y.repeat_interleave(TIMES, 0)),
                       **given)  # fmt: skip
    options = WHOLE | {"batch_size": N} | options
    alone = {key: value for key, value in options.items() if key != "batch_size"}
    first = pm.fit(method, net=net, task=weighted, **options)
    return first, pm.fit(method, net=net, task=repeated, **alone)


def assert_same(a: pm.Posterior, b: pm.Posterior, rtol: float = 1e-7) -> None:
    first, second = a.weights.tensors(), b.weights.tensors()
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=rtol, atol=1e-9, msg=name)


CASES = [(LABELS, "categorical"), (VALUES, Gaussian(noise="learned"))]


@pytest.mark.parametrize(("y", "likelihood"), CASES, ids=["classes", "values"])
@pytest.mark.parametrize("method", ["map", "hmc", "sghmc"])
@pytest.mark.filterwarnings("ignore:chain")
def test_weights_are_repeated_rows(method, y, likelihood) -> None:
    weighted, repeated = both(method, y, likelihood)
    assert_same(weighted, repeated)
    assert weighted.history.train_loss[0] == pytest.approx(repeated.history.train_loss[0])


@pytest.mark.parametrize(("y", "likelihood"), CASES, ids=["classes", "values"])
@pytest.mark.parametrize("structure", ["full", "kron", "diag", "last_layer"])
def test_evidence_of_weights_is_that_of_repeated_rows(structure, y, likelihood) -> None:
    """Curvature, precision and evidence of Laplace; in kron the factors are sums over rows."""
    base = Positions(as_likelihood(likelihood), axes=0)
    weighted, repeated = both("laplace", y, base, structure=structure, evidence="trained")
    assert weighted.weights.log_evidence == pytest.approx(repeated.weights.log_evidence)  # type: ignore[attr-defined]
    for name in weighted.weights.tensors():
        if name.startswith("precision"):
            first, second = (post.weights.tensors()[name] for post in (weighted, repeated))
            torch.testing.assert_close(first, second, rtol=1e-6, atol=0)
    torch.testing.assert_close(weighted.predict(X).mean, repeated.predict(X).mean)


@pytest.mark.parametrize("execution", ["loop", "batched", "threads", "chunked"])
def test_weights_in_every_execution(execution) -> None:
    task = pm.Task(train=(X, LABELS), likelihood="categorical", weights=WEIGHTS)
    options = WHOLE | {"batch_size": 8, "num_modes": 3, "data_order": "own"}
    plain = pm.fit("deep_ensemble", net=net, task=task, execution="loop", **options)
    post = pm.fit("deep_ensemble", net=net, task=task, execution=execution, **options)
    assert_same(post, plain)


def test_weights_by_name() -> None:
    """Among named arrays and in a loader's dictionaries; they are no inputs."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    given = {"likelihood": "categorical", "weights": "w"}
    arrays = {"x": X, "w": WEIGHTS.float(), "label": LABELS}
    rows = [{name: tensor[k] for name, tensor in arrays.items()} for k in range(N)]
    tasks = [
        pm.Task(train=arrays, test=arrays, **given),
        pm.Task(train=DataLoader(rows, batch_size=N), test=arrays, **given),  # type: ignore[arg-type]
    ]
    posts = [pm.fit("map", net=Named, task=task, **WHOLE, seed=1) for task in tasks]
    expected = pm.fit(
        "map", net=lambda: Named(), seed=1, **WHOLE,
        task=pm.Task(train={"x": X, "label": LABELS}, likelihood="categorical", weights=WEIGHTS),
    )  # fmt: skip
    for post in posts:
        assert_same(post, expected)
        assert post.predict({"x": X}).mean.shape == (N, 2)


def test_class_weights_are_weights() -> None:
    by_class = pm.Task(train=(X, LABELS), likelihood="categorical", weights={1: 3.0})
    table = torch.tensor([1.0, 3.0])
    by_row = pm.Task(train=(X, LABELS), likelihood="categorical", weights=table[LABELS])
    posts = [pm.fit("map", net=net, task=task, **WHOLE) for task in (by_class, by_row)]
    assert_same(*posts)


def test_weights_at_positions() -> None:
    """Weights of each position, of 0 and 1, are ignored targets."""
    x = X.view(4, 4, 3)
    y, w = LABELS.view(4, 4), (WEIGHTS.view(4, 4) > 0).float()
    ignored = y.masked_fill(w == 0, -100)
    base = Positions(pm.likelihoods.Categorical(), axes=1, outputs="last")
    tasks = [
        pm.Task(train=(x, y), likelihood=base, weights=w),
        pm.Task(train=(x, ignored), likelihood=base),
    ]
    assert_same(*(pm.fit("map", net=net, task=task, **WHOLE) for task in tasks))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (WEIGHTS[:3], r"must have shape \(16,\), got \(3,\)"),
        (WEIGHTS - 5, "finite and >= 0, got -"),
        (torch.full((N,), math.nan), "finite and >= 0, got nan"),
        (torch.zeros(N), "must not all be 0"),
        ({2: 1.0}, "classes are 0..1"),
        ({0: -1.0}, "class_weights"),
        ("w", "train has no 'w'"),
    ],
)
def test_wrong_weights(weights, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        pm.Task(train=(X, LABELS), likelihood="categorical", weights=weights)
    assert "\n" not in str(caught.value)


def test_weights_of_a_loader_need_a_name() -> None:
    loader = DataLoader(list(zip(X, LABELS, strict=True)), batch_size=4)
    with pytest.raises(ValueError, match="an order of its own.*weights='weight'"):
        pm.Task(train=loader, likelihood="categorical", weights=WEIGHTS)
    with pytest.raises(ValueError, match="names an entry of dictionaries"):
        pm.Task(train=loader, likelihood="categorical", weights="w")
