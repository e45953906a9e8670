"""Several inputs that share their rows."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.func import vmap

from polymode.core.rows import (
    Ragged,
    Rows,
    as_rows,
    equal,
    is_several,
    map_leaves,
    shapes_of,
    spread,
    stacked,
    why_not_same,
)

IDS = torch.arange(12).view(4, 3)
SIZE = torch.tensor([1.0, 2.0, 3.0, 4.0])


def rows() -> Rows:
    return as_rows({"size": SIZE, "ids": IDS})


def test_it_answers_what_a_tensor_is_asked() -> None:
    held = rows()
    assert len(held) == 4
    assert list(held.named()) == ["ids", "size"]
    assert shapes_of(held) == {"ids": (3,), "size": ()}
    assert torch.equal(held[1:3].tree["ids"], IDS[1:3])
    assert [len(part) for part in held.split(3)] == [3, 1]
    places = torch.tensor([3, 0])
    assert torch.equal(held.index_select(0, places).tree["size"], SIZE[places])
    assert held.unflatten(0, (2, 2)).tree["ids"].shape == (2, 2, 3)
    assert spread(held, 5).tree["ids"].shape == (5, 4, 3)
    moved = held.to(device="cpu", dtype=torch.float64)
    assert moved.tree["size"].dtype == torch.float64 and moved.tree["ids"].dtype == torch.int64
    assert not held.is_floating_point() and held.dtype == torch.float32


def test_it_is_joined_as_tensors_are() -> None:
    assert torch.equal(torch.cat([rows(), rows()]).tree["ids"], torch.cat([IDS, IDS]))
    assert torch.stack([rows(), rows()]).tree["size"].shape == (2, 4)
    with pytest.raises(ValueError, match=r"'ids' has the shapes \(3,\) and \(2,\).*pad all"):
        torch.cat([rows(), as_rows({"size": SIZE, "ids": IDS[:, :2]})])
    with pytest.raises(ValueError, match="different names cannot be joined"):
        torch.cat([rows(), as_rows({"ids": IDS})])


def test_vmap_takes_it() -> None:
    out = vmap(lambda held: held.tree["ids"].sum() * held.tree["size"])(rows())
    torch.testing.assert_close(out, IDS.sum(1) * SIZE)


@pytest.mark.parametrize(
    ("source", "several"),
    [
        ({"a": [1.0]}, True),
        ((IDS, SIZE), True),
        ([IDS, SIZE], True),  # what a DataLoader makes of a tuple
        ((IDS.numpy(), SIZE.numpy()), True),
        ([IDS.numpy(), IDS.numpy()], False),  # an array, as in NumPy
        ([[1.0], [2.0]], False),
        (((1.0,), (2.0,)), False),
        (IDS, False),
        ((), False),
    ],
)
def test_what_counts_as_several(source, several) -> None:
    assert is_several(source) is several


def test_none_is_left_out() -> None:
    assert list(as_rows({"ids": IDS, "positions": None}).named()) == ["ids"]


def test_how_inputs_differ_from_what_is_expected() -> None:
    shapes = shapes_of(rows())
    assert why_not_same(as_rows({"size": SIZE, "ids": IDS[:, :2]}), shapes) is None
    assert "no 'size' and a surplus 'sizes'" in str(
        why_not_same(as_rows({"sizes": SIZE, "ids": IDS}), shapes)
    )
    assert "no 'size' (expected" in str(why_not_same(as_rows({"ids": IDS}), shapes))
    assert "a surplus 'x' (expected" in str(
        why_not_same(as_rows({"size": SIZE, "ids": IDS, "x": IDS}), shapes)
    )
    assert "'size' of shape (B, 1) where (B) is expected" in str(
        why_not_same(as_rows({"size": SIZE[:, None], "ids": IDS}), shapes)
    )
    assert "one tensor, and not several" in str(why_not_same(IDS, shapes))
    assert "several tensors (ids, size), and not one" in str(why_not_same(rows(), (3,)))


def test_it_goes_to_another_process_and_into_a_copy() -> None:
    for other in (pickle.loads(pickle.dumps(rows())), copy.deepcopy(rows())):
        assert equal(other, rows()) and other.structure == rows().structure


def test_batches_of_different_lengths_stay_apart() -> None:
    alike = stacked([rows(), rows()])
    assert isinstance(alike, Rows) and alike.tree["ids"].shape == (2, 4, 3)
    ragged = stacked([rows(), as_rows({"size": SIZE, "ids": IDS[:, :2]})])
    assert isinstance(ragged, Ragged) and len(ragged) == 2
    assert torch.equal(ragged[1].tree["ids"], IDS[:, :2])
    assert [len(part) for part in (ragged[:1], ragged[0])] == [1, 4]
    doubled = map_leaves(ragged, lambda leaf: leaf + leaf)
    assert torch.equal(doubled[0].tree["size"], 2 * SIZE)
