"""The command line; `main` is the entry point."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_IMPORTING = "<frozen importlib"


def main() -> None:
    """Run `polymode` with the arguments of the process, and exit."""
    signal.signal(signal.SIGINT, leave_imports)
    from polymode.cli.app import main as run

    sys.exit(run())


def leave_imports(number: int, frame: Any) -> None:
    """Take Ctrl-C: end at once while modules are imported, raise `KeyboardInterrupt` otherwise.

    Libraries that are interrupted in the midst of their import turn the exception into another one,
    or print a traceback, and there is nothing to keep yet.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            if "--json" in sys.argv:
                os.write(1, b'{"error": "interrupted", "exit": 130}\n')
            os.write(2, b"polymode: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def keep_what_is_done() -> None:
    """From here on Ctrl-C always raises `KeyboardInterrupt`: there is something to keep."""
    if signal.getsignal(signal.SIGINT) is leave_imports:
        signal.signal(signal.SIGINT, signal.default_int_handler)
