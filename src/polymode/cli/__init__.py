"""The command line; `main` is the entry point."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `polymode` with the arguments of the process, and exit."""
    from polymode.cli.app import main as run

    sys.exit(run())
