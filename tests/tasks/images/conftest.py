"""A data folder with tiny files in the format of the real ones, and a catalogue that fits them.

The first two values of an image are its row number, so that a test can tell which rows a set has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymode.core.registry import Entry
from polymode.tasks.files import DATASETS
from polymode.tasks.images.named_sets import SETS

FORM = {"x_train", "y_train", "x_test", "y_test", "wnids"}  # arrays of sets of labelled images
NUM_TRAIN, NUM_TEST = {10: 120, 100: 400, 200: 400}, {10: 60, 100: 200, 200: 200}


def fake_arrays(name: str) -> dict[str, np.ndarray]:
    """Return arrays as `load(name)` gives them, but few rows."""
    stream = np.random.default_rng(sum(map(ord, name)))
    specs, arrays = DATASETS.get(name).value.arrays, {}
    num_classes = max(spec.num_classes for spec in specs.values())
    for key, spec in specs.items():
        rows = (NUM_TRAIN if key.endswith("train") else NUM_TEST)[num_classes]
        if key == "wnids":
            arrays[key] = np.array([f"n{label:08d}" for label in range(200)])
        elif key[0] == "x":
            arrays[key] = stream.integers(0, 256, (rows, *spec.shape[1:]), dtype=np.uint8)
            number_rows(arrays[key])
        else:
            arrays[key] = np.arange(rows) % num_classes
    return arrays


def number_rows(images: np.ndarray) -> None:
    """Write the row number into the first two values of each image."""
    flat = images.reshape(len(images), -1)
    flat[:, 0], flat[:, 1] = np.arange(len(images)) // 256, np.arange(len(images)) % 256


@pytest.fixture(scope="session")
def fake_sets() -> dict[str, dict[str, np.ndarray]]:
    """Return all sets of the catalogue of that form: no tables, bodies, sentences or volumes."""
    names = [name for name in DATASETS.names() if set(DATASETS.get(name).value.arrays) <= FORM]
    assert set(SETS) <= set(names)
    return {name: fake_arrays(name) for name in names}


class Folder:
    """The data folder of one test: put data sets in, take them away."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path, self._patch = path, patch
        patch.setenv("POLYMODE_DATA", str(path))

    def put(self, name: str, arrays: dict[str, np.ndarray], file: str | None = None) -> None:
        """Write a data set; its entry of the catalogue gets the shapes of these arrays."""
        np.savez(self.path / (file or f"{name}.npz"), **arrays)
        entry = DATASETS.get(name)
        specs = {
            key: dataclasses.replace(spec, shape=arrays[key].shape) if key in arrays else spec
            for key, spec in entry.value.arrays.items()
        }
        small: Any = Entry(name, dataclasses.replace(entry.value, arrays=specs), entry.metadata)
        self._patch.setitem(DATASETS._entries, name, small)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def all_sets(tmp_path_factory: pytest.TempPathFactory, fake_sets) -> Iterator[Callable]:
    """All image sets on disk, for tests that only read."""
    with pytest.MonkeyPatch.context() as patch:
        every = Folder(tmp_path_factory.mktemp("data"), patch)
        for name, arrays in fake_sets.items():
            every.put(name, arrays)
        yield every
