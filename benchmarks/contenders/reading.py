"""Files into arrays, against reading their bytes and against NumPy. All are in the page cache."""

from __future__ import annotations

import struct
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..cases import Case, images
from . import Job


@lru_cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes when the process ends."""
    return tempfile.TemporaryDirectory()


def _file(case: Case) -> Path:
    """A file of the case's format: idx of images, text or npz of a table."""
    path = Path(_folder().name, f"{case.num_examples}.{case.option}")
    if path.exists():
        return path
    if case.option == "idx":
        pixels = images(case)[0].squeeze(1).numpy()
        path.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, *pixels.shape) + pixels.tobytes())
    else:
        shape = (case.num_examples, *case.input_shape)
        table = np.random.default_rng(0).normal(size=shape).round(6)
        if case.option == "txt":
            np.savetxt(path, table, fmt="%.6f")
        else:
            np.savez(path, x=table)
    return path


def raw(case: Case) -> Job:
    """The bytes, into a fresh buffer: the limit."""
    path = _file(case)
    return Job(lambda: path.read_bytes() and None, 1)


def polymode(case: Case) -> Job:
    """The reader of the format, with its checks."""
    from polymode.tasks.readers.idx import read_idx
    from polymode.tasks.readers.npz import read_npz
    from polymode.tasks.readers.text_tables import read_table

    path = _file(case)
    read = {"idx": read_idx, "npz": read_npz, "txt": read_table}[case.option]

    def run() -> None:
        read(path)

    return Job(run, 1)


def numpy(case: Case) -> Job:
    """What NumPy has for it."""
    path = _file(case)

    def run() -> None:
        if case.option == "idx":
            np.fromfile(path, np.uint8, offset=16).reshape(-1, *case.input_shape)
        elif case.option == "npz":
            np.load(path)["x"]
        else:
            np.loadtxt(path)

    return Job(run, 1)
