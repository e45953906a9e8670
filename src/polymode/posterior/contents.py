"""What a file of tensors must hold: what the manifest, the network and the kind of weights ask for.

Types and shapes are compared before memory is taken for any of them, so neither a manifest nor a
header makes a process ask for more than the file has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polymode.core.files import FileProblem, TensorFile, TensorForm
from polymode.core.text import first_line
from polymode.posterior.weights import Weights, form_of, of_stack
from polymode.stack.stack import Stack


def groups_of(names: Iterable[str]) -> list[str]:
    """Return the groups that tensors belong to: "network", "kept", ...

    >>> groups_of(["network/0.weight", "network/0.bias", "log_evidence"])
    ['log_evidence', 'network']
    """
    return sorted({name.split("/")[0] for name in names})


def outline(network: Any, manifest: Mapping[str, Any], path: Path) -> nn.Module | None:
    """Return a network that has the manifest's sizes, without memory for its tensors.

    None where the manifest does not decide how large it is, or where it cannot be built so: a
    builder that looks at the values of its tensors.
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
            f" {tuple(manifest['input_shape'])} and target_size {manifest['target_size']:,}:"
            f" {first_line(error)}"
        ) from None
    return module


def check_modes(file: TensorFile, count: int) -> None:
    """Refuse a file of another number of modes."""
    for name, form in file.forms.items():
        if of_stack(name) and form.shape[:1] != (count,):
            raise FileProblem(
                f"{file.path} does not hold {count:,} modes, as the manifest says: '{name}' is of"
                f" shape {tuple(form.shape)}"
            )


def check_network(file: TensorFile, stack: Stack, network: str) -> None:
    """Refuse a file whose networks are not those of a stack, which needs no values."""
    ours = {name: form_of(tensor) for name, tensor in stack.tensors().items()}
    theirs = {name: form for name, form in file.forms.items() if of_stack(name)}
    for name in [*ours, *theirs]:
        asked, held = ours.get(name), theirs.get(name)
        if asked is None or held is None or asked.shape[1:] != held.shape[1:]:
            raise FileProblem(
                f"{file.path.parent} holds another architecture ({network}): '{name}' is"
                f" {_shape(held)} in the file and {_shape(asked)} in the network given"
            )
        if held.dtype != asked.dtype and not _is_wider(asked.dtype, held.dtype):
            raise FileProblem(
                f"{file.path}: '{name}' holds numbers of type {_type(held)} where the manifest asks"
                f" for {_type(asked)}"
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
        asked, held = layout.get(name), beside.get(name)
        if asked is not None:
            axis = kind.mode_axis(name)
            shape = (*asked.shape[:axis], count, *asked.shape[axis + 1 :])
            asked = TensorForm(asked.dtype, torch.Size(shape))
        if asked != held:
            raise FileProblem(
                f"{file.path}: '{name}' is {_form(held)} in the file; weights of kind"
                f" '{kind.kind}' ask for {_form(asked, 'none')}"
            )


FAULTS = (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError)


def unreadable(path: Path, kind: type[Weights], error: Exception) -> FileProblem:
    """Return what to raise where numbers or tensors of a kind of weights make no sense."""
    said = f"{error} is not there" if isinstance(error, KeyError) else first_line(error)
    return FileProblem(f"{path}: weights of kind '{kind.kind}' cannot be read: {said}")


def _is_wider(asked: torch.dtype, held: torch.dtype) -> bool:
    """Whether numbers of the type in the file are read without loss."""
    floats = asked.is_floating_point and held.is_floating_point
    return floats and torch.promote_types(asked, held) == asked


def _shape(form: TensorForm | None) -> str:
    return "absent" if form is None else f"of shape {tuple(form.shape[1:])}"


def _type(form: TensorForm) -> str:
    return str(form.dtype).removeprefix("torch.")


def _form(form: TensorForm | None, absent: str = "absent") -> str:
    return absent if form is None else f"{_type(form)} of shape {tuple(form.shape)}"
