"""The published layout: tar files with one safetensors file per network, written here."""

from __future__ import annotations

import io
import tarfile

import pytest
import torch
from safetensors.torch import save

from polymode import nets
from polymode.core.store import FileProblem
from polymode.zoo import Published, Recipe, Zoo, import_published

SHAPE = (1, 28, 28)


def states(count, make):
    for number in range(count):
        torch.manual_seed(number)
        yield {name: t.half() for name, t in make().state_dict().items() if t.is_floating_point()}


def write_tar(path, first, found):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for number, state in enumerate(found, first):
            raw = save(state)
            entry = tarfile.TarInfo(f"{path.name.rsplit('-', 2)[0]}/{number}.safetensors")
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))


@pytest.fixture(scope="module")
def optunets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "mnist-optunet"
    found = list(states(12, lambda: nets.optunet(SHAPE, 10)))
    write_tar(folder / "mnist-optunet-0-9.tgz", 0, found[:10])
    write_tar(folder / "mnist-optunet-10-11.tgz", 10, found[10:])
    return folder, found


def test_networks_come_in_the_order_of_their_numbers(optunets):
    folder, found = optunets
    stack = Published(folder).stack("optunet", SHAPE, 10, first=8, last=12)
    assert stack.num_modes == 4
    for name, tensor in stack.params.items():
        expected = torch.stack([state[name].float() for state in found[8:12]])
        assert torch.equal(tensor.detach(), expected)


def test_residual_networks_by_name(tmp_path):
    """Names are those of the usual public ResNets; running statistics come along."""
    found = list(states(2, lambda: nets.resnet20((3, 32, 32), 10)))
    assert {"conv1.weight", "layer2.0.shortcut.0.weight", "linear.bias"} < set(found[0])
    found[1]["bn1.running_mean"] += 3
    write_tar(tmp_path / "cifar10-resnet20-0-1.tgz", 0, found)
    stack = Published(tmp_path).stack("resnet20", (3, 32, 32), 10)
    assert torch.equal(stack.buffers["bn1.running_mean"][1], torch.full((16,), 3.0))
    with pytest.raises(FileProblem, match="another architecture"):
        Published(tmp_path).stack("resnet8", (3, 32, 32), 10)


def test_a_folder_that_was_unpacked_and_other_names(optunets, tmp_path):
    _, found = optunets
    names = [f"layer{k}" for k in range(len(found[0]))]
    for number in (2, 10, 9):
        renamed = dict(zip(names, found[number].values(), strict=True))
        (tmp_path / f"optunet-{number}.safetensors").write_bytes(save(renamed))
    stack = Published(tmp_path).stack("optunet", SHAPE, 10)  # by shapes, no two are alike
    first = next(iter(found[0]))
    expected = torch.stack([found[k][first].float() for k in (2, 9, 10)])
    assert torch.equal(stack.params[first].detach(), expected)
    given = dict(zip(found[0], names, strict=True))
    again = Published(tmp_path).stack("optunet", SHAPE, 10, names=given)
    assert torch.equal(again.params[first].detach(), expected)


def test_they_become_a_zoo(optunets, tmp_path):
    folder, found = optunets
    recipe = Recipe(task="mnist", net="optunet")
    options = {"input_shape": SHAPE, "target_size": 10, "networks_per_shard": 5}
    import_published(folder, tmp_path, recipe, None, num_networks=5, **options)
    import_published(folder, tmp_path, recipe, None, **options)  # the rest of them
    zoo = Zoo(tmp_path)
    assert len(zoo) == 12 and zoo.verify() == []
    name = next(iter(found[0]))
    assert torch.equal(zoo.stack().params[name][11].detach(), found[11][name].float())


def test_damage_is_named(optunets, tmp_path):
    folder, _ = optunets
    cut = tmp_path / "mnist-optunet-0-9.tgz"
    cut.write_bytes((folder / cut.name).read_bytes()[:2000])
    with pytest.raises(FileProblem, match="mnist-optunet-0-9.tgz is truncated or not a tar"):
        Published(tmp_path).stack("optunet", SHAPE, 10)
    (tmp_path / "x").mkdir()
    with pytest.raises(FileProblem, match="not in the published layout"):
        Published(tmp_path / "x")
    (tmp_path / "x" / "0.safetensors").write_bytes(b"nonsense")
    with pytest.raises(FileProblem, match="0.safetensors is truncated or not a safetensors"):
        Published(tmp_path / "x").stack("optunet", SHAPE, 10)
