"""Devices by name, checked before anything is computed on them."""

from __future__ import annotations

import torch


def usable_device(device: str | torch.device) -> torch.device:
    """Return the device, or say in one line why it cannot be used here.

    >>> usable_device("cpu")
    device(type='cpu')
    """
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"`device` must be 'cpu', 'cuda' or the like, got {device!r}") from None
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device '{wanted}' was asked for, but torch sees no GPU here; use device='cpu', or"
            " install a CUDA build of torch"
        )
    if wanted.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(
            f"device '{wanted}' was asked for, but torch has no MPS device here; use device='cpu'"
        )
    if wanted.type not in ("cpu", "meta"):
        try:
            torch.empty(1, device=wanted)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0].split(". ")[0].rstrip(".")
            raise ValueError(
                f"device '{wanted}' cannot be used here: {reason}; use device='cpu'"
            ) from None
    return wanted
