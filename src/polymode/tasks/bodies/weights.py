"""Weights of others into a network: files that hold tensors and nothing that could run.

Read are safetensors files and those of torch.save, the latter by torch's reader of tensors alone
(`weights_only=True`). Names, shapes and values are checked before the network is changed; what is
wrong is one line.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from polymode.core.safe_files import FileProblem, open_plain
from polymode.core.text import plain

Module = TypeVar("Module", bound=nn.Module)
_FEW = 3  # names that a message shows


def read_weights(source: Path | str | bytes, name: str = "the weights") -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of a file of torch.save, by name.

    Args:
        source: the file, or what it holds.
        name: what messages call the contents; the path where a file is tensors.
    """
    if isinstance(source, bytes):
        content = source
    else:
        path = Path(source).expanduser()
        name = str(path)
        with open_plain(path) as file:
            content = file.read()
    try:
        if content[8:9] == b"{":  # after its length, the header of a safetensors file
            loaded = safetensors.torch.load(content)
        else:
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise FileProblem(
            f"{name} holds more than tensors, which is not read: save the network's state_dict()"
            " alone, best by safetensors.torch.save_file"
        ) from None
    except (safetensors.SafetensorError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise FileProblem(
            f"{name} is damaged, or neither safetensors nor of torch.save: {_line(error)}"
        ) from None
    if not isinstance(loaded, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in loaded.items()
    ):
        raise FileProblem(f"{name} is no table of tensors by name: save the state_dict() alone")
    return dict(loaded)


def load_weights(
    module: Module,
    weights: Mapping[str, Tensor] | Path | str,
    skip: Sequence[str] = (),
) -> Module:
    """Put weights into a network and return it, or say in one line why they do not fit.

    Args:
        weights: by name, or a file of them, see `read_weights`.
        skip: beginnings of names in the file that the network has no use for, such as "pooler.".

    >>> load_weights(nn.Linear(2, 1), {"weight": torch.ones(1, 3), "bias": torch.ones(1)})
    Traceback (most recent call last):
    ...
    ValueError: the weights do not fit this Linear: 'weight' is (1, 3), the network's is (1, 2)
    """
    if not isinstance(weights, Mapping):
        weights = read_weights(weights)
    tensors = {key: value for key, value in weights.items() if not key.startswith(tuple(skip))}
    wanted = module.state_dict()
    counters = {key for key in wanted if key.endswith("num_batches_tracked")}
    missing = [key for key in wanted if key not in tensors and key not in counters]
    unknown = [key for key in tensors if key not in wanted]
    problem = ""
    if missing:
        problem = f"{len(missing)} tensor(s) are missing, such as {_names(missing)}"
    elif unknown:
        problem = f"{len(unknown)} tensor(s) have no place in it, such as {_names(unknown)}"
    for key in () if problem else tensors:
        if tensors[key].shape != wanted[key].shape:
            shapes = tuple(tensors[key].shape), tuple(wanted[key].shape)
            problem = f"'{plain(key)}' is {shapes[0]}, the network's is {shapes[1]}"
        elif not tensors[key].isfinite().all():
            problem = f"'{plain(key)}' holds NaN or infinite values"
        if problem:
            break
    if problem:
        raise ValueError(f"the weights do not fit this {type(module).__name__}: {problem}")
    module.load_state_dict({**{key: wanted[key] for key in counters}, **tensors})
    return module


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"'{plain(name)}'" for name in names[:_FEW])


def _line(error: BaseException) -> str:
    return plain(str(error).partition("\n")[0])[:200]
