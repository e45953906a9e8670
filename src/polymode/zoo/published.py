"""The published set of networks ("Checkpoints", O. Laurent, E. Aldea, G. Franchi, ICLR 2024).

Its layout: `models/<data>-<net>/<data>-<net>-<first>-<last>.tgz`, each a tar file with one
safetensors file per network, float16, that holds its state dict. A folder into which such a file
was unpacked is read as well. Names of tensors are those of the usual public ResNets (conv1, bn1,
layer1.0.conv1, layer2.0.shortcut.0, linear), which `pm.nets.resnet18` and `resnet20` have, too;
for other networks `names` says which is which. Nothing is unpacked to disk, and nothing is
unpickled. Files are of others: they are read with the guards of data sets (`tasks/readers`), and a
network's may be no larger than its architecture needs.

Networks of a tar file come in the order of the file. The tensor names of `mnist-optunet` are not
known from the set's description; tensors of unknown names are matched by their shapes, if no two
are alike, as in OptuNet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_bytes
from torch import Tensor, nn

from polymode.core.checks import check_call
from polymode.core.safe_files import FileProblem, open_plain
from polymode.likelihoods.kinds import Categorical
from polymode.nets.user_network import networks_for
from polymode.posterior import Posterior, Samples
from polymode.stack.stack import Stack
from polymode.tasks.readers.archives import members
from polymode.tasks.task import Task
from polymode.zoo.index import add_shard, write_about
from polymode.zoo.recipe import Recipe
from polymode.zoo.train import check_counts, complete, store_shard

_SPAN = re.compile(r"-(\d+)-(\d+)\.(?:tgz|tar\.gz|tar)$")
_IGNORED = "num_batches_tracked"  # an integer that published files may leave out
_LARGEST = 2**31  # bytes of one network whose architecture is not known
_HEADER = 2**20  # bytes that say which tensors a network has: ResNet-152 needs 100,000
_UNNUMBERED = 2**16  # networks of a tar file whose name does not say how many it has
_NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Published:
    """Networks in the published layout: tar files, or folders with safetensors files.

    Args:
        path: `models/<data>-<net>`, one of its tar files, or a folder of safetensors files.
    """

    def __init__(self, path: str | Path) -> None:
        check_call(Published.__init__, locals())
        self.path = Path(path)
        if not self.path.exists():
            raise FileProblem(f"{self.path} does not exist")
        try:
            self.sources = _sources(self.path)
        except OSError as error:
            raise FileProblem(f"{self.path} cannot be read: {error.strerror or error}") from None
        if not self.sources:
            raise FileProblem(
                f"{self.path} has neither .tgz files named DATA-NET-FIRST-LAST.tgz nor .safetensors"
                " files: it is not in the published layout"
            )

    def networks(self, most_bytes: int = _LARGEST) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield name and tensors of each network; files follow each other by their numbers.

        Args:
            most_bytes: a network's file may have this many.
        """
        for source in self.sources:
            if source.suffix == ".safetensors":
                yield source.name, _tensors(f"{source}", _content(source, most_bytes))
                continue
            wanted, total = _is_network, most_bytes * _count(source)
            for name, raw in members(
                source, wanted, most_bytes=total, largest_member=most_bytes
            ):  # fmt: skip
                yield name, _tensors(f"{source}: {name}", raw)

    def stack(
        self, net: Any, input_shape: Sequence[int], num_outputs: int, *, first: int = 0,
        last: int | None = None, names: Mapping[str, str] | None = None,
    ) -> Stack:  # fmt: skip
        """Return networks number `first` to `last` − 1 as a stack, in float32.

        Args:
            net: a builder of `pm.nets` or its name, or a function that makes a module.
            input_shape, num_outputs: of the network.
            names: our name of a tensor -> theirs, for those that differ.
        """
        for name, value in {"first": first, "last": last}.items():
            if value is not None and (type(value) is not int or value < 0):
                raise ValueError(f"`{name}` must be an integer of at least 0, got {value!r}")
        make = networks_for(net, tuple(input_shape), num_outputs)
        module = make if isinstance(make, nn.Module) else make()
        networks = list(islice(self.networks(_room(module)), first, last))
        if not networks:
            raise FileProblem(f"{self.path} has no network from number {first} on")
        return _stack(module, networks, names or {})


