"""A data folder with a tiny `uci.npz` in the format of the real one.

The first feature of every table is the row number, so that a test can tell which rows a set has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymode.core.registry import Entry
from polymode.tasks.files import DATASETS

NUM_ROWS, NUM_SPLITS = 60, 3
TABLES = {"boston": 13, "concrete": 8, "energy": 8, "kin8nm": 8, "naval": 16, "power": 4}
TABLES |= {"protein": 9, "wine": 11, "yacht": 6}


def fake_uci() -> dict[str, np.ndarray]:
    """Return tables of 60 rows with 3 standard splits and one gap split a feature."""
    stream, arrays = np.random.default_rng(0), {}
    for name, num_features in TABLES.items():
        x = 50 + 7 * stream.standard_normal((NUM_ROWS, num_features))
        x[:, 0] = np.arange(NUM_ROWS)
        if name == "naval":
            x[:, [8, 11]] = 288.15, 0.998
        third = round(NUM_ROWS / 3)
        gap = np.zeros((num_features, NUM_ROWS), bool)
        for feature, rows in enumerate(gap):
            rows[np.argsort(x[:, feature], kind="stable")[third : NUM_ROWS - third]] = True
        test = np.zeros((NUM_SPLITS, NUM_ROWS), bool)
        for rows in test:
            rows[stream.permutation(NUM_ROWS)[:6]] = True
        arrays |= {f"{name}_x": x, f"{name}_y": 1000 + 30 * stream.standard_normal(NUM_ROWS)}
        arrays |= {f"{name}_test": test, f"{name}_gap_test": gap}
    return arrays


@pytest.fixture(scope="session")
def tables() -> dict[str, np.ndarray]:
    return fake_uci()


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict], None]:
    """Return a function that makes these arrays the data set "uci"."""
    monkeypatch.setenv("POLYMODE_DATA", str(tmp_path))

    def write(arrays: dict[str, np.ndarray]) -> None:
        np.savez(tmp_path / "uci.npz", **arrays)
        entry = DATASETS.get("uci")
        specs = {
            key: dataclasses.replace(spec, shape=arrays[key].shape)
            for key, spec in entry.value.arrays.items()
        }
        small: Any = Entry("uci", dataclasses.replace(entry.value, arrays=specs), entry.metadata)
        monkeypatch.setitem(DATASETS._entries, "uci", small)

    return write
