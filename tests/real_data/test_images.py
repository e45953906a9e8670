"""Statistics of the real image sets; each test is skipped where its files are not here.

    make test-data          # looks in $POLYMODE_DATA, by default in ~/.cache/polymode/data

Means and standard deviations are those that the field's loaders normalise with, over all training
pixels (of each channel) divided by 255, given to four digits.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from polymode.tasks.files import data_folder, find, load
from polymode.tasks.files.catalogue import MNIST_COUNTS


@functools.cache
def loaded(name: str) -> dict[str, np.ndarray]:
    return load(name)


def arrays(name: str) -> dict[str, np.ndarray]:
    if find(name) is None:
        pytest.skip(f"{name} is not in {data_folder()}; polymode data get {name}")
    return loaded(name)


def half(name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    found = arrays(name)
    if f"x_{part}" not in found:
        pytest.skip(f"{find(name)} holds no {part} half")
    return found[f"x_{part}"], found[f"y_{part}"]


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each channel, pixels in 0 to 1, exactly from counts."""
    flat = x.reshape(-1, x.shape[3] if x.ndim == 4 else 1)
    values = np.arange(256) / 255
    weights = np.stack([np.bincount(channel, minlength=256) for channel in flat.T]) / len(flat)
    mean = weights @ values
    return mean, np.sqrt(weights @ values**2 - mean**2)


SIZES = {
    "mnist": (60_000, 10_000, (28, 28), 10),
    "fashion_mnist": (60_000, 10_000, (28, 28), 10),
    "kmnist": (60_000, 10_000, (28, 28), 10),
    "notmnist": (0, 10_000, (28, 28), 10),
    "notmnist_small": (0, 18_724, (28, 28), 10),
    "cifar10": (50_000, 10_000, (32, 32, 3), 10),
    "cifar100": (50_000, 10_000, (32, 32, 3), 100),
    "svhn": (73_257, 26_032, (32, 32, 3), 10),
    "tiny_imagenet": (100_000, 10_000, (64, 64, 3), 200),
    "cifar10_subset": (10_000, 4_000, (32, 32, 3), 10),
    "svhn_recropped": (0, 2_000, (32, 32, 3), 10),
}


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_types_and_ranges(name, part):
    train, test, shape, classes = SIZES[name]
    if part == "train" and not train:
        pytest.skip(f"{name} has no training half")
    x, y = half(name, part)
    assert x.shape == (train if part == "train" else test, *shape)
    assert x.dtype == np.uint8 and x.min() == 0 and x.max() == 255
    assert y.shape == x.shape[:1] and y.dtype == np.int64
    assert set(np.unique(y).tolist()) == set(range(classes))


MOMENTS = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "kmnist": ((0.1918,), (0.3483,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_mean_and_deviation_of_the_training_pixels(name):
    mean, deviation = moments(half(name, "train")[0])
    np.testing.assert_allclose(mean, MOMENTS[name][0], atol=1.01e-4)
    np.testing.assert_allclose(deviation, MOMENTS[name][1], atol=1.01e-4)


HEADS = {
    ("mnist", "train"): [5, 0, 4, 1, 9, 2, 1, 3, 1, 4],
    ("mnist", "test"): [7, 2, 1, 0, 4, 1, 4, 9, 5, 9],
    ("fashion_mnist", "train"): [9, 0, 0, 3, 0, 2, 7, 2, 5, 5],
    ("fashion_mnist", "test"): [9, 2, 1, 1, 6, 1, 4, 6, 5, 7],
    ("kmnist", "test"): [2, 9, 3, 8, 3, 3, 8, 3, 2, 5],
    ("cifar10", "train"): [6, 9, 9, 4, 1, 1, 2, 7, 8, 3],
    ("cifar10", "test"): [3, 8, 8, 0, 6, 6, 1, 6, 3, 1],
    ("notmnist", "test"): [3, 5, 9, 2, 7, 2, 9, 8, 5, 3],
}


@pytest.mark.parametrize(("name", "part"), HEADS)
def test_label_order_heads(name, part):
    assert half(name, part)[1][:10].tolist() == HEADS[name, part]


COUNTS = {
    ("mnist", "train"): MNIST_COUNTS[0],
    ("mnist", "test"): MNIST_COUNTS[1],
    ("fashion_mnist", "train"): (6000,) * 10,
    ("fashion_mnist", "test"): (1000,) * 10,
    ("kmnist", "train"): (6000,) * 10,
    ("kmnist", "test"): (1000,) * 10,
    ("notmnist", "test"): (1000,) * 10,
    ("cifar10", "train"): (5000,) * 10,
    ("cifar10", "test"): (1000,) * 10,
    ("cifar100", "train"): (500,) * 100,
    ("cifar100", "test"): (100,) * 100,
    ("svhn", "train"): (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
    ("svhn", "test"): (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    ("tiny_imagenet", "train"): (500,) * 200,
    ("tiny_imagenet", "test"): (50,) * 200,
    ("cifar10_subset", "train"): (1000,) * 10,
    ("cifar10_subset", "test"): (400,) * 10,
}


@pytest.mark.parametrize(("name", "part"), COUNTS)
def test_class_counts(name, part):
    assert tuple(np.bincount(half(name, part)[1]).tolist()) == COUNTS[name, part]


def test_the_subset_of_cifar10_looks_like_cifar10():
    """Means of 10,000 stratified images; 4.5 standard errors, false alarm below 1 in 10,000."""
    x, _ = half("cifar10_subset", "train")
    mean, _ = moments(x)
    spread = (x.reshape(len(x), -1, 3).mean(1) / 255).std(0) / np.sqrt(len(x))
    assert (abs(mean - MOMENTS["cifar10"][0]) < 4.5 * spread).all()
