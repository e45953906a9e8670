"""The binary version of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html).

A record is the label (CIFAR-100: the coarse label, then the fine one) and 3 x 32 x 32 bytes: the
red, green and blue planes, row by row. The python version is a pickle, which can run code when it
is read; it is refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polymode.core.safe_files import FileProblem, open_plain
from polymode.tasks.readers.archives import members

_PIXELS = 3 * 32 * 32
_TRAIN = {10: [f"data_batch_{k}.bin" for k in range(1, 6)], 100: ["train.bin"]}
_TEST = {10: ["test_batch.bin"], 100: ["test.bin"]}
_PYTHON = {"batches.meta", "data_batch_1", "test_batch", "meta", "train", "test"}


def read_cifar(path: Path | str, *, classes: int) -> dict[str, np.ndarray]:
    """Return x_train, y_train, x_test, y_test of CIFAR-10 or CIFAR-100 (fine labels).

    Args:
        path: `cifar-10-binary.tar.gz`, `cifar-100-binary.tar.gz`, or a folder with their `.bin`.
        classes: 10 or 100.

    Returns:
        Images (N, 32, 32, 3) uint8 and labels (N,) int64, in the files' order.
    """
    if classes not in _TRAIN:
        raise ValueError(f"`classes` of read_cifar must be 10 or 100, got {classes}")
    path = Path(path)
    names = _TRAIN[classes] + _TEST[classes]
    contents = _contents(path, names, classes)
    missing = [name for name in names if name not in contents]
    if missing:
        raise FileProblem(f"{path} lacks {', '.join(missing)} of CIFAR-{classes}")
    train = [_batch(path, name, contents.pop(name), classes) for name in _TRAIN[classes]]
    test = [_batch(path, name, contents.pop(name), classes) for name in _TEST[classes]]
    return {
        "x_train": np.concatenate([x for x, _ in train]),
        "y_train": np.concatenate([y for _, y in train]),
        "x_test": np.concatenate([x for x, _ in test]),
        "y_test": np.concatenate([y for _, y in test]),
    }


def _contents(path: Path, names: list[str], classes: int) -> dict[str, bytes]:
    """Return the wanted files by name, from an archive or a folder; refuse the pickles."""
    present: set[str] = set()

    def wanted(member: str) -> bool:
        name = member.rpartition("/")[2]
        present.add(name)
        return name in names

    if path.is_dir():
        files = sorted(path.rglob("*"))
        contents = {}
        for file in files:
            if wanted(file.as_posix()):
                with open_plain(file) as stream:
                    contents[file.name] = stream.read()
    else:
        contents = {name.rpartition("/")[2]: content for name, content in members(path, wanted)}
    if not contents and present & _PYTHON:
        raise FileProblem(
            f"{path} is the python version of CIFAR-{classes}: pickles, which can run code when"
            f" they are read; take the binary version, cifar-{classes}-binary.tar.gz"
        )
    return contents


def _batch(path: Path, name: str, content: bytes, classes: int) -> tuple[np.ndarray, np.ndarray]:
    labels = 1 if classes == 10 else 2
    width = labels + _PIXELS
    if not content or len(content) % width:
        raise FileProblem(
            f"{path}: {name} has {len(content):,} bytes, not a whole number of records of {width:,}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, width)
    y = records[:, labels - 1].astype(np.int64)
    if y.max() >= classes:
        row = int(np.argmax(y >= classes))
        raise FileProblem(
            f"{path}: {name} has label {y[row]} in record {row}, CIFAR-{classes} has 0 to"
            f" {classes - 1}"
        )
    x = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(x), y
