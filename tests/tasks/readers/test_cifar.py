"""CIFAR's binary version is read pixel by pixel right; the pickles are refused."""

from __future__ import annotations

import io
import pickle
import tarfile

import numpy as np
import pytest

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers import read_cifar

NAMES = {
    10: [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"],
    100: ["train.bin", "test.bin"],
}


def records(classes: int, count: int, seed: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return a file's bytes, and the images (N, 32, 32, 3) and labels that it stands for."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    y = random.integers(0, classes, count)
    planes = np.stack([x[..., c].reshape(count, -1) for c in range(3)], 1).reshape(count, -1)
    labels = [y] if classes == 10 else [random.integers(0, 20, count), y]
    columns = [*(label[:, None].astype(np.uint8) for label in labels), planes]
    return np.concatenate(columns, 1).tobytes(), x, y


def archive(path, contents: dict[str, bytes]):
    with tarfile.open(path, "w:gz") as file:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"cifar-bin/{name}")
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("packed", [True, False])
def test_images_and_labels_come_back(tmp_path, classes, packed):
    files = {name: records(classes, 3, seed) for seed, name in enumerate(NAMES[classes])}
    contents = {name: content for name, (content, _, _) in files.items()}
    if packed:
        path = archive(tmp_path / "cifar.tar.gz", dict(reversed(contents.items())))
    else:
        path = tmp_path
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
    found = read_cifar(path, classes=classes)
    *train, test = files.values()
    np.testing.assert_array_equal(found["x_train"], np.concatenate([x for _, x, _ in train]))
    np.testing.assert_array_equal(found["y_train"], np.concatenate([y for _, _, y in train]))
    np.testing.assert_array_equal(found["x_test"], test[1])
    np.testing.assert_array_equal(found["y_test"], test[2])
    assert found["x_test"].flags.c_contiguous
    assert found["y_test"].dtype == np.int64


def test_the_pickles_are_refused_by_name(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    evil = pickle.dumps(Evil())
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch", "batches.meta"]
    path = archive(tmp_path / "cifar-10-python.tar.gz", dict.fromkeys(names, evil))
    with pytest.raises(FileProblem, match="take the binary version, cifar-10-binary.tar.gz"):
        read_cifar(path, classes=10)
    path = archive(tmp_path / "cifar-100-python.tar.gz", dict.fromkeys(["train", "test"], evil))
    with pytest.raises(FileProblem, match="cifar-100-binary.tar.gz"):
        read_cifar(path, classes=100)


def test_damage_is_named(tmp_path):
    content, _, _ = records(100, 2, 0)
    path = archive(tmp_path / "a", {"train.bin": content[:-1], "test.bin": content})
    with pytest.raises(FileProblem, match=r"train.bin has 6,147 bytes, not a whole .* of 3,074"):
        read_cifar(path, classes=100)
    path = archive(tmp_path / "b", {"train.bin": content})
    with pytest.raises(FileProblem, match="lacks test.bin of CIFAR-100"):
        read_cifar(path, classes=100)
    wrong = bytes([0, 100]) + content[2:]
    path = archive(tmp_path / "c", {"train.bin": content, "test.bin": wrong})
    with pytest.raises(FileProblem, match="test.bin has label 100 in record 0"):
        read_cifar(path, classes=100)
    with pytest.raises(ValueError, match="must be 10 or 100, got 20"):
        read_cifar(path, classes=20)
