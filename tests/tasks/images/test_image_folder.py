from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polymode.tasks import TASKS, task


def draw(path: Path, value: int, size: tuple[int, int] = (8, 12), colour: bool = False) -> None:
    """Write an image of one grey, `size` is (height, width), with a dot that tells it apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((*size, 3) if colour else size, value, np.uint8)
    pixels[0, 0] = len(list(path.parent.iterdir()))
    Image.fromarray(pixels).save(path)


@pytest.fixture
def fruit(tmp_path: Path) -> Path:
    """Two classes, 30 pears and 10 apples."""
    for k in range(30):
        draw(tmp_path / "fruit" / "pear" / f"{k:02d}.png", 60)
    for k in range(10):
        draw(tmp_path / "fruit" / "apple" / f"{k:02d}.png", 200)
    return tmp_path / "fruit"


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    for name, count in (("train/cat", 12), ("train/dog", 8), ("test/dog", 5)):
        for k in range(count):
            draw(tmp_path / "pets" / name / f"{k}.png", 60 if "cat" in name else 90)
    return tmp_path / "pets"


def test_subfolders_are_classes_and_a_stratified_share_is_the_test_set(fruit):
    built = task("image_folder", path=fruit)
    assert built.class_names == ("apple", "pear") and built.input_shape == (1, 8, 12)
    assert [len(data) for data in (built.train, built.val, built.test)] == [29, 3, 8]
    assert built.test.y.bincount().tolist() == [2, 6]
    values = {
        int(label): int(p[0, 4, 4])
        for p, label in zip(built.train.pixels, built.train.y, strict=True)
    }
    assert values == {0: 200, 1: 60}
    seen = [
        {(int(label), int(p[0, 0, 0])) for p, label in zip(data.pixels, data.y, strict=True)}
        for data in (built.train, built.val, built.test)
    ]
    assert len(set.union(*seen)) == 40 == sum(map(len, seen))
    again = task("image_folder", path=str(fruit), seed=3)
    assert torch.equal(built.train.pixels, again.train.pixels)
    assert not built.ood and len(built.shifts) == 5 and built.augment is None
    assert "'fruit'" in built.description and TASKS.get("image_folder").metadata["data"] == ()


def test_your_own_train_and_test_are_kept_apart(halves):
    built = task("image_folder", path=halves)
    assert built.class_names == ("cat", "dog") and built.target_size == 2
    assert [len(data) for data in (built.train, built.val, built.test)] == [18, 2, 5]
    assert built.test.y.tolist() == [1] * 5  # dog keeps its number although test has no cat


def test_options_size_channels_ood_shifts_and_augment(fruit):
    built = task(
        "image_folder", path=fruit, size=16, channels=3, ood="jigsaw", shifts="fog",
        augment="crop:2", test_fraction=0.5, num_val=0, num_train=10, num_test=4,
    )  # fmt: skip
    assert built.input_shape == (3, 16, 16) and built.val is None
    assert (len(built.train), len(built.test)) == (10, 4)
    assert built.near_ood == ("jigsaw",) and built.ood["jigsaw"].x.shape == (4, 3, 16, 16)
    assert list(built.shifts) == ["fog"] and built.augment.padding == 2
    assert task("image_folder", path=fruit, size=[20, 8]).input_shape == (1, 20, 8)


def test_labels_from_a_table(fruit):
    flat = fruit / "pear"
    lines = [f"{k:02d}.png,{'late' if k % 2 else 'early'}" for k in range(30)]
    (fruit / "labels.csv").write_text("\n".join(lines))
    built = task("image_folder", path=flat, labels=fruit / "labels.csv")
    assert built.class_names == ("early", "late") and len(built.test) == 6


def test_a_broken_image_is_named_and_skipped_only_on_request(fruit):
    (fruit / "pear" / "03.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(ValueError, match="pear/03.png is a broken image"):
        task("image_folder", path=fruit)
    built = task("image_folder", path=fruit, on_broken="skip")
    assert sum(map(len, (built.train, built.val, built.test))) == 39
    assert "1 broken left out" in built.description


def test_what_is_no_such_folder_is_refused(fruit, halves, tmp_path):
    with pytest.raises(ValueError, match="`path` of image_folder must name a folder"):
        task("image_folder")
    with pytest.raises(ValueError, match="which is not a folder"):
        task("image_folder", path=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no PNG or JPEG image"):
        (tmp_path / "empty").mkdir()
        task("image_folder", path=tmp_path / "empty")
    draw(fruit / "pear" / "large.png", 60, size=(9, 12))
    with pytest.raises(ValueError, match="large.png is 9 x 12.*give size="):
        task("image_folder", path=fruit)
    draw(tmp_path / "one" / "only" / "a.png", 1)
    draw(tmp_path / "one" / "only" / "b.png", 1)
    with pytest.raises(ValueError, match="has one class, 'only'"):
        task("image_folder", path=tmp_path / "one")
    draw(halves / "test" / "mouse" / "0.png", 9)
    with pytest.raises(ValueError, match="test has classes that train does not have: mouse"):
        task("image_folder", path=halves)
    draw(halves / "val" / "cat" / "0.png", 9)
    with pytest.raises(ValueError, match="has val besides train and test"):
        task("image_folder", path=halves)


def test_halves_of_two_sizes_need_a_size(halves):
    for k in range(5):
        draw(halves / "test" / "dog" / f"{k}.png", 90, size=(10, 12))
    with pytest.raises(ValueError, match="of train are .*8, 12.*of test .*10, 12.*give `size`"):
        task("image_folder", path=halves)
    assert task("image_folder", path=halves, size=(8, 12)).input_shape == (1, 8, 12)


@pytest.mark.parametrize("wrong", [0, 1.0, "a"])
def test_test_fraction_is_a_share(fruit, wrong):
    with pytest.raises(ValueError, match="`test_fraction` of image_folder must be"):
        task("image_folder", path=fruit, test_fraction=wrong)
