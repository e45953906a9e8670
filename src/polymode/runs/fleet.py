"""Cells as tasks of a Ray cluster, with the same events and results as in processes.

A cell whose worker died is started again on another, from its last checkpoint where that machine
sees the folder of the run. Only the caller writes results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polymode.distributed.ray import Cluster, Done, Lost, Say, Started
from polymode.runs.cell import Failed, Finished, failure, run_cell
from polymode.runs.pool import Tell
from polymode.runs.run_plan import Cell, Recipe

_tasks: dict[str, Any] = {}  # of this worker, by what they are made of


def run_on_cluster(
    cluster: Cluster,
    recipe: Recipe,
    cells: Sequence[Cell],
    checkpoint: Callable[[str], Path],
    tell: Tell,
) -> None:
    """Run the cells on the cluster; `tell` runs here."""
    begun: set[int] = set()
    ended: set[int] = set()

    def hear(number: int, news: Any) -> None:
        cell = cells[number]
        if number in ended or (isinstance(news, Lost) and news.error == "cancelled"):
            return  # a late message; after Ctrl-C the cell is missing, not failed
        if number not in begun:  # what was said of its start may have been lost on the way
            tell(cell, None)
        begun.add(number)
        if isinstance(news, (Done, Lost)):
            ended.add(number)
        if isinstance(news, Done):
            tell(cell, news.result)
        elif isinstance(news, Lost):
            tell(cell, Failed(news.error, ""))
        elif not isinstance(news, Started):
            tell(cell, news)

    jobs = [(recipe, cell, checkpoint(cell.key).absolute()) for cell in cells]
    cluster.run(_work, [(*job, cluster.threads) for job in jobs], hear)


def _work(job: tuple[Recipe, Cell, Path, int], say: Say) -> Finished | Failed:
    """Run one cell in a worker."""
    import torch

    recipe, cell, checkpoint, threads = job
    torch.set_num_threads(threads)
    try:
        key = repr((recipe.task_name, recipe.task_options, recipe.function))
        if key not in _tasks:
            _tasks[key] = recipe.task()
        return run_cell(recipe, _tasks[key], cell, checkpoint, say)
    except Exception as error:
        return failure(error)
