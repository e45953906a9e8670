"""Ignore a warning of another library, safely with threads.

`warnings.catch_warnings` restores the list of all filters: of two threads inside, one undoes what
the other has set, or leaves it set for good.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any


class without_warning:
    """A context in which warnings that begin with a pattern are not shown, in any thread.

    The filter is installed while at least one such context is open; then only it is removed.
    """

    _lock = threading.Lock()
    _open: dict[tuple[str, type[Warning]], tuple[int, Any]] = {}

    def __init__(self, message: str, category: type[Warning] = Warning) -> None:
        self._key = message, category

    def __enter__(self) -> None:
        with self._lock:
            number, entry = self._open.get(self._key, (0, None))
            if number == 0 or entry not in warnings.filters:
                message, category = self._key
                warnings.filterwarnings("ignore", message, category)
                entry = warnings.filters[0]
            self._open[self._key] = number + 1, entry

    def __exit__(self, *error: object) -> None:
        with self._lock:
            number, entry = self._open[self._key]
            self._open[self._key] = number - 1, entry
            if number == 1 and entry in warnings.filters:
                warnings.filters.remove(entry)  # type: ignore[attr-defined]
                warnings._filters_mutated()  # type: ignore[attr-defined]
