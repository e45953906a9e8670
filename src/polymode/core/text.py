"""Values as command lines and labels write them; untrusted text escaped before it is printed."""

from __future__ import annotations

import json
import re
from typing import Any

_ESCAPE = re.compile(  # of a terminal: control sequences, strings that it acts on, other commands
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # bytes of file names that are no text


def plain(text: str) -> str:
    r"""Escape untrusted text before it is printed: remove what a terminal takes for a command.

    Names of files and classes, and what servers answer, may move the cursor, rename the window or
    turn the direction of reading. Line ends and tabs stay.

    >>> plain("cat\x1b[2J\x1b]0;title\x07s\b\n")
    'cats\n'
    """
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", _ESCAPE.sub("", text)))


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


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, without a place in a library's source.

    >>> first_line(RuntimeError("[/src/pair.cc:553] Connection closed by peer. This is ..."))
    'Connection closed by peer'
    """
    text = re.sub(r"^\[[^]]*\] *", "", str(error).strip()) or type(error).__name__
    return text.splitlines()[0].split(". ")[0].rstrip(".")[:200]
