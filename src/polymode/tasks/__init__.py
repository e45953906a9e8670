"""What is to be learnt: data, likelihood, shifts and OOD sets, by name or from your own arrays."""

from __future__ import annotations

from polymode.tasks.checks import check_batch
from polymode.tasks.registry import TASKS, list_tasks, task
from polymode.tasks.task import Task

__all__ = ["TASKS", "Task", "check_batch", "list_tasks", "task"]
