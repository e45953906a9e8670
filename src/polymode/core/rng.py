"""Random streams by name: every number drawn is a function of the seed and of what it is drawn for.

A stream is addressed by a path, `fold(seed, "init", member)`, instead of being handed on from one
draw to the next. Therefore member 3 draws the same numbers in a stack of 4 and of 40, and a run
that resumes at step 1,000 needs no saved generator state.
"""

from __future__ import annotations

import hashlib

import torch


def fold(seed: int, *path: int | str) -> int:
    """Return the seed of the stream `path` below `seed`, an integer in [0, 2**63).

    >>> fold(0, "init", 3) == fold(0, "init", 3), fold(0, "init", 3) == fold(0, "init", 4)
    (True, False)
    """
    address = "/".join([str(int(seed)), *(str(part) for part in path)])
    digest = hashlib.blake2b(address.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a CPU generator at the start of the stream `path` below `seed`."""
    return torch.Generator().manual_seed(fold(seed, *path))


def member_seeds(seed: int, num_modes: int, *path: int | str) -> torch.Tensor:
    """Return one stream seed a member, int64 of shape (M,); the first k do not depend on M."""
    return torch.tensor(
        [fold(seed, *path, member) for member in range(num_modes)], dtype=torch.int64
    )
