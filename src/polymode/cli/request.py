"""What is asked for: the command line over the file of `--config`.

    task = "digits"                      # or a table [task] with name = "digits" and options
    method = ["map", "deep_ensemble"]
    seeds = "0-4"                        # or a number, or a list of numbers
    net = "lenet"                        # or a table [net] with name = "lenet" and options
    preset = "cpu"
    out = "runs/digits"
    examine = ["convergence"]            # or one of them as text

    [all]                                # options of every method, as --set key=value
    epochs = 20

    [deep_ensemble]                      # options of one method
    num_modes = 10

The preset gives way to the file, the file to `--set` and the other options of the command line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polymode.cli.arguments import parse_seeds, parse_settings
from polymode.core.registry import suggest
from polymode.core.safe_files import FileProblem, open_plain
from polymode.methods import METHODS
from polymode.runs.part import Request
from polymode.runs.settings import Setting, UsageProblem

KEYS = ("task", "method", "seeds", "net", "preset", "out", "examine")
TABLES = ("task", "net")  # keys that may have options
EVERY = "all"
_LARGEST = 10_000_000  # bytes of a file of options


def request(
    *,
    task: str | None,
    methods: Sequence[str],
    seeds: str | None,
    settings: Sequence[str],
    net: str | None,
    preset: str | None,
    out: str | None,
    config: Path | None,
    examine: Sequence[str] = (),
) -> Request:
    """Return what the file and the command line ask for together."""
    file = {} if config is None else read_config(config)
    task = task or file.get("task")
    methods = tuple(dict.fromkeys(methods or file.get("method", ())))
    if not task:
        raise UsageProblem("Missing option '--task'; see `polymode list tasks`")
    if not methods:
        raise UsageProblem("Missing option '--method'; see `polymode list methods`")
    wanted = Request(task, methods)
    if seeds is not None or "seeds" in file:
        wanted = replace(
            wanted, seeds=tuple(file["seeds"] if seeds is None else parse_seeds(seeds))
        )
    file_settings, left_out = [], []
    for setting in file.get("settings", ()):
        if setting.owner in ("", "task", "net", *methods):
            file_settings.append(setting)
        else:
            left_out.append(f"{config}: [{setting.owner}] is left out: not a method of this run")
    return replace(
        wanted,
        settings=(*file_settings, *parse_settings(settings)),
        net=net or file.get("net"),
        preset=preset or file.get("preset", "cpu"),
        out=out or file.get("out"),
        left_out=tuple(dict.fromkeys(left_out)),
        examine=tuple(dict.fromkeys(examine or file.get("examine", ()))),
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return what the file has of `KEYS`, and its settings."""
    try:
        with open_plain(path) as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise UsageProblem(f"--config {path} is larger than {_LARGEST:,} bytes")
        content = _toml(text.decode())
    except FileProblem as problem:
        raise UsageProblem(f"--config {problem}") from None
    except OSError as error:
        raise UsageProblem(f"--config {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageProblem(f"{path}: {error}") from error
    request: dict[str, Any] = {"settings": []}
    for key, value in content.items():
        try:
            if isinstance(value, dict) and (key in TABLES or key not in KEYS):
                _table(request, key, value)
            elif key in KEYS:
                request[key] = _checked(key, value)
            else:
                names = (*KEYS, EVERY, *METHODS.names())
                raise UsageProblem(
                    f"unknown key '{key}'.{suggest(key, names)} Keys: {', '.join(KEYS)}; tables:"
                    f" task, net, {EVERY}, and the methods"
                )
        except UsageProblem as problem:
            raise UsageProblem(f"{path}: {problem}") from None
    request["settings"].sort(key=lambda setting: setting.owner != "")  # [all] gives way
    return request


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            raise UsageProblem(
                "--config needs Python 3.11 or newer, or `pip install tomli`"
            ) from None
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _table(request: dict[str, Any], owner: str, table: dict[str, Any]) -> None:
    """Enter the options of a task, a network, one method or all of them."""
    owners = ("task", "net", EVERY, *METHODS.names())
    if owner not in owners:
        raise UsageProblem(
            f"unknown table [{owner}].{suggest(owner, owners)} Tables: {', '.join(owners)}"
        )
    for key, value in table.items():
        if owner in ("task", "net") and key == "name":
            request[owner] = _checked(owner, value)
            continue
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            kind = type(value).__name__
            raise UsageProblem(f"[{owner}] {key} cannot be a {kind}, got {value}") from None
        request["settings"].append(Setting("" if owner == EVERY else owner, key, value))


def _checked(key: str, value: Any) -> Any:
    """Return the value of a key as it is used, or say of what type it must be."""
    if key in ("method", "examine"):
        names = [value] if isinstance(value, str) else value
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return names
        raise UsageProblem(f"`{key}` must be a name or a list of names, got {value!r}")
    if key == "seeds":
        numbers = value if isinstance(value, list) else [value]
        if numbers and all(type(number) is int and number >= 0 for number in numbers):
            return list(dict.fromkeys(numbers))
        if isinstance(value, str):
            return parse_seeds(value)
        raise UsageProblem(
            f'`seeds` must be a number of at least 0, a list of such or text like "0-2",'
            f" got {value!r}"
        )
    if isinstance(value, str) and value:
        return value
    raise UsageProblem(f"`{key}` must be text, got {value!r}")
