"""Checkpoints of a training run: one file that holds everything the next step needs.

Random streams are functions of seed and step (`core/rng.py`), so the state of a run is its tensors
and its step number. The execution that was chosen for its stack is kept, too, so a run that resumes
with as many threads ends bit by bit where an uninterrupted one ends.

    training.safetensors              all modes, of a training in one process
    training-STEP-A-B.safetensors     modes [A, B) after STEP steps, of one rank

Files of one step are complete when all are written; only then the earlier ones go. So a run that is
killed at any moment has a complete checkpoint, and a rank that resumes takes its modes from
whichever files hold them, on any number of ranks. All ranks must see the folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from polymode.core.safe_files import (
    FileProblem,
    TensorFile,
    create_folder,
    read_tensors,
    take_lock,
    write_tensors,
)
from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.stack.stack import Stack
from polymode.training.history import joined_numbers
from polymode.training.optimiser import Optimization

SCHEMA = 2
_ABSENT = "absent"
_ODD = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError,
)  # fmt: skip
_SHOWN = 3  # differences to another run
WHOLE = "training.safetensors"
_PART = re.compile(r"training-(\d+)-(\d+)-(\d+)\.safetensors")
S = TypeVar("S", bound=Any)


def save_checkpoint(
    path: Path, state: Any, identity: dict[str, Any], modes: tuple[int, int] | None = None
) -> None:
    """Write a named tuple of stacks, optimisations, tensors, groups of tensors and JSON values.

    Args:
        state: without stacks that share memory with another.
        modes: first and last of the modes that it holds, None for all.
    """
    tensors: dict[str, Tensor] = {}
    fields: dict[str, Any] = {}
    for field, value in state._asdict().items():
        if isinstance(value, Tensor):
            tensors[field], fields[field] = value, {"is": "tensor"}
            continue
        held: dict[str, Tensor] = {}
        if isinstance(value, Stack):
            held = value.moving_tensors()
            fields[field] = {"is": "stack", "channels_last": value.channels_last}
        elif isinstance(value, Optimization):
            held, fields[field] = value.tensors(), {"is": "optimization", **value.numbers()}
        elif _is_tensors(value):
            held, fields[field] = value, {"is": "tensors"}
        else:
            fields[field] = {"is": "value", "value": value}
        tensors |= {f"{field}/{name}": tensor.detach() for name, tensor in held.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    axes = getattr(state, "mode_axes", {})  # where these are not the first ones
    metadata = {"schema": SCHEMA, "identity": identity, "fields": fields, "mode_axes": axes}
    write_tensors(path, tensors, metadata if modes is None else {**metadata, "modes": modes})


def read_checkpoint(
    path: Path, identity: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the metadata that the same run saved at `path`."""
    tensors, metadata = read_tensors(path)
    with damage_named(path):
        _check(path, metadata, identity)
    return tensors, metadata


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn any error of a damaged file into a `FileProblem` of one line."""
    try:
        yield
    except _ODD as error:
        if isinstance(error, FileProblem):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise FileProblem(
            f"{path} does not hold the state of this training ({what:.200}); remove it to start"
            " anew"
        ) from None


def restored(state: S, tensors: dict[str, Tensor], fields: dict[str, Any], path: Path) -> S:
    """Return `state` with what was saved, in a file near `path`.

    A tensor that `state` has in the same shape is filled, not replaced: an optimiser may hold it.
    Others (a state that grows) come as they were saved.
    """
    with damage_named(path):
        return _restored(state, tensors, fields, path)


def _restored(state: S, tensors: dict[str, Tensor], fields: dict[str, Any], path: Path) -> S:
    present = state._asdict()
    if odd := sorted(fields.keys() ^ present.keys()):
        who = "the file" if odd[0] in fields else "this run"
        raise FileProblem(f"{path}: only {who} has a state '{odd[0]}'; remove it to start anew")
    changes: dict[str, Any] = {}
    # Stacks first: they bring the memory format of the weights, which an optimiser's moments share.
    for field, saved in sorted(fields.items(), key=lambda item: item[1]["is"] != "stack"):
        value, kind = present[field], saved["is"]
        held = {n[len(field) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{field}/")}
        if isinstance(value, (Stack, Optimization)) != (kind in ("stack", "optimization")):
            raise ValueError(f"`{field}` cannot be a {kind!r:.20}")
        if isinstance(value, Stack):
            _fill_stack(value, held, saved)
        elif isinstance(value, Optimization):
            numbers = value.numbers()
            for name in ("groups", "scheduler"):
                check_form(f"{field}.{name}", saved[name], numbers[name])
            value.load(held, saved)
        elif kind == "tensor":
            changes[field] = _filled(value, tensors[field])
        elif kind == "tensors":
            before = value if _is_tensors(value) else {}
            changes[field] = {name: _filled(before.get(name), t) for name, t in held.items()}
        else:
            check_form(field, saved["value"], value)
            changes[field] = saved["value"]
    return state._replace(**changes)


def _fill_stack(stack: Stack, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
    layout = saved["channels_last"]  # earlier releases kept plans beside it; they are left alone
    if layout not in (None, True, False):
        raise ValueError("it names no memory format")
    if layout is not None:
        stack.lay_out(layout)
    stack.load_tensors({**stack.tensors(), **tensors})


def check_form(name: str, saved: Any, present: Any) -> None:
    """Refuse a saved value of another kind than the present one: text for a number, say.

    Of a list the items are compared where both have them; what is None now may have been anything.
    """
    if isinstance(present, bool) or isinstance(present, str):
        fits = type(saved) is type(present)
    elif isinstance(present, int):
        fits = type(saved) is int and abs(saved) < 2**63
    elif isinstance(present, float):
        fits = type(saved) in (int, float) and not math.isnan(saved)
    elif isinstance(present, (list, tuple)):
        fits = isinstance(saved, list)
        for place, pair in enumerate(zip(saved if fits else (), present, strict=False)):
            check_form(f"{name}[{place}]", *pair)
    elif isinstance(present, dict):
        fits = isinstance(saved, dict) and present.keys() <= saved.keys()
        for key in present if fits else ():
            check_form(f"{name}.{key}", saved[key], present[key])
    else:
        fits = True
    if not fits:
        raise ValueError(f"`{name}` cannot be {saved!r:.40}")


def _is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, Tensor) for item in value.values())


@torch.no_grad()
def _filled(present: Any, saved: Tensor) -> Tensor:
    """Return the present tensor with the saved values, or the saved one where shapes differ.

    The present one keeps its memory layout: products of another layout have other last bits.
    """
    if isinstance(present, Tensor) and (present.shape, present.dtype) == (saved.shape, saved.dtype):
        return present.copy_(saved)
    return saved


def _check(path: Path, metadata: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse the checkpoint of another release or run."""
    schema = metadata.get("schema", 0)
    if type(schema) is not int:
        raise FileProblem(f"{path} is not a checkpoint: its schema version is {schema!r:.40}")
    if schema != SCHEMA:
        newer = "a newer release: upgrade polymode" if schema > SCHEMA else "an earlier release"
        raise FileProblem(
            f"{path} has schema version {schema}, this polymode reads {SCHEMA}; it was written by"
            f" {newer}{'' if schema > SCHEMA else ': remove the file to start anew'}"
        )
    differences = list(_differences(metadata.get("identity"), identity))
    if differences:
        more = f"; {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise FileProblem(
            f"{path} belongs to another run: {'; '.join(differences[:_SHOWN])}{more}. Remove the"
            " file to start anew, or give another checkpoint folder"
        )


