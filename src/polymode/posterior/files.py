"""Posteriors on disk: a manifest in JSON, and the tensors of some modes in each further file.

posterior.json            what it is, and which files hold which modes, with their digests
members-N.safetensors     tensors of all modes
members-N-K.safetensors   tensors of part K, where modes are spread over several files

How a new posterior takes the place of an old one is in `posterior/folder.py`. When a file is
opened, types and shapes of its tensors are compared with what the manifest, the network and the
kind of weights ask for before memory is taken for any of them, so neither a manifest nor a header
makes a process ask for more than the file has.

Schema 3. Schema 2, from before networks took several inputs, has one input shape and no name of the
output. Schema 1, from before samples were drawn, is read as one kept sample per mode.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polymode.core.checks import check_call
from polymode.core.devices import usable_device
from polymode.core.memory import free_bytes, human
from polymode.core.rng import fold, global_stream
from polymode.core.rows import shapes_text
from polymode.core.safe_files import (
    FileProblem,
    TensorFile,
    fill_file,
    write_json,
    write_tensors,
)
from polymode.core.text import first_line
from polymode.distributed import ranks
from polymode.likelihoods.kinds import Likelihood
from polymode.likelihoods.scaling import Scaling
from polymode.nets.conversion import conversion_from, conversion_of, convert
from polymode.nets.standardised import Standardised, standardised
from polymode.nets.user_network import networks_for
from polymode.posterior.contents import (
    FAULTS,
    check_kind,
    check_modes,
    check_network,
    groups_of,
    unreadable,
)
from polymode.posterior.folder import Draft, discard, draft_path, make_folder, publish
from polymode.posterior.hub import START, fetch
from polymode.posterior.manifest import (
    MANIFEST,
    SCHEMA,
    bundle_of,
    encoder_of,
    history_of,
    input_scaling_of,
    likelihood_of,
    read_manifest,
    scaling_of,
    shapes_of_manifest,
    type_name,
    types_of,
    views_stored,
)
from polymode.posterior.posterior import Posterior
from polymode.posterior.ranked import Ranked
from polymode.posterior.weights import Weights, kind_named, kind_names, of_stack
from polymode.stack.sharing import is_shared, joined, row_of
from polymode.stack.stack import Stack
from polymode.tracing.calling import calling_for
from polymode.tracing.modules import Tensors
from polymode.tracing.network import without_values


def outline(network: Any, manifest: Mapping[str, Any], path: Path) -> nn.Module | None:
    """Return a network of the manifest's sizes, without memory for its tensors.

    None where the manifest does not set its size, and for a builder that reads values of tensors.
    """
    if not isinstance(network, partial):  # of `networks_for`, with the sizes of the manifest
        return None
    try:
        with torch.device("meta"):
            module: nn.Module = network()
    except Exception as error:
        if "meta" in str(error).lower():
            return None
        raise FileProblem(
            f"{path}: the network given cannot be built for inputs of shape"
            f" {shapes_text(shapes_of_manifest(manifest['input_shape']))} and target_size"
            f" {manifest['target_size']:,}:"
            f" {first_line(error)}"
        ) from None
    return module


def save(post: Posterior, folder: Path, modes_per_file: int | None, trunk: bool = True) -> None:
    """Write a posterior to `folder`, see `Posterior.save`."""
    if post.views is not None:
        post.views.to_dict()  # refuses what cannot be saved
    if post.bundle is not None:
        post.bundle.check(post.likelihood.classification, post.target_size, post.num_modes)
    if not trunk:
        _require_trunk(post.weights.like)
    if post.weights.like.members_differ:
        raise ValueError(
            "the members differ in plain attributes"
            f" ({', '.join(post.weights.like.members_differ)}), which a file of tensors cannot hold"
        )
    if modes_per_file is not None and (type(modes_per_file) is not int or modes_per_file < 1):
        raise ValueError(
            f"`modes_per_file` must be an integer of at least 1, got {modes_per_file!r}"
        )
    share = post.weights.share if isinstance(post.weights, Ranked) else None
    if share is None:
        make_folder(folder)
    else:
        ranks.firsts(lambda: make_folder(folder))
    drafts: list[Draft] = []
    try:
        with ranks.sharing(share), ranks.together():
            part, groups = _write_modes(
                post, folder, modes_per_file or post.num_modes, drafts, trunk=trunk
            )
        if share is not None:
            drafts = [draft for rank_drafts in ranks.everyones(drafts) for draft in rank_drafts]
            if not ranks.is_first():
                ranks.stop_together(None)
                return
        left_out = None if trunk else {"digest": part.stack.digest_of_frozen()}
        manifest = {**_manifest(post, part), "groups": groups, "trunk": left_out}
        with ranks.sharing(share), ranks.together():
            _require_files(folder, drafts)
            entries = publish(folder, drafts, manifest, write_json)
    except BaseException:
        discard(folder, drafts)
        raise
    if isinstance(post.weights, Shards) and os.path.samefile(post.weights.folder, folder):
        post.weights.entries = entries  # those it was read from are gone now


def _manifest(post: Posterior, part: Weights) -> dict[str, Any]:
    """Return what a posterior is, without the files; `part` is some of its weights."""
    stack = post.weights.like
    return {
        "schema": SCHEMA,
        "method": post.method,
        "config": post.config,
        "seed": post.seed,
        "likelihood": post.likelihood.to_config(),
        "input_shape": post.input_shape,
        "output": stack.calling and stack.calling.output,
        "target_size": post.target_size,
        "input_scaling": post.input_scaling and post.input_scaling.to_dict(),
        "encoder": post.encoder and post.encoder.to_dict(),
        "target_scaling": post.target_scaling and post.target_scaling.to_dict(),
        "num_modes": post.num_modes,
        "dtype": type_name(stack.dtype),
        "types": {
            name: type_name(tensor.dtype)
            for name, tensor in {**stack.params, **stack.frozen, **stack.buffers}.items()
            if tensor.is_floating_point() and tensor.dtype != stack.dtype
        },
        "trainable": list(stack.params) if stack.frozen else None,
        "channels_last": stack.channels_last,
        "network": type(stack.template).__name__,
        "conversion": _conversion_to_save(stack.template),
        "standardised": isinstance(stack.template, Standardised),
        "weights": {"kind": part.kind, "numbers": part.numbers()},
        "history": post.history.to_dict(),
        "bundle": post.bundle and post.bundle.to_dict(),
        "views": None if post.views is None else post.views.to_dict(),
    }


def _conversion_to_save(network: nn.Module) -> dict[str, Any] | None:
    conversion = conversion_of(network)
    return conversion and {"kind": conversion.kind, "numbers": dict(conversion.numbers)}


def _write_modes(
    post: Posterior, folder: Path, size: int, drafts: list[Draft], *, trunk: bool
) -> tuple[Weights, list[str]]:
    """Write the modes of this process, `size` to a file, and append the files to `drafts`.

    Returns a part of the weights, and the groups of tensors in each file.
    """
    weights, modes, mark = post.weights, range(post.num_modes), ""
    if isinstance(weights, Ranked):
        modes, weights = modes[weights.share.modes], weights.local
        mark = f"-{ranks.place()[0]}"
        folder.mkdir(parents=True, exist_ok=True)
    for place, a in enumerate(range(modes.start, modes.stop, size)):
        b = min(a + size, modes.stop)
        suffix = mark + (f"-{place}" if size < len(modes) else "")
        part = weights[a - modes.start : b - modes.start]  # of shards, what lies in their files
        entry: dict[str, Any] = {"digest": "", "modes": [a, b]}
        drafts.append(Draft(draft_path(folder, suffix).name, suffix, entry))
        temporary, tensors = folder / drafts[-1].temporary, tensors_to_write(part, trunk=trunk)
        entry["digest"] = write_tensors(temporary, tensors, {"schema": SCHEMA}, fill_file)
        if part.stack.seeds != [fold(post.seed, "member", k) for k in range(a, b)]:
            entry["seeds"] = part.stack.seeds
    return part, groups_of(tensors)


def tensors_to_write(weights: Weights, *, trunk: bool) -> Tensors:
    """Return the tensors to save: of what is frozen one row where all modes share it, or, without
    the `trunk`, nothing."""
    frozen = {f"network/{name}" for name in weights.stack.frozen}
    tensors = weights.tensors()
    if not trunk:
        return {name: tensor for name, tensor in tensors.items() if name not in frozen}
    return {n: row_of(t) if n in frozen else t for n, t in tensors.items()}


def _require_trunk(stack: Stack) -> None:
    """Refuse to leave out a trunk that is not there, or not one for all."""
    if not stack.frozen:
        raise ValueError("there is no trunk to leave out: nothing of these networks is frozen")
    apart = [n for n, t in stack.frozen.items() if len(t) > 1 and not is_shared(t)]
    if apart:
        raise ValueError(
            f"the trunk cannot be left out: {len(apart):,} frozen parameters, such as"
            f" '{apart[0]}', differ between the modes"
        )


def _require_files(folder: Path, drafts: list[Draft]) -> None:
    """Refuse a folder in which the files of other ranks are missing."""
    for draft in drafts:
        if not (folder / draft.temporary).is_file():
            raise FileProblem(
                f"{folder} does not have {draft.temporary}, which another rank has written: all"
                " ranks must see the folder that a posterior is saved to"
            )


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
            module. Its weights are not used, but for frozen ones that were saved without
            (`trunk=False`).
        device: for the networks.
        token: of the hub, for an address; by default the one that HF_TOKEN or `hf auth login` set.

    A file that is truncated, changed, from a newer release or of another architecture is refused
    with a message that says which. Modes that were saved in several files stay there; each file is
    opened when its turn comes.
    """
    check_call(load, locals())
    folder = fetch(str(folder), token) if str(folder).startswith(START) else Path(folder)
    manifest = read_manifest(folder)
    while True:
        try:
            return _loaded(folder, manifest, net, usable_device(device))
        except FileProblem:
            newer = read_manifest(folder)
            if newer == manifest:
                raise
            manifest = newer  # another process has saved meanwhile: the old files are gone


