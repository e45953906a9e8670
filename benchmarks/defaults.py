"""`python -m benchmarks.defaults`: every method with its defaults on eleven small data sets.

Nothing but the network is given to `fit`, so a row says what a newcomer gets. Rows are added to a
file one by one, and those that are there are not measured again; `--again` measures them anew. With
`--part val` predictions are scored on the validation part, of which training then sees nothing:
defaults are chosen on that, never on the test part. Real tables are read from $POLYMODE_DATA.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import polymode as pm
from polymode.core.rng import generator
from polymode.likelihoods.kinds import Categorical, Gaussian, HeteroscedasticGaussian
from polymode.methods import METHODS
from polymode.tasks.splits import shuffled_order, stratified_order
from polymode.tasks.tables.table import Rows, standardised
from polymode.tasks.task import Task

FILE = Path(__file__).parents[1] / "results" / "defaults.json"
BASELINE = "constant"  # predicts the distribution of the training targets everywhere
TEST_SHARE = VAL_SHARE = 0.1
DROPOUT = 0.1  # of the networks of methods that need random layers
METRICS = {"nll": "nll", "rmse": "rmse", "accuracy": "accuracy", "coverage": "coverage_90"}
SINE_EXAMPLES, HEAD_EXAMPLES, FEATURES = 500, 2000, 512


class TooSlow(Exception):
    """A cell took longer than it may."""


def uci(name: str, split: int) -> Task:
    """Return a standard split of a UCI table."""
    return pm.task(f"uci_{name}", split=split)


def table(name: str, split: int) -> Task:
    """Return a table that scikit-learn ships, with a random split of its own."""
    from sklearn import datasets

    arrays = getattr(datasets, f"load_{name}")()
    x = torch.from_numpy(arrays.data).double()
    if name == "diabetes":
        y, law = torch.from_numpy(arrays.target).double(), Gaussian(noise="learned")
        return _divided(name, x, y, split, law)
    y = torch.from_numpy(arrays.target).long()
    return _divided(name, x, y, split, Categorical(), list(map(str, arrays.target_names)))


def digits(split: int) -> Task:
    """Return the digits with a random split instead of the fixed one of the task."""
    fixed = pm.task("digits")
    parts = [fixed.train, fixed.val, fixed.test]
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in "xy")
    order = stratified_order(y, "defaults", f"digits/{split}")
    train, val, test = _thirds(order)
    return Task(
        name="digits", train=(x[train], y[train]), val=(x[val], y[val]), test=(x[test], y[test]),
        likelihood="categorical", target_size=10,
    )  # fmt: skip


def sine(split: int) -> Task:
    """Return sin(3 x) with noise of standard deviation 0.05 to 0.45, which grows with x."""
    stream = generator(split, "defaults", "sine")
    x = 4 * torch.rand(SINE_EXAMPLES, 1, generator=stream).double() - 2
    noise = 0.05 + 0.1 * (x + 2)
    y = torch.sin(3 * x) + noise * torch.randn(x.shape, generator=stream).double()
    return _divided("sine", x, y[:, 0], split, HeteroscedasticGaussian())


def head(split: int) -> Task:
    """Return features of fashion images under frozen random convolutions, for a linear layer."""
    x, y = _head_data()
    return _divided("frozen_head", x, y, split, Categorical(), list(map(str, range(10))))


@cache
def _head_data() -> tuple[Tensor, Tensor]:
    task = pm.task("fashion_mnist", num_train=HEAD_EXAMPLES, num_test=128, shifts=[])
    assert task.train is not None
    stream = generator(0, "defaults", "features")
    first, second = (
        torch.randn(out, size, 5, 5, generator=stream) / math.sqrt(25 * size)
        for size, out in ((1, 32), (32, FEATURES // 4))
    )
    features = []
    for x, _ in task.train.batches(256):
        hidden = F.max_pool2d(F.conv2d(x, first).relu(), 2)
        hidden = F.adaptive_max_pool2d(F.conv2d(hidden, second).relu(), 2)
        features.append(hidden.flatten(1))
    return torch.cat(features).double(), task.train.y


def _divided(
    name: str, x: Tensor, y: Tensor, split: int, likelihood: Any, classes: Any = None
) -> Task:
    """Return a random split of a data set as a task, inputs standardised."""
    draw = stratified_order if likelihood.classification else _order
    order = draw(y, "defaults", f"{name}/{split}")
    test = torch.zeros(len(y), dtype=torch.bool)
    test[order[: round(TEST_SHARE * len(y))]] = True
    return standardised(
        name, x, y, Rows.of(order, test, VAL_SHARE), likelihood=likelihood, seed=None,
        description=f"split {split}", class_names=classes,
    )  # fmt: skip


def _order(y: Tensor, task: str, what: str) -> Tensor:
    return shuffled_order(len(y), task, what)


def _thirds(order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows to train on, to validate and to test."""
    num_test = round(TEST_SHARE * len(order))
    num_val = round(VAL_SHARE * (len(order) - num_test))
    test, val, train = order.split([num_test, num_val, len(order) - num_test - num_val])
    return train, val, test


TASKS: dict[str, Callable[[int], Task]] = {
    **{name: partial(uci, name) for name in ("yacht", "boston", "concrete", "energy")},
    "diabetes": partial(table, "diabetes"),
    "wine_quality": partial(uci, "wine"),
    "sine": sine,
    "breast_cancer": partial(table, "breast_cancer"),
    "wine": partial(table, "wine"),
    "digits": digits,
    "frozen_head": head,
}


