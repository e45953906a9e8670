"""The temperature against closed forms, SciPy and a known factor; the faults known from others."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from polymode.prediction import CategoricalPrediction
from polymode.recalibration import fit_temperature, recalibrate
from polymode.recalibration.temperature import fit

seeds = st.integers(0, 2**31)


def draw(n: int, classes: int, seed: int = 0, samples: int = 0) -> tuple[torch.Tensor, ...]:
    """Logits (n, C), or (S, n, C) with noise of samples, and labels of what they are without it."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    if samples:
        noise = torch.randn(samples, n, classes, generator=generator, dtype=torch.float64)
        logits = logits + noise
    return logits, labels


def mixture_nll(log_probs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Plain twin: -mean log of the mean probability of the label, (S, n, C) -> ()."""
    return -log_probs.exp().mean(0)[torch.arange(len(labels)), labels].log().mean()


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 3.0, 30.0])
def test_a_known_factor_is_recovered(factor) -> None:
    """Logits times k have temperature k. False alarms: 6e-5 (four standard errors).

    The standard error of 1/T follows from the Fisher information n E[Var(l)].
    """
    logits, labels = draw(4000, 5)
    log_probs = (factor * logits).log_softmax(-1)
    found = fit_temperature(log_probs, labels)
    probs = logits.softmax(-1)
    variance = (probs * logits**2).sum(-1) - (probs * logits).sum(-1) ** 2
    error = 1 / math.sqrt(variance.sum())
    assert abs(factor / found - 1.0) < 4 * error < 0.1


@pytest.mark.parametrize("shape", [(1000, 2), (1000, 10), (30, 3)])
@pytest.mark.parametrize("factor", [0.3, 1.0, 8.0])
def test_against_scipy(shape, factor) -> None:
    logits, labels = draw(*shape, seed=3)
    log_probs = (factor * logits).log_softmax(-1)

    def loss(log_temperature: float) -> float:
        scaled = (log_probs / math.exp(log_temperature)).log_softmax(-1)
        return mixture_nll(scaled[None], labels).item()

    best = minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-10})
    assert math.log(fit_temperature(log_probs, labels)) == pytest.approx(best.x, abs=2e-6)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 40), st.integers(2, 6), st.integers(1, 4))
def test_the_slope_is_zero(seed, n, classes, samples) -> None:
    """At the T found, unless a bound, the likelihood of the mixture has no slope (autograd)."""
    logits, labels = draw(n, classes, seed, samples)
    found = fit(logits.log_softmax(-1), labels)["temperature"]
    beta = torch.tensor(1 / found, requires_grad=True, dtype=torch.float64)
    loss = mixture_nll((beta * logits).log_softmax(-1), labels)
    slope = torch.autograd.grad(loss, beta)[0].item()
    if 0.01 < found < 100:
        assert abs(slope) < 1e-9
    else:
        assert slope * (1 if found == 100 else -1) >= -1e-12
    for other in (0.01, 0.5 * found, 0.9 * found, 1.1 * found, 2 * found, 100.0):
        if 0.01 <= other <= 100:
            assert mixture_nll((logits / other).log_softmax(-1), labels) >= loss - 1e-12


def test_one_sample_of_a_mixture_is_no_mixture() -> None:
    logits, labels = draw(200, 4)
    log_probs = logits.log_softmax(-1)
    assert fit(log_probs[None], labels)["temperature"] == fit_temperature(log_probs, labels)


def test_optimal_already() -> None:
    """Fitted twice, the second temperature is 1; and float32 or logits give the same."""
    logits, labels = draw(300, 4)
    first = fit_temperature(logits, labels)
    assert fit_temperature((logits / first).log_softmax(-1), labels) == pytest.approx(1, abs=1e-10)
    assert fit_temperature(logits.log_softmax(-1), labels) == pytest.approx(first, rel=1e-10)
    assert fit_temperature(logits.float(), labels) == pytest.approx(first, rel=1e-5)


def test_where_no_temperature_is_best() -> None:
    labels = torch.tensor([0, 1, 2])
    sure = torch.eye(3) * 3
    assert fit_temperature(sure, labels) == 0.01  # separable
    assert fit_temperature(sure, (labels + 1) % 3) == 100.0  # always wrong
    assert fit_temperature(torch.zeros(3, 3), labels) == 1.0  # says nothing


def test_zero_probabilities() -> None:
    """Impossible classes stay out; rows whose label is impossible say nothing about T."""
    logits, labels = draw(400, 3)
    padded = torch.cat([logits, torch.full((400, 1), -math.inf)], 1)
    assert fit_temperature(padded, labels) == pytest.approx(fit_temperature(logits, labels))
    wrong = torch.cat([padded, torch.tensor([[0.0, 0.0, -1.0, -math.inf]])])
    assert fit_temperature(wrong, torch.cat([labels, torch.tensor([3])])) == pytest.approx(
        fit_temperature(logits, labels)
    )
    assert fit_temperature(padded[:1], torch.tensor([3])) == 1.0
    member = torch.stack([padded, torch.cat([logits[:, :2], logits[:, :2]], 1)])
    assert 0.1 < fit(member.log_softmax(-1), labels)["temperature"] < 10


def test_binary_logits() -> None:
    """A fault known elsewhere: two classes of one logit z are sigmoid(z / T), no other rule."""
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(500, generator=generator, dtype=torch.float64)
    labels = (torch.rand(500, generator=generator) < z.sigmoid()).long()
    pair = torch.stack([torch.zeros_like(z), 3 * z], -1)

    def loss(temperature: float) -> float:
        scaled = 3 * z / temperature
        return torch.nn.functional.binary_cross_entropy_with_logits(scaled, labels.double()).item()

    best = minimize_scalar(loss, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-9})
    assert fit_temperature(pair, labels) == pytest.approx(best.x, rel=1e-6)
    prediction = CategoricalPrediction.from_logits(pair)
    recalibrated = recalibrate(prediction, labels)(prediction)
    expected = (3 * z / fit_temperature(pair, labels)).sigmoid()
    torch.testing.assert_close(recalibrated.mean[:, 1], expected)


def test_probabilities_are_not_taken_for_logits() -> None:
    """A fault known elsewhere: logits and probabilities mixed up give a T far from right."""
    logits, labels = draw(1000, 5)
    with pytest.raises(ValueError, match="are probabilities"):
        fit_temperature(logits.softmax(-1), labels)
    assert fit_temperature(logits, labels) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    ("log_probs", "labels", "message"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "0 row"),
        (torch.zeros(2, 3), torch.tensor([0]), "1 label"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "in 0..2"),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), "integers"),
        (torch.zeros(2, 1), torch.tensor([0, 0]), "C >= 2"),
        (torch.tensor([[0.0, math.nan]]), torch.tensor([0]), "row 0"),
        (torch.full((1, 2), -math.inf), torch.tensor([0]), "row 0"),
        (torch.zeros(2, 3).long(), torch.tensor([0, 1]), "floats"),
        ([[0.0, 1.0]], torch.tensor([0]), "list"),
    ],
)
def test_bad_input(log_probs, labels, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit_temperature(log_probs, labels)


def test_a_member_that_says_exactly_zero_leaves_its_rows_to_the_others() -> None:
    """Against a fine grid of the mixture's likelihood, with 0 log 0 written out as 0.

    One member gives the label no probability wherever its top class is wrong. The row counts all
    the same, by the other member; without such rows the lowest temperature would be the best.
    """
    logits, labels = draw(300, 3)
    sure = 3 * logits.double()
    zero = sure.clone()
    rows = (sure.argmax(-1) != labels).nonzero().flatten()
    zero[rows, labels[rows]] = -math.inf
    logs = torch.stack([sure, zero]).log_softmax(-1)

    def loss(temperature: float) -> float:
        probs = (logs / temperature).softmax(-1).mean(0)
        return -probs.gather(1, labels[:, None]).log().mean().item()

    found = fit(logs, labels)["temperature"]
    grid = torch.logspace(-1, 1, 401).tolist()
    best = min(grid, key=loss)
    assert found == pytest.approx(best, rel=0.012)  # the grid's step
    assert loss(found) <= loss(best) + 1e-12
    assert len(rows) > 50 and best > 0.5
