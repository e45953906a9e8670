"""Weights of others: both formats come in, and what does not fit is one line."""

from __future__ import annotations

import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

from polymode.core.safe_files import FileProblem
from polymode.tasks.bodies import load_weights, read_weights


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy"])
def test_files_of_both_kinds_give_the_same_network(tmp_path, kind) -> None:
    theirs, path = network(), tmp_path / "body.bin"
    weights = {"body." + k: v for k, v in theirs.state_dict().items()}
    weights["head.weight"] = torch.ones(2)
    if kind == "safetensors":
        safetensors.torch.save_file(weights, path)
    else:
        torch.save(weights, path, _use_new_zipfile_serialization=kind == "zip")
    ours = load_weights(nn.ModuleDict({"body": network()}), path, skip=("head.",))
    for a, b in zip(ours["body"].parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_files_without_counters_fit() -> None:
    """Published weights of TensorFlow have no counter of batches."""
    weights = dict(network().state_dict())
    del weights["1.num_batches_tracked"]
    load_weights(network(), weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("0.bias"), "1 tensor.s. are missing, such as '0.bias'"),
        (lambda w: w.update(extra=torch.ones(1)), "1 tensor.s. have no place in it, .* 'extra'"),
        (lambda w: w.update({"0.bias": torch.ones(5)}), r"'0.bias' is \(5,\), the network's is"),
        (lambda w: w.update({"0.bias": torch.full((4,), torch.nan)}), "'0.bias' holds NaN"),
    ],
)
def test_weights_that_do_not_fit_leave_the_network_alone(change, message) -> None:
    weights, ours = dict(network().state_dict()), network()
    before = ours[0].weight.clone()
    change(weights)
    with pytest.raises(ValueError, match=f"do not fit this Sequential: {message}") as error:
        load_weights(ours, weights)
    assert "\n" not in str(error.value)
    assert torch.equal(ours[0].weight, before)


class Harm:
    """What runs a command where it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit(3)",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"a": Harm()}, protocol=2), "more than tensors"),
        (b"\x05\0\0\0\0\0\0\0{", "damaged"),
        (b"", "damaged"),
        (b"PK\x03\x04 and then nothing", "damaged"),
    ],
)
def test_hostile_and_damaged_files_are_one_line(tmp_path, content, message) -> None:
    path = tmp_path / "body.pth"
    path.write_bytes(content)
    with pytest.raises(FileProblem, match=message) as error:
        read_weights(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_file_with_more_than_tensors_is_refused(tmp_path) -> None:
    torch.save({"weight": torch.ones(1), "epoch": 3}, tmp_path / "all.pth")
    with pytest.raises(FileProblem, match="no table of tensors by name"):
        read_weights(tmp_path / "all.pth")
    torch.save(nn.Linear(1, 1), tmp_path / "module.pth")
    with pytest.raises(FileProblem, match="more than tensors"):
        read_weights(tmp_path / "module.pth")
