"""Taking data from a folder; reading what is here; saying what is not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polymode.core.safe_files import FileProblem, cache_folder
from polymode.tasks.files import (
    ArraySpec,
    DownloadProblem,
    MissingData,
    data_folder,
    find,
    get,
    load,
    require,
)

IMAGES = "t10k-images-idx3-ubyte.gz"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def small(register, make_digits):
    return register("small", make_digits(also={"small_test.npz": ("x_test", "y_test")}))


def write_originals(folder, server) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in server.files.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("below", ["", "small"])
def test_originals_are_taken_from_a_folder(small, server, source, data, arrays, below):
    write_originals(source / below, server)
    assert get("small", source=source) == data / "small.npz"
    np.testing.assert_array_equal(load("small")["x_test"], arrays["x_test"])
    assert len(list((source / below).iterdir())) == 2
    assert server.asked == []


def test_a_packed_file_is_taken_checked_and_kept_by_its_name(small, source, data, arrays):
    labels = arrays["y_test"].astype(np.uint8)
    np.savez_compressed(source / "small_test.npz", x_test=arrays["x_test"], y_test=labels)
    assert get("small", source=source) == data / "small_test.npz"
    assert [path.name for path in data.iterdir()] == ["small_test.npz"]
    found = load("small")
    assert found["y_test"].dtype == np.int64
    np.testing.assert_array_equal(found["x_test"], arrays["x_test"])
    steps = []
    get("small", observer=steps.append)
    assert [step.kind for step in steps] == ["here"]


def test_half_of_a_set_can_be_here_and_the_whole_comes_later(register, make_digits, server, data):
    """As kmnist: the test half from a folder, all of it from the network."""
    facts = make_digits(server.address, also={"small_half.npz": ("y_test",)})
    register("small", facts)
    data.mkdir()
    np.savez(data / "small_half.npz", y_test=np.arange(50) % 10)
    assert list(load("small")) == ["y_test"]
    get("small")
    assert list(load("small")) == ["x_test", "y_test"]


def other(array: np.ndarray, row: int, value: int) -> np.ndarray:
    changed = array.copy()
    changed[row] = value
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": lambda x: x[:40]}, r"x_test is \(40, 28, 28\) uint8, the data set has \(50"),
        ({"x_test": lambda x: x / 255}, "x_test is .* float64, .* uint8"),
        ({"y_test": lambda y: y + 0.0}, "y_test is .* float64, .* int64"),
        ({"y_test": lambda y: other(y, 3, 10)}, "must be 0 to 9, got 10 in row 3"),
        ({"y_test": lambda y: other(y, 3, -1)}, "must be 0 to 9, got -1 in row 3"),
        ({"y_test": lambda y: other(y, 0, 1)}, "4 examples of class 0, the data set has 5"),
        ({"x_test": lambda x: other(x, 0, 0)}, "does not hold the values of the original"),
        ({"y_test": None}, "lacks y_test"),
    ],
)
def test_a_wrong_packed_file_is_refused(small, source, data, arrays, change, message):
    changed = {
        name: change.get(name, lambda array: array)(array)
        for name, array in arrays.items()
        if change.get(name, "") is not None
    }
    np.savez(source / "small.npz", **changed)
    with pytest.raises(FileProblem, match=message):
        get("small", source=source)
    assert not data.exists() or not list(data.iterdir())


def test_infinite_values_are_refused(register, make_digits, source, data):
    facts = make_digits(arrays={"a": ArraySpec((2,), "float64")})
    register("floats", facts)
    np.savez(source / "floats.npz", a=np.array([1.0, np.nan]))
    with pytest.raises(FileProblem, match="a holds NaN or infinite values"):
        get("floats", source=source)


def test_a_wrong_or_missing_original_is_named(small, server, source, data):
    with pytest.raises(FileProblem, match="has no small.npz or small_test.npz, nor t10k-images"):
        get("small", source=source)
    write_originals(source, server)
    (source / IMAGES).write_bytes(bytes(len(server.files[IMAGES])))
    with pytest.raises(FileProblem, match=f"{IMAGES}: wrong sha256"):
        get("small", source=source)
    (source / IMAGES).write_bytes(b"short")
    with pytest.raises(FileProblem, match="5 bytes, .* expected; download it again"):
        get("small", source=source)
    assert not data.exists() or not list(data.iterdir())


def test_reading_that_disagrees_with_the_catalogue_writes_nothing(
    register, make_digits, server, source, data
):
    wrong = {"x_test": ArraySpec((50, 28, 28), "uint8", sha256="0" * 64)}
    facts = make_digits()
    register("small", replace(facts, arrays={**facts.arrays, **wrong}))
    write_originals(source, server)
    with pytest.raises(FileProblem, match="small: x_test does not hold the values"):
        get("small", source=source)
    assert not list(data.iterdir())


def test_a_reader_that_gives_too_little_writes_nothing(
    register, make_digits, server, source, data, arrays
):
    register("small", make_digits(read=lambda files: {"x_test": arrays["x_test"]}))
    write_originals(source, server)
    with pytest.raises(FileProblem, match="small lacks y_test"):
        get("small", source=source)
    assert not list(data.iterdir())


def test_a_set_without_address_says_where_to_take_it_from(register, make_digits, data):
    register("local", make_digits(originals=(), read=None, also={"local_part.npz": ("y_test",)}))
    with pytest.raises(
        DownloadProblem, match="has local.npz or local_part.npz, such as ~/Downloads: `polymode da"
    ):
        get("local")


def test_missing_data_names_the_one_command(small, register, make_digits, data):
    register("local", make_digits(originals=(), read=None))
    with pytest.raises(MissingData, match=r"get with `polymode data get small kmnist`$"):
        require("small", "kmnist", "small")
    with pytest.raises(MissingData) as caught:
        require("small", "local")
    pasted = re.findall("`(.+?)`", str(caught.value))
    assert pasted == [
        "polymode data get small", "polymode data get local --from ~/Downloads",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=f"Data not in {data}: mnist; get with"):
        load("mnist")
    with pytest.raises(ValueError, match="Unknown data set 'mnst'. Did you mean 'mnist'"):
        require("mnst")
    assert find("mnist") is None
    assert not data.exists()


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("POLYMODE_DATA", "~/here")
    assert data_folder() == Path.home() / "here"
    monkeypatch.delenv("POLYMODE_DATA")
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    assert data_folder() == tmp_path / "data"
    monkeypatch.delenv("POLYMODE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_folder() == tmp_path / "xdg" / "polymode" / "data"
    assert cache_folder() == tmp_path / "xdg" / "polymode"
    for unset in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert data_folder() == Path.home() / ".cache" / "polymode" / "data"
