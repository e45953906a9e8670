"""Posteriors on disk: a manifest in JSON, and the tensors of some modes in each further file.

posterior.json            what it is, and which files hold which modes, with their digests
members-N.safetensors     tensors of all modes
members-N-K.safetensors   tensors of part K, where modes are spread over several files

Schema 2. Schema 1, of before samples were drawn, is read as one kept sample per mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polymode.core import ranks
from polymode.core.checks import check_call
from polymode.core.devices import usable_device
from polymode.core.likelihoods import Likelihood
from polymode.core.memory import free_bytes, human
from polymode.core.modules import Tensors
from polymode.core.rng import fold
from polymode.core.stack import Stack
from polymode.core.store import (
    FileProblem,
    read_tensors,
    tensor_shapes,
    write_json,
    write_tensors,
)
from polymode.nets.network import networks_for
from polymode.posterior.hub import START, fetch
from polymode.posterior.manifest import (
    MANIFEST,
    SCHEMA,
    history_of,
    likelihood_of,
    read_manifest,
    scaling_of,
)
from polymode.posterior.posterior import Posterior
from polymode.posterior.ranked import Ranked
from polymode.posterior.weights import KINDS, Weights, of_stack


def save(post: Posterior, folder: Path, modes_per_file: int | None) -> None:
    """Write a posterior to `folder`, see `Posterior.save`."""
    if post.weights.like.members_differ:
        raise ValueError(
            "the members differ in plain attributes"
            f" ({', '.join(post.weights.like.members_differ)}), which a file of tensors cannot hold"
        )
    if modes_per_file is not None and (type(modes_per_file) is not int or modes_per_file < 1):
        raise ValueError(
            f"`modes_per_file` must be an integer of at least 1, got {modes_per_file!r}"
        )
    apart = isinstance(post.weights, Ranked)
    number = ranks.firsts(lambda: _next_number(folder)) if apart else _next_number(folder)
    modes = post.num_modes
    share = post.weights.share if isinstance(post.weights, Ranked) else None
    with ranks.sharing(share), ranks.together():
        entries, part = _write_modes(post, folder, number, modes_per_file or modes)
    if apart:
        entries = [entry for each in ranks.everyones(entries) for entry in each]
        if not ranks.is_first():
            ranks.stop_together(None)
            return
    stack = post.weights.like
    manifest = {
        "schema": SCHEMA,
        "method": post.method,
        "config": post.config,
        "seed": post.seed,
        "likelihood": post.likelihood.to_config(),
        "input_shape": list(post.input_shape),
        "target_size": post.target_size,
        "target_scaling": post.target_scaling and post.target_scaling.to_dict(),
        "num_modes": modes,
        "dtype": str(stack.dtype).removeprefix("torch."),
        "channels_last": stack.channels_last,
        "network": type(stack.template).__name__,
        "weights": {"kind": part.kind, "numbers": part.numbers()},
        "tensors": entries,
        "history": post.history.to_dict(),
    }
    with ranks.sharing(share), ranks.together():
        _require_files(folder, entries)
        write_json(folder / MANIFEST, manifest)
    if isinstance(post.weights, Shards) and post.weights.folder == folder:
        post.weights.entries = entries  # those it was read from go now
    written = {entry["file"] for entry in entries}
    for old in _tensor_files(folder):
        if old.name not in written:
            old.unlink()


def _next_number(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return 1 + max((int(p.stem.split("-")[1]) for p in _tensor_files(folder)), default=0)


def _write_modes(
    post: Posterior, folder: Path, number: int, size: int
) -> tuple[list[dict[str, Any]], Weights]:
    """Write the modes that this process holds, `size` to a file; return their entries in the
    manifest, and some of the weights."""
    weights, modes, mark = post.weights, range(post.num_modes), ""
    if isinstance(weights, Ranked):
        modes, weights = modes[weights.share.modes], weights.mine
        mark = f"-{ranks.place()[0]}"
        folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for place, a in enumerate(range(modes.start, modes.stop, size)):
        b = min(a + size, modes.stop)
        name = f"members-{number}{mark}" + (f"-{place}" if size < len(modes) else "")
        part = weights[a - modes.start : b - modes.start]  # of shards, what lies in their files
        digest = write_tensors(folder / f"{name}.safetensors", part.tensors(), {"schema": SCHEMA})
        entry: dict[str, Any] = {"file": f"{name}.safetensors", "digest": digest, "modes": [a, b]}
        if part.stack.seeds != [fold(post.seed, "member", k) for k in range(a, b)]:
            entry["seeds"] = part.stack.seeds
        entries.append(entry)
    return entries, part


def _require_files(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Refuse to promise what other ranks have written elsewhere."""
    for entry in entries:
        if not (folder / entry["file"]).is_file():
            raise FileProblem(
                f"{folder} does not have {entry['file']}, which another rank has written: all ranks"
                " must see the folder that a posterior is saved to"
            )


