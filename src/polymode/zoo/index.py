"""The files of a zoo: what it is, an index that only grows, and shards of networks.

zoo.json             recipe, seed, type of numbers, shapes; written once
index.jsonl          a line per shard: file, digest, and seed, accuracy and NLL of each network
shard-K.safetensors  tensors (N, ...) of the networks of shard K

A line is added when its shard is complete on disk; nothing is ever changed. A later line for the
same shard takes the place of an earlier one. Every line holds a digest of itself. What a killed
process left of the last line is passed over: its shard is made again.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from polymode.core.safe_files import (
    FileProblem,
    is_plain_name,
    json_digest,
    open_plain,
    read_json,
    write_json,
)
from polymode.core.text import parse_json

SCHEMA = 1
ABOUT, INDEX = "zoo.json", "index.jsonl"
DTYPES = ("float16", "float32", "float64")
_DIGEST = re.compile(r"[0-9a-f]{32}")


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _is_stream(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


def _are(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(fits, value))


Fields = dict[str, tuple[Callable[[Any], bool], str]]
_ABOUT: Fields = {
    "recipe": (lambda v: isinstance(v, dict), "an object"),
    "seed": (lambda v: type(v) is int, "an integer"),
    "networks_per_shard": (_is_count, "an integer of at least 1"),
    "dtype": (lambda v: v in DTYPES, f"one of {', '.join(DTYPES)}"),
    "input_shape": (lambda v: _are(v, _is_count), "a list of sizes"),
    "target_size": (_is_count, "an integer of at least 1"),
    "likelihood": (lambda v: isinstance(v, dict), "an object"),
    "data": (lambda v: v is None or isinstance(v, str), "text or null"),
}
_LINE: Fields = {
    "number": (lambda v: type(v) is int and 0 <= v < 2**31, "the number of a shard"),
    "file": (is_plain_name, "the name of a file in its folder"),
    "digest": (lambda v: isinstance(v, str) and _DIGEST.fullmatch(v) is not None, "a digest"),
    "seeds": (lambda v: _are(v, _is_stream), "a list of seeds"),
    "accuracy": (
        lambda v: v is None or _are(v, lambda score: _is_number(score) and 0 <= score <= 1),
        "a list of numbers from 0 to 1, or null",
    ),
    "nll": (
        lambda v: v is None or _are(v, lambda score: score is None or _is_number(score)),
        "a list of numbers, or null",
    ),
    "seconds": (lambda v: _is_number(v) and v >= 0, "a number of at least 0"),
}


class Shard(NamedTuple):
    """One line of the index.

    Attributes:
        number: place among the shards. file, digest: of its tensors.
        seeds: stream of each network.
        accuracy, nll: of each network on the test set, as stored; None where they are not known,
            and None for a single NLL that is not finite.
        seconds: wall time that its training took.
    """

    number: int
    file: str
    digest: str
    seeds: tuple[int, ...]
    accuracy: tuple[float, ...] | None
    nll: tuple[float | None, ...] | None
    seconds: float

    @property
    def size(self) -> int:
        """How many networks it holds."""
        return len(self.seeds)


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write what the zoo is; refuse a folder that is another one."""
    path = folder / ABOUT
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_json(path, {"schema": SCHEMA, **about})
        return
    present = read_about(folder)
    for key, value in about.items():
        if present.get(key) != json.loads(json.dumps(value)):
            raise FileProblem(
                f"{folder} is a zoo of another kind: its {key} is {_short(present.get(key))}, asked"
                f" for was {_short(value)}; choose another folder"
            )


def read_about(folder: Path) -> dict[str, Any]:
    """Return what the zoo is."""
    path = folder / ABOUT
    if folder.is_dir() and not path.exists():
        raise FileProblem(f"{folder} is not a zoo: it has no {ABOUT}")
    about = read_json(path, SCHEMA)
    try:
        _check_fields(about, _ABOUT)
        json.dumps(about, allow_nan=False)
    except ValueError as error:
        raise FileProblem(f"{path} does not describe a zoo: {error}") from None
    return about


def _check_fields(content: dict[str, Any], fields: Fields) -> None:
    """Refuse what lacks a field, or has one of another form than polymode writes."""
    for name, (fits, form) in fields.items():
        if name not in content:
            raise ValueError(f"it has no `{name}`")
        if not fits(content[name]):
            raise ValueError(f"`{name}` must be {form}, got {content[name]!r:.60}")


def add_shard(folder: Path, shard: Shard) -> None:
    """Add a line to the index, in one write."""
    content = shard._asdict()
    line = json.dumps({**content, "check": json_digest(content)}) + "\n"
    path = folder / INDEX
    torn = path.exists() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (b"\n" if torn else b"") + line.encode())
        os.fsync(file)
    finally:
        os.close(file)


def read_index(folder: Path) -> tuple[list[Shard], list[str]]:
    """Return the shards in order, and what is wrong with lines of the index."""
    path, problems = folder / INDEX, []
    shards: dict[int, Shard] = {}
    if not path.exists():
        return [], []
    with open_plain(path) as file:
        lines = file.read().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            shard = _read_line(line)
        except (ValueError, TypeError, RecursionError) as error:
            torn = " (cut off by a killed process)" if number == len(lines) else ""
            problems.append(f"{path}: line {number} cannot be read{torn}: {error!s:.120}")
            continue
        shards[shard.number] = shard
    return [shards[number] for number in sorted(shards)], problems


def _read_line(line: bytes) -> Shard:
    content = parse_json(line)
    if not isinstance(content, dict) or "check" not in content:
        raise ValueError("it is not a line of polymode")
    check = content.pop("check")
    if check != json_digest(content):
        raise ValueError("it was changed after it was written: its digest does not match")
    _check_fields(content, _LINE)
    for key in ("seeds", "accuracy", "nll"):
        content[key] = None if content[key] is None else tuple(content[key])
    shard = Shard(**content)
    for values in (shard.accuracy, shard.nll):
        if values is not None and len(values) != len(shard.seeds):
            raise ValueError(f"it has {len(values)} scores for {len(shard.seeds)} networks")
    return shard


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else text[:200] + "…"
