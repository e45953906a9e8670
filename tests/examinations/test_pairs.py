"""Diversity of pairs: means, the smallest, the correlation and its error, the curve by modes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import polymode as pm
from polymode.examinations.pairs import correlation
from polymode.metrics.diversity import pairwise_mutual_information


@pytest.fixture(scope="module")
def fitted():
    task = pm.task("two_moons")
    options = {"epochs": 3, "num_modes": 5, "progress": "silent"}
    return pm.fit("deep_ensemble", net=pm.nets.mlp, task=task, **options), task


def test_numbers_are_those_of_all_pairs(fitted):
    post, task = fitted
    name = next(iter(task.ood))
    found = pm.examine(post, task, "pairs", ood=name, num_inputs=100)
    x = task.test.x[:100]
    matrix = pairwise_mutual_information(post.predict(x))
    values = matrix[torch.ones(5, 5).triu(1) > 0]
    assert found["id_pair_mi"].value == pytest.approx(float(values.mean()), rel=1e-9)
    assert found["least_id_pair_mi"].value == pytest.approx(float(values.min()), rel=1e-9)
    assert found["id_pair_mi"].n == 10
    curve = found.arrays["id mutual information"]
    assert found.arrays["modes"].tolist() == [1, 2, 4, 5]
    for size, value in zip((1, 2, 4, 5), curve, strict=True):
        expected = post[:size].predict(x).mutual_information.double().mean()
        assert value == pytest.approx(float(expected), abs=1e-6)
    assert set(found.displays()) == {"density", "modes"}
    assert "1 to 5" not in found.displays()["modes"].caption  # says values, not numbers of modes


def test_the_curve_by_modes_takes_all_samples_of_a_mode(fitted):
    """Several samples per mode: the first m modes have all of theirs, not one of each."""
    task = fitted[1]
    options = {"epochs": 4, "num_modes": 3, "progress": "silent", "samples_per_mode": 4}
    post = pm.fit("dropout", net=partial(pm.nets.mlp, dropout=0.4), task=task, **options)
    found = pm.examine(post, task, "pairs", num_inputs=60)
    x = task.test.x[:60]
    probs = post.predict(x).log_probs.double().exp()
    assert probs.shape[0] == 12
    for size, value in zip(
        found.arrays["modes"], found.arrays["id mutual information"], strict=True
    ):
        part = probs[: 4 * int(size)]  # mode by mode
        total = torch.special.entr(part.mean(0)).sum(-1)
        expected = (total - torch.special.entr(part).sum(-1).mean(0)).mean()
        assert value == pytest.approx(float(expected), abs=1e-9)


def test_the_correlation_and_its_jackknife():
    """Against a loop that leaves out one network after another."""
    stream = np.random.default_rng(0)
    a, b = stream.random((2, 7, 7))
    a, b = a + a.T, b + b.T + 0.5 * (a + a.T)
    r, error = correlation(a.copy(), b.copy())

    def direct(keep):
        rows, columns = np.triu_indices(len(keep), 1)
        first, second = (m[np.ix_(keep, keep)][rows, columns] for m in (a, b))
        return np.corrcoef(first, second)[0, 1]

    everyone = list(range(7))
    assert r == pytest.approx(direct(everyone), abs=1e-12)
    without = np.array([direct([k for k in everyone if k != s]) for s in everyone])
    expected = np.sqrt(6 / 7 * ((without - without.mean()) ** 2).sum())
    assert error == pytest.approx(expected, abs=1e-12)


def test_what_cannot_be_is_refused(fitted):
    post, task = fitted
    with pytest.raises(ValueError, match="Unknown OOD set 'rings'"):
        pm.examine(post, task, "pairs", ood="rings")
    with pytest.raises(ValueError, match="at least 3 samples"):
        pm.examine(post[:2], task, "pairs")
    with pytest.raises(ValueError, match="`num_inputs` of pairs"):
        pm.examine(post, task, "pairs", num_inputs=0)
