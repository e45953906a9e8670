"""The one tracer: a network's graph, made without a change that another thread could see.

`torch.fx.Tracer` replaces `nn.Module.__call__` and `__getattr__`, the functions of `math` and those
given to `fx.wrap` for the whole process while it traces. Modules that other threads call meanwhile
fail, and two tracers at once may leave torch broken for good. This tracer takes the nodes, proxies
and rules of `torch.fx`, but works on a private copy of the network:

- each module of the copy carries its own `_call_impl`, which `nn.Module.__call__` looks up, and its
  own `_parameters`, in which parameters are proxies;
- methods that take the root of a symbolic size, or otherwise call a function that does not know
  proxies, run as private versions with other globals, on private subclasses of their classes.

All of it is taken from the copy again when the trace ends.
"""

from __future__ import annotations

import builtins
import copy
import inspect
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx import _symbolic_trace

from polymode.tracing.noise import NoDraws
from polymode.tracing.operations import PLAIN

IsLeaf = Callable[[nn.Module], bool]


def traced(template: nn.Module, is_leaf: IsLeaf | None = None) -> tuple[nn.Module, fx.Graph]:
    """Return a copy of the network with its graph; raise what `torch.fx` does without one.

    Tensors that the forward method makes are attributes of the copy. Hooks are not looked at.

    Args:
        is_leaf: modules that are one step of the graph, besides those of `torch.nn`.
    """
    copies: dict[int, Any] = {}
    module = copy.deepcopy(template, copies)  # tracing runs the forward method: it may leave traces
    hidden = [part for part in copies.values() if isinstance(part, nn.Module)]
    return module, _Tracer(is_leaf or _no_leaf, hidden).trace(module)


def silent(module: nn.Module) -> nn.Module:
    """Return a module whose graphs raise their errors without printing them first.

    Each `fx.GraphModule` has its own class, and so has each deep copy of it.
    """
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            type(part).__call__ = nn.Module.__call__  # type: ignore[method-assign]
    return module


def _no_leaf(module: nn.Module) -> bool:
    return False


