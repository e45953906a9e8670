"""The report of many methods and seeds, and what its figures cost at least."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from ..cases import Case
from . import Job

MADE_UP = Path(__file__).parents[2] / "tests" / "report" / "made_up.py"
FIGURES = 26  # as many as the report has


def polymode(case: Case) -> Job:
    """The whole page of `num_modes` methods with 5 seeds; returns its size in MB."""
    from polymode.metrics import compare
    from polymode.report.page import render

    results = _made_up().results(case.num_modes, 5, examples=case.num_examples, shifts=2)

    def run() -> float:
        return len(render(compare(results)).encode()) / 1e6

    return Job(run, 1)


def empty_figures(case: Case) -> Job:
    """As many figures with axes and nothing in them, drawn by matplotlib as SVG."""
    import io

    from matplotlib.figure import Figure

    def run() -> None:
        for _ in range(FIGURES):
            figure = Figure(figsize=(4, 3))
            figure.subplots().set(xlabel="x", ylabel="y", title="empty")
            figure.savefig(io.BytesIO(), format="svg")

    return Job(run, 1)


def _made_up() -> ModuleType:
    spec = importlib.util.spec_from_file_location("made_up", MADE_UP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
