"""Quality against a reference: the same as MMD of the rows, whole and layer by layer."""

from __future__ import annotations

import pytest
import torch

from polymode.symmetry.discrepancy import mmd
from polymode.symmetry.quality import Reference


def params(number, shift=0.0, seed=0, names=("0.weight", "0.bias", "2.weight")):
    stream = torch.Generator().manual_seed(seed)
    shapes = ((3, 2), (3,), (1, 3))
    return {
        name: shift + torch.randn(number, *shape, generator=stream, dtype=torch.float64)
        for name, shape in zip(names, shapes, strict=True)
    }


def rows(tensors, chosen):
    return torch.cat([tensors[name].flatten(1) for name in chosen], 1)


def test_the_same_as_mmd_of_the_rows():
    theirs, ours = params(12), params(7, 0.5, seed=1, names=("1.weight", "1.bias", "4.weight"))
    found = Reference(theirs).compare(ours, num_permutations=5, seed=2)
    assert list(found.layers) == ["0", "2"]
    pairs = (
        (found.whole, list(theirs), list(ours)),
        (found.layers["0"], ["0.weight", "0.bias"], ["1.weight", "1.bias"]),
        (found.layers["2"], ["2.weight"], ["4.weight"]),
    )
    for each, one, other in pairs:
        expected = mmd(rows(ours, other), rows(theirs, one), num_permutations=5, seed=2)
        assert torch.allclose(each.lengthscales, expected.lengthscales, rtol=1e-10)
        assert torch.allclose(each.unbiased, expected.unbiased, atol=1e-12)
        assert torch.allclose(each.null, expected.null, atol=1e-12)
    mean = (found.layers["0"].aggregate + found.layers["2"].aggregate) / 2
    assert found.layer_mean == pytest.approx(mean)


def test_lengthscales_of_the_reference_are_the_same_for_all():
    reference = Reference(params(12), fixed=True)
    one, two = (reference.compare(params(6, shift, seed=3)).whole for shift in (0.0, 3.0))
    assert torch.equal(one.lengthscales, two.lengthscales)
    assert two.aggregate > one.aggregate + 0.1
    free = [Reference(params(12)).compare(params(6, s, seed=3)).whole for s in (0.0, 3.0)]
    assert not torch.equal(free[0].lengthscales, free[1].lengthscales)


def test_what_cannot_be_is_refused():
    reference = Reference(params(5))
    other = params(4)
    other["2.weight"] = other["2.weight"][..., :2]
    with pytest.raises(ValueError, match=r"2.weight is \(1, 2\) here and \(1, 3\) there"):
        reference.compare(other)
    del other["2.weight"]
    with pytest.raises(ValueError, match="the number of tensors is 2 here and 3 there"):
        reference.compare(other)
    with pytest.raises(ValueError, match="at least 2 networks on either side, got 1"):
        reference.compare(params(1))
    broken = params(3)
    broken["0.bias"][1, 0] = float("inf")
    with pytest.raises(ValueError, match="'0.bias' of 1 of 3 networks is not finite"):
        reference.compare(broken)