def _loaded(folder: Path, manifest: dict[str, Any], net: Any, device: torch.device) -> Posterior:
    likelihood = likelihood_of(folder, manifest)
    shape, size = shapes_of_manifest(manifest["input_shape"]), manifest["target_size"]
    network = networks_for(net, shape, likelihood.num_outputs(size))
    shards = Shards(folder, manifest, network, likelihood, device)
    post = Posterior(
        shards.part(0) if len(shards.entries) == 1 else shards.checked(),
        likelihood,
        method=manifest["method"],
        config=manifest["config"],
        seed=manifest["seed"],
        input_shape=shape,
        target_size=size,
        input_scaling=input_scaling_of(folder, manifest),
        target_scaling=scaling_of(folder, manifest),
        history=history_of(folder, manifest),
        encoder=encoder_of(folder, manifest),
    )
    post.bundle = bundle_of(folder, manifest, likelihood)
    post.views = views_stored(folder, manifest, likelihood.num_axes)
    return post


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
        self.folder = folder.absolute()  # files are opened later, wherever the process is then
        self.manifest, self.entries = manifest, list(manifest["tensors"])
        self._network, self._likelihood, self._device = network, likelihood, device
        kind = manifest["weights"]["kind"]
        part_kind = kind_named(kind)
        if part_kind is None:
            raise FileProblem(
                f"{folder} holds weights of kind '{kind}'; this release has"
                f" {', '.join(kind_names())}. One of another package is known once that is imported"
            )
        self.part_kind = part_kind
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
        with self._open(entry) as file:
            stack = self._allocate(entry["modes"][1] - entry["modes"][0], self._seeds(entry))
            targets = {n: row_of(t) for n, t in stack.tensors().items() if n in file.forms}
            apart = [n for n, t in targets.items() if len(t) < file.forms[n].shape[0]]
            tensors = file.read({n: t for n, t in targets.items() if n not in apart})
            stack.load_frozen({n.removeprefix("network/"): tensors[n] for n in apart})
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and tensor.numel() and tensor.amin().isnan():
                raise FileProblem(
                    f"{file.path}: '{name}' holds values that are not numbers (NaN), so no"
                    " prediction would be one; fit again, with a lower `lr` if training diverged"
                )
        self._require_same_trunk(stack)
        return self._restore(stack, tensors)

    def _require_same_trunk(self, stack: Stack) -> None:
        """Refuse another trunk than that on which a file without one was trained."""
        left_out = self.manifest.get("trunk")
        if left_out is not None and left_out["digest"] != stack.digest_of_frozen():
            raise FileProblem(
                f"{self.folder} was saved without its trunk, and the frozen parameters of the"
                " network given are not those it was trained on (their digest differs); give `net`"
                " with the same pretrained weights"
            )

    def checked(self) -> Shards:
        """Look at what each file holds, without reading it."""
        for entry in self.entries:
            self._open(entry).close()
        return self

    def _open(self, entry: dict[str, Any]) -> TensorFile:
        """Open a file and check that it holds what manifest, network and kind of weights need.

        No memory is taken for its tensors before that.
        """
        count = entry["modes"][1] - entry["modes"][0]
        try:
            file = TensorFile(self.folder / entry["file"], entry["digest"])
        except FileProblem as problem:
            raise self._explained(problem) from None
        try:
            check_modes(file, count, self._outline.frozen)
            trunk = self.manifest.get("trunk") is None
            check_network(file, self._outline, self.manifest["network"], trunk=trunk)
            check_kind(file, self._outline, self.part_kind, self.manifest, count)
        except BaseException:
            file.close()
            raise
        return file

    def _explained(self, problem: FileProblem) -> FileProblem:
        """Return the problem, with its cause if the posterior was replaced since it was loaded."""
        try:
            current = read_manifest(self.folder)["tensors"]
        except FileProblem:  # a zoo has no manifest; the problem names the file
            return problem
        if current == self.entries:
            return problem
        return FileProblem(
            f"{problem}: another posterior was saved to the folder since this one was loaded; load"
            " it again"
        )

    @cached_property
    def _outline(self) -> Stack:
        """One network like those in the files, without values."""
        module = outline(self._network, self.manifest, self.folder / MANIFEST)
        if module is None:
            module = self._given if self.manifest.get("conversion") is None else self._emptied()
        module = self._converted(module)
        try:
            return self._stack(module, 1, torch.device("meta"))
        except ValueError as error:  # it would never fit
            raise FileProblem(f"{self.folder / MANIFEST}: {first_line(error)}") from None

    @cached_property
    def _module(self) -> nn.Module:
        """The network that was given, converted; only once its files were looked at."""
        return self._converted(self._given)

    @cached_property
    def _given(self) -> nn.Module:
        """The network that was given, built once."""
        network = self._network[0] if isinstance(self._network, Sequence) else self._network
        return network if isinstance(network, nn.Module) else network()

    def _emptied(self) -> nn.Module:
        """Return the network that was given without values."""
        empty = without_values(self._given)
        for parameter, original in zip(empty.parameters(), self._given.parameters(), strict=True):
            parameter.requires_grad_(original.requires_grad)
        return empty

    def _converted(self, module: nn.Module) -> nn.Module:
        """Return the network as the method had converted it, and standardised it."""
        try:
            with global_stream(0):
                module = convert(module, conversion_from(self.manifest.get("conversion")))
        except FAULTS as error:
            raise FileProblem(
                f"{self.folder / MANIFEST}: the network given cannot be converted as it was for"
                f" training: {first_line(error)}"
            ) from None
        if self.manifest.get("standardised"):  # its tensors are read with those of the network
            shape = shapes_of_manifest(self.manifest["input_shape"])
            module = standardised(module, Scaling(torch.zeros(shape), torch.ones(shape)))
        return module

    def __getitem__(self, modes: slice) -> Weights:
        first, last, step = modes.indices(self.num_modes)
        if step != 1 or last <= first:
            raise ValueError(f"modes are taken as a span [first:last], got {modes}")
        parts, position = [], 0
        for part, entry in enumerate(self.entries):
            size = entry["modes"][1] - entry["modes"][0]
            a, b = max(first - position, 0), min(last - position, size)
            if a < b:
                parts.append(self.part(part)[a:b])
            position += size
        return parts[0] if len(parts) == 1 else self._joined(parts)

    def _seeds(self, entry: dict[str, Any]) -> list[int]:
        """Return the streams of the modes in a file."""
        numbers = range(*entry["modes"])
        return entry.get("seeds") or [fold(self.manifest["seed"], "member", k) for k in numbers]

    def _allocate(self, num_modes: int, seeds: list[int] | None) -> Stack:
        """Return a stack to read modes into."""
        stack = self._stack(self._module, num_modes, self._device)
        stack.seeds = seeds or stack.seeds
        if self.manifest["channels_last"] is not None:  # numbers depend on it in their last digits
            stack.lay_out(self.manifest["channels_last"])
        return stack

    def _stack(self, network: nn.Module, num_modes: int, device: torch.device) -> Stack:
        """Return networks and what the likelihood adds to them, with any values."""
        dtype = getattr(torch, self.manifest["dtype"])
        names = self.manifest.get("trainable")
        stack = Stack.allocate(
            network,
            num_modes,
            dtype=types_of(self.manifest),
            device=device,
            trainable=None if names is None else lambda module: self._trainable(module, names),
        )
        with torch.device("meta"):  # what the file says of targets takes no memory
            extra = self._likelihood.init(num_modes, self.manifest["target_size"], dtype=dtype)
        stack.add_parameters({n: torch.zeros_like(t, device=device) for n, t in extra.items()})
        shapes, output = shapes_of_manifest(self.manifest["input_shape"]), self.manifest["output"]
        return stack.call_by(calling_for(network, shapes, output))

    def _trainable(self, module: nn.Module, names: Sequence[str]) -> list[str]:
        """Return the parameters that were trained; refuse a network that lacks one."""
        held = dict(module.named_parameters())
        for name in names:
            if name not in held:
                raise FileProblem(
                    f"{self.folder} holds another architecture ({self.manifest['network']}):"
                    f" '{name}' was trained, and the network given has no such parameter"
                )
        return list(names)

    def _restore(self, stack: Stack, tensors: Tensors) -> Weights:
        beside = {n: t.to(self._device) for n, t in tensors.items() if not of_stack(n)}
        try:
            return self.part_kind.restore(stack, beside, self.manifest["weights"]["numbers"])
        except FAULTS as error:
            raise unreadable(self.folder / MANIFEST, self.part_kind, error) from None

    def _joined(self, parts: list[Weights]) -> Weights:
        """Return several parts as one in memory."""
        seeds = [seed for part in parts for seed in part.stack.seeds]
        stack = self._allocate(len(seeds), seeds)
        saved = [part.tensors() for part in parts]
        frozen = {f"network/{name}" for name in stack.frozen}
        tensors = {
            name: joined([part[name] for part in saved])
            if name in frozen
            else torch.cat([part[name] for part in saved], self.part_kind.mode_axis(name))
            for name in saved[0]
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