def import_published(
    source: str | Path,
    folder: str | Path,
    recipe: Recipe,
    task: Task | None,
    *,
    input_shape: Sequence[int],
    target_size: int,
    networks_per_shard: int = 64,
    num_networks: int | None = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Make a zoo of published networks, in float16 as they are; resumes what is there.

    Args:
        source: see `Published`. folder: of the new zoo.
        recipe: what the networks are; only its names are used.
        task: on whose test set they are scored; None leaves scores out.
        input_shape, target_size: of the networks.
        networks_per_shard, num_networks: of a shard, and in all; None takes all there are.
        names: see `Published.stack`.
    """
    check_call(import_published, locals())
    folder, likelihood, shape = Path(folder), Categorical(), tuple(input_shape)
    check_counts(networks_per_shard=networks_per_shard, num_networks=num_networks or 1)
    write_about(
        folder,
        {
            "recipe": recipe.to_dict(),
            "seed": 0,
            "networks_per_shard": networks_per_shard,
            "dtype": "float16",
            "input_shape": list(input_shape),
            "target_size": target_size,
            "likelihood": likelihood.to_config(),
            "data": None,
        },
    )
    make = recipe.make_net(shape, likelihood.num_outputs(target_size))
    finished = complete(folder)
    room = _room(make())
    networks, number = islice(Published(source).networks(room), num_networks), 0
    while batch := list(islice(networks, networks_per_shard)):
        if number not in finished:
            post = Posterior(
                Samples(_stack(make(), batch, names or {})), likelihood, method=recipe.method,
                config={}, seed=0, input_shape=shape, target_size=target_size,
            )  # fmt: skip
            add_shard(folder, store_shard(folder, number, post, task, "float16", 0.0))
        number += 1


def _stack(
    module: nn.Module, networks: Sequence[tuple[str, dict[str, Tensor]]], names: Mapping[str, str]
) -> Stack:
    """Return networks of this architecture as a stack."""
    shapes = {n: t.shape for n, t in module.state_dict().items() if not n.endswith(_IGNORED)}
    matched = [_match_tensors(name, shapes, theirs, names) for name, theirs in networks]
    stack = Stack.allocate(module, len(matched))
    values = {f"network/{n}": torch.stack([tensors[n] for tensors in matched]) for n in shapes}
    stack.load_tensors({**stack.tensors(), **values})
    return stack


def _sources(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    tars = [p for p in path.iterdir() if _SPAN.search(p.name)]
    if tars:
        return sorted(tars, key=lambda p: int(_SPAN.search(p.name)[1]))  # type: ignore[index]
    return sorted(path.rglob("*.safetensors"), key=lambda p: _order(p.name))


def _order(name: str) -> tuple[tuple[int, ...], str]:
    """Return the numbers in a name, so that 10 comes after 9."""
    return tuple(int(digits) for digits in re.findall(r"\d+", name)), name


def _is_network(name: str) -> bool:
    return name.endswith(".safetensors")


def _count(path: Path) -> int:
    """Return how many networks a tar file has by its name: the first and the last number."""
    span = _SPAN.search(path.name)
    return max(1, int(span[2]) - int(span[1]) + 1) if span else _UNNUMBERED


def _room(module: nn.Module) -> int:
    """Return the bytes that the file of a network of this architecture may have, in float64."""
    return _HEADER + 8 * sum(tensor.numel() for tensor in module.state_dict().values())


def _content(path: Path, most_bytes: int) -> bytes:
    with open_plain(path) as file:
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise FileProblem(f"{path} has more than {most_bytes:,} bytes, the most that is read")
    return raw


def _tensors(what: str, raw: bytes) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file."""
    length = int.from_bytes(raw[:8], "little")
    if length > _HEADER:
        raise FileProblem(
            f"{what} is truncated or not a safetensors file: its header is of {length:,} bytes, at"
            f" most {_HEADER:,} are read"
        )
    try:
        return dict(load_bytes(raw))
    except Exception as error:  # the library raises its own type
        cause = " ".join(str(error).split())
        raise FileProblem(f"{what} is truncated or not a safetensors file: {cause:.200}") from None


def _match_tensors(
    what: str,
    expected: Mapping[str, torch.Size],
    theirs: Mapping[str, Tensor],
    names: Mapping[str, str],
) -> dict[str, Tensor]:
    """Return their tensors by our names: by name, or else by shape if no two are alike."""
    candidates = {n: t for n, t in theirs.items() if not n.endswith(_IGNORED)}
    wanted = {name: names.get(name, name) for name in expected}
    complete_file = len(candidates) == len(expected)
    if complete_file and all(name in candidates for name in wanted.values()):
        matched = {name: candidates[their_name] for name, their_name in wanted.items()}
    else:
        by_shape = {tensor.shape: tensor for tensor in candidates.values()}
        if len(by_shape) < len(candidates):
            by_shape = {}  # two are alike
        matched = {n: by_shape[shape] for n, shape in expected.items() if shape in by_shape}
    wrong = [n for n in expected if n not in matched or matched[n].shape != expected[n]]
    if wrong or not complete_file:
        surplus = [name for name in candidates if name not in expected]
        name = [*wrong, *surplus, *expected][0]
        present, needed = matched.get(name), expected.get(name)
        raise FileProblem(
            f"{what} holds another architecture: '{name}' is"
            f" {tuple(present.shape) if present is not None else 'absent'} in the file and"
            f" {tuple(needed) if needed is not None else 'absent'} in the network given"
        )
    for name, tensor in matched.items():
        if tensor.dtype not in _NUMBERS:
            raise FileProblem(f"{what}: '{name}' holds {tensor.dtype}, which weights are not")
        if not torch.isfinite(tensor).all():
            raise FileProblem(f"{what}: '{name}' holds values that are not finite")
    return matched
