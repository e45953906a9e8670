"""`polymode run`: the missing cells, one after the other; a failing one does not stop the rest."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
import traceback
from collections.abc import Callable

from polymode.cli.folder import RunFolder
from polymode.cli.plan import Cell, Plan
from polymode.methods import fit
from polymode.metrics import Leaderboard, compare, evaluate
from polymode.metrics.results import Results
from polymode.report import report
from polymode.report.environment import environment

Say = Callable[[str], None]


def run_plan(plan: Plan, folder: RunFolder, say: Say) -> int:
    """Run what is missing and write the folder; return how many cells failed now.

    Raises `KeyboardInterrupt` with the number of finished cells in its message.
    """
    folder.open(plan.data())
    folder.write("config.json", plan.to_dict(str(folder.path)))
    folder.write("environment.json", environment())
    cells, done = plan.cells(), folder.done()
    todo = [cell for cell in cells if cell.key not in done]
    say(
        f"{plan.task_name} with {plan.net_label}: {len(plan.methods)} method(s) × {len(plan.seeds)}"
        f" seed(s), {len(cells) - len(todo)} of {len(cells)} cells done already"
    )
    failed = 0
    for number, cell in enumerate(todo, len(cells) - len(todo) + 1):
        name = f"[{number}/{len(cells)}] {cell.method}, seed {cell.seed}"
        try:
            results = _run_cell(plan, cell, folder)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{number - 1 - failed} of {len(cells)} cells") from None
        except OSError:
            raise  # the folder cannot be written: no other cell would fare better
        except Exception as error:
            failed += 1
            folder.append("failures.jsonl", _failure(cell, error))
            say(f"{name}: FAILED, {type(error).__name__}: {error}")
        else:
            say(f"{name}: {_summary(results)}")
    return failed


def _run_cell(plan: Plan, cell: Cell, folder: RunFolder) -> Results:
    """Fit and evaluate one cell; its training resumes where an interrupt left it."""
    checkpoint = folder.checkpoint(cell.key)
    started = time.perf_counter()
    post = fit(
        cell.method,
        net=plan.net,
        task=plan.task,
        seed=cell.seed,
        progress="bar" if sys.stderr.isatty() else "silent",
        checkpoint=checkpoint,
        **cell.options,
    )
    seconds = time.perf_counter() - started
    results = evaluate(post, plan.task, train_seconds=seconds).replace(net=plan.net_label)
    folder.add(cell.key, results)
    shutil.rmtree(checkpoint, ignore_errors=True)
    with contextlib.suppress(OSError):
        checkpoint.parent.rmdir()
    return results


def _failure(cell: Cell, error: Exception) -> dict[str, object]:
    return {
        "key": cell.key,
        "method": cell.method,
        "options": cell.options,
        "seed": cell.seed,
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }


def _summary(results: Results) -> str:
    shown = [row for row in results.rows if row.dataset == "test" and row.direction]
    numbers = ", ".join(f"{r.metric} {r.value:.4g}" for r in shown if r.value is not None)
    return f"{results.cost.train_seconds:.1f} s, test {numbers}"


def write_report(folder: RunFolder) -> Leaderboard | None:
    """Write the report of what is in the folder; None if there are no results."""
    results = folder.results(predictions=True)
    if not results:
        return None
    board = compare(results)
    report(
        board,
        folder.report,
        command=folder.read("config.json").get("command", ""),
        environment=folder.read("environment.json"),
        failures=folder.failures(),
    )
    return board
