from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polymode.tasks.splits import check_fraction, first, share, shuffled_order, stratified_order

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(torch.tensor)


@given(LABELS)
@settings(max_examples=60, deadline=None)
def test_stratified_order_is_an_order_with_the_shares_in_every_prefix_and_stretch(labels):
    order = stratified_order(labels, "task")
    assert order.sort().values.equal(torch.arange(len(labels)))
    counts = labels.bincount(minlength=5).double()
    shares = counts / len(labels)
    seen = torch.nn.functional.one_hot(labels[order], 5).cumsum(0)
    excess = seen - shares * torch.arange(1, len(labels) + 1)[:, None]
    bound = (1 + shares * (counts > 0).sum()) / 2 + 1e-9
    assert (excess.abs() <= bound).all()
    assert (excess.max(0).values - excess.min(0).values <= 2 * bound).all()


def test_orders_differ_by_name_and_part_and_repeat():
    labels = torch.arange(200) % 3
    order = stratified_order(labels, "a")
    assert order.equal(stratified_order(labels, "a"))
    for other in (stratified_order(labels, "b"), stratified_order(labels, "a", "test")):
        assert not order.equal(other)
    assert shuffled_order(50, "a").equal(shuffled_order(50, "a"))
    assert not shuffled_order(50, "a").equal(shuffled_order(50, "a", "test"))
    assert shuffled_order(50, "a").sort().values.equal(torch.arange(50))


def test_orders_do_not_change_from_release_to_release():
    labels = torch.arange(12) % 3
    assert stratified_order(labels, "mnist").tolist() == [0, 2, 7, 3, 4, 11, 6, 8, 10, 1, 5, 9]
    assert shuffled_order(6, "uci_yacht", "val/split/0").tolist() == [0, 4, 3, 5, 2, 1]


def test_no_global_random_state_is_used():
    before = torch.get_rng_state()
    stratified_order(torch.arange(9) % 2, "a")
    shuffled_order(9, "a")
    assert torch.equal(before, torch.get_rng_state())


def test_first_rows_come_as_they_stand_in_the_file():
    assert first(torch.tensor([5, 0, 3, 1]), 3).tolist() == [0, 3, 5]
    assert first(torch.tensor([5, 0, 3, 1]), 0).tolist() == []


def test_share_is_rounded_and_at_least_one():
    assert [share(*pair) for pair in ((0.1, 277), (0.1, 3), (0.0, 100), (0.5, 1))] == [28, 1, 0, 1]


@pytest.mark.parametrize("wrong", [-0.1, 1, 1.5, float("nan"), True, "0.1", None])
def test_fractions_are_in_the_unit_interval(wrong):
    with pytest.raises(ValueError, match=r"`val_fraction` of uci_yacht must be .*\[0, 1\), got"):
        check_fraction("val_fraction", "uci_yacht", wrong)
    assert check_fraction("val_fraction", "uci_yacht", 0) == 0.0
