"""What a file of modes must hold, compared with manifest and network before anything is read.

Types and shapes are in the file's header: so neither a manifest nor a header makes a process ask
for more memory than the file has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from polymode.core.safe_files import FileProblem, TensorFile, TensorForm
from polymode.core.text import first_line
from polymode.posterior.weights import Weights, form_of, of_stack
from polymode.stack.stack import Stack


def groups_of(names: Iterable[str]) -> list[str]:
    """Return the groups that tensors belong to: "network", "kept", ...

    >>> groups_of(["network/0.weight", "network/0.bias", "log_evidence"])
    ['log_evidence', 'network']
    """
    return sorted({name.split("/")[0] for name in names})


def check_modes(file: TensorFile, count: int, frozen: Collection[str]) -> None:
    """Refuse a file of another number of modes; of what is frozen it may hold one row for all."""
    for name, form in file.forms.items():
        one_row = name.removeprefix("network/") in frozen and form.shape[:1] == (1,)
        if of_stack(name) and form.shape[:1] != (count,) and not one_row:
            raise FileProblem(
                f"{file.path} does not hold {count:,} modes, as the manifest says: '{name}' is of"
                f" shape {tuple(form.shape)}"
            )


def check_network(file: TensorFile, stack: Stack, network: str, *, trunk: bool) -> None:
    """Refuse a file whose networks are not those of a stack, which needs no values. Without the
    `trunk` it holds nothing of what is frozen."""
    held_here = stack.tensors() if trunk else stack.moving_tensors()
    ours = {name: form_of(tensor) for name, tensor in held_here.items()}
    theirs = {name: form for name, form in file.forms.items() if of_stack(name)}
    for name in [*ours, *theirs]:
        wanted, held = ours.get(name), theirs.get(name)
        if wanted is None or held is None or wanted.shape[1:] != held.shape[1:]:
            raise FileProblem(
                f"{file.path.parent} holds another architecture ({network}): '{name}' is"
                f" {_shape(held)} in the file and {_shape(wanted)} in the network given"
            )
        if held.dtype != wanted.dtype and not _is_wider(wanted.dtype, held.dtype):
            raise FileProblem(
                f"{file.path}: '{name}' holds numbers of type {_type(held)} where the manifest asks"
                f" for {_type(wanted)}"
            )


def check_kind(
    file: TensorFile, stack: Stack, kind: type[Weights], manifest: Mapping[str, Any], count: int
) -> None:
    """Refuse a file that lacks a tensor beside the networks that `kind` needs, or has one more.

    `stack` is one network, which needs no values.
    """
    forms, groups = file.forms, manifest.get("groups")
    if groups is not None and groups != groups_of(forms):
        raise FileProblem(
            f"{file.path} holds {', '.join(groups_of(forms))}; the manifest asks for"
            f" {', '.join(map(str, groups))}"
        )
    try:
        layout = kind.layout(stack, forms, manifest["weights"]["numbers"])
    except FAULTS as error:
        raise unreadable(file.path, kind, error) from None
    beside = {name: form for name, form in forms.items() if not of_stack(name)}
    for name in [*layout, *beside]:
        wanted, held = layout.get(name), beside.get(name)
        if wanted is not None:
            axis = kind.mode_axis(name)
            shape = (*wanted.shape[:axis], count, *wanted.shape[axis + 1 :])
            wanted = TensorForm(wanted.dtype, torch.Size(shape))
        if wanted != held:
            raise FileProblem(
                f"{file.path}: '{name}' is {_form(held)} in the file; weights of kind"
                f" '{kind.kind}' ask for {_form(wanted, 'none')}"
            )


FAULTS = (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError)


def unreadable(path: Path, kind: type[Weights], error: Exception) -> FileProblem:
    """Return the problem to raise where numbers or tensors do not fit a kind of weights."""
    cause = f"{error} is not there" if isinstance(error, KeyError) else first_line(error)
    return FileProblem(f"{path}: weights of kind '{kind.kind}' cannot be read: {cause}")


def _is_wider(wanted: torch.dtype, held: torch.dtype) -> bool:
    """Whether numbers of the type in the file are read without loss."""
    floats = wanted.is_floating_point and held.is_floating_point
    return floats and torch.promote_types(wanted, held) == wanted


def _shape(form: TensorForm | None) -> str:
    return "absent" if form is None else f"of shape {tuple(form.shape[1:])}"


def _type(form: TensorForm) -> str:
    return str(form.dtype).removeprefix("torch.")


def _form(form: TensorForm | None, absent: str = "absent") -> str:
    return absent if form is None else f"{_type(form)} of shape {tuple(form.shape)}"
