"""Every named image task, built from tiny files in the format of the real ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polymode.tasks import TASKS, Task, task
from polymode.tasks.files import DATASETS, MissingData
from polymode.tasks.images.named_sets import SETS
from polymode.tasks.shifts import SHIFTS
from polymode.training.data import Pixels

NAMES = sorted(SETS)
SPECS = {name: dict(DATASETS.get(name).value.arrays) for name in NAMES}  # of the real sets


def rows_of(data: Pixels) -> list[int]:
    """Row numbers in the file, which the first two values of every image are.

    Files have the channels last, so the second value is in the second channel of colour images.
    """
    images = data.pixels.movedim(1, 3).flatten(1).long()
    return (images[:, 0] * 256 + images[:, 1]).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_every_set_says_what_it_is_and_builds(all_sets, name):
    metadata, images = TASKS.get(name).metadata, SETS[name]
    assert set(metadata) == {"description", "source", "licence", "kind", "size", "data"}
    assert metadata["kind"] == "real" and metadata["data"][0] == name
    assert set(metadata["data"]) - {name} == set(images.ood) - {"jigsaw"}
    built = task(name)
    assert isinstance(built, Task) and built.name == name
    assert built.input_shape == images.shape
    assert built.target_size == built.num_outputs == len(built.class_names)
    assert built.description.startswith(images.title) and "mean" in built.description
    assert len(set(built.class_names)) == len(built.class_names)
    assert tuple(built.ood) == images.ood and len(built.shifts) == 5
    assert 1 <= len(built.near_ood) < len(built.ood)
    assert (built.augment is not None) == ("cifar" in name or name == "tiny_imagenet")
    for data in (built.train, built.val, built.test, *built.ood.values()):
        assert isinstance(data, Pixels) and data.x.dtype == torch.float32
        assert tuple(data.x.shape[1:]) == images.shape


@pytest.mark.parametrize("name", NAMES)
def test_sizes_that_are_told_are_those_of_the_real_files(name):
    images, spec = SETS[name], SPECS[name]
    halves = [spec[key].shape[0] for key in ("x_train", "x_test") if key in spec]
    assert sum(halves) == images.num_train + images.num_test
    assert len(halves) == 1 or halves == [images.num_train, images.num_test]
    classes = spec["y_test"].num_classes
    assert len(images.class_names) == (0 if "wnids" in spec else classes)
    assert images.num_val <= images.num_train // 5
    train, val, test = (int(part.replace(",", "")) for part in images.size.split(" / "))
    assert (train + val, val, test) == (images.num_train, images.num_val, images.num_test)
    real = spec["x_test"].shape[1:]
    assert images.shape == ((1, *real) if len(real) == 2 else (3, *real[:2]))


@pytest.mark.parametrize("name", ["mnist", "cifar10_subset", "notmnist"])
def test_train_val_and_test_share_no_row(all_sets, fake_sets, name):
    built, arrays = task(name), fake_sets[name]
    train, val, test = (rows_of(data) for data in (built.train, built.val, built.test))
    assert not set(train) & set(val) and len({*train, *val}) == len(train) + len(val)
    if "x_train" in arrays:  # the test set is a file of its own, used whole and in its order
        assert len(train) + len(val) == len(arrays["x_train"])
        assert test == list(range(len(arrays["x_test"])))
        for data, half in ((built.train, "train"), (built.val, "train"), (built.test, "test")):
            assert data.y.tolist() == arrays[f"y_{half}"][rows_of(data)].tolist()
    else:  # rows of all three come from one file
        assert not set(test) & {*train, *val}
        assert len({*train, *val, *test}) == len(arrays["x_test"])


def test_splits_are_stratified_and_nest_and_do_not_depend_on_the_seed(all_sets):
    whole = task("mnist", seed=5)
    for num_train in (10, 30):
        part = task("mnist", num_train=num_train, num_test=20, num_val=20, ood=(), shifts=())
        again = task("mnist", num_train=num_train + 10, num_test=30, num_val=20)
        assert rows_of(part.val) == rows_of(again.val)
        assert set(rows_of(part.train)) < set(rows_of(again.train))
        assert set(rows_of(part.test)) < set(rows_of(again.test)) < set(rows_of(whole.test))
        assert part.train.y.bincount().tolist() == [num_train // 10] * 10
        assert part.test.y.bincount().tolist() == [2] * 10 == part.val.y.bincount().tolist()
    assert rows_of(whole.train) == rows_of(task("mnist").train)


def test_scaling_comes_from_the_training_rows_and_nothing_else(folder, fake_sets):
    arrays = {key: array.copy() for key, array in fake_sets["mnist"].items()}
    folder.put("mnist", arrays)
    before = task("mnist", ood=())
    values = arrays["x_train"][rows_of(before.train)].astype(np.float64) / 255
    assert float(before.input_scaling.shift) == pytest.approx(values.mean(), rel=1e-6)
    assert float(before.input_scaling.scale) == pytest.approx(values.std(), rel=1e-6)
    assert abs(float(before.train.x.mean())) < 1e-5
    assert float(before.train.x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert f"{values.mean():.4f}" in before.description

    arrays["x_test"] = 255 - arrays["x_test"][:50]
    arrays["y_test"] = arrays["y_test"][:50][::-1].copy()
    held = rows_of(before.val)
    arrays["x_train"][held] = 0
    arrays["x_train"][held, 0, 0] = 200
    folder.put("mnist", arrays)
    after = task("mnist", ood=())
    assert torch.equal(before.train.x, after.train.x)
    assert torch.equal(before.input_scaling.scale, after.input_scaling.scale)
    assert not torch.equal(before.val.x, after.val.x) and len(after.test) == 50
    with_half = task("mnist", ood=(), num_train=50)
    assert not torch.equal(with_half.input_scaling.scale, after.input_scaling.scale)


def test_every_set_is_normalised_alike(all_sets):
    built = task("cifar10")
    low, high = built.input_scaling(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))
    shifted = built.shifts["gaussian_noise"][2]
    for data in (built.train, built.test, shifted, built.ood["svhn"], built.ood["cifar100"]):
        x = data.x
        assert data.scaling.to_dict() == built.input_scaling.to_dict()
        assert (x >= low - 1e-5).all() and (x <= high + 1e-5).all()
        assert float((x.amin((0, 2, 3)) - low.flatten()).abs().max()) < 0.3


def test_labels_that_are_absent_do_not_shrink_the_task(folder, fake_sets):
    arrays = dict(fake_sets["cifar100"])
    folder.put("cifar100", arrays)
    few = task("cifar100", num_train=3, num_test=2, num_val=0, ood=(), shifts=())
    assert few.target_size == few.num_outputs == 100 and few.val is None
    assert (len(few.train), len(few.test)) == (3, 2)


def test_near_and_far_are_told_apart_also_of_other_sets(all_sets):
    assert task("cifar10").near_ood == ("cifar100",)
    assert task("cifar10", ood=["tiny_imagenet", "mnist"]).near_ood == ("tiny_imagenet",)
    assert task("mnist", ood="jigsaw").near_ood == ("jigsaw",)
    assert task("mnist").near_ood == ("kmnist", "notmnist")
    assert task("fashion_mnist").near_ood == ("jigsaw",)


def test_ood_sets_of_other_shapes_are_fitted_and_bounded_by_num_test(all_sets, fake_sets):
    built = task("tiny_imagenet", ood=["svhn", "mnist"], num_test=20, shifts=())
    for data in built.ood.values():
        assert len(data) == 20 and tuple(data.pixels.shape[1:]) == (3, 64, 64)
    assert built.ood["mnist"].pixels[:, 0].equal(built.ood["mnist"].pixels[:, 2])
    whole = task("mnist", ood=["kmnist", "svhn"])
    kmnist = whole.ood["kmnist"]
    assert np.array_equal(kmnist.pixels[:, 0].numpy(), fake_sets["kmnist"]["x_test"])
    assert np.array_equal(kmnist.y.numpy(), fake_sets["kmnist"]["y_test"])
    assert tuple(whole.ood["svhn"].pixels.shape[1:]) == (1, 28, 28)


@pytest.mark.parametrize(
    "name, ood, words",
    [
        ("mnist", ("kmnits",), "'kmnits', which is not an OOD set for it. Did you mean 'kmnist'"),
        ("mnist", ("mnist",), "'mnist', which is not an OOD set for it"),
        ("cifar10_subset", ("cifar10",), "'cifar10', which is not an OOD set"),
        ("cifar10", ("cifar10_subset",), "'cifar10_subset', which is not an OOD set"),
        ("svhn", "svhn_recropped", "'svhn_recropped', which is not an OOD set"),
    ],
)
def test_what_is_no_ood_set_is_refused(all_sets, name, ood, words):
    with pytest.raises(ValueError, match=words):
        task(name, ood=ood)


def test_shifts_by_name_all_or_none(all_sets):
    assert list(task("mnist", shifts="all").shifts) == SHIFTS.names()
    assert list(task("mnist", shifts=("fog", "jpeg", "fog")).shifts) == ["fog", "jpeg"]
    assert list(task("mnist", shifts="rotation").shifts) == ["rotation"]
    assert not task("mnist", shifts=[]).shifts
    with pytest.raises(ValueError, match="names 'fgo', which is not a shift. Did you mean 'fog'"):
        task("mnist", shifts="fgo")


def test_shifts_are_of_the_test_images_in_pixels_and_the_seed_draws_them(all_sets):
    built, again, other = task("mnist"), task("mnist"), task("mnist", seed=1)
    for kind, levels in built.shifts.items():
        assert list(levels) == [1, 2, 3, 4, 5]
        data = levels[3]
        assert isinstance(data, Pixels) and torch.equal(data.y, built.test.y)
        assert torch.equal(data.pixels, again.shifts[kind][3].pixels)
        same = torch.equal(data.pixels, other.shifts[kind][3].pixels)
        assert same != SHIFTS.get(kind).value.random
    for data, twin in ((built.train, other.train), (built.ood["kmnist"], other.ood["kmnist"])):
        assert torch.equal(data.pixels, twin.pixels)


def test_missing_files_are_named_in_one_command_with_the_way_without(folder, fake_sets):
    with pytest.raises(MissingData, match="polymode data get cifar10 cifar100 svhn") as caught:
        task("cifar10")
    assert "task 'cifar10' itself needs cifar10" in str(caught.value)
    assert "ood=() does without them" in str(caught.value)
    folder.put("cifar10", fake_sets["cifar10"])
    with pytest.raises(MissingData, match="polymode data get cifar100 svhn"):
        task("cifar10")
    assert not task("cifar10", ood=()).ood
    assert list(task("cifar10", ood="jigsaw").ood) == ["jigsaw"]
    with pytest.raises(MissingData, match="polymode data get mnist") as caught:
        task("mnist", ood=())
    assert "ood=()" not in str(caught.value)


def test_a_file_with_the_test_half_only_is_no_task_but_an_ood_set(folder, fake_sets):
    half = {key: fake_sets["kmnist"][key] for key in ("x_test", "y_test")}
    folder.put("kmnist", half, "kmnist_test.npz")
    folder.put("mnist", fake_sets["mnist"])
    assert len(task("mnist", ood="kmnist").ood["kmnist"]) == 60
    with pytest.raises(MissingData, match="npz holds only x_test, y_test of kmnist; .*get kmnist"):
        task("kmnist", ood=())


@pytest.mark.parametrize("half", ["train", "test"])
def test_labels_out_of_range_name_file_count_and_row(folder, fake_sets, half):
    arrays = {key: array.copy() for key, array in fake_sets["mnist"].items()}
    arrays[f"y_{half}"][[7, 9]] = 10
    folder.put("mnist", arrays)
    rows = len(arrays[f"y_{half}"])
    words = f"mnist.npz: y_{half} has 2 of {rows} labels outside 0 to 9, the first 10 in row 7"
    with pytest.raises(ValueError, match=words):
        task("mnist", ood=())


@pytest.mark.parametrize(
    "options, words",
    [
        ({"num_train": 0}, "`num_train` of mnist must be an integer from 1 to 96, got 0"),
        ({"num_train": 97}, "from 1 to 96, got 97"),
        ({"num_train": 50, "num_val": 80}, "from 1 to 40, got 50"),
        ({"num_val": -1}, "`num_val` of mnist must be an integer from 0 to 119, got -1"),
        ({"num_test": 61}, "`num_test` of mnist must be an integer from 1 to 60, got 61"),
        ({"num_test": 1.5}, "got 1.5"),
        ({"num_train": True}, "got True"),
    ],
)
def test_sizes_that_cannot_be_are_refused(all_sets, options, words):
    with pytest.raises(ValueError, match=words):
        task("mnist", **options)


def test_building_uses_no_global_random_state(all_sets):
    before = torch.get_rng_state()
    built = task("cifar10_subset")
    assert len(built.ood["jigsaw"]) and len(built.shifts["fog"][1])
    assert torch.equal(before, torch.get_rng_state())
