"""What a run ran on: versions, commit, machine, threads."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
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
    if (commit := commit_of(Path(__file__).parents[3])) is not None:
        versions["commit"] = commit
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": versions,
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def commit_of(root: Path) -> str | None:
    """Return the commit of a checkout, with a mark if its `src` was changed; None if it is none."""
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):  # no git, or not a repository it trusts
        return None
