"""Values in few letters, as command lines and labels have them."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says; a `ValueError` also where it is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_value(text: str) -> Any:
    """Return what is typed as a value: JSON, with true, false and null, or else text.

    >>> read_value("[1, 2]"), read_value("cosine")
    ([1, 2], 'cosine')
    """
    try:
        return parse_json(text)
    except ValueError:
        return text


def value_text(value: Any) -> str:
    """Return a value as `read_value` takes it.

    >>> value_text("cosine"), value_text("1"), value_text([1, 2])
    ('cosine', '"1"', '[1, 2]')
    """
    plain = isinstance(value, str) and read_value(value) == value
    return value if plain else json.dumps(value)