def _tensor_files(folder: Path) -> list[Path]:
    return [p for p in folder.glob("members-*.safetensors") if p.stem.split("-")[1].isdigit()]


def load(
    folder: str | Path,
    *,
    net: Any,
    device: str | torch.device = "cpu",
    token: str | None = None,
) -> Posterior:
    """Return the posterior that `Posterior.save` wrote to `folder`, or `Posterior.push` published.

    Args:
        folder: where it was saved, or the address where it was published, pinned to a commit:
            "hf://OWNER/NAME@REVISION".
        net: the architecture: a builder from `pm.nets`, a function that returns a module, or a
            module. Its weights are not used.
        device: where the networks are to be.
        token: of the hub, for an address; by default the one that HF_TOKEN or `hf auth login` set.

    A file that is truncated, changed, from a newer release or of another architecture is refused
    with a message that says which. Modes that were saved in several files stay there; each file is
    opened when its turn comes.
    """
    check_call(load, locals())
    folder = fetch(str(folder), token) if str(folder).startswith(START) else Path(folder)
    manifest = read_manifest(folder)
    likelihood = likelihood_of(folder, manifest)
    shape, size = tuple(manifest["input_shape"]), manifest["target_size"]
    network = networks_for(net, shape, likelihood.num_outputs(size))
    shards = Shards(folder, manifest, network, likelihood, usable_device(device))
    return Posterior(
        shards.part(0) if len(shards.entries) == 1 else shards,
        likelihood,
        method=manifest["method"],
        config=manifest["config"],
        seed=manifest["seed"],
        input_shape=shape,
        target_size=size,
        target_scaling=scaling_of(folder, manifest),
        history=history_of(folder, manifest),
    )


