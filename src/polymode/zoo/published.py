"""The published set of networks ("Checkpoints", O. Laurent, E. Aldea, G. Franchi, ICLR 2024).

Its layout: `models/<data>-<net>/<data>-<net>-<first>-<last>.tgz`, each a tar file with one
safetensors file per network, float16, that holds its state dict. A folder into which such a file
was unpacked is read as well. Names of tensors are those of the usual public ResNets (conv1, bn1,
layer1.0.conv1, layer2.0.shortcut.0, linear), which `pm.nets.resnet18` and `resnet20` have, too;
for other networks `names` says which is which. Nothing is unpacked to disk, and nothing is
unpickled.

Networks of a tar file come in the order of the file. The tensor names of `mnist-optunet` are not
known from the set's description; tensors of unknown names are matched by their shapes, if no two
are alike, as in OptuNet.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_bytes
from torch import Tensor, nn

from polymode.core.checks import check_call
from polymode.core.likelihoods import Categorical
from polymode.core.stack import Stack
from polymode.core.store import FileProblem
from polymode.nets.network import networks_for
from polymode.posterior import Posterior, Samples
from polymode.tasks.task import Task
from polymode.zoo.index import add_shard, read_index, write_about
from polymode.zoo.recipe import Recipe
from polymode.zoo.train import store_shard

_SPAN = re.compile(r"-(\d+)-(\d+)\.(?:tgz|tar\.gz|tar)$")
_IGNORED = "num_batches_tracked"  # an integer that published files may leave out
_LARGEST = 2**31  # bytes of one network


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
        self.sources = _sources(self.path)
        if not self.sources:
            raise FileProblem(
                f"{self.path} has neither .tgz files named DATA-NET-FIRST-LAST.tgz nor .safetensors"
                " files: it is not in the published layout"
            )

    def networks(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield name and tensors of each network; files follow each other by their numbers."""
        for source in self.sources:
            if source.suffix == ".safetensors":
                yield source.name, _tensors(f"{source}", source.read_bytes())
            else:
                yield from _in_tar(source)

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
        make = networks_for(net, tuple(input_shape), num_outputs)
        found = list(islice(self.networks(), first, last))
        if not found:
            raise FileProblem(f"{self.path} has no network from number {first} on")
        return _stacked(make if isinstance(make, nn.Module) else make(), found, names or {})


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
    there = {shard.number for shard in read_index(folder)[0]}
    networks, number = islice(Published(source).networks(), num_networks), 0
    while found := list(islice(networks, networks_per_shard)):
        if number not in there:
            post = Posterior(
                Samples(_stacked(make(), found, names or {})), likelihood, method=recipe.method,
                config={}, seed=0, input_shape=shape, target_size=target_size,
            )  # fmt: skip
            add_shard(folder, store_shard(folder, number, post, task, "float16", 0.0))
        number += 1


def _stacked(
    module: nn.Module, found: Sequence[tuple[str, dict[str, Tensor]]], names: Mapping[str, str]
) -> Stack:
    """Return networks of this architecture as a stack."""
    own = {n: t.shape for n, t in module.state_dict().items() if not n.endswith(_IGNORED)}
    matched = [_matched(name, own, theirs, names) for name, theirs in found]
    stack = Stack.allocate(module, len(matched))
    places = stack.tensors()
    with torch.no_grad():
        for name in own:
            places[f"network/{name}"].copy_(torch.stack([each[name] for each in matched]))
    return stack


def _sources(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    tars = [p for p in path.iterdir() if _SPAN.search(p.name)]
    if tars:
        return sorted(tars, key=lambda p: int(_SPAN.search(p.name)[1]))  # type: ignore[index]
    return sorted(path.rglob("*.safetensors"), key=lambda p: _order(p.name))


def _order(name: str) -> tuple[tuple[int, ...], str]:
    """Return the numbers in a name, so that 10 comes after 9."""
    return tuple(int(digits) for digits in re.findall(r"\d+", name)), name


def _in_tar(path: Path) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield what a tar file holds in the order of the file: going back would unpack it again."""
    try:
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                if not member.isfile() or not member.name.endswith(".safetensors"):
                    continue
                if member.size > _LARGEST:
                    raise FileProblem(f"{path}: {member.name} has {member.size:,} bytes: not read")
                file = tar.extractfile(member)
                assert file is not None
                yield member.name, _tensors(f"{path}: {member.name}", file.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FileProblem(f"{path} is truncated or not a tar file: {error}") from None


def _tensors(what: str, raw: bytes) -> dict[str, Tensor]:
    try:
        return dict(load_bytes(raw))
    except Exception as error:  # the library raises a type of its own
        raise FileProblem(f"{what} is truncated or not a safetensors file: {error}") from None


def _matched(
    what: str,
    own: Mapping[str, torch.Size],
    theirs: Mapping[str, Tensor],
    names: Mapping[str, str],
) -> dict[str, Tensor]:
    """Return their tensors by our names: by name, or else by shape if no two are alike."""
    rest = {n: t for n, t in theirs.items() if not n.endswith(_IGNORED)}
    wanted = {name: names.get(name, name) for name in own}
    if all(other in rest for other in wanted.values()) and len(rest) == len(own):
        found = {name: rest[other] for name, other in wanted.items()}
    else:
        shapes = {tensor.shape: tensor for tensor in rest.values()}
        alike = len(shapes) < len(rest)
        found = {} if alike else {n: shapes[size] for n, size in own.items() if size in shapes}
    wrong = [n for n in own if n not in found or found[n].shape != own[n]]
    if wrong or len(rest) != len(own):
        name = wrong[0] if wrong else next(n for n in rest if n not in own)
        ours, other = own.get(name), found.get(name)
        raise FileProblem(
            f"{what} holds another architecture: '{name}' is"
            f" {tuple(other.shape) if other is not None else 'absent'} in the file and"
            f" {tuple(ours) if ours is not None else 'absent'} in the network given"
        )
    for name, tensor in found.items():
        if not torch.isfinite(tensor).all():
            raise FileProblem(f"{what}: '{name}' holds values that are not finite")
    return found