def _differences(theirs: Any, ours: Any, name: str = "") -> Iterator[str]:
    """Yield what differs, by the names of nested fields: "options.lr was 0.1, is 0.2"."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            inner = f"{name}.{key}" if name else key
            yield from _differences(theirs.get(key, _ABSENT), ours.get(key, _ABSENT), inner)
    elif theirs != ours:
        yield f"{name} was {_text(theirs)}, is {_text(ours)}"


def _text(value: Any) -> str:
    return value if value is _ABSENT else f"{value!r:.60}"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make a checkpoint folder, and hold it while a training runs; a second one is refused.

    The lock is the system's, and ends with the process. Without it, two trainings that began
    before the first checkpoint would write over each other's.
    """
    path = folder / "training.lock"
    create_folder(folder, "a checkpoint folder")
    if path.exists() and not path.is_file():  # to open a pipe would wait for its reader
        raise FileProblem(f"{path} is not a plain file; remove it, or give another folder")
    with open(path, "ab") as file:
        if take_lock(file.fileno(), wait=False) is False:
            raise FileProblem(
                f"{folder} is in use: another training that is running keeps its checkpoints"
                " there; wait for it, or give another checkpoint folder"
            )
        yield


class Part(NamedTuple):
    """A file with modes [first, last) after `step` steps."""

    name: str
    step: int
    first: int
    last: int


class Piece(NamedTuple):
    """What a file holds of a state.

    Attributes:
        tensors: of `num_modes` modes, by name. fields: the values beside them.
        modes: which of these modes are wanted.
    """

    tensors: dict[str, Tensor]
    fields: dict[str, Any]
    modes: slice
    num_modes: int


