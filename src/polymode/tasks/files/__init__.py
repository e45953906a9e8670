"""Data sets on this machine: a catalogue, `get` to bring one here, `load` to read it.

Only `get` touches the network, and only `polymode data get NAME` calls it.
"""

from __future__ import annotations

from polymode.tasks.files import catalogue, packages  # noqa: F401  (enter their sets in DATASETS)
from polymode.tasks.files.dataset import (
    DATASETS,
    ArraySpec,
    Dataset,
    MissingData,
    Original,
    data_folder,
    find,
    load,
    require,
)
from polymode.tasks.files.download import DownloadProblem
from polymode.tasks.files.getting import Step, get

__all__ = [
    "DATASETS", "ArraySpec", "Dataset", "DownloadProblem", "MissingData", "Original", "Step",
    "data_folder", "find", "get", "load", "require",
]  # fmt: skip
