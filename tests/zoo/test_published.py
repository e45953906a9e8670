"""The published layout: tar files with one safetensors file per network, written here."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
import torch
from safetensors.torch import save

from polymode import nets
from polymode.core.safe_files import FileProblem
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
    with pytest.raises(FileProblem, match="mnist-optunet-0-9.tgz is truncated or"):
        Published(tmp_path).stack("optunet", SHAPE, 10)
    (tmp_path / "x").mkdir()
    with pytest.raises(FileProblem, match="not in the published layout"):
        Published(tmp_path / "x")
    (tmp_path / "x" / "0.safetensors").write_bytes(b"nonsense")
    with pytest.raises(FileProblem, match="0.safetensors is truncated or not a safetensors"):
        Published(tmp_path / "x").stack("optunet", SHAPE, 10)


def member(tar, name, raw, **facts):
    entry = tarfile.TarInfo(name)
    entry.size = len(raw)
    for key, value in facts.items():
        setattr(entry, key, value)
    tar.addfile(entry, io.BytesIO(raw))


def bomb(path, size):
    """A gzipped tar file whose one member has `size` zero bytes."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        entry = tarfile.TarInfo("0.safetensors")
        entry.size = size
        tar.addfile(entry, io.BytesIO(bytes(size)))


def load(path):
    return Published(path).stack("optunet", SHAPE, 10)


@pytest.mark.parametrize("name", ["x-0-1.tgz", "0.safetensors"])
@pytest.mark.parametrize("alone", [False, True])
def test_pipes_and_devices_are_refused_at_once(name, alone, tmp_path):
    """Opened, a pipe would wait for a writer, and /dev/zero never end."""
    for kind in ("pipe", "zero", "folder"):
        place = tmp_path / kind / name
        place.parent.mkdir()
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "zero":
            place.symlink_to("/dev/zero")
        else:
            place.mkdir()
        if alone and kind == "folder":
            continue
        with pytest.raises(FileProblem, match=f"{name} is a (pipe or a device|folder), not a file"):
            load(place if alone else place.parent)


def test_a_network_has_no_more_bytes_than_its_architecture_needs(tmp_path):
    """Members of archives and files alike; 40 MB of zeros are 40 kB when packed."""
    bomb(tmp_path / "tar" / "x-0-0.tgz", 40_000_000)
    with pytest.raises(FileProblem, match=r"'0.safetensors' has more than 1,05\d,\d+ bytes"):
        load(tmp_path / "tar")
    (tmp_path / "file").mkdir()
    with open(tmp_path / "file" / "0.safetensors", "wb") as file:
        file.truncate(40_000_000)
    with pytest.raises(FileProblem, match=r"0.safetensors has more than 1,05\d,\d+ bytes"):
        load(tmp_path / "file")
    with pytest.raises(FileProblem, match="has more than 1,000 bytes"):
        next(Published(tmp_path / "tar").networks(1000))


def test_other_members_do_not_unpack_without_end(optunets, tmp_path):
    """What is passed over is unpacked, too: a file named 0-0 has one network and little else."""
    _, found = optunets
    with tarfile.open(tmp_path / "x-0-0.tgz", "w:gz", compresslevel=1) as tar:
        member(tar, "notes.txt", bytes(110_000_000))
        member(tar, "0.safetensors", save(found[0]))
    with pytest.raises(FileProblem, match="x-0-0.tgz unpacks to more than .* bytes, the limit"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name, facts, message",
    [
        ("../0.safetensors", {}, "names a file outside its folder"),
        ("/etc/0.safetensors", {}, "names a file outside its folder"),
        ("0.safetensors", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "is a link or"),
        ("a" * 3_000_000, {}, "a header of 3,000,001 bytes"),
    ],
)
def test_archives_with_tricks_are_refused(name, facts, message, tmp_path):
    with tarfile.open(tmp_path / "x-0-0.tgz", "w:gz", format=tarfile.GNU_FORMAT) as tar:
        member(tar, name, b"" if facts else b"12345678", **facts)
    with pytest.raises(FileProblem, match=message):
        load(tmp_path)


def safetensors(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + body


@pytest.mark.parametrize(
    "raw, message",
    [
        ((2**60).to_bytes(8, "little") + b"{}", "its header is of 1,152,921,504,606,846,976 bytes"),
        (safetensors(b" " * (2**20 + 1)), "header is of 1,048,577 bytes|more than 1,05"),
        (safetensors(b"[" * 1000), "not a safetensors file"),
        (safetensors(b'{"x":{"dtype":"F64","shape":[1000000000],"data_offsets":[0,8]}}', bytes(8)),
         "not a safetensors file"),
        (safetensors(b'{"x":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}', bytes(8)),
         "another architecture"),
        (b"", "not a safetensors file"),
    ],
)  # fmt: skip
def test_headers_promise_no_more_than_the_file_holds(raw, message, tmp_path):
    (tmp_path / "0.safetensors").write_bytes(raw)
    with pytest.raises(FileProblem, match=message):
        load(tmp_path)


def test_weights_are_floating_point_numbers(tmp_path):
    state = {name: t.long() for name, t in nets.optunet(SHAPE, 10).state_dict().items()}
    (tmp_path / "0.safetensors").write_bytes(save(state))
    with pytest.raises(FileProblem, match="holds torch.int64, which weights are not"):
        load(tmp_path)


def test_fewer_tensors_than_the_network_has_are_named(tmp_path):
    """Two alike in the network, one in the file."""
    (tmp_path / "0.safetensors").write_bytes(save({"weight": torch.zeros(1, 1)}))
    make = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    with pytest.raises(FileProblem, match="another architecture"):
        Published(tmp_path).stack(make, (1,), 1)


def test_a_span_of_networks_is_first_to_last(optunets):
    folder, found = optunets
    name = next(iter(found[0]))
    for first, last in ((0, 3), (4, 6), (9, 11), (11, None)):
        stack = Published(folder).stack("optunet", SHAPE, 10, first=first, last=last)
        expected = torch.stack([state[name].float() for state in found[first:last]])
        assert torch.equal(stack.params[name].detach(), expected)
    with pytest.raises(ValueError, match="`first` must be an integer of at least 0, got -1"):
        Published(folder).stack("optunet", SHAPE, 10, first=-1)


def test_an_import_makes_a_damaged_shard_again(optunets, tmp_path):
    folder, _ = optunets
    recipe = Recipe(task="mnist", net="optunet")
    options = {"input_shape": SHAPE, "target_size": 10, "networks_per_shard": 5}
    with pytest.raises(ValueError, match="`networks_per_shard` of a zoo must be an integer"):
        import_published(folder, tmp_path, recipe, None, **{**options, "networks_per_shard": 0})
    import_published(folder, tmp_path, recipe, None, **options)
    before = [shard.digest for shard in Zoo(tmp_path).shards]
    path = tmp_path / Zoo(tmp_path).shards[1].file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="shard 1 is made again"):
        import_published(folder, tmp_path, recipe, None, **options)
    assert Zoo(tmp_path).verify() == [] and [s.digest for s in Zoo(tmp_path).shards] == before
