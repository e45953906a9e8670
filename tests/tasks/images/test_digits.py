from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_digits

from polymode.tasks import task
from polymode.tasks.shifts import DEGREES, SEVERITIES, gaussian_noise, rotation
from polymode.tasks.splits import stratified_order


@pytest.fixture(scope="module")
def digits():
    return task("digits")


@pytest.fixture(scope="module")
def statistics():
    """Mean and standard deviation of the pixels of the training rows, from the file itself."""
    file = load_digits()
    images = torch.tensor(file.images, dtype=torch.float32)[:, None] / 16
    order = stratified_order(torch.tensor(file.target), "digits")
    train = images[order[600:]]
    return images, order, float(train.mean()), float(train.std())


def test_sizes_types_and_names(digits):
    assert [len(s) for s in (digits.train, digits.val, digits.test)] == [1197, 200, 400]
    assert digits.input_shape == (1, 8, 8) and digits.num_outputs == digits.target_size == 10
    assert digits.train.x.dtype == torch.float32 and digits.train.y.dtype == torch.int64
    assert set(digits.ood) == {"patches", "scrambled"} and digits.near_ood == ("scrambled",)
    assert {key: list(levels) for key, levels in digits.shifts.items()} == {
        "gaussian_noise": [1, 2, 3, 4, 5],
        "rotation": [1, 2, 3, 4, 5],
    }


def test_split_is_a_partition_of_the_file(digits, statistics):
    images, order, mean, std = statistics
    assert order.sort().values.equal(torch.arange(1797))
    rebuilt = torch.empty_like(images)
    rebuilt[order] = torch.cat([digits.test.x, digits.val.x, digits.train.x])
    torch.testing.assert_close(rebuilt * std + mean, images)
    labels = torch.empty(1797, dtype=torch.int64)
    labels[order] = torch.cat([digits.test.y, digits.val.y, digits.train.y])
    assert labels.equal(torch.tensor(load_digits().target))


def test_split_is_stratified(digits):
    shares = torch.tensor(load_digits().target).bincount() / 1797
    for split in (digits.train, digits.val, digits.test):
        assert ((split.y.bincount() - shares * len(split)).abs() < 2).all()


def test_split_does_not_change_from_release_to_release(statistics):
    assert statistics[1][:8].tolist() == [561, 235, 1312, 1536, 1773, 1176, 1314, 1663]


def test_normalised_with_training_statistics_only(digits, statistics):
    images, _, mean, std = statistics
    assert abs(float(digits.train.x.mean())) < 1e-5
    assert float(digits.train.x.std()) == pytest.approx(1, abs=1e-5)
    assert float(images.mean()) != mean
    assert f"{mean:.4f}" in digits.description and f"{std:.4f}" in digits.description
    low, high = (0 - mean) / std, (1 - mean) / std
    shifted = [data.x for levels in digits.shifts.values() for data in levels.values()]
    for x in [digits.train.x, digits.val.x, digits.test.x, *digits.ood.values(), *shifted]:
        assert float(x.min()) >= low - 1e-5 and float(x.max()) <= high + 1e-5
        assert float(x.min()) < low + 0.3 and float(x.max()) > high - 0.3


def test_scrambled_is_one_permutation_of_the_pixels(digits):
    test, scrambled = digits.test.x.flatten(1), digits.ood["scrambled"].flatten(1)
    torch.testing.assert_close(test.sort(1).values, scrambled.sort(1).values)
    assert not torch.equal(test, scrambled)
    places = [[j for j in range(64) if torch.equal(test[:, j], scrambled[:, i])] for i in range(64)]
    assert all(places)


def test_patches_are_photographs_and_not_digits(digits):
    patches = digits.ood["patches"]
    assert patches.shape == (400, 1, 8, 8)
    distance = torch.cdist(patches.flatten(1), digits.train.x.flatten(1))
    within = torch.cdist(digits.test.x.flatten(1), digits.train.x.flatten(1))
    assert float(distance.min(1).values.median()) > 2 * float(within.min(1).values.median())


def test_seed_moves_the_noise_and_nothing_else(digits):
    again, other = task("digits", seed=0), task("digits", seed=1)
    for twin in (again, other):
        assert torch.equal(digits.train.x, twin.train.x) and torch.equal(digits.test.y, twin.test.y)
        assert all(torch.equal(digits.ood[key], twin.ood[key]) for key in digits.ood)
        assert torch.equal(digits.shifts["rotation"][3].x, twin.shifts["rotation"][3].x)
    for severity in SEVERITIES:
        noisy = digits.shifts["gaussian_noise"][severity].x
        assert torch.equal(noisy, again.shifts["gaussian_noise"][severity].x)
        assert not torch.equal(noisy, other.shifts["gaussian_noise"][severity].x)


@pytest.mark.parametrize("name", ["gaussian_noise", "rotation"])
def test_severity_raises_distance_and_lowers_accuracy(digits, name):
    """A ridge classifier trained on the clean digits gets worse with each severity."""
    x, y = digits.train.x.flatten(1).double(), digits.train.y
    gram = x.T @ x + 10 * torch.eye(64, dtype=torch.float64)
    targets = torch.nn.functional.one_hot(y).double() - 0.1
    weights = torch.linalg.solve(gram, x.T @ targets)
    distances, accuracies = [], []
    for data in [digits.test, *digits.shifts[name].values()]:
        assert torch.equal(data.y, digits.test.y)
        distances.append(float((data.x - digits.test.x).square().mean()))
        scores = data.x.flatten(1).double() @ weights
        accuracies.append(float((scores.argmax(1) == data.y).double().mean()))
    assert distances == sorted(distances) and len(set(distances)) == 6
    assert accuracies == sorted(accuracies, reverse=True) and len(set(accuracies)) == 6


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("height, width", [(33, 33), (33, 65)])
def test_rotation_turns_a_spot_counter_clockwise_by_the_stated_angle(severity, height, width):
    rows = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    columns = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    spot = torch.exp(-((columns - 9) ** 2 + (rows - 2) ** 2) / 8)
    turned = rotation(spot[None, None], severity)[0, 0]
    right = float((turned * columns).sum() / turned.sum())
    up = -float((turned * rows).sum() / turned.sum())
    angle = math.radians(DEGREES[severity - 1])
    assert right == pytest.approx(9 * math.cos(angle) + 2 * math.sin(angle), abs=0.02)
    assert up == pytest.approx(9 * math.sin(angle) - 2 * math.cos(angle), abs=0.02)


def test_noise_keeps_range_and_type_and_has_the_stated_size():
    """On mid-grey nothing is clipped at severity 1 (5 sigma); 4 standard errors, rate 6e-5."""
    images = torch.full((50, 1, 15, 20), 0.5, dtype=torch.float64)
    noisy = gaussian_noise(images, 1, seed=0)
    assert noisy.shape == images.shape and noisy.dtype == images.dtype
    assert float((noisy - images).std()) == pytest.approx(0.1, abs=4 * 0.1 / math.sqrt(2 * 15000))
    harsh = gaussian_noise(images, 5, seed=0)
    assert float(harsh.min()) == 0 and float(harsh.max()) == 1


def test_building_uses_no_global_random_state():
    before = torch.get_rng_state()
    task("digits")
    assert torch.equal(before, torch.get_rng_state())
