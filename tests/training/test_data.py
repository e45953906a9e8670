"""Batches: complete, in a seeded order, from arrays, datasets and loaders alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from polymode.core.rows import Ragged
from polymode.likelihoods.scaling import Scaling
from polymode.training.data import Arrays, Examples, Loader, Pixels, as_data, spans

X, Y = torch.arange(11.0)[:, None], torch.arange(11)


class Squares(Dataset):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return X[index] + 0.01 * torch.rand(1), index


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Parts:
    """A loader of one's own, which is no DataLoader."""

    def __iter__(self):
        return iter([(X[:6], Y[:6]), (X[6:], Y[6:])])

    def __len__(self) -> int:
        return 2


@given(st.integers(1, 300), st.integers(1, 64))
def test_spans_cover_everything_once(num_examples, batch_size) -> None:
    parts = spans(num_examples, batch_size)
    assert [i for a, b in parts for i in range(a, b)] == list(range(num_examples))
    sizes = [b - a for a, b in parts]
    assert max(sizes) <= batch_size + 1
    assert batch_size == 1 or num_examples == 1 or min(sizes) > 1


BYTES = torch.arange(11, dtype=torch.uint8).view(11, 1, 1, 1)
IMAGES = torch.arange(11 * 12, dtype=torch.uint8).view(11, 3, 2, 2)
COLOURS = Scaling(
    torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([0.5, 1, 2]).view(3, 1, 1)
)

SOURCES = {
    "pixels": lambda: Pixels(BYTES, Y, Scaling(0.0, 1 / 255)),
    "arrays": lambda: as_data((X, Y)),
    "examples": lambda: as_data(Squares()),
    "loader": lambda: as_data(DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True)),
    "loader with generator": lambda: as_data(
        DataLoader(TensorDataset(X, Y), 3, shuffle=True, generator=torch.Generator())
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_epochs_are_functions_of_the_seed(source) -> None:
    data = SOURCES[source]()

    def order(seed: int, start: int = 0) -> list[float]:
        return torch.cat([x for x, _ in data.epoch(3, seed, start)]).flatten().tolist()

    first = order(1)
    assert sorted(round(value) for value in first) == list(range(11))
    torch.rand(3)
    assert order(1) == first != order(2)
    tail = order(1, start=2)
    assert tail == first[-len(tail) :]
    assert 0 < len(tail) < 11
    assert data.num_batches(3) == len(list(data.epoch(3, 1)))


def test_torch_stream_is_put_back() -> None:
    state = torch.random.get_rng_state()
    for source in SOURCES.values():
        list(source().epoch(3, 1))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_large_arrays_are_gathered_batch_by_batch(monkeypatch) -> None:
    whole = [x for x, _ in Arrays(X, Y).epoch(4, 7)]
    monkeypatch.setattr("polymode.training.data._PERMUTE_WHOLE_BELOW", 0)
    for mine, theirs in zip(Arrays(X, Y).epoch(4, 7), whole, strict=True):
        assert torch.equal(mine[0], theirs)


def test_own_orders() -> None:
    batches = list(Arrays(X, Y).epoch_each(4, [1, 2, 3]))
    assert [x.shape for x, _ in batches] == [(3, 4, 1), (3, 4, 1), (3, 3, 1)]
    rows = torch.cat([y for _, y in batches], dim=1)
    assert (rows.sort(dim=1).values == torch.arange(11)).all()


@pytest.mark.parametrize("source", SOURCES)
def test_own_orders_are_passes_with_seeds_of_their_own(source) -> None:
    """So member k of three sees what it sees alone; the tail is that of the whole pass."""
    data = SOURCES[source]()
    assert data.can_reorder
    together = list(data.epoch_each(3, [1, 2, 3]))
    for member, seed in enumerate([1, 2, 3]):
        for (x, y), (own_x, own_y) in zip(together, data.epoch(3, seed), strict=True):
            assert torch.equal(x[member], own_x) and torch.equal(y[member], own_y)
    tail = list(data.epoch_each(3, [1, 2, 3], start=2))
    assert all(torch.equal(a, b) for a, b in zip(tail[0], together[2], strict=True))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(TensorDataset(X, Y), batch_size=3),
        Parts(),
        DataLoader(Numbers(), batch_size=3),
    ],
)
def test_loaders_with_one_order_say_so(loader) -> None:
    assert not as_data(loader).can_reorder


