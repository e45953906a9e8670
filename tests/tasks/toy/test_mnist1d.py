"""MNIST-1D against a signal-by-signal twin, and against moments of the authors' package.

`mnist1d_moments.json` holds, for each class and place, mean, variance and covariance with the next
place of 20,000 signals before standardising, drawn with the package mnist1d 0.0.2.post1
(`transform` of `get_templates()` with the default arguments, NumPy seed 1).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter1d

from polymode.core.rng import generator
from polymode.tasks import task
from polymode.tasks.toy import mnist1d as room

MOMENTS = Path(__file__).with_name("mnist1d_moments.json")


@pytest.fixture(scope="module")
def own():
    return task("mnist1d")


def one_signal(template: np.ndarray | None, p, u, k, slope, smooth, white) -> np.ndarray:
    """The published recipe for one signal, step by step in NumPy."""
    digit = np.zeros(12) if template is None else template
    padded = np.concatenate([digit, np.zeros(p)])
    old, new = np.linspace(0, 1, len(padded)), np.linspace(0, 1, 72)
    marks = np.concatenate([np.ones(12), np.zeros(p)])
    x = np.interp(new, old, padded) * (1 + 0.4 * u)
    covered = np.interp(new, old, marks) > 1e-9
    if template is None:
        covered[:] = False
    x, covered = np.roll(x, k), np.roll(covered, k)
    x = np.where(covered, x, gaussian_filter1d(0.25 * smooth, 2))
    x = x + 0.02 * white - 0.75 * slope * np.linspace(-0.5, 0.5, 72)
    return np.interp(np.linspace(0, 1, 40), np.linspace(0, 1, 72), x)


def test_signals_against_one_by_one():
    draws = room.draw(60, generator(0, "twin"))
    labels = torch.arange(60) % 10
    found = room.signals(room.templates()[labels], draws)
    empty = room.signals(torch.full((60, 12), float("nan")), draws)
    for i in range(60):
        numbers = [tensor[i].double().numpy() for tensor in draws]
        numbers[0], numbers[2] = int(numbers[0]), int(numbers[2])
        template = room.templates()[labels[i]].double().numpy()
        np.testing.assert_allclose(found[i], one_signal(template, *numbers), atol=2e-6)
        np.testing.assert_allclose(empty[i], one_signal(None, *numbers), atol=2e-6)


def test_random_numbers_have_the_published_ranges():
    draws = room.draw(20_000, generator(0, "ranges"))
    assert draws.padding.unique().tolist() == list(range(36, 61))
    assert draws.shift.unique().tolist() == list(range(48))
    for uniform in (draws.scale, draws.slope):
        assert -0.5 <= float(uniform.min()) < -0.499 and 0.499 < float(uniform.max()) <= 0.5


def test_templates_start_and_end_at_zero_with_variance_1_36():
    shapes = room.templates()
    assert shapes.shape == (10, 12)
    assert shapes[:, 0].abs().max() == 0 and shapes[:, -1].abs().max() == 0
    torch.testing.assert_close(shapes.var(1, correction=0), torch.full((10,), 1 / 36))


def test_moments_against_the_authors_package():
    """Mean, variance and neighbour covariance of each class and place, 4,000 signals a class.

    1,190 z-scores: none above 4.7 (rate 0.003 by Bonferroni), and for each of the three kinds
    their mean square within 0.5 of 1. Neighbouring places are dependent, so the standard deviation
    of the mean squares was taken over 20 seeds: 0.13, 0.09 and 0.09 (rate 1e-4 and less).
    """
    published = json.loads(MOMENTS.read_text())
    scores: dict[str, list[np.ndarray]] = {"mean": [], "variance": [], "lag_covariance": []}
    for label in range(10):
        draws = room.draw(4000, generator(0, "moments", label))
        x = room.signals(room.templates()[label].expand(4000, -1), draws).double().numpy()
        centred = x - x.mean(0)
        products = {
            "mean": x,
            "variance": centred**2,
            "lag_covariance": centred[:, 1:] * centred[:, :-1],
        }
        for key, values in products.items():
            error = values.std(0) * np.sqrt(1 / 4000 + 1 / published["num"])
            scores[key].append((values.mean(0) - np.array(published[key][label])) / error)
    for key, lists in scores.items():
        z = np.stack(lists)
        assert np.abs(z).max() < 4.7, key
        assert (z**2).mean() == pytest.approx(1, abs=0.5), key


def test_normalised_with_training_statistics_only(own):
    assert float(own.train.x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(own.train.x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert abs(float(own.test.x.mean())) > 1e-5
    assert own.input_shape == (40,) and own.target_size == 10
    for data in (own.train, own.val, own.test):
        assert data.y.bincount().unique().numel() == 1


def test_ood_sets_and_shift(own):
    assert own.near_ood == ("no_digit",) and set(own.ood) == {"no_digit", "shuffled"}
    no_digit, shuffled = own.ood["no_digit"], own.ood["shuffled"]
    assert no_digit.shape == shuffled.shape == (1000, 40)
    roughness = [float(x.diff(dim=1).square().mean()) for x in (own.test.x, no_digit, shuffled)]
    assert roughness[1] < roughness[0] < roughness[2] / 2
    assert float(no_digit.square().mean()) < 0.8 * float(own.test.x.square().mean())
    distances = [
        float((data.x - own.test.x).square().mean()) for data in own.shifts["noise"].values()
    ]
    assert distances == pytest.approx([0.01, 0.04, 0.09, 0.16, 0.25], rel=0.05)
    assert all(torch.equal(data.y, own.test.y) for data in own.shifts["noise"].values())


def test_classes_can_be_learned_but_not_by_a_line(own):
    """Nearest neighbours find more than a linear classifier: the digits move."""
    x, y = own.train.x.double(), own.train.y
    nearest = torch.cdist(own.test.x, own.train.x).argmin(1)
    neighbours = float((y[nearest] == own.test.y).double().mean())
    gram = x.T @ x + 10 * torch.eye(40, dtype=torch.float64)
    weights = torch.linalg.solve(gram, x.T @ (torch.nn.functional.one_hot(y).double() - 0.1))
    linear = float(((own.test.x.double() @ weights).argmax(1) == own.test.y).double().mean())
    assert 0.15 < linear < 0.45 < neighbours < 0.8
