"""Street View House Numbers, cropped digits (http://ufldl.stanford.edu/housenumbers): MATLAB files.

`X` is (32, 32, 3, N) uint8 and `y` is (N, 1) with 1 to 10, where 10 stands for the digit 0.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np

from polymode.core.safe_files import FileProblem, open_plain
from polymode.tasks.readers.streams import LARGEST


def read_svhn(path: Path | str, *, most_bytes: int = LARGEST) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, 32, 32, 3) uint8 and digits (N,) int64 of one `.mat` file (version 5).

    Names, shapes and types of the file's variables are checked before any is loaded.
    """
    import scipy.io
    from scipy.io.matlab import MatReadError

    path = Path(path)
    _check_version(path)
    try:
        variables = {name: (shape, kind) for name, shape, kind in scipy.io.whosmat(str(path))}
        count = _check_variables(path, variables, most_bytes)
        content = scipy.io.loadmat(str(path), variable_names=["X", "y"])
        x, y = content["X"], content["y"]
    except FileProblem:
        raise
    except (MatReadError, OSError, ValueError, TypeError, KeyError, EOFError, zlib.error) as error:
        raise FileProblem(f"{path} is truncated or damaged: {error}") from None
    labels = y.reshape(-1).astype(np.int64)
    wrong = np.flatnonzero((labels < 1) | (labels > 10) | (labels != y.reshape(-1)))
    if wrong.size or x.shape != (32, 32, 3, count) or labels.shape != (count,):
        row = int(wrong[0]) if wrong.size else 0
        raise FileProblem(
            f"{path}: SVHN has labels 1 to 10, got {y.reshape(-1)[row]} for image {row}"
        )
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), labels % 10


def _check_version(path: Path) -> None:
    with open_plain(path) as file:
        start = file.read(128)
    if start.startswith(b"MATLAB 7.3") or start.startswith(b"\x89HDF"):
        raise FileProblem(f"{path} is a MATLAB 7.3 file (HDF5); SVHN's own files are version 5")
    if len(start) < 128 or start[126:128] not in (b"IM", b"MI"):
        raise FileProblem(f"{path} is not a MATLAB 5 file")


def _check_variables(
    path: Path, variables: dict[str, tuple[tuple[int, ...], str]], most_bytes: int
) -> int:
    """Return the number of images, if the file holds `X` and `y` as SVHN does."""
    if not {"X", "y"} <= variables.keys():
        raise FileProblem(
            f"{path} holds {', '.join(variables) or 'nothing'}, SVHN has X and y: another file, or"
            " truncated"
        )
    (shape, kind), (labels, label_kind) = variables["X"], variables["y"]
    if kind != "uint8" or len(shape) != 4 or shape[:3] != (32, 32, 3):
        raise FileProblem(f"{path}: X is {shape} {kind}, SVHN's is (32, 32, 3, N) uint8")
    if label_kind not in ("uint8", "double") or math.prod(labels) != shape[3]:
        raise FileProblem(
            f"{path}: y is {labels} {label_kind}, SVHN's is ({shape[3]}, 1) uint8 or double"
        )
    if math.prod(shape) > most_bytes:
        raise FileProblem(
            f"{path}: X asks for {math.prod(shape):,} bytes, at most {most_bytes:,} are read"
        )
    return shape[3]
