"""The manifest of a posterior's files, checked before any memory is taken for what it promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from polymode.core.rows import Shapes
from polymode.core.safe_files import FileProblem, is_plain_name, read_json
from polymode.likelihoods.kinds import Likelihood, likelihood_from_config
from polymode.likelihoods.scaling import Scaling
from polymode.posterior.bundle import Bundle
from polymode.posterior.views import Takes, Views, views_from
from polymode.stack.gathering import Types
from polymode.tasks.frames.encoder import TableEncoder
from polymode.training.history import History

T = TypeVar("T")
SCHEMA = 3
MANIFEST = "posterior.json"


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _are_shapes(value: Any, depth: int = 0) -> bool:
    """Whether these are sizes of a tensor, or such shapes by name or by position."""
    if depth > 8:
        return False
    if isinstance(value, dict):
        return bool(value) and all(_are_shapes(part, depth + 1) for part in value.values())
    if depth and value == []:  # one number per example, among several inputs
        return True
    return _is_list(value, _is_count) or (
        isinstance(value, list) and all(_are_shapes(part, depth + 1) for part in value)
    )


def shapes_of_manifest(value: Any) -> Shapes:
    """Return shapes as `core.rows` has them, with tuples for lists."""
    if isinstance(value, dict):
        return {name: shapes_of_manifest(part) for name, part in value.items()}
    return tuple(
        shapes_of_manifest(part) if isinstance(part, (list, dict)) else part for part in value
    )


_TYPES = ("float16", "bfloat16", "float32", "float64")
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "method": (lambda v: isinstance(v, str), "text"),
    "config": (lambda v: isinstance(v, dict), "an object"),
    "seed": (lambda v: type(v) is int, "an integer"),
    "likelihood": (lambda v: isinstance(v, dict), "an object"),
    "input_shape": (lambda v: _are_shapes(v), "a list of sizes, or such lists by name"),
    "output": (lambda v: v is None or type(v) in (str, int), "a name, a number or null"),
    "target_size": (_is_count, "an integer of at least 1"),
    "target_scaling": (lambda v: v is None or isinstance(v, dict), "an object or null"),
    "num_modes": (_is_count, "an integer of at least 1"),
    "dtype": (lambda v: v in _TYPES, "a type of numbers"),
    "channels_last": (lambda v: v is None or isinstance(v, bool), "true, false or null"),
    "network": (lambda v: isinstance(v, str), "text"),
    "weights": (
        lambda v: (
            isinstance(v, dict)
            and isinstance(v.get("kind"), str)
            and isinstance(v.get("numbers"), dict)
            and _is_count(v["numbers"].get("samples_per_mode"))
        ),
        "an object with a kind, and numbers with samples_per_mode of at least 1",
    ),
}


_LATER: dict[str, tuple[Callable[[Any], bool], str]] = {  # that earlier releases did not write
    "types": (
        lambda v: v is None or (isinstance(v, dict) and all(t in _TYPES for t in v.values())),
        "types of numbers by name",
    ),
    "trunk": (
        lambda v: v is None or (isinstance(v, dict) and isinstance(v.get("digest"), str)),
        "an object with a digest or null",
    ),
    "conversion": (
        lambda v: (
            v is None
            or isinstance(v, dict)
            and isinstance(v.get("kind"), str)
            and isinstance(v.get("numbers"), dict)
        ),
        "an object with a kind and numbers, or null",
    ),
    "encoder": (lambda v: v is None or isinstance(v, dict), "an object or null"),
    "trainable": (
        lambda v: v is None or _is_list(v, lambda name: isinstance(name, str)),
        "a list of names or null",
    ),
}


def type_name(dtype: torch.dtype) -> str:
    """Return the name of a type of numbers.

    >>> type_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def types_of(manifest: dict[str, Any]) -> Types:
    """Return the type of each floating-point tensor of the networks."""
    usual = getattr(torch, manifest["dtype"])
    others = {n: getattr(torch, name) for n, name in (manifest.get("types") or {}).items()}
    return lambda name: others.get(name, usual)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest in `folder`, as schema 3 has it; whatever is wrong is a `FileProblem`."""
    path = folder / MANIFEST
    manifest = read_json(path, SCHEMA)
    try:
        if manifest["schema"] < 2:
            entry = {"file": manifest["tensors"], "digest": manifest["tensors_digest"]}
            manifest["tensors"] = [{**entry, "modes": [0, manifest["num_modes"]]}]
            manifest["weights"] = {"kind": "samples", "numbers": {"samples_per_mode": 1}}
        if manifest["schema"] < 3:
            manifest["output"] = None
        for name, (fits, form) in _FIELDS.items():
            if not fits(manifest[name]):
                raise FileProblem(f"{path}: `{name}` must be {form}, got {manifest[name]!r:.80}")
        for name, (fits, form) in _LATER.items():
            if not fits(manifest.get(name)):
                raise FileProblem(f"{path}: `{name}` must be {form}, got {manifest[name]!r:.80}")
        groups = manifest.get("groups", [])  # of tensors; earlier releases did not name them
        if not _is_list(groups, lambda group: isinstance(group, str)):
            raise FileProblem(f"{path}: `groups` must be a list of names, got {groups!r:.80}")
        _check_entries(path, manifest["tensors"], manifest["num_modes"])
    except (KeyError, TypeError) as error:
        raise FileProblem(f"{path} is not the manifest of a posterior: {error!r}") from None
    return manifest


def _check_entries(path: Path, entries: Any, num_modes: int) -> None:
    """Check that the files follow each other from the first mode to the last."""
    position = 0
    for entry in entries:
        if not is_plain_name(entry["file"]):
            raise FileProblem(
                f"{path} names a file outside its folder, {entry['file']!r:.80}: not read"
            )
        first, last = entry["modes"] if _is_list(entry["modes"], _is_index) else (0, 0)
        seeds = entry.get("seeds")
        if first != position or last <= first or not isinstance(entry["digest"], str):
            raise FileProblem(f"{path}: the modes or the digest of {entry['file']} are not right")
        if seeds is not None and not (_is_list(seeds, _is_index) and len(seeds) == last - first):
            raise FileProblem(f"{path}: {entry['file']} must have {last - first} seeds")
        position = last
    if position != num_modes:
        raise FileProblem(f"{path} promises {num_modes:,} modes, its files hold {position:,}")


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0


def likelihood_of(folder: Path, manifest: dict[str, Any]) -> Likelihood:
    """Return the likelihood that the manifest describes."""
    likelihood = _read_field(
        folder, "likelihood", lambda: likelihood_from_config(manifest["likelihood"])
    )
    wanted = likelihood.num_outputs(manifest["target_size"])
    held = manifest["weights"]["numbers"].get("num_outputs", wanted)
    if held != wanted:
        raise FileProblem(
            f"{folder / MANIFEST}: the weights are of networks with {held!r:.40} outputs; the"
            f" {likelihood.name} likelihood asks for {wanted:,}"
        )
    return likelihood


def scaling_of(folder: Path, manifest: dict[str, Any]) -> Scaling | None:
    """Return the scaling of the targets, None where there is none."""
    numbers = manifest["target_scaling"]
    if numbers is None:
        return None

    def read() -> Scaling:
        scaling, size = Scaling.from_dict(numbers), manifest["target_size"]
        if any(tuple(t.shape) not in ((), (1,), (size,)) for t in (scaling.shift, scaling.scale)):
            raise ValueError(f"it must have {size:,} numbers, one for each target")
        return scaling

    scaling = _read_field(folder, "target_scaling", read)
    if likelihood_of(folder, manifest).classification:
        raise FileProblem(f"{folder / MANIFEST}: `target_scaling` is for values, not for classes")
    return scaling


def input_scaling_of(folder: Path, manifest: dict[str, Any]) -> Scaling | None:
    """Return the scaling that inputs have had, None where there is none or the file is older."""
    numbers = manifest.get("input_scaling")
    return _read_field(folder, "input_scaling", lambda: numbers and Scaling.from_dict(numbers))


def bundle_of(folder: Path, manifest: dict[str, Any], likelihood: Likelihood) -> Bundle | None:
    """Return the rules that answers follow, None where there are none or the file is older."""
    stored = manifest.get("bundle")
    if stored is None:
        return None

    def read() -> Bundle:
        bundle = Bundle.from_dict(stored)
        bundle.check(likelihood.classification, manifest["target_size"], manifest["num_modes"])
        return bundle

    return _read_field(folder, "bundle", read)


def views_stored(folder: Path, manifest: dict[str, Any], num_axes: int) -> Views | None:
    """Return the views that predictions average, None where there are none or the file is older.

    Args:
        num_axes: of positions, of the likelihood.
    """
    stored = manifest.get("views")
    if stored is None:
        return None
    shape = shapes_of_manifest(manifest["input_shape"])
    takes = Takes(shape, num_axes, manifest["target_size"])
    return _read_field(folder, "views", lambda: views_from(stored, takes))


def encoder_of(folder: Path, manifest: dict[str, Any]) -> TableEncoder | None:
    """Return what encodes tables, None where there is nothing or the file is older."""
    stored = manifest.get("encoder")
    encoder = _read_field(folder, "encoder", lambda: stored and TableEncoder.from_dict(stored))
    width = [len(encoder.feature_names)] if encoder else None
    if encoder and manifest["input_shape"] != width:
        raise FileProblem(
            f"{folder / MANIFEST}: `encoder` gives {width} inputs, the networks take"
            f" {manifest['input_shape']!r:.40}"
        )
    return encoder


def history_of(folder: Path, manifest: dict[str, Any]) -> History | None:
    """Return how training went, None where the file does not say."""
    if "history" not in manifest:
        return None
    return _read_field(folder, "history", lambda: History.from_dict(manifest["history"]))


def _read_field(folder: Path, name: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        raise FileProblem(f"{folder / MANIFEST}: `{name}` cannot be read: {error}") from None
