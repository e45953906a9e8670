"""Checkpoints of a training run: one file that holds everything the next step needs.

Random streams are functions of seed and step (`core/rng.py`), so the state of a run is its tensors
and its step number. The execution that was chosen for its stack is kept, too, so a run that resumes
with as many threads ends bit by bit where an uninterrupted one ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from polymode.core.files import FileProblem, read_tensors, take_lock, write_tensors
from polymode.stack.fast.plan import Plan, is_plan
from polymode.stack.stack import Stack
from polymode.training.optimiser import Optimization

SCHEMA = 2
_ABSENT = "absent"
_ODD = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError,
)  # fmt: skip
_SHOWN = 3  # differences to another run
S = TypeVar("S", bound=NamedTuple)


def save_checkpoint(
    path: Path, state: Any, identity: dict[str, Any], modes: tuple[int, int] | None = None
) -> None:
    """Write `state` to `path`, a named tuple of stacks, optimisations, tensors, dictionaries of
    tensors, and values that JSON holds. Stacks that share memory with another stay out of it.
    `modes` are first and last of those that it holds, None for all."""
    tensors: dict[str, Tensor] = {}
    fields: dict[str, Any] = {}
    for field, value in state._asdict().items():
        if isinstance(value, Tensor):
            tensors[field], fields[field] = value, {"is": "tensor"}
            continue
        own: dict[str, Tensor] = {}
        if isinstance(value, Stack):
            own, plans = value.tensors(), {kind: list(plan) for kind, plan in value.plans.items()}
            fields[field] = {"is": "stack", "plans": plans, "channels_last": value.channels_last}
        elif isinstance(value, Optimization):
            own, fields[field] = value.tensors(), {"is": "optimization", **value.numbers()}
        elif _is_tensors(value):
            own, fields[field] = value, {"is": "tensors"}
        else:
            fields[field] = {"is": "value", "value": value}
        tensors |= {f"{field}/{name}": tensor.detach() for name, tensor in own.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    axes = getattr(state, "mode_axes", {})  # where these are not the first ones
    metadata = {"schema": SCHEMA, "identity": identity, "fields": fields, "mode_axes": axes}
    write_tensors(path, tensors, metadata if modes is None else {**metadata, "modes": modes})


def load_checkpoint(path: Path, state: S, identity: dict[str, Any]) -> S:
    """Return `state` as it was saved at `path` by the same run."""
    tensors, metadata = read_checkpoint(path, identity)
    return restored(state, tensors, metadata["fields"], path)


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
    """Let whatever goes wrong with what a file says be a `FileProblem` in one line."""
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

    What was saved is what comes back. A tensor that `state` has in the same shape is filled, not
    replaced: an optimiser may hold it. Others (a state that grows) come as they were saved.
    """
    with damage_named(path):
        return _restored(state, tensors, fields, path)


def _restored(state: S, tensors: dict[str, Tensor], fields: dict[str, Any], path: Path) -> S:
    mine = state._asdict()
    if odd := sorted(fields.keys() ^ mine.keys()):
        who = "the file" if odd[0] in fields else "this run"
        raise FileProblem(f"{path}: only {who} has a state '{odd[0]}'; remove it to start anew")
    changes: dict[str, Any] = {}
    # Stacks first: they bring the memory format of the weights, which an optimiser's moments share.
    for field, saved in sorted(fields.items(), key=lambda item: item[1]["is"] != "stack"):
        value, kind = mine[field], saved["is"]
        own = {n[len(field) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{field}/")}
        if isinstance(value, (Stack, Optimization)) != (kind in ("stack", "optimization")):
            raise ValueError(f"`{field}` cannot be a {kind!r:.20}")
        if isinstance(value, Stack):
            _fill_stack(value, own, saved)
        elif isinstance(value, Optimization):
            present = value.numbers()
            for name in ("groups", "scheduler"):
                check_form(f"{field}.{name}", saved[name], present[name])
            value.load(own, saved)
        elif kind == "tensor":
            changes[field] = _filled(value, tensors[field])
        elif kind == "tensors":
            held = value if _is_tensors(value) else {}
            changes[field] = {name: _filled(held.get(name), each) for name, each in own.items()}
        else:
            check_form(field, saved["value"], value)
            changes[field] = saved["value"]
    return state._replace(**changes)


def _fill_stack(stack: Stack, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
    plans, layout = saved["plans"], saved["channels_last"]
    if not all(map(is_plan, plans.values())) or layout not in (None, True, False):
        raise ValueError("it names no way to evaluate a stack")
    stack.plans = {kind: Plan(*plan) for kind, plan in plans.items()}
    if layout is not None:
        stack.lay_out(layout)
    stack.load_tensors(tensors)


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
    return isinstance(value, dict) and all(isinstance(each, Tensor) for each in value.values())


@torch.no_grad()
def _filled(held: Any, saved: Tensor) -> Tensor:
    """Return the present tensor with the saved values, in its own memory layout: products of
    another layout have other last bits. Where shapes differ, return the saved one."""
    if isinstance(held, Tensor) and held.shape == saved.shape and held.dtype == saved.dtype:
        return held.copy_(saved)
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
    found = list(_differences(metadata.get("identity"), identity))
    if found:
        more = f"; {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise FileProblem(
            f"{path} belongs to another run: {'; '.join(found[:_SHOWN])}{more}. Remove the file to"
            " start anew, or give another checkpoint folder"
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileProblem(
            f"{folder} cannot be a checkpoint folder: a file is in its place; give another"
        ) from None
    if path.exists() and not path.is_file():  # to open a pipe would wait for its reader
        raise FileProblem(f"{path} is not a plain file; remove it, or give another folder")
    with open(path, "ab") as file:
        if take_lock(file.fileno(), wait=False) is False:
            raise FileProblem(
                f"{folder} is in use: another training that is running keeps its checkpoints"
                " there; wait for it, or give another checkpoint folder"
            )
        yield