def scored_on(task: Task, part: str) -> Task:
    """Return the task with its validation part as the test set, if that is asked for."""
    if part == "val":
        task.test, task.val = task.val, None
    return task


def network(task: Task, method: str) -> Any:
    """Return the network of a task: an MLP 64-64, LeNet for images, linear on features."""
    options: dict[str, Any] = {}
    if METHODS.get(method).metadata.get("needs") == "noise":
        options["dropout"] = DROPOUT
    if task.name == "digits":
        return partial(pm.nets.lenet, task.input_shape, task.num_outputs, **options)
    if task.name == "frozen_head":
        options = {"hidden": (), "input_dropout": options["dropout"]} if options else {"hidden": ()}
    return partial(pm.nets.mlp, task.input_shape, task.num_outputs, **options)


def constant(task: Task) -> dict[str, float]:
    """Return the scores of the training targets' own distribution."""
    y, seen = task.test.y, task.train.y  # type: ignore[union-attr]
    if task.likelihood.classification:
        counts = torch.bincount(seen, minlength=task.target_size or 0) + 1.0
        log_probs = (counts / counts.sum()).log()
        correct = (y == counts.argmax()).double().mean()
        return {"nll": -float(log_probs[y].mean()), "accuracy": float(correct)}
    mean, std = seen.double().mean(), seen.double().std()
    normal = torch.distributions.Normal(mean, std)
    errors = y.double() - mean
    inside = (errors.abs() <= normal.icdf(torch.tensor(0.95)) - mean).double().mean()
    return {
        "nll": -float(normal.log_prob(y.double()).mean()),
        "rmse": float(errors.square().mean().sqrt()),
        "coverage": float(inside),
    }


def measure(method: str, task: Task, seconds: float, options: dict[str, Any]) -> dict[str, Any]:
    """Return one row: scores, cost and warnings of a fit, or why there are none."""
    if method == BASELINE:
        return {"scores": constant(task), "seconds": 0.0, "warnings": []}
    row: dict[str, Any] = {"scores": {}, "warnings": []}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        started = time.process_time()
        try:
            with at_most(seconds):
                net = network(task, method)
                post = pm.fit(method, net=net, task=task, progress="silent", **options)
                row["seconds"] = time.process_time() - started
                results = pm.evaluate(post, task, keep=False)
        except TooSlow:
            row["error"] = f"not done after {seconds:g} s"
        except Exception as error:  # a row of the table, whatever it is
            row["error"] = f"{type(error).__name__}: {error}"
        else:
            values = {r.metric: r.value for r in results.rows if r.dataset == "test"}
            row["scores"] = {k: values[name] for k, name in METRICS.items() if name in values}
            row["predict_seconds"] = results.cost.predict_seconds
            row["epochs"] = post.config.get("epochs")
    row["warnings"] = list(dict.fromkeys(str(each.message) for each in heard))
    return row


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in what takes longer, in CPU time."""

    def stop(number: int, frame: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def methods() -> list[str]:
    return [BASELINE, *(name for name in METHODS.names() if name != "skeleton")]


def described(row: dict[str, Any]) -> str:
    """Return a row as one line."""
    said = [f"{key} {value:.4g}" for key, value in row["scores"].items() if value is not None]
    said += [f"{row.get('seconds', math.nan):.1f} s", f"{len(row['warnings'])} warnings"]
    return f"{row['task']:14s} {row['method']:20s} {row['split']}  " + ", ".join(
        [*said, row.get("error", "")]
    )


def parsed(words: list[str]) -> dict[str, Any]:
    """Return options from words such as lr=0.01; values are JSON, or else names."""
    options = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=__doc__)
    parser.add_argument("--json", type=Path, default=FILE, metavar="FILE")
    parser.add_argument("--methods", nargs="+", default=methods(), choices=methods(), metavar="M")
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=TASKS, metavar="T")
    parser.add_argument("--splits", type=int, default=1, metavar="K", help="splits 0 to K - 1")
    parser.add_argument("--part", choices=("test", "val"), default="test")
    parser.add_argument("--set", nargs="+", default=[], metavar="OPTION=VALUE", dest="options")
    parser.add_argument("--seconds", type=float, default=1200, help="longest CPU time of a cell")
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    options = parsed(asked.options)
    about = {"cores": os.cpu_count(), "processor": platform.machine(), "torch": torch.__version__}
    rows = json.loads(asked.json.read_text())["rows"] if asked.json.exists() else []
    held = {_key(row): row for row in rows}
    for split in range(asked.splits):
        for name in asked.tasks:
            task = None
            for method in asked.methods:
                key = {"task": name, "method": method, "split": split, "part": asked.part}
                key["options"] = options
                if _key(key) in held and not asked.again:
                    continue
                task = task or scored_on(TASKS[name](split), asked.part)
                date = datetime.now(timezone.utc).isoformat(timespec="seconds")
                row = {**key, "date": date, **measure(method, task, asked.seconds, options)}
                held[_key(row)] = row
                print(described(row), file=sys.stderr, flush=True)
                write(asked.json, {"about": about, "rows": [*held.values()]})


def _key(row: dict[str, Any]) -> str:
    names = ("task", "method", "split", "part", "options")
    return json.dumps([row[name] for name in names], sort_keys=True)


def write(file: Path, content: dict[str, Any]) -> None:
    """Write the file in one step, so that an interrupt leaves the old one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial_file = file.with_suffix(".partial")
    partial_file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    partial_file.replace(file)


if __name__ == "__main__":
    main()
