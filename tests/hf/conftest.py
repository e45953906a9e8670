"""timm without torchvision, whose only build at hand may need another torch.

timm takes transforms and datasets from it, and its models none of it. So names of torchvision are
placeholders here where it is not installed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any


class Names(type):
    """Of a class every name of which is a text."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Placeholder(ModuleType):
    """A module every name of which is an empty class."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Names(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = "0.0.0"


if importlib.util.find_spec("torchvision") is None:
    import transformers

    transformers.utils.is_torchvision_available()  # remembered: it is not there
    sys.meta_path.append(Finder())