def test_own_orders_of_a_loader_with_workers_that_persist() -> None:
    loader = DataLoader(
        TensorDataset(X, Y), 3, shuffle=True, num_workers=1, persistent_workers=True
    )
    data = as_data(loader)
    first, again = (list(data.epoch_each(3, [1, 2])) for _ in range(2))
    assert [x.shape for x, _ in first] == [(2, 3, 1)] * 3 + [(2, 2, 1)]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert loader.persistent_workers


def test_own_batches_of_different_shapes_come_one_by_one() -> None:
    rows = [torch.zeros(length, 2) for length in (3, 3, 3, 5, 5, 5)]

    class OneLengthABatch:
        """Batches of one length each, in random order."""

        def __iter__(self):
            for half in torch.randperm(2).tolist():
                yield [3 * half, 3 * half + 1, 3 * half + 2]

        def __len__(self) -> int:
            return 2

    loader = DataLoader(list(zip(rows, Y, strict=False)), batch_sampler=OneLengthABatch())
    data, seeds = as_data(loader), list(range(10))
    orders = [[x.shape for x, _ in data.epoch(3, seed)] for seed in seeds]
    assert len(set(map(tuple, orders))) == 2
    batches = list(data.epoch_each(3, seeds))
    assert [[x[k].shape for x, _ in batches] for k in seeds] == orders
    assert isinstance(batches[0][0], Ragged) and isinstance(batches[0][1], torch.Tensor)


def test_kinds_of_sources() -> None:
    assert isinstance(as_data(TensorDataset(X, Y)), Arrays)
    assert isinstance(as_data(Squares()), Examples)
    assert isinstance(as_data((X, Y)), Arrays)
    assert as_data((np.zeros((3, 2)), np.zeros(3))).x.dtype == torch.float32
    assert as_data((torch.zeros(3, 2).double(), Y[:3])).x.dtype == torch.float64
    assert len(as_data(DataLoader(Squares(), 4))) == 11


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((X[:0], Y[:0]), "empty: 0 examples"),
        ((X, Y[:3]), "differ in length: 11 and 3"),
        ((X, Y, Y), "a tuple of 3"),
        ((1.0, 2.0), "got the number"),
        (([["a"]], [1]), "cannot be read as an array"),
        (([[1.0]], None), "targets are missing, got None"),
        ({"x": X}, "the data have the names 'x', and none of them is a target"),
        ({"x": X, "y": Y, "label": Y}, "the data have 'label', 'y', any of which may be the"),
        ({"a": X, "b": X[:4], "y": Y}, "differ in length: 'a' 11, 'b' 4; each needs one row"),
        ({"y": Y}, "the inputs hold no tensor"),
        ({1: X, "y": Y}, "inputs are named by text, got the key 1"),
        (X, "cannot read data from a Tensor"),
        (np.zeros((3, 2)), "cannot read data from a ndarray"),
        (7, "cannot read data from a int"),
        (iter([(X, Y)]), "an iterator, which can be read only once"),
    ],
)
def test_bad_sources(source, message) -> None:
    with pytest.raises(ValueError, match=message):
        as_data(source)


class Listed:
    def __init__(self, *batches) -> None:
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"image": X, "mask": Y}, "dictionaries with the keys 'image', 'mask', and none of them"),
        ((X, Y, Y), "a tuple of 3"),
        (X, "yields a Tensor"),
        ((X, [1, 2]), "a Tensor and a list"),
        ((X, Y[:4]), "11 inputs and 4 targets"),
    ],
)
def test_bad_batches(batch, message) -> None:
    with pytest.raises(ValueError, match=message):
        list(Loader(Listed(batch)).batches(3))


def test_loaders_that_do_not_say_their_length_are_counted() -> None:
    loader = Loader(Listed((X, Y), (X[:3], Y[:3])))
    assert len(loader) == 14
    assert loader.num_batches(99) == 2


def test_fingerprint_sees_values_types_and_shapes() -> None:
    prints = {
        Arrays(x, Y).fingerprint()
        for x in (X, X + 1, X.double(), X.repeat(1, 2), X.to(torch.int64))
    }
    assert len(prints) == 5
    assert Arrays(X.clone(), Y).fingerprint() in prints


