"""What `polymode audit` reads: arrays, tables and folders of images; weights and posteriors."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polymode.runs.settings import UsageProblem

if TYPE_CHECKING:
    from torch import nn

    from polymode.posterior import Posterior

TABLES = (".csv", ".tsv", ".txt", ".gz", ".parquet", ".pq")
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
POSTERIOR = "posterior.json"


@dataclass
class Sets:
    """Sets as `pm.audit` takes them.

    Attributes:
        test: (x, y), or x alone where there are no labels. val, train: (x, y) or None.
        groups, ood: by name. likelihood: what the targets look like. class_names: of a table's
            names of classes, or of folders.
    """

    test: Any
    val: Any = None
    train: Any = None
    groups: dict[str, Any] = field(default_factory=dict)
    ood: dict[str, Any] = field(default_factory=dict)
    likelihood: str = "categorical"
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Names:
    """What of the data is meant.

    Attributes:
        target: the column of a table. groups: columns or arrays. ood: arrays or files.
        val, train: further files. size: of images.
    """

    target: str | None = None
    groups: Sequence[str] = ()
    ood: Sequence[str] = ()
    val: Path | None = None
    train: Path | None = None
    size: int | None = None


def read_sets(path: Path, names: Names, encoder: Any = None) -> Sets:
    """Return the sets of a file or folder; an `encoder` makes inputs of a table's columns."""
    if path.is_dir():
        return _folders(path, names)
    if not path.is_file():
        raise UsageProblem(f"--data: no file {path}")
    if path.suffix.lower() in TABLES:
        return _tables(path, names, encoder)
    if names.target is not None:
        raise UsageProblem(f"--target is a column of a table; {path} is none")
    return _archive(path, names)


def _archive(path: Path, names: Names) -> Sets:
    arrays = _arrays(path)
    for name in [*names.groups, *names.ood]:
        if name not in arrays:
            raise UsageProblem(f"{path} has no array '{name}'; it has {', '.join(sorted(arrays))}")
    if "x_test" not in arrays:
        raise UsageProblem(
            f"{path} needs the arrays x_test and y_test; it has"
            f" {', '.join(sorted(arrays)) or 'none'}"
        )
    test = _pair(arrays, "test")
    return Sets(
        _inputs(arrays["x_test"]) if test is None else test,
        _pair(arrays, "val"),
        _pair(arrays, "train"),
        {name: arrays[name] for name in names.groups},
        {name: _inputs(arrays[name]) for name in names.ood},
    )


def _arrays(path: Path) -> dict[str, Any]:
    import zipfile

    import numpy as np

    try:
        held = np.load(path, allow_pickle=False)
    except (ValueError, zipfile.BadZipFile, EOFError) as problem:
        raise UsageProblem(f"--data: {path} is no .npz of plain arrays: {problem}") from problem
    if not isinstance(held, np.lib.npyio.NpzFile):
        raise UsageProblem(f"--data: {path} is one array; an .npz has names: x_test, y_test")
    with held:
        try:
            return dict(held)
        except ValueError as problem:
            raise UsageProblem(f"--data: {path} is no .npz of plain arrays: {problem}") from problem


def _pair(arrays: dict[str, Any], part: str) -> Any:
    """Return (x, y) of a part, or None where it is not there."""
    x, y = arrays.get(f"x_{part}"), arrays.get(f"y_{part}")
    return None if x is None or y is None else (_inputs(x), y)


def _inputs(x: Any) -> Any:
    """Return inputs as float32 where they are numbers of another float type."""
    import numpy as np

    if x.dtype == np.uint8 and x.ndim == 4:
        return (x / 255).astype(np.float32)
    return x.astype(np.float32) if np.issubdtype(x.dtype, np.floating) else x


def _folders(path: Path, names: Names) -> Sets:
    """Return images of a folder with a subfolder for each class, in [0, 1]."""
    import numpy as np

    from polymode.tasks.readers import read_image_folder

    if names.groups:
        raise UsageProblem("--groups names columns of a table or arrays of an .npz, not of images")
    size = None if names.size is None else (names.size, names.size)

    def images(folder: Path) -> Any:
        held = read_image_folder(folder, size=size)
        x = (held.x / 255).astype(np.float32)
        x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(x), held.y, tuple(held.class_names)

    x, y, classes = images(path)
    further: dict[str, Any] = {}
    for part, folder in (("val", names.val), ("train", names.train)):
        if folder is not None:
            other_x, other_y, other_classes = images(folder)
            if other_classes != classes:
                raise UsageProblem(f"{folder} has other classes than {path}")
            further[part] = (other_x, other_y)
    ood = {Path(name).name: images(Path(name))[0] for name in names.ood}
    return Sets((x, y), **further, ood=ood, class_names=classes)


