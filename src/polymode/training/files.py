"""The checkpoint of a training in one file, or in one per rank; resumed by any number of ranks.

    training.safetensors              all modes, of a training in one process
    training-STEP-A-B.safetensors     modes [A, B) after STEP steps, of one rank

Those of one step are a whole when all are written; only then the earlier ones go. So a run that is
killed at any moment has a complete checkpoint, and a rank that resumes takes its modes from
whichever files hold them. All ranks must see the folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from polymode.core.files import FileProblem, read_metadata
from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.training.checkpoint import damage_named, read_checkpoint, restored, save_checkpoint
from polymode.training.history import joined_numbers

WHOLE = "training.safetensors"
_PART = re.compile(r"training-(\d+)-(\d+)-(\d+)\.safetensors")
S = TypeVar("S", bound=Any)


class Part(NamedTuple):
    """A file with modes [first, last) after `step` steps."""

    name: str
    step: int
    first: int
    last: int


def save_training(folder: Path, state: Any, step: int, identity: dict[str, Any]) -> None:
    """Write what the next step needs: one file, or this rank's part; older ones are removed."""
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
    mine: int = state._asdict()["stack"].num_modes
    every = ranks.num_modes(mine)
    found = ranks.agreed(lambda: _newest(folder, every))
    if not found:
        return None
    first = ranks.mode_number(0)
    pieces = []
    for name, _, a, b in found:
        lo, hi = max(a, first), min(b, first + mine)
        if lo < hi:
            tensors, metadata = read_checkpoint(folder / name, identity)
            axes, fields = metadata.get("mode_axes", {}), metadata.get("fields")
            if not isinstance(fields, dict) or not isinstance(axes, dict):
                raise FileProblem(f"{folder / name} is not a checkpoint; remove it to start anew")
            pieces.append((tensors, fields, slice(lo - a, hi - a), b - a))
    with damage_named(folder / found[0].name):
        tensors, fields = _joined(folder, pieces, axes)
    return restored(state, tensors, fields, folder / found[0].name)


def _parts(folder: Path) -> list[Part]:
    """Return what ranks have written, in the order of steps and modes."""
    found = ((p.name, _PART.fullmatch(p.name)) for p in folder.glob("training-*.safetensors"))
    parts = (Part(name, *map(int, m.groups())) for name, m in found if m is not None)
    return sorted(parts, key=lambda part: part[1:])


def _newest(folder: Path, num_modes: int) -> list[Part]:
    """Return the files of the complete checkpoint with the most steps."""
    parts, whole = _parts(folder), folder / WHOLE
    if not parts:
        return [Part(WHOLE, 0, 0, num_modes)] if whole.exists() else []
    sets: dict[int, list[Part]] = {}
    for part in parts:
        at = sets.setdefault(part.step, [])
        if part.first == (at[-1].last if at else 0):
            at.append(part)
    complete = {step: at for step, at in sets.items() if at and at[-1].last == num_modes}
    if whole.exists():
        with damage_named(whole):
            step = int(read_metadata(whole)["fields"]["step"]["value"])
        complete[step] = [Part(WHOLE, step, 0, num_modes)]
    if not complete:
        warn(
            f"{folder} holds no complete checkpoint of {num_modes:,} modes, only"
            f" {', '.join(part.name for part in parts[:3])}: training begins anew. If ranks are on"
            " several machines, all must see this folder",
        )
        return []
    return complete[max(complete)]


def _joined(
    folder: Path,
    pieces: list[tuple[dict[str, Tensor], dict[str, Any], slice, int]],
    mode_axes: dict[str, int | None],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and fields of some modes, from files and what to take of each."""
    tensors, fields, modes, count = pieces[0]
    if len(pieces) == 1 and modes == slice(0, count):
        return tensors, fields
    joined = {}
    for name, tensor in tensors.items():
        axis = axis_of_modes(name, tensor, mode_axes)
        if axis is None:
            joined[name] = tensor
            continue
        for own, _, _, number in pieces:
            if own[name].shape[axis] != number:
                raise FileProblem(
                    f"{folder}: '{name}' has shape {tuple(own[name].shape)}, which does not show"
                    f" its {number} modes: resume with as many ranks as before"
                )
        taken = [own[name].movedim(axis, 0)[part].movedim(0, axis) for own, _, part, _ in pieces]
        joined[name] = torch.cat(taken, axis).contiguous()
    history = [own["history"]["value"] for _, own, _, _ in pieces]
    if all(history):
        parts = [(each, piece[2]) for each, piece in zip(history, pieces, strict=True)]
        fields = {**fields, "history": {"is": "value", "value": joined_numbers(parts)}}
    return joined, fields


def axis_of_modes(name: str, tensor: Tensor, mode_axes: dict[str, int | None]) -> int | None:
    """Return which axis of a tensor of a state has the modes, None where all modes share it.

    It is the first, but for samples (`kept`, one after another) and what the state's `mode_axes`
    says, by the beginnings of names.
    """
    if tensor.dim() == 0:
        return None
    for start, axis in {"kept": 1, **mode_axes}.items():
        if name == start or name.startswith(f"{start}/"):
            return axis
    return 0
