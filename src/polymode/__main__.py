"""`python -m polymode`."""

from __future__ import annotations

from polymode.cli import main

if __name__ == "__main__":
    main()
