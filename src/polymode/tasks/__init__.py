"""Tasks: data, likelihood, shifts and OOD sets, by name or from your own arrays.

Read `task` first (the class `Task` and its checks), then `named` (tasks by name). `toy`, `images`
and `tables` build the named tasks from `splits`, `augment` and `shifts`; `validation` shifts the
validation set.
`files` brings data sets to this machine, with the formats of `readers`.
"""

from __future__ import annotations

from polymode.tasks.named import TASKS, list_tasks, task
from polymode.tasks.task import Task, check_batch

__all__ = ["TASKS", "Task", "check_batch", "list_tasks", "task"]
