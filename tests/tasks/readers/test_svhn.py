"""SVHN's MATLAB files: axes and the digit 0 come right, other files are named."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers import read_svhn

X = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
Y = np.array([10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1])[:, None]


def save(path, **variables):
    scipy.io.savemat(path, variables, do_compression=True)
    return path


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_images_and_digits_come_back(tmp_path, dtype):
    x, y = read_svhn(save(tmp_path / "test_32x32.mat", X=X, y=Y.astype(dtype)))
    assert x.shape == (12, 32, 32, 3)
    assert x.flags.c_contiguous
    np.testing.assert_array_equal(x[3], X[..., 3])
    assert y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert y.dtype == np.int64


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"X": X}, "holds X, SVHN has X and y: another file, or truncated"),
        ({"X": X[:16], "y": Y}, r"X is \(16, 32, 3, 12\) uint8"),
        ({"X": X.astype(np.float64), "y": Y}, "X is .* double"),
        ({"X": X, "y": Y[:5].astype(np.uint8)}, r"y is \(5, 1\) uint8"),
        ({"X": X, "y": (Y + 1).astype(np.uint8)}, "labels 1 to 10, got 11 for image 0"),
        ({"X": X, "y": Y + 0.5}, "labels 1 to 10, got 10.5"),
    ],
)
def test_other_contents_are_named(tmp_path, variables, message):
    with pytest.raises(FileProblem, match=message):
        read_svhn(save(tmp_path / "a.mat", **variables))


def test_other_files_are_named(tmp_path):
    whole = save(tmp_path / "whole.mat", X=X, y=Y.astype(np.uint8)).read_bytes()
    cases = {
        "SVHN has X and y: another file, or truncated": whole[: len(whole) // 2],
        "is truncated or damaged": whole[:-10],
        "is not a MATLAB 5 file": b"hello" * 100,
        "MATLAB 7.3 file": b"MATLAB 7.3 MAT-file" + bytes(200),
    }
    for message, content in cases.items():
        (tmp_path / "a.mat").write_bytes(content)
        with pytest.raises(FileProblem, match=message):
            read_svhn(tmp_path / "a.mat")
    with pytest.raises(FileProblem, match="does not exist"):
        read_svhn(tmp_path / "b.mat")
    with pytest.raises(FileProblem, match="asks for 36,864 bytes, at most 30,000"):
        read_svhn(tmp_path / "whole.mat", most_bytes=30_000)