class _Tracer(fx.Tracer):
    """Rules and nodes of `torch.fx`.

    Args:
        is_leaf: further modules that are one step.
        hidden: modules that the network can reach, also those that it has not registered.
    """

    def __init__(self, is_leaf: IsLeaf, hidden: list[nn.Module]) -> None:
        super().__init__()
        self._is_leaf, self._hidden = is_leaf, hidden
        self._proxies: dict[str, fx.Proxy] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_leaf(m) or super().is_leaf_module(m, module_qualified_name)

    def trace(self, root: Any, concrete_args: Any = None) -> fx.Graph:
        """Return the graph of a module that nobody else holds."""
        self.root, self.graph = root, fx.Graph()
        self.submodule_paths = {module: path for path, module in root.named_modules()}
        self.tensor_attrs = dict(_tensors_held(root, ""))
        with self._private():
            forward = type(root).forward
            if not isinstance(forward, FunctionType):
                raise TypeError(f"forward of {type(root).__name__} is no Python function")
            function, args = self.create_args_for_root(forward, True)
            returns = inspect.get_annotations(inspect.unwrap(function)).get("return")
            result = self.create_arg(function(*args))
            self.create_node("output", "output", (result,), {}, type_expr=returns)
        self.submodule_paths = None
        return self.graph

    @contextmanager
    def _private(self) -> Iterator[None]:
        """Let the modules of the copy go through the tracer meanwhile."""
        assert self.submodule_paths is not None
        modules = list(self.submodule_paths)
        for module in modules:
            if isinstance(module, torch.jit.ScriptModule) or _is_compiled(module):
                raise TypeError(f"{type(module).__name__} is compiled: it has no Python to trace")
        classes = [type(module) for module in modules]
        versions = _Versions()
        try:
            for module, path in self.submodule_paths.items():
                vars(module)["_call_impl"] = partial(self._call, module)
                vars(module)["_parameters"] = _Proxied(module._parameters, self.proxied)
                if module is self.root or not self.is_leaf_module(module, path):
                    object.__setattr__(module, "__class__", versions.of_class(type(module)))
            for module in self._hidden:
                if module not in self.submodule_paths:
                    vars(module)["_call_impl"] = _refuse
            yield
        finally:
            for module, kind in zip(modules, classes, strict=True):
                object.__setattr__(module, "__class__", kind)
                vars(module)["_parameters"] = dict(module._parameters.items())
            for module in [*modules, *self._hidden]:
                vars(module).pop("_call_impl", None)

    def _call(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Note the call of a leaf; go through other modules."""
        path = self.path_of_module(module)
        if self.is_leaf_module(module, path):
            return self.create_proxy("call_module", path, args, kwargs)
        return nn.Module._call_impl(module, *args, **kwargs)

    def proxied(self, name: str, value: Any) -> Any:
        """Return the proxy of a parameter, made once."""
        return self.getattr(name, value, self._proxies)


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise NameError("module is not installed as a submodule")


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch._dynamo")


def _tensors_held(module: nn.Module, start: str) -> Iterator[tuple[Any, str]]:
    """Yield the tensors that modules hold as plain attributes, and where."""
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield value, start + name
    for name, child in module.named_children():
        yield from _tensors_held(child, f"{start}{name}.")


class _Proxied(dict[str, Any]):
    """Parameters of a module; attribute access returns their proxies."""

    def __init__(self, parameters: dict[str, Any], proxied: Callable[[str, Any], Any]) -> None:
        super().__init__(parameters.items())
        self._proxied = proxied

    def __getitem__(self, name: str) -> Any:
        return self._proxied(name, super().__getitem__(name))


class _Quiet(nn.Module):
    """First base of private classes, so that a class does not hear of its subclass."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass


class _Versions:
    """Private versions of functions and classes, in which a call with a proxy becomes a node.

    Only what needs it has one: code by whose names a function of `math`, or one that was given to
    `fx.wrap`, can be reached.
    """

    def __init__(self) -> None:
        self._functions: dict[int, FunctionType] = {}
        self._globals: dict[int, dict[str, Any]] = {}
        self._classes: dict[type, type] = {}

    def of_class(self, kind: type) -> type:
        """Return a subclass with private methods, or the class itself where none is needed.

        Each base comes right after a class with its private methods, so that `super()` finds them.
        """
        if kind not in self._classes:
            bases: list[type] = []
            for base in kind.__mro__:
                methods = {} if _is_torch(base.__module__) else dict(self._methods(base))
                if methods:
                    above = (nn.Module,) if issubclass(base, nn.Module) else ()
                    private = type(base.__name__, above, {"__slots__": (), **methods})
                    bases += [private, base]
            if bases:
                first = [] if kind in bases else [kind]
                facts = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
                version = type.__new__(type(kind), kind.__name__, (_Quiet, *first, *bases), facts)
            self._classes[kind] = version if bases else kind
        return self._classes[kind]

    def _methods(self, kind: type) -> Iterator[tuple[str, Any]]:
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType) and self.needed(value):
                yield name, self.of_function(value)
            elif isinstance(value, (staticmethod, classmethod)):
                if isinstance(value.__func__, FunctionType) and self.needed(value.__func__):
                    yield name, type(value)(self.of_function(value.__func__))
            elif isinstance(value, property) and isinstance(value.fget, FunctionType):
                if self.needed(value.fget):
                    yield name, property(self.of_function(value.fget))

    def needed(self, function: FunctionType) -> bool:
        """Whether a function reaches one that does not know proxies."""
        visited: set[int] = set()
        ahead = [function]
        while ahead:
            current = ahead.pop()
            if id(current) in visited:
                continue
            visited.add(id(current))
            for name, value in _reached(current):
                if value is math or _is_opaque(current, name, value):
                    return True
                if _is_plain(value):
                    ahead.append(value)
        return False

    def of_function(self, function: FunctionType) -> FunctionType:
        """Return the same code in other globals."""
        if id(function) in self._functions:
            return self._functions[id(function)]
        names = function.__globals__
        private = self._globals.setdefault(id(names), {**names, "__builtins__": _BUILTINS})
        cells = tuple(CellType() for _ in function.__closure__ or ())
        version = FunctionType(
            function.__code__, private, function.__name__, function.__defaults__, cells or None
        )
        version.__kwdefaults__ = function.__kwdefaults__
        version.__annotations__ = function.__annotations__
        version.__dict__.update(function.__dict__)
        self._functions[id(function)] = version
        for private_cell, cell in zip(cells, function.__closure__ or (), strict=True):
            content = _content(cell)
            if content is not _EMPTY:
                private_cell.cell_contents = self._version(function, "", content)
        for name, value in _reached(function):
            if name not in ("", _IMPORTED):
                private[name] = self._version(function, name, value)
        return version

    def _version(self, function: FunctionType, name: str, value: Any) -> Any:
        if value is math:
            return _MATH
        if _is_opaque(function, name, value):
            return _noted(value)
        if _is_plain(value) and self.needed(value):
            return self.of_function(value)
        return value


