"""What is to be learnt: data, likelihood, shifts and OOD sets, by name or from your own arrays."""

from __future__ import annotations

from polymode.tasks import images, tables, toy  # noqa: F401  (enter their tasks in TASKS)
from polymode.tasks.checks import check_batch
from polymode.tasks.registry import TASKS, task
from polymode.tasks.task import Task
from polymode.tasks.toy.linear import ExactPosterior

__all__ = ["TASKS", "ExactPosterior", "Task", "check_batch", "task"]