def _tables(path: Path, names: Names, encoder: Any) -> Sets:
    """Return a table's columns of numbers as inputs, or what the encoder makes of its columns."""
    from polymode.tasks.frames.columns import read_columns
    from polymode.tasks.readers.mixed_tables import read_mixed_table

    def columns_of(file: Path) -> dict[str, Any]:
        if not file.is_file():
            raise UsageProblem(f"no file {file}")
        return read_columns(read_mixed_table(file), f"{file}")

    test = columns_of(path)
    for name in [*names.groups, *([names.target] if names.target else [])]:
        if name not in test:
            raise UsageProblem(f"{path} has no column '{name}'; it has {', '.join(test)}")
    reader = _Reader(names, encoder, test, path)
    further = {
        part: reader.pair(columns_of(file))
        for part, file in (("val", names.val), ("train", names.train))
        if file is not None
    }
    return Sets(
        reader.inputs(test) if names.target is None else reader.pair(test),
        **further,
        groups={name: test[name].values.astype(str) for name in names.groups},
        ood={Path(name).stem: reader.inputs(columns_of(Path(name))) for name in names.ood},
        likelihood="categorical" if reader.classes else "gaussian",
        class_names=reader.classes,
    )


class _Reader:
    """From columns to arrays: which columns are inputs, and which names the classes have."""

    def __init__(self, names: Names, encoder: Any, test: dict[str, Any], path: Path) -> None:
        import numpy as np

        self.names, self.encoder, self.path = names, encoder, path
        self.columns = [name for name in test if name != names.target]
        self.classes: tuple[str, ...] | None = None
        if encoder is None:
            text = [n for n in self.columns if test[n].kind not in ("number", "boolean")]
            wrong = [n for n in text if n not in names.groups]
            if wrong:
                raise UsageProblem(
                    f"column '{wrong[0]}' of {path} holds {test[wrong[0]].kind} values and a"
                    " network takes numbers: name it in --groups, leave it out, or give a posterior"
                    " that was fitted on such a table (--weights FOLDER)"
                )
            self.columns = [n for n in self.columns if n not in text]
        if names.target is None:
            return
        column = test[names.target]
        if encoder is not None and encoder.classes:
            self.classes = tuple(encoder.classes)
        elif column.kind in ("category", "boolean"):
            self.classes = tuple(sorted({str(v) for v in column.values if v is not None}))
        elif np.array_equal(column.values, np.round(column.values)) and column.values.min() >= 0:
            if column.values.max() < 100:
                self.classes = tuple(str(k) for k in range(int(column.values.max()) + 1))

    def inputs(self, columns: dict[str, Any]) -> Any:
        import numpy as np

        missing = [name for name in self.columns if name not in columns]
        if missing and self.encoder is None:
            raise UsageProblem(f"a table has no column '{missing[0]}', which {self.path} has")
        if self.encoder is not None:
            return self.encoder.encode(columns, str(self.path))
        table = np.stack([columns[n].values.astype(np.float32) for n in self.columns], 1)
        if not np.isfinite(table).all():
            name = self.columns[int((~np.isfinite(table)).any(0).argmax())]
            raise UsageProblem(f"column '{name}' has missing or infinite values; fill or drop them")
        return table

    def pair(self, columns: dict[str, Any]) -> Any:
        import numpy as np

        assert self.names.target is not None
        if self.names.target not in columns:
            raise UsageProblem(f"a table has no column '{self.names.target}'")
        column = columns[self.names.target]
        if column.missing.any():
            raise UsageProblem(
                f"target '{column.name}' is missing in {int(column.missing.sum())} rows; drop them,"
                " or leave --target out"
            )
        if self.classes is None:
            return self.inputs(columns), column.values.astype(np.float32)[:, None]
        places = {name: label for label, name in enumerate(self.classes)}
        texts = [str(int(v)) if column.kind == "number" else str(v) for v in column.values]
        unseen = [text for text in texts if text not in places]
        if unseen:
            raise UsageProblem(f"class '{unseen[0]}' is not among {', '.join(self.classes)}")
        return self.inputs(columns), np.array([places[text] for text in texts])


def factory(name: str) -> Any:
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


def networks(make: Any, weights: Sequence[Path]) -> list[nn.Module] | Posterior:
    """Return networks with the weights of files, of the files of a folder, or a posterior's."""
    if not weights:
        return [make()]
    if len(weights) == 1 and (weights[0] / POSTERIOR).is_file():
        from polymode.posterior.files import load

        return load(weights[0], net=make)
    files: list[Path] = []
    for path in weights:
        inside = sorted(f for f in path.iterdir() if f.suffix in WEIGHTS) if path.is_dir() else []
        if path.is_dir() and not inside:
            raise UsageProblem(f"--weights: {path} has no posterior and no {', '.join(WEIGHTS)}")
        files += inside or [path]
    return [loaded(make(), file) for file in files]


def loaded(net: nn.Module, path: Path) -> nn.Module:
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
