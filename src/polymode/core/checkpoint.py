"""Checkpoints of a training run: one file that holds everything the next step needs.

Random streams are functions of seed and step (`core/rng.py`), so the state of a run is its tensors
and its step number; a run that resumes ends bit by bit where an uninterrupted one ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from polymode.core.choice import Plan
from polymode.core.stack import Stack
from polymode.core.store import FileProblem, read_tensors, write_tensors
from polymode.core.training import Optimization

SCHEMA = 1
S = TypeVar("S", bound=NamedTuple)


def save_checkpoint(path: Path, state: Any, identity: dict[str, Any]) -> None:
    """Write `state`, a named tuple of Stack, Optimization, tensors and numbers, to `path`."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for field, value in state._asdict().items():
        if isinstance(value, Stack):
            tensors |= {f"{field}/{name}": tensor for name, tensor in value.tensors().items()}
            plans = {kind: list(plan) for kind, plan in value.plans.items()}
            numbers[field] = {"plans": plans, "channels_last": value.channels_last}
        elif isinstance(value, Optimization):
            tensors |= {f"{field}/{name}": tensor for name, tensor in value.tensors().items()}
            numbers[field] = value.numbers()
        elif isinstance(value, Tensor):
            tensors[field] = value
        else:
            numbers[field] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, {"schema": SCHEMA, "identity": identity, "numbers": numbers})


def load_checkpoint(path: Path, state: S, identity: dict[str, Any]) -> S:
    """Return `state` as it was saved at `path` by the same run."""
    tensors, metadata = read_tensors(path)
    if metadata.get("schema", 0) > SCHEMA:
        raise FileProblem(
            f"{path} has schema version {metadata['schema']}, this polymode reads up to {SCHEMA};"
            " it was written by a newer release: upgrade polymode"
        )
    theirs = metadata["identity"]
    differing = sorted(k for k in {*theirs, *identity} if theirs.get(k) != identity.get(k))
    if differing:
        first = differing[0]
        raise FileProblem(
            f"{path} belongs to another run: {', '.join(differing)} differ ({first} was"
            f" {_short(theirs.get(first))}, is {_short(identity.get(first))}). Remove the file to"
            " start anew, or give another checkpoint folder"
        )
    changes: dict[str, Any] = {}
    for field, value in state._asdict().items():
        own = {n[len(field) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{field}/")}
        numbers = metadata["numbers"].get(field)
        if isinstance(value, Stack):
            value.plans = {kind: Plan(*plan) for kind, plan in numbers["plans"].items()}
            if numbers["channels_last"] is not None:
                value.lay_out(numbers["channels_last"])
            value.load_tensors(own)
        elif isinstance(value, Optimization):
            value.load(own, numbers)
        else:
            changes[field] = numbers
            if isinstance(value, Tensor):  # products of another layout have other last bits
                changes[field] = torch.empty_like(value).copy_(tensors[field])
    return state._replace(**changes)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
