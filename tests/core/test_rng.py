"""Streams by name: no two members begin alike."""

from __future__ import annotations

import torch

from polymode.core.rng import fold, fold_each


def test_torch_starts_from_32_bits() -> None:
    """Where this fails, torch takes more of a seed, and `fold_each` has nothing left to do."""
    first, other = (torch.Generator().manual_seed(seed) for seed in (5, 5 + 2**32))
    assert torch.equal(torch.rand(4, generator=first), torch.rand(4, generator=other))


def test_no_two_of_many_members_begin_alike_and_few_are_changed() -> None:
    """Of 200,000 streams some are alike by chance (4.7 pairs are expected), and those alone are
    replaced; member k does not depend on how many come after it."""
    count = 200_000
    plain = [fold(0, "init", k) for k in range(count)]
    alike = count - len({seed % 2**32 for seed in plain})
    apart = list(fold_each(0, "init", count))
    assert alike > 0
    assert len({seed % 2**32 for seed in apart}) == count
    assert sum(a != b for a, b in zip(plain, apart, strict=True)) == alike
    assert list(fold_each(0, "init", 1000)) == apart[:1000]
