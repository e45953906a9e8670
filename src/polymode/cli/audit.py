"""`polymode audit`: a verdict on a trained network, for people and for pipelines."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polymode.cli.talk import Json, put, say, write
from polymode.runs.settings import UsageProblem

if TYPE_CHECKING:
    from torch import nn

Files = Annotated[
    list[Path] | None,
    typer.Option("--weights", help="a safetensors or torch file of tensors; repeat it for members"),
]


def audit(
    *,
    net: Annotated[
        str, typer.Option("--net", help="package.module:function that returns the network")
    ],
    data: Annotated[
        Path,
        typer.Option("--data", help="an .npz with x_test, y_test; x_val, y_val, x_train, y_train"),
    ],
    weights: Files = None,
    groups: Annotated[
        list[str] | None, typer.Option("--groups", help="an array of the .npz; may be repeated")
    ] = None,
    ood: Annotated[
        list[str] | None, typer.Option("--ood", help="an array of the .npz; may be repeated")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="weights of an older version of the network")
    ] = None,
    budget: Annotated[str, typer.Option("--budget", help="time for trials, as 90s or 10m")] = "10m",
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="exit with 1 from this severity on: low, medium, high")
    ] = "medium",
    out: Annotated[Path, typer.Option("--out", help="folder of the page")] = Path("audit"),
    json_: Json = False,
) -> int:
    """Say whether a trained network can be trusted, on one page and by the exit code.

    Nothing is trained again. The function of --net is your own code and is run.

    \\b
    Examples:
      polymode audit --net mypkg.model:build --weights model.safetensors --data data.npz
      polymode audit --net mypkg.model:build --weights new.pt --baseline old.pt --data data.npz

    Exit codes: 0 sound, 1 findings of that severity, 2 usage.
    """
    from polymode.audits import SEVERITIES
    from polymode.audits import audit as look_at

    if fail_on not in SEVERITIES[1:]:
        raise UsageProblem(f"--fail-on takes {', '.join(SEVERITIES[1:])}, not '{fail_on}'")
    seconds = _seconds(budget)
    arrays = _arrays(data)
    make = _factory(net)
    networks = [_loaded(make(), path) for path in weights] if weights else [make()]
    older = None if baseline is None else _loaded(make(), baseline)
    for name in [*(groups or []), *(ood or [])]:
        if name not in arrays:
            raise UsageProblem(f"{data} has no array '{name}'; it has {', '.join(sorted(arrays))}")
    try:
        result = look_at(
            networks if len(networks) > 1 else networks[0],
            _pair(arrays, "test", data),
            val=_pair(arrays, "val", None),
            train=_pair(arrays, "train", None),
            groups={name: arrays[name] for name in groups or []},
            ood={name: _inputs(arrays[name]) for name in ood or []},
            baseline=older,
            budget=seconds,
        )
    except ValueError as problem:
        raise UsageProblem(str(problem)) from problem
    page = result.save(out)
    if json_:
        put(result.to_dict())
    else:
        write(repr(result))
        say(f"Page: {page}")
    return int(result.fails(fail_on))


def _seconds(text: str) -> float:
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        value = -1.0
    if value <= 0:
        raise UsageProblem(f"--budget takes a time such as 90s or 10m, not '{text}'")
    return value


def _factory(name: str) -> Any:
    """Return the function that makes the network, from the user's own code."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise UsageProblem(f"--net takes package.module:function, not '{name}'")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)
    except ImportError as problem:
        raise UsageProblem(f"--net {name}: cannot import {module}: {problem}") from problem
    except AttributeError as problem:
        raise UsageProblem(f"--net {name}: {module} has no '{function}'") from problem
    if not callable(made):
        raise UsageProblem(f"--net {name}: '{function}' is no function")
    return made


def _loaded(net: nn.Module, path: Path) -> nn.Module:
    """Return the network with weights of a file that holds only tensors."""
    if not path.is_file():
        raise UsageProblem(f"--weights: no file {path}")
    try:
        tensors = _tensors(path)
        net.load_state_dict(tensors)
    except UsageProblem:
        raise
    except Exception as problem:
        first = " ".join(str(problem).split())[:300]
        raise UsageProblem(f"{path} does not fit the network: {first}") from problem
    return net


def _tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a file; anything that a pickle could run is refused, not run."""
    import pickle

    import torch

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as problem:
        raise UsageProblem(
            f"{path} holds more than tensors and was not opened; save net.state_dict() instead"
        ) from problem
    if isinstance(held, dict) and isinstance(held.get("state_dict"), dict):
        held = held["state_dict"]
    return held


def _arrays(path: Path) -> dict[str, Any]:
    import zipfile

    import numpy as np

    if not path.is_file():
        raise UsageProblem(f"--data: no file {path}")
    try:
        with np.load(path, allow_pickle=False) as held:
            return dict(held)
    except (ValueError, zipfile.BadZipFile, EOFError) as problem:
        raise UsageProblem(f"--data: {path} is no .npz of plain arrays: {problem}") from problem


def _pair(arrays: dict[str, Any], part: str, needed_of: Path | None) -> Any:
    """Return (x, y) of a part, or None where it is not there."""
    x, y = arrays.get(f"x_{part}"), arrays.get(f"y_{part}")
    if needed_of is not None and (x is None or y is None):
        raise UsageProblem(
            f"{needed_of} needs the arrays x_{part} and y_{part}; it has"
            f" {', '.join(sorted(arrays)) or 'none'}"
        )
    return None if x is None or y is None else (_inputs(x), y)


def _inputs(x: Any) -> Any:
    """Return inputs as float32 where they are numbers of another float type."""
    import numpy as np

    return x.astype(np.float32) if np.issubdtype(x.dtype, np.floating) else x
