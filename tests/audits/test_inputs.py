"""What an audit takes: tables, images, folders, data without labels, dictionaries; bad input."""

from __future__ import annotations

import csv
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import polymode as pm
from polymode.cli.app import main

from .networks import drawn, linear

SOURCE = """
from torch import nn


def linear():
    return nn.Linear(4, 3)


def value():
    return nn.Linear(4, 1)


class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = nn.Linear(64, 2)

    def forward(self, x):
        return self.flat(x.flatten(1))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module of networks and their weights, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_nets.py").write_text(SOURCE)
    save_file(linear().state_dict(), "good.safetensors")
    yield tmp_path
    sys.modules.pop("own_nets", None)


def write_table(path, x, target, extra=()) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*"abcd", *(["city"] if len(extra) else []), "target"])
        for place, (row, value) in enumerate(zip(x.tolist(), target, strict=True)):
            writer.writerow([*row, *([extra[place]] if len(extra) else []), value])


def test_a_table_with_groups_is_audited(folder, capsys) -> None:
    x, y = drawn(linear(), 900, 0)
    city = np.where(x[:, 0] > 1, "Ulm", "Kiel")
    names = np.array(["ash", "beech", "cedar"])
    y[city == "Ulm"] = torch.randint(3, (int((city == "Ulm").sum()),))
    write_table("test.csv", x, names[y.numpy()], city)
    call = ["audit", "--net", "own_nets:linear", "--weights", "good.safetensors", "--budget", "20s"]
    table = [*call, "--data", "test.csv"]
    assert main([*table, "--target", "target", "--groups", "city"]) == 1
    out = capsys.readouterr().out
    assert "city=Ulm" in out
    assert main([*table, "--target", "target"]) == 2
    assert "column 'city'" in capsys.readouterr().err
    assert main([*table, "--target", "price"]) == 2
    assert "has no column 'price'" in capsys.readouterr().err


def test_a_regression_from_a_table_fits_its_noise_on_val(folder, capsys) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    save_file(net.state_dict(), "value.safetensors")
    for name in ("test", "val"):
        x = torch.randn(300, 4)
        write_table(f"{name}.csv", x, (net(x)[:, 0] + 0.3 * torch.randn(300)).tolist())
    call = ["audit", "--net", "own_nets:value", "--weights", "value.safetensors", "--data"]
    call += ["test.csv", "--target", "target"]
    assert main([*call, "--val", "val.csv", "--write", "best"]) == 0
    assert (folder / "best" / "posterior.json").is_file()
    capsys.readouterr()
    assert main(call) == 2
    assert "needs its noise" in capsys.readouterr().err
    assert main(["audit", "--net", "own_nets:value", "--weights", "best", *call[5:]]) == 0


def test_a_folder_of_weights_is_an_ensemble_and_data_may_have_no_labels(folder, capsys) -> None:
    (folder / "members").mkdir()
    for number in range(2):
        save_file(linear().state_dict(), folder / "members" / f"{number}.safetensors")
    np.savez("data.npz", x_test=drawn(linear(), 200, 0)[0].numpy())
    call = ["audit", "--net", "own_nets:linear", "--data", "data.npz", "--out", "page"]
    assert main([*call, "--weights", "members"]) == 0
    text = (folder / "page" / "audit.md").read_text()
    assert "Nothing could be tested" in text
    assert "Predicted classes" in text and "the test data have no labels" in text
    assert '"members": "2"' in (folder / "page" / "audit.json").read_text()
    (folder / "empty").mkdir()
    assert main([*call, "--weights", "empty"]) == 2
    assert "empty has no posterior" in capsys.readouterr().err


def test_a_folder_of_images_is_audited(folder) -> None:
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")
    assert main(["audit", "--net", "own_nets:Pixels", "--data", "images", "--out", "page"]) in (
        0,
        1,
    )
    assert "24" in (folder / "page" / "audit.html").read_text()


def test_weights_of_another_network_and_few_or_equal_labels(folder, capsys) -> None:
    x, y = drawn(linear(), 20, 0)
    np.savez("few.npz", x_test=x.numpy(), y_test=y.numpy())
    np.savez("same.npz", x_test=x.numpy(), y_test=np.zeros(20, dtype=int))
    call = ["audit", "--weights", "good.safetensors", "--net"]
    assert main([*call, "own_nets:linear", "--data", "few.npz"]) == 0
    assert main([*call, "own_nets:linear", "--data", "same.npz"]) in (0, 1)
    capsys.readouterr()
    assert main([*call, "own_nets:value", "--data", "few.npz"]) == 2
    assert "does not fit the network" in capsys.readouterr().err


def test_an_interrupt_ends_with_130(folder, monkeypatch, capsys) -> None:
    x, y = drawn(linear(), 50, 0)
    np.savez("data.npz", x_test=x.numpy(), y_test=y.numpy())

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    import_module("polymode.audits.audit")
    monkeypatch.setattr(sys.modules["polymode.audits.audit"], "figures_of", stop)
    assert main(["audit", "--net", "own_nets:linear", "--data", "data.npz"]) == 130
    assert "interrupted" in capsys.readouterr().err and not (folder / "audit").exists()


class Two(nn.Module):
    """A network of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = linear()

    def forward(self, left, right):
        return self.net(torch.cat([left, right], 1))


def test_dictionaries_and_many_rows() -> None:
    x, y = drawn(linear(), 5000, 0)
    parts = {"left": x[:, :1], "right": x[:, 1:]}
    audit = pm.audit(Two(), (parts, y))
    assert not audit.problems and "built-in corruptions are for" in audit.not_applicable["shifts"]
    same = pm.audit(linear(), (x, y), checks=["calibration"])
    assert audit.findings[0].estimate == pytest.approx(same.findings[0].estimate, abs=1e-6)
    bare = pm.audit(Two(), parts, val=({k: v[:500] for k, v in parts.items()}, y[:500]))
    assert "The test data have no labels" in next(iter(bare.findings)).text


def test_names_of_classes_are_read_and_targets_at_positions_refused() -> None:
    x, y = drawn(linear(), 200, 0)
    names = ["ash", "beech", "cedar"]
    named = pm.audit(linear(), (x, [names[k] for k in y]), checks=["calibration"])
    plain = pm.audit(linear(), (x, y), checks=["calibration"])
    assert named.findings[0].estimate == plain.findings[0].estimate
    maps = nn.Conv2d(1, 3, 3, padding=1)
    with pytest.raises(ValueError, match="one target for each input"):
        pm.audit(maps, (torch.rand(8, 1, 8, 8), torch.randint(3, (8, 8, 8))))


def test_unlabelled_data_that_differ_from_validation_data_are_named() -> None:
    x, _ = drawn(linear(), 400, 0)
    val = drawn(linear(), 400, 1)
    names = [[f.name for f in pm.audit(linear(), test, val=val).problems] for test in (x, 5 * x)]
    assert names == [[], ["test data differ from validation data"]]
