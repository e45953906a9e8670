"""What a run ran on: versions, machine, threads."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib")


def environment() -> dict[str, Any]:
    """Return versions and machine, JSON-safe."""
    import torch

    from polymode._version import __version__

    versions = {"polymode": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": versions,
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }
