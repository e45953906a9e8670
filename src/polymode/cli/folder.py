"""The folder of a run: results and failures line by line, predictions by cell, the configuration.

`results.jsonl` has one line a cell, appended and flushed to disk; a line that was cut short by a
crash is dropped when the next one is written. Predictions are `.npz` files that are read without
pickle.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polymode.cli.arguments import UsageProblem
from polymode.core.store import replace_file
from polymode.metrics.results import Kept, Results
from polymode.prediction import Prediction


class RunFolder:
    """Files of one run below `path`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def checkpoint(self, key: str) -> Path:
        """Return where the training of a cell is kept while it runs."""
        return self.path / "checkpoints" / key

    def open(self, data: Mapping[str, Any]) -> None:
        """Make the folder, or take one that holds results on the same data."""
        try:
            (self.path / "predictions").mkdir(parents=True, exist_ok=True)
            with open(self.path / "results.jsonl", "ab"):
                pass
        except OSError as error:
            raise UsageProblem(f"cannot write to {self.path}: {error.strerror}") from error
        if not self.results():
            return
        before = self.read("config.json").get("data", data)
        if before != data:
            raise UsageProblem(
                f"{self.path} holds results on task '{before.get('task')}' with other data or"
                " options; choose another --out"
            )

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        replace_file(self.path / name, json.dumps(content, indent=1, sort_keys=True).encode())

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON file; empty where there is none."""
        try:
            content = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise UsageProblem(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise UsageProblem(f"{self.path / name} cannot be read: it holds no JSON object")
        return content

    def append(self, name: str, content: Mapping[str, Any]) -> None:
        """Add one line of JSON and wait until it is on the disk."""
        line = json.dumps(content, allow_nan=False).encode() + b"\n"
        with open(self.path / name, "a+b") as file:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file; a last one that was cut short does not count."""
        try:
            raw = (self.path / name).read_bytes()
        except FileNotFoundError:
            return []
        found = []
        for number, line in enumerate(raw.split(b"\n")[:-1], 1):
            try:
                found.append(json.loads(line))
            except ValueError as error:
                where = f"{self.path / name}, line {number}"
                raise UsageProblem(f"{where} cannot be read: {error}") from error
        return found

    def done(self) -> set[str]:
        """Return the keys of the cells that have results."""
        return {line["key"] for line in self.lines("results.jsonl")}

    def results(self, *, predictions: bool = False) -> list[Results]:
        """Return the results, the last one where a setup and seed were run again."""
        found: dict[str, Results] = {}
        for line in self.lines("results.jsonl"):
            try:
                results = Results.from_dict(line)
            except ValueError as error:
                raise UsageProblem(f"{self.path / 'results.jsonl'}: {error}") from error
            if predictions:
                results = results.replace(kept=self._load(line["key"]))
            setup = [results.method, results.net, results.config, results.seed]
            found[json.dumps(setup, sort_keys=True)] = results
        return list(found.values())

    def add(self, key: str, results: Results) -> None:
        """Keep the predictions, then the line that says the cell is done."""
        replace_file(self.path / "predictions" / f"{key}.npz", _pack(results.kept))
        self.append("results.jsonl", {"key": key, **results.to_dict()})

    def failures(self) -> int:
        """Return how many cells failed and have not been done since."""
        done = self.done()
        return len({line["key"] for line in self.lines("failures.jsonl")} - done)

    def _load(self, key: str) -> dict[str, Kept]:
        try:
            return _unpack((self.path / "predictions" / f"{key}.npz").read_bytes())
        except FileNotFoundError:
            return {}


def _pack(kept: Mapping[str, Kept]) -> bytes:
    """Return the predictions as the bytes of an `.npz` file."""
    arrays: dict[str, np.ndarray] = {}
    about = []
    for number, (name, (prediction, targets, inputs)) in enumerate(kept.items()):
        tensors, rest = prediction.to_arrays()
        for part, tensor in {**tensors, "targets": targets, "inputs": inputs}.items():
            if tensor is not None:
                arrays[f"{number}.{part}"] = tensor.detach().cpu().numpy()
        about.append({"name": name, "parts": list(tensors), "rest": rest})
    arrays["about"] = np.array(json.dumps(about))
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _unpack(content: bytes) -> dict[str, Kept]:
    """Return what `_pack` packed."""
    kept = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for number, each in enumerate(json.loads(str(arrays["about"]))):
            tensors = {part: torch.from_numpy(arrays[f"{number}.{part}"]) for part in each["parts"]}
            extra = [
                torch.from_numpy(arrays[name]) if name in arrays else None
                for name in (f"{number}.targets", f"{number}.inputs")
            ]
            kept[each["name"]] = Kept(Prediction.from_arrays(tensors, each["rest"]), *extra)
    return kept