def test_pixels_give_what_scaled_floats_give() -> None:
    """The same batches as arrays of (p / 255 - shift) / scale, in every order, type and form."""
    floats = Arrays(COLOURS(IMAGES.double() / 255), Y)
    pixels = Pixels(IMAGES, Y, COLOURS).to(torch.float64, "cpu")
    torch.testing.assert_close(pixels.x, floats.x, atol=1e-14, rtol=1e-14)
    for make in (
        lambda data: data.batches(4),
        lambda data: data.epoch(4, 7, 1),
        lambda data: data.epoch_each(4, [1, 2]),
    ):
        for (x, y), (p, q) in zip(make(floats), make(pixels), strict=True):
            torch.testing.assert_close(p, x, atol=1e-14, rtol=1e-14)
            assert torch.equal(q, y)
    assert pixels.pixels.dtype == torch.uint8
    assert Pixels(IMAGES, Y, COLOURS).head(2)[0].dtype == torch.float32
    assert torch.equal(pixels.with_targets(Y + 1).y, Y + 1)
    assert torch.equal(pixels.with_targets(Y + 1).x, pixels.x)


def test_pixels_of_other_scaling_have_another_fingerprint() -> None:
    mine = Pixels(IMAGES, Y, COLOURS)
    assert mine.fingerprint() == Pixels(IMAGES.clone(), Y, COLOURS).fingerprint()
    assert (
        mine.fingerprint()
        != Pixels(IMAGES, Y, Scaling(COLOURS.shift, COLOURS.scale * 2)).fingerprint()
    )


@pytest.mark.parametrize("images", [IMAGES.float(), IMAGES[:, 0]])
def test_pixels_takes_bytes_of_images_only(images) -> None:
    with pytest.raises(ValueError, match=r"images \(N, C, H, W\) of type uint8, got"):
        Pixels(images, Y, COLOURS)


@pytest.mark.parametrize("source", ["arrays", "loader"])
def test_targets_are_scaled_where_they_come_out(source) -> None:
    data = as_data((X, X)) if source == "arrays" else as_data(DataLoader(TensorDataset(X, X), 3))
    scaled = data.scale_targets(Scaling(torch.tensor([2.0]), torch.tensor([4.0])))
    got = torch.cat([y for _, y in scaled.batches(3)])
    torch.testing.assert_close(got, (X - 2) / 4)
    torch.testing.assert_close(torch.cat([y for _, y in data.batches(3)]), X)


def sampled(**options) -> Loader:
    return Loader(DataLoader(TensorDataset(torch.zeros(100, 1), torch.zeros(100)), **options))


class Stream(IterableDataset):
    """A stream that says it is longer than it is."""

    def __iter__(self):
        return iter([(torch.zeros(1), torch.zeros(1))] * 7)

    def __len__(self) -> int:
        return 9


@pytest.mark.parametrize(
    ("loader", "number"),
    [
        (sampled(sampler=SubsetRandomSampler(range(20)), batch_size=8), 20),
        (sampled(sampler=WeightedRandomSampler([1.0] * 100, 250), batch_size=8), 250),
        (sampled(batch_size=30, drop_last=True), 90),
        (sampled(batch_sampler=[[0, 1, 2], [3, 4]]), 5),
        (sampled(batch_size=8), 100),
    ],
)
def test_length_is_what_one_pass_yields(loader, number) -> None:
    """Not that of the data set, of which a sampler draws a part, or some rows again."""
    before = torch.get_rng_state()
    assert len(loader) == number
    assert torch.equal(before, torch.get_rng_state())
    assert len(loader) == sum(len(x) for x, _ in loader.batches(1))


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_length_of_a_stream_is_counted() -> None:
    assert len(Loader(DataLoader(Stream(), batch_size=2))) == 7


def test_a_sampler_with_a_stream_of_its_own_is_a_function_of_the_seed() -> None:
    stream = torch.Generator().manual_seed(5)
    values = TensorDataset(torch.arange(100.0)[:, None], torch.zeros(100))
    sampler = SubsetRandomSampler(range(20), generator=stream)
    loader = Loader(DataLoader(values, sampler=sampler, batch_size=8))
    before = stream.get_state()
    assert len(loader) == 20
    first, again, other = (torch.cat([x for x, _ in loader.epoch(8, seed)]) for seed in (1, 1, 2))
    assert torch.equal(stream.get_state(), before)
    assert torch.equal(first, again) and not torch.equal(first, other)
