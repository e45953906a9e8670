from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymode.tasks.shifts import label_noise

LABELS = torch.arange(1000) % 10


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(st.floats(0, 1), st.integers(2, 12), st.integers(0, 5))
def test_symmetric_noise_changes_exactly_the_fraction(fraction, num_classes, seed):
    labels = torch.arange(97) % num_classes
    noisy = label_noise(labels, fraction, num_classes, seed=seed)
    assert int((noisy != labels).sum()) == round(fraction * 97)
    assert int(noisy.min()) >= 0 and int(noisy.max()) < num_classes
    assert noisy.dtype == labels.dtype


def test_symmetric_noise_takes_every_other_class_as_often():
    """Chi-squared over the 9 other classes; 8 degrees of freedom, false-alarm rate 1e-6."""
    labels = torch.zeros(9000, dtype=torch.int64)
    counts = label_noise(labels, 1.0, 10, seed=0).bincount(minlength=10)
    assert int(counts[0]) == 0
    assert float(((counts[1:] - 1000.0) ** 2 / 1000).sum()) < 42.7


def test_pair_noise_takes_the_next_class():
    noisy = label_noise(LABELS, 0.4, 10, seed=0, kind="pair")
    wrong = noisy != LABELS
    assert int(wrong.sum()) == 400
    assert torch.equal(noisy[wrong], (LABELS[wrong] + 1) % 10)


def test_a_map_touches_the_classes_it_names():
    noisy = label_noise(LABELS, 0.5, 10, seed=0, kind={9: 1, 3: 5, 5: 3, 4: 4})
    wrong = noisy != LABELS
    assert int(wrong.sum()) == 150  # half of the three classes that change
    assert set(LABELS[wrong].tolist()) == {3, 5, 9}
    assert set(noisy[wrong & (LABELS == 9)].tolist()) == {1}


def test_seeds_and_nesting():
    first, again, other = (label_noise(LABELS, 0.3, 10, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    more = label_noise(LABELS, 0.6, 10, seed=0)
    changed = first != LABELS
    assert torch.equal(more[changed], first[changed])
    assert torch.equal(LABELS, torch.arange(1000) % 10)


@pytest.mark.parametrize(
    "labels, fraction, num_classes, kind, message",
    [
        (LABELS, 1.5, 10, "symmetric", r"`fraction` of label_noise must be in \[0, 1\], got 1.5"),
        (LABELS, 0.5, 1, "symmetric", "`num_classes` of label_noise must be >= 2, got 1"),
        (LABELS, 0.5, 9, "symmetric", r"0 to 8, got 9 in row 9 \(100 of 1,000 rows\)"),
        (LABELS.float(), 0.5, 10, "symmetric", "must be integers"),
        (LABELS[:, None], 0.5, 10, "symmetric", r"shape \(1000, 1\)"),
        (LABELS, 0.5, 10, "symetric", "Did you mean 'symmetric'"),
        (LABELS, 0.5, 10, {1: 10}, "takes class 1 to 10; classes are 0 to 9"),
    ],
)
def test_bad_arguments(labels, fraction, num_classes, kind, message):
    with pytest.raises(ValueError, match=message):
        label_noise(labels, fraction, num_classes, seed=0, kind=kind)
