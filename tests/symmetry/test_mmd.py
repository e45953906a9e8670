"""MMD² against a double loop and against closed forms for Gaussians; its null."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polymode.symmetry import Reference
from polymode.symmetry.discrepancy import Distances, distances, lengthscales, mmd, mmd_of

F64 = {"dtype": torch.float64}


def samples(m=13, n=9, d=4, shift=0.7, seed=0):
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(m, d, generator=stream, **F64)
    return x, shift + torch.randn(n, d, generator=stream, **F64)


def plain_mmd(x, y, kernel, length):
    """The two estimates in the slowest way."""

    def k(a, b):
        if kernel == "laplace":
            return math.exp(-float((a - b).abs().sum()) / length)
        return math.exp(-float((a - b).square().sum()) / length**2)

    m, n = len(x), len(y)
    xx = [[k(a, b) for b in x] for a in x]
    yy = [[k(a, b) for b in y] for a in y]
    xy = sum(k(a, b) for a in x for b in y)
    off = [sum(map(sum, each)) - sum(each[i][i] for i in range(len(each))) for each in (xx, yy)]
    unbiased = off[0] / (m * (m - 1)) + off[1] / (n * (n - 1)) - 2 * xy / (m * n)
    biased = sum(map(sum, xx)) / m**2 + sum(map(sum, yy)) / n**2 - 2 * xy / (m * n)
    return unbiased, biased


def test_the_same_as_a_double_loop():
    x, y = samples()
    found = mmd(x, y, num_permutations=3)
    for row, kernel in enumerate(("laplace", "gaussian")):
        for column, length in enumerate(found.lengthscales[row].tolist()):
            unbiased, biased = plain_mmd(x, y, kernel, length)
            assert float(found.unbiased[row, column]) == pytest.approx(unbiased, abs=1e-13)
            assert float(found.biased[row, column]) == pytest.approx(biased, abs=1e-13)
    assert found.aggregate == pytest.approx(float(found.unbiased.mean()))


def test_pairs_of_different_modes_alone():
    """Against a double loop; and unbiased: modes that are draws from where y is from give 0, within
    4 standard errors over 60 samples (a false alarm in 16,000, fixed seed), while all pairs give
    the share (L - 1) / (M L - 1) of what one mode gives."""
    x, y = samples(m=12, n=9)
    modes = torch.arange(4).repeat(3)
    found = mmd(x, y, modes=modes, num_permutations=0)
    length = float(found.lengthscales[0, 5])
    pairs = [(i, j) for i in range(12) for j in range(12) if i % 4 != j % 4]
    kernel = torch.exp(-torch.cdist(x, x, p=1.0) / length)
    within = sum(float(kernel[i, j]) for i, j in pairs) / len(pairs)
    usual = float(kernel.fill_diagonal_(0).sum()) / (12 * 11)
    expected = float(found.unbiased[0, 5]) - usual + within
    assert float(found.between[0, 5]) == pytest.approx(expected, abs=1e-12)
    assert mmd(x, y, modes=torch.zeros(12), num_permutations=0).between is None
    between, every = [], []
    for seed in range(60):
        stream = torch.Generator().manual_seed(seed)
        centres, y = (torch.randn(n, 3, generator=stream, **F64) for n in (5, 40))
        x = centres.repeat(4, 1)  # four samples of each of five modes, all alike
        lengths = torch.tensor([[1.0, 3.0], [1.0, 3.0]], **F64)
        made = mmd(x, y, lengths=lengths, modes=torch.arange(5).repeat(4), num_permutations=0)
        between.append(float(made.between.mean()))
        every.append(made.aggregate)
    error = np.std(between, ddof=1) / 60**0.5
    assert abs(np.mean(between)) < 4 * error < 0.1
    assert np.mean(every) > np.mean(between) + 10 * error


def test_the_null_is_the_estimate_of_networks_divided_anew(monkeypatch):
    """Also where a kernel matrix has several blocks."""
    from polymode.symmetry import discrepancy as module

    monkeypatch.setattr(module, "BLOCK_BYTES", 8 * 22 * 5)
    x, y = samples()
    pooled = torch.cat([x, y])
    found = mmd(x, y, num_permutations=4, seed=3)
    chosen = module.divisions(len(pooled), len(x), 4, seed=3)
    for number in range(4):
        first = chosen[:, number] > 0
        expected = mmd(
            pooled[first], pooled[~first], lengths=found.lengthscales, num_permutations=0
        )
        assert torch.allclose(found.each_null[number], expected.unbiased, atol=1e-12)
        assert float(found.null[number]) == pytest.approx(expected.aggregate, abs=1e-12)
    together = mmd(x, y, num_permutations=4, seed=3, each_kernel=False)
    assert torch.allclose(together.null, found.null, atol=1e-12) and together.each_null is None
    assert torch.equal(together.unbiased, found.unbiased)
    assert len(mmd(x, y, num_permutations=0).null) == 0


def test_the_closed_form_for_gaussians():
    """x ~ N(0, s² I), y ~ N(μ, t² I): E k is a Gaussian integral. The estimate is unbiased, so the
    mean over 40 samples lies within 4 of its standard errors: a false alarm in 16,000 per
    lengthscale (fixed seed)."""
    d, m, s, t = 3, 60, 1.0, 1.4
    shift = torch.tensor([0.5, 0.0, -0.3], **F64)
    lengths = torch.tensor([[1.0, 1.0, 1.0], [0.8, 2.0, 5.0]], **F64)

    def expected(variance, distance, length):
        width = 1 + 2 * variance / length**2
        return width ** (-d / 2) * math.exp(-distance / length**2 / width)

    found = []
    for seed in range(40):
        stream = torch.Generator().manual_seed(seed)
        x = s * torch.randn(m, d, generator=stream, **F64)
        y = shift + t * torch.randn(m, d, generator=stream, **F64)
        found.append(mmd(x, y, lengths=lengths, num_permutations=0).unbiased[1])
    each = torch.stack(found)
    for column, length in enumerate(lengths[1].tolist()):
        truth = (
            expected(2 * s * s, 0.0, length)
            + expected(2 * t * t, 0.0, length)
            - 2 * expected(s * s + t * t, float(shift.square().sum()), length)
        )
        error = float(each[:, column].std()) / 40**0.5
        assert abs(float(each[:, column].mean()) - truth) < 4 * error
        assert error < 0.2 * truth  # the test can tell it from 0


def test_p_values_are_uniform_under_the_null():
    """Of 200 pairs of samples of one distribution, p ≤ 0.1 comes 20 ± 4.2 times; the bound is 4
    standard deviations: a false alarm in 16,000 (fixed seed)."""
    low = 0
    for seed in range(200):
        x, y = samples(m=10, n=12, d=2, shift=0.0, seed=seed)
        low += mmd(x, y, num_permutations=39, seed=seed).p_value <= 0.1
    assert abs(low - 20) < 4 * 4.25
    assert mmd(*samples(m=30, n=30, shift=2.0), num_permutations=99).p_value == 0.01


def test_lengthscales_are_the_papers():
    """From cross distances alone: half the smallest to twice the largest, with their bounds."""
    x, y = samples(m=6, n=5)
    found = lengthscales(distances(torch.cat([x, y])), 6)
    for row, p in enumerate((1, 2)):
        across = torch.cdist(x, y, p=float(p))
        grid = np.geomspace(float(across.min()) / 2, 2 * float(across.max()), 10)
        assert np.allclose(found[row], grid, rtol=1e-9)
    near = distances(torch.cat([x, x + 1e-3]))
    smallest = float(lengthscales(near, 6)[1, 0])
    across = torch.cdist(x, x + 1e-3).flatten().sort().values
    assert smallest == pytest.approx(max(float(across[int(0.05 * 36)]), 0.1) / 2)
    tiny = torch.zeros(4, 1, **F64)
    assert lengthscales(distances(tiny), 2)[0, -1] == pytest.approx(0.6)


def test_distances_of_layers_add_up():
    x, y = samples(m=150, n=141, d=7)  # several blocks
    rows = torch.cat([x, y])
    whole = distances(rows)
    parts = distances(rows[:, :3]).plus(distances(rows[:, 3:]))
    for a, b, p in zip(whole, parts, (1.0, 2.0), strict=True):
        assert torch.allclose(a, b, atol=1e-12)
        assert torch.allclose(a if p == 1 else a.sqrt(), torch.cdist(rows, rows, p=p), atol=1e-7)
    across = distances(x, y)
    assert torch.allclose(across.laplace, whole.laplace[:150, 150:], atol=1e-12)
    assert torch.allclose(across.gaussian, whole.gaussian[:150, 150:], atol=1e-12)
    again = mmd_of(Distances(*whole), 150, num_permutations=0)
    assert torch.equal(again.unbiased, mmd(x, y, num_permutations=0).unbiased)


def test_single_precision_is_enough():
    """Of 300 networks far from the origin, to 1e-5."""
    x, y = samples(m=150, n=150, d=50, shift=0.2)
    one, two = (mmd(50 + a.to(t), 50 + b.to(t), num_permutations=0) for a, b, t in (
        (x, y, torch.float64), (x, y, torch.float32)
    ))  # fmt: skip
    assert torch.allclose(one.unbiased, two.unbiased, atol=1e-5)


def test_what_cannot_be_is_refused():
    x, y = samples()
    with pytest.raises(ValueError, match="equally many columns"):
        mmd(x, y[:, :2])
    with pytest.raises(ValueError, match="at least 2 rows"):
        mmd(x[:1], y)
    y[3, 0] = math.nan
    with pytest.raises(ValueError, match="1 of 9 networks have weights that are not finite"):
        mmd(x, y)
    with pytest.raises(ValueError, match="`num_permutations` of mmd must be"):
        mmd(x, x, num_permutations=-1)
    with pytest.raises(ValueError, match="must be tensors.*got a Linear.*pm.examine"):
        mmd(x, torch.nn.Linear(2, 2))


@pytest.mark.parametrize(("size", "dtype"), [(1e30, torch.float32), (1e200, torch.float64)])
def test_distances_that_overflow_are_named(size, dtype):
    x = size * torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    with pytest.raises(ValueError, match=r"weights up to .*e\+.* overflow float"):
        mmd(x, -x)
    with pytest.raises(ValueError, match="overflow"):
        Reference({"w": x.unsqueeze(-1)}).compare({"w": -x.unsqueeze(-1)})
    found = mmd(x.double() / size * 1e100, -x.double() / size * 1e100)  # large, but not too large
    assert torch.isfinite(found.unbiased).all() and torch.isfinite(found.null).all()


def test_it_prints_itself():
    x, y = samples()
    found = mmd(x, y, num_permutations=19)
    assert repr(found).startswith(f"MMD({found.aggregate:.4g}, the mean over 20 kernels, null s.d.")
    assert repr(mmd(x, y, num_permutations=0)).endswith("the mean over 20 kernels)")
