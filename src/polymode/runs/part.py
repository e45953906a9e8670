"""What a run consists of: a task and network with methods, or an experiment, with options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from polymode.examinations import Findings
from polymode.runs.settings import Setting


class Arm(NamedTuple):
    """A method with its options, and options of the network for this arm only."""

    method: str
    options: dict[str, Any]
    net_options: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Part:
    """One task and network, with several arms and seeds.

    Attributes:
        task, task_options: see `pm.task`. net, net_options: of `pm.nets`.
        arms: by the name under which tables and figures show them.
        seeds: of the fits.
        validation: whether the validation set is scored under shifts too, see `pm.evaluate`.
        examine: examinations of each posterior, such as "equivariance:group=C4".
    """

    task: str
    net: str
    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    task_options: dict[str, Any] = field(default_factory=dict)
    net_options: dict[str, Any] = field(default_factory=dict)
    validation: bool = False
    examine: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A function that is no single fit, called with several sets of options and seeds.

    Attributes:
        function: (seed, *, options) -> Findings; of a module, so that another process can import
            it.
        arms: options by the name under which tables and figures show them.
        seeds: that it is called with.
        data: data sets that it reads, so that missing ones are named before anything runs.
    """

    function: Callable[..., Findings]
    arms: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """A run, before any of its names is looked up.

    Attributes:
        task, methods, seeds, net, preset: by name.
        settings: in rising precedence.
        out: folder; None for the default.
        left_out: lines for the user about settings of methods that do not take part.
        examine: examinations of each posterior.
    """

    task: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    settings: tuple[Setting, ...] = ()
    net: str | None = None
    preset: str = "cpu"
    out: str | None = None
    left_out: tuple[str, ...] = ()
    examine: tuple[str, ...] = ()