class Shards(Weights):
    """Weights whose modes lie in several files, each opened when its turn comes.

    `draw` and `stack` bring all modes into memory, where they fit; predictions do not need that.

    Args:
        folder, manifest: of `save`. network: of `networks_for`. likelihood, device: see `load`.
    """

    kind = "shards"

    def __init__(
        self,
        folder: Path,
        manifest: dict[str, Any],
        network: Any,
        likelihood: Likelihood,
        device: torch.device,
    ) -> None:
        self.folder, self.manifest, self.entries = folder, manifest, list(manifest["tensors"])
        self._network, self._likelihood, self._device = network, likelihood, device
        kind = manifest["weights"]["kind"]
        if kind not in KINDS:
            known = ", ".join(KINDS)
            raise FileProblem(f"{folder} holds weights of kind '{kind}'; this release has {known}")
        self.part_kind = KINDS[kind]
        self.samples_per_mode = manifest["weights"]["numbers"]["samples_per_mode"]
        self.most = self.samples_per_mode if kind == "samples" else None
        self._like: Stack | None = None
        self._whole: Weights | None = None

    @property
    def num_modes(self) -> int:
        return sum(b - a for a, b in (entry["modes"] for entry in self.entries))

    @property
    def like(self) -> Stack:
        if self._like is None:
            self._like = self._allocate(1, None)
        return self._like

    @property
    def stack(self) -> Stack:  # type: ignore[override]
        return self._all().stack

    @property
    def num_bytes(self) -> int:
        return sum((self.folder / entry["file"]).stat().st_size for entry in self.entries)

    def draw(self, number: int, seed: int) -> Stack:
        return self._all().draw(number, seed)

    def gather(self, chosen: Sequence[tuple[int, int]], seed: int) -> Stack:
        return self._all().gather(chosen, seed)

    def parts(self) -> Iterator[Weights]:
        for place in range(len(self.entries)):
            yield self.part(place)

    def part(self, place: int) -> Weights:
        """Return the modes of one file."""
        entry = self.entries[place]
        first, last = entry["modes"]
        path = self.folder / entry["file"]
        self._check_modes(path, last - first)
        stack = self._allocate(last - first, self._seeds(entry))
        tensors, _ = read_tensors(
            path,
            lambda metadata, shapes: self._places(stack, shapes),
            digest=entry["digest"],
        )
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and tensor.numel() and tensor.amin().isnan():
                raise FileProblem(
                    f"{path}: '{name}' holds values that are not numbers (NaN), so no prediction"
                    " would be one; fit again, with a lower `lr` if training diverged"
                )
        return self._restore(stack, tensors)

    def _check_modes(self, path: Path, count: int) -> None:
        """Refuse a file of another number of modes, before memory is taken for them."""
        for name, shape in tensor_shapes(path).items():
            if of_stack(name) and shape[:1] != (count,):
                raise FileProblem(
                    f"{path} does not hold {count:,} modes, as the manifest says: '{name}' is of"
                    f" shape {tuple(shape)}"
                )

    def __getitem__(self, modes: slice) -> Weights:
        first, last, step = modes.indices(self.num_modes)
        if step != 1 or last <= first:
            raise ValueError(f"modes are taken as a span [first:last], got {modes}")
        taken, position = [], 0
        for part, entry in enumerate(self.entries):
            size = entry["modes"][1] - entry["modes"][0]
            a, b = max(first - position, 0), min(last - position, size)
            if a < b:
                taken.append(self.part(part)[a:b])
            position += size
        return taken[0] if len(taken) == 1 else self._joined(taken)

    def _seeds(self, entry: dict[str, Any]) -> list[int]:
        """Return the streams of the modes in a file."""
        numbers = range(*entry["modes"])
        return entry.get("seeds") or [fold(self.manifest["seed"], "member", k) for k in numbers]

    def _allocate(self, num_modes: int, seeds: list[int] | None) -> Stack:
        """Return a stack to read modes into."""
        manifest = self.manifest
        dtype, size = getattr(torch, manifest["dtype"]), manifest["target_size"]
        stack = Stack.allocate(self._network, num_modes, dtype=dtype, device=self._device)
        stack.seeds = seeds or stack.seeds
        stack.add_parameters(self._likelihood.init(num_modes, size, dtype=dtype))
        if manifest["channels_last"] is not None:  # numbers depend on it in their last digits
            stack.lay_out(manifest["channels_last"])
        return stack

    def _places(self, stack: Stack, shapes: dict[str, torch.Size]) -> Tensors:
        """Return where the stack's tensors are read to; refuse those of another architecture."""
        mine = stack.tensors()
        theirs = {name: shape for name, shape in shapes.items() if of_stack(name)}
        for name in [*mine, *theirs]:
            ours, found = mine.get(name), theirs.get(name)
            if ours is None or found is None or ours.shape != found:
                raise FileProblem(
                    f"{self.folder} holds another architecture ({self.manifest['network']}):"
                    f" '{name}' is {_shape(found)} in the file and {_shape(ours)} in the network"
                    " given"
                )
        return mine

    def _restore(self, stack: Stack, tensors: Tensors) -> Weights:
        rest = {n: t.to(self._device) for n, t in tensors.items() if not of_stack(n)}
        return self.part_kind.restore(stack, rest, self.manifest["weights"]["numbers"])

    def _joined(self, parts: list[Weights]) -> Weights:
        """Return several parts as one in memory."""
        seeds = [seed for part in parts for seed in part.stack.seeds]
        stack = self._allocate(len(seeds), seeds)
        each = [part.tensors() for part in parts]
        tensors = {
            name: torch.cat([own[name] for own in each], self.part_kind.mode_axis(name))
            for name in each[0]
        }
        stack.load_tensors({name: t for name, t in tensors.items() if of_stack(name)})
        return self._restore(stack, tensors)

    def _all(self) -> Weights:
        """Return all modes in memory."""
        if self._whole is None:
            need = 2 * self.num_bytes
            if need > free_bytes():
                raise ValueError(
                    f"all {self.num_modes:,} modes need {human(need)} of memory to be joined;"
                    f" {human(free_bytes())} free. post.predict and post.weights.parts() take them"
                    " file by file; post[:k] takes some"
                )
            self._whole = self._joined(list(self.parts()))
        return self._whole

    @classmethod
    def restore(cls, stack: Stack, tensors: Tensors, numbers: dict[str, Any]) -> Shards:
        raise NotImplementedError("shards are opened by `load`")


def _shape(tensor: Tensor | torch.Size | None) -> str:
    if tensor is None:
        return "absent"
    shape = tensor.shape if isinstance(tensor, Tensor) else tensor
    return f"of shape {tuple(shape[1:])}"