def save_training(folder: Path, state: Any, step: int, identity: dict[str, Any]) -> None:
    """Write the state, or this rank's part of it, and remove older files."""
    share = ranks.sharing_now()
    if share is None:
        save_checkpoint(folder / WHOLE, state, identity)
    else:
        name = f"training-{step}-{share.first}-{share.last}.safetensors"
        with ranks.together():
            save_checkpoint(folder / name, state, identity, (share.first, share.last))
    for part in _parts(folder):
        if share is None or part.step < step:
            (folder / part.name).unlink(missing_ok=True)
    if share is not None:
        (folder / WHOLE).unlink(missing_ok=True)


def load_training(folder: Path, state: S, identity: dict[str, Any]) -> S | None:
    """Return `state` as the last complete checkpoint in `folder` has it, None if there is none."""
    num_modes: int = state._asdict()["stack"].num_modes  # of this rank
    total = ranks.num_modes(num_modes)
    parts = ranks.agreed(lambda: _newest(folder, total))
    if not parts:
        return None
    first = ranks.mode_number(0)
    pieces = []
    for name, _, a, b in parts:
        low, high = max(a, first), min(b, first + num_modes)
        if low < high:
            tensors, metadata = read_checkpoint(folder / name, identity)
            axes, fields = metadata.get("mode_axes", {}), metadata.get("fields")
            if not isinstance(fields, dict) or not isinstance(axes, dict):
                raise FileProblem(f"{folder / name} is not a checkpoint; remove it to start anew")
            pieces.append(Piece(tensors, fields, slice(low - a, high - a), b - a))
    with damage_named(folder / parts[0].name):
        tensors, fields = _joined(folder, pieces, axes)
    return restored(state, tensors, fields, folder / parts[0].name)


def _parts(folder: Path) -> list[Part]:
    """Return what ranks have written, in the order of steps and modes."""
    matches = (_PART.fullmatch(path.name) for path in folder.glob("training-*.safetensors"))
    parts = (Part(m[0], *map(int, m.groups())) for m in matches if m is not None)
    return sorted(parts, key=lambda part: part[1:])


def _newest(folder: Path, num_modes: int) -> list[Part]:
    """Return the files of the complete checkpoint with the most steps."""
    parts, single = _parts(folder), folder / WHOLE
    if not parts:
        return [Part(WHOLE, 0, 0, num_modes)] if single.exists() else []
    sets: dict[int, list[Part]] = {}
    for part in parts:
        consecutive = sets.setdefault(part.step, [])
        if part.first == (consecutive[-1].last if consecutive else 0):
            consecutive.append(part)
    complete = {n: files for n, files in sets.items() if files and files[-1].last == num_modes}
    if single.exists():
        with damage_named(single), TensorFile(single) as file:
            step = int(file.metadata["fields"]["step"]["value"])
        complete[step] = [Part(WHOLE, step, 0, num_modes)]
    if not complete:
        warn(
            f"{folder} holds no complete checkpoint of {num_modes:,} modes, only"
            f" {', '.join(part.name for part in parts[:3])}: training begins anew. If ranks are on"
            " several machines, all must see this folder"
        )
        return []
    return complete[max(complete)]


def _joined(
    folder: Path, pieces: list[Piece], mode_axes: dict[str, int | None]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and fields of the wanted modes of all pieces."""
    tensors, fields, modes, num_modes = pieces[0]
    if len(pieces) == 1 and modes == slice(0, num_modes):
        return tensors, fields
    joined = {}
    for name, tensor in tensors.items():
        axis = axis_of_modes(name, tensor, mode_axes)
        if axis is None:
            joined[name] = tensor
            continue
        slices = []
        for piece in pieces:
            part = piece.tensors[name]
            if part.shape[axis] != piece.num_modes:
                raise FileProblem(
                    f"{folder}: '{name}' has shape {tuple(part.shape)}, which does not show"
                    f" its {piece.num_modes} modes: resume with as many ranks as before"
                )
            slices.append(part.movedim(axis, 0)[piece.modes].movedim(0, axis))
        joined[name] = torch.cat(slices, axis).contiguous()
    histories = [piece.fields["history"]["value"] for piece in pieces]
    if all(histories):
        parts = [(h, piece.modes) for h, piece in zip(histories, pieces, strict=True)]
        fields = {**fields, "history": {"is": "value", "value": joined_numbers(parts)}}
    return joined, fields


def axis_of_modes(name: str, tensor: Tensor, mode_axes: dict[str, int | None]) -> int | None:
    """Return which axis of a tensor of a state has the modes, None where all modes share it.

    It is the first, except for samples (`kept`, one after another) and for names that begin with a
    key of `mode_axes`.
    """
    if tensor.dim() == 0:
        return None
    for start, axis in {"kept": 1, **mode_axes}.items():
        if name == start or name.startswith(f"{start}/"):
            return axis
    return 0