_EMPTY = object()
_IMPORTED = "import math"  # within a function


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return _EMPTY


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _reached(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function may use: globals and builtins by name, what it encloses as ""."""
    names = function.__globals__
    for name in dict.fromkeys(_names_in(function.__code__)):
        if name == "math":  # also where it is imported within
            yield _IMPORTED, math
        if name in names:
            yield name, names[name]
        elif hasattr(builtins, name):
            yield name, getattr(builtins, name)
    for cell in function.__closure__ or ():
        yield "", _content(cell)


def reached_by(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names, with their values, by which the code of a network's classes goes on."""
    visited: set[int] = set()
    ahead = [
        method
        for kind in {base for part in module.modules() for base in type(part).__mro__}
        if not _is_torch(kind.__module__)
        for method in vars(kind).values()
        if isinstance(method, FunctionType)
    ]
    while ahead:
        function = ahead.pop()
        if id(function) not in visited:
            visited.add(id(function))
            names = dict.fromkeys(_names_in(function.__code__))
            reached = [*_reached(function), *((name, None) for name in names)]
            yield from reached
            ahead += [value for _, value in reached if _is_plain(value)]


def _is_torch(module: str | None) -> bool:
    return (module or "").partition(".")[0] in ("torch", "builtins")


def _is_plain(value: Any) -> bool:
    """Whether it is a function of Python code other than torch's, which knows proxies."""
    return isinstance(value, FunctionType) and not _is_torch(value.__module__)


def _is_opaque(function: FunctionType, name: str, value: Any) -> bool:
    """Whether a call with a proxy becomes a node: functions of `math` and of `fx.wrap`."""
    wrapped = (id(function.__globals__), name) in _symbolic_trace._wrapped_fns_to_patch
    return wrapped or any(value is known_function for known_function in _OF_MATH)


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which becomes a node if it is given a proxy."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        proxies: list[fx.Proxy] = []
        fx.node.map_aggregate(
            (args, kwargs), lambda a: proxies.append(a) if isinstance(a, fx.Proxy) else a
        )
        if not proxies:
            return function(*args, **kwargs)
        proxy = proxies[-1].tracer.create_proxy("call_function", function, args, kwargs)
        if not any(function is known_function for known_function in _OF_MATH):
            proxy.node.meta["is_wrapped"] = True  # so that it stays one step if traced again
        return proxy

    return call


_OF_MATH = [
    value for name, value in vars(math).items() if callable(value) and not name.startswith("_")
]
_MATH = ModuleType("math")
vars(_MATH).update(
    {name: _noted(v) if any(v is f for f in _OF_MATH) else v for name, v in vars(math).items()}
)


def _import(name: str, *args: Any, **kwargs: Any) -> Any:
    return _MATH if name == "math" else builtins.__import__(name, *args, **kwargs)


_BUILTINS = {**vars(builtins), "__import__": _import}


# ---------------------------------------------------------------- graphs that a stack can rely on


def trace(template: nn.Module) -> tuple[nn.Module, fx.Graph] | None:
    """Return a copy of the network with its graph for its present mode, or None if it has none.

    Networks with hooks, with Python code that depends on values, or whose forward pass changes
    plain attributes or draws from Python's or NumPy's global streams have no graph; neither have
    those that draw noise whatever the inputs: in a graph it would be drawn once and for all.
    """
    if any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in template.modules()
    ):
        return None
    before, streams = _state(template), _global_streams()
    try:
        with NoDraws():
            module, graph = traced(template, _runs_for_all)
            if _global_streams() != streams and _draws_globally(template):
                return None
    except Exception:  # fx has no one kind of error for what it cannot do
        return None
    return (module, graph) if _state(module) == before else None


def _runs_for_all(module: nn.Module) -> bool:
    """Layers that know how to run for all members are one step, see `stack/fast/dense.py`."""
    return hasattr(module, "for_all_members")


def _state(module: nn.Module) -> dict[str, Any]:
    """What a forward pass might change without torch knowing."""
    return {
        f"{path}.{key}": value
        for path, sub in module.named_modules()
        for key, value in vars(sub).items()
        if isinstance(value, PLAIN)
    }


def _global_streams() -> tuple[Any, ...]:
    """Where Python's and NumPy's global streams are."""
    numpy: Any = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return random.getstate(), numpy["pos"], numpy["key"].tobytes()


def _draws_globally(template: nn.Module) -> bool:
    """Whether a forward pass draws from those streams itself: another thread may have done so.

    It does if its code names them. Otherwise it is traced again: a stream that stays where it is
    once tells that it does not, and streams that move only while it is traced that it does.
    """
    if any(
        name == "random" or isinstance(getattr(value, "__self__", None), _GLOBAL)
        for name, value in reached_by(template)
    ):
        return True
    still = 0
    for _ in range(_ATTEMPTS):
        before, start = _global_streams(), time.perf_counter()
        traced(template, _runs_for_all)
        if _global_streams() == before:
            return False
        before, duration = _global_streams(), time.perf_counter() - start
        time.sleep(duration)
        still += _global_streams() == before
    return still > _ATTEMPTS / 2


_GLOBAL = (random.Random, np.random.RandomState)
_ATTEMPTS = 16  # traces: a thread that draws now and then moves all of them, but no pause, once in
# 10^4 at most
