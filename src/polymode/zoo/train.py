"""Training a zoo: shard by shard, each a stack of networks that are trained together.

Shard k of a zoo is a function of (recipe, seed, k): it can be made again, by another process, or
later. Several processes may work on one folder; each takes the next shard that nobody has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.core.rng import fold
from polymode.core.safe_files import FileProblem, read_tensors, take_lock, write_tensors
from polymode.core.warn import warn
from polymode.distributed.ray import Cluster, ClusterProblem, Done, Lost, Say
from polymode.methods.fit import fit
from polymode.methods.method import on_all_data
from polymode.posterior import Posterior
from polymode.prediction import CategoricalPrediction
from polymode.tasks.task import Task
from polymode.zoo.index import (
    ABOUT,
    DTYPES,
    SCHEMA,
    Shard,
    add_shard,
    read_about,
    read_index,
    write_about,
)
from polymode.zoo.recipe import RECIPES, Recipe, recipe_of

Watch = Callable[[Shard, int, int], None]


class Setup(NamedTuple):
    """What all shards of a zoo have in common.

    Attributes:
        seed: of all networks. networks_per_shard, dtype, execution, device: see `train`.
    """

    recipe: Recipe
    seed: int
    networks_per_shard: int
    dtype: str
    execution: str
    device: str


EVALUATED = 256  # rows at a time


def train(
    folder: str | Path,
    recipe: Recipe | str | None,
    num_networks: int,
    *,
    seed: int | None = None,
    networks_per_shard: int | None = None,
    dtype: str | None = None,
    execution: str = "auto",
    device: str | torch.device = "cpu",
    watch: Watch | None = None,
    cluster: Cluster | None = None,
) -> None:
    """Train networks until the zoo in `folder` has at least `num_networks`; resumes what is there.

    Every shard that is there is read; one that is damaged is made again, with a warning.

    Args:
        folder: of the zoo; made if it is not there.
        recipe: what to train, or the name of one in `RECIPES`; None goes on with the zoo there.
        num_networks: ≥ 1, rounded up to whole shards. A larger number later adds to the zoo.
        seed: of all networks; by default the existing zoo's, 0 for a new one.
        networks_per_shard: networks of one file, trained as one stack, ≥ 1; by default as there,
            100 for a new one.
        dtype: "float16", "float32" or "float64": how weights are stored; by default as there,
            "float16" for a new one. Scores in the index are those of the stored weights.
        execution, device: see `pm.fit`.
        watch: called with each shard that was made, how many networks are there, and how many are
            wanted.
        cluster: a Ray cluster whose workers each train a shard at a time, None for this process.
            All must see the folder.
    """
    check_call(train, locals())
    folder = Path(folder)
    previous = read_about(folder) if (folder / ABOUT).exists() else {}
    recipe = _recipe(recipe, previous, folder)
    seed = previous.get("seed", 0) if seed is None else seed
    if networks_per_shard is None:
        networks_per_shard = int(previous.get("networks_per_shard", 100))
    dtype = str(previous.get("dtype", "float16")) if dtype is None else dtype
    check_counts(num_networks=num_networks, networks_per_shard=networks_per_shard)
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` of a zoo must be one of {', '.join(DTYPES)}, got {dtype!r}")
    task = recipe.make_task()
    about = {
        "recipe": recipe.to_dict(),
        "seed": seed,
        "networks_per_shard": networks_per_shard,
        "dtype": dtype,
        "input_shape": list(task.input_shape),
        "target_size": task.target_size,
        "likelihood": task.likelihood.to_config(),
        "data": task.train.fingerprint() if task.train is not None else None,
    }
    write_about(folder, about)
    wanted, finished = math.ceil(num_networks / networks_per_shard), complete(folder)
    missing = [number for number in range(wanted) if number not in finished]
    damaged = _numbers(folder) - finished

    def report(shard: Shard | None) -> None:
        if watch is not None and shard is not None:
            damaged.discard(shard.number)
            done = len(_numbers(folder) - damaged) * networks_per_shard
            watch(shard, done, wanted * networks_per_shard)

    setup = Setup(recipe, seed, networks_per_shard, dtype, execution, str(device))
    if cluster is not None:
        _on_cluster(cluster, [(folder.absolute(), setup, n) for n in missing], report)
        missing = []
    for wait in (False, True):  # first what nobody works on, then what others did not finish
        for number in missing:
            report(_make_shard(folder, setup, number, wait=wait, task=task))


def _on_cluster(
    cluster: Cluster, jobs: list[tuple[Any, ...]], report: Callable[[Shard | None], None]
) -> None:
    """Let workers make shards; raise where one failed."""

    def hear(number: int, news: Any) -> None:
        if isinstance(news, Done):
            report(news.result)
        elif isinstance(news, Lost) and news.error != "cancelled":
            raise ClusterProblem(f"shard {jobs[number][2]} failed: {news.error}")

    if jobs:
        cluster.run(_work, jobs, hear)


def _work(job: tuple[Any, ...], say: Say) -> Shard | None:
    torch.set_num_threads(1)
    return _make_shard(*job, wait=True)


def _make_shard(
    folder: Path, setup: Setup, number: int, *, wait: bool, task: Task | None = None
) -> Shard | None:
    """Train a shard and enter it in the index; None if another process does or did so."""
    if _is_whole(folder, number):
        return None
    with _claimed(folder / f".shard-{number}.lock", wait) as claimed:
        if not claimed or _is_whole(folder, number):
            return None
        shard = _train_shard(folder, setup, number, task or setup.recipe.make_task())
        add_shard(folder, shard)
    return shard


def _recipe(recipe: Recipe | str | None, about: dict[str, Any], folder: Path) -> Recipe:
    """Return the recipe, looked up by its name or in the zoo of the folder."""
    if isinstance(recipe, str):
        return RECIPES.get(recipe).value
    if recipe is not None:
        return recipe
    if not about:
        raise ValueError(f"{folder} is no zoo yet: a new one needs a recipe")
    return recipe_of(folder, about)


def progress_line(shard: Shard, done: int, wanted: int) -> str:
    """Return the line that reports a finished shard."""
    accuracy = ""
    if shard.accuracy is not None:
        accuracy = f", accuracy {sum(shard.accuracy) / shard.size:.3f}"
    return f"shard {shard.number}: {done:,} of {wanted:,} networks, {shard.seconds:.0f} s{accuracy}"


def check_counts(**counts: int) -> None:
    """Refuse numbers of networks below 1."""
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"`{name}` of a zoo must be an integer of at least 1, got {value!r}")


def complete(folder: Path) -> set[int]:
    """Return the numbers of undamaged shards, after reading every byte; warn of damaged ones."""
    numbers = set()
    for shard in read_index(folder)[0]:
        if not (folder / shard.file).exists():
            continue
        if problem := shard_problem(folder, shard):
            warn(f"{problem}; shard {shard.number} is made again")
        else:
            numbers.add(shard.number)
    return numbers


def _numbers(folder: Path) -> set[int]:
    return {shard.number for shard in read_index(folder)[0]}


def _is_whole(folder: Path, number: int) -> bool:
    """Return whether a shard is there, and as it was written."""
    return any(
        shard.number == number and not shard_problem(folder, shard)
        for shard in read_index(folder)[0]
    )


def shard_problem(folder: Path, shard: Shard) -> str:
    """Return what is wrong with the file of a shard, read to its last byte, or an empty text."""
    try:
        tensors, _ = read_tensors(folder / shard.file, digest=shard.digest)
    except FileProblem as problem:
        return str(problem)
    for name, tensor in tensors.items():
        if tensor.shape[:1] != (shard.size,):
            return (
                f"{folder / shard.file} holds {len(tensor) if tensor.dim() else 1} networks in"
                f" '{name}', the index {shard.size}"
            )
    return ""


@contextmanager
def _claimed(path: Path, wait: bool) -> Iterator[bool]:
    """Lock a shard while it is trained; yield False if another process has it."""
    with open(path, "w") as file:
        if take_lock(file.fileno(), wait=wait) is False:
            yield False
            return
        yield True
        path.unlink(missing_ok=True)


def _train_shard(folder: Path, setup: Setup, number: int, task: Task) -> Shard:
    """Train the networks of one shard, write them, and return their line of the index."""
    start, recipe = time.monotonic(), setup.recipe
    post = fit(
        recipe.method,
        net=recipe.make_net(task.input_shape, task.num_outputs),
        task=task,
        num_modes=setup.networks_per_shard,
        seed=fold(setup.seed, "shard", number),
        execution=setup.execution,
        device=setup.device,
        progress="silent",
        **on_all_data(recipe.method) | recipe.options,
    )
    return store_shard(folder, number, post, task, setup.dtype, time.monotonic() - start)


def store_shard(
    folder: Path, number: int, post: Posterior, task: Task | None, dtype: str, seconds: float
) -> Shard:
    """Write the networks of a posterior as shard `number`; return its line of the index."""
    stack = post.stack
    stored = {name: stored_as(name, tensor, dtype) for name, tensor in stack.tensors().items()}
    stack.load_tensors(stored)  # scores are of what is stored
    accuracy, nll = scores(post, task) if task is not None else (None, None)
    file = f"shard-{number:05d}.safetensors"
    digest = write_tensors(folder / file, stored, {"schema": SCHEMA, "shard": number})
    return Shard(number, file, digest, tuple(stack.seeds), accuracy, nll, round(seconds, 3))


def stored_as(name: str, tensor: Tensor, dtype: str) -> Tensor:
    """Return a tensor as it is stored; refuse one whose numbers this type does not hold."""
    if not tensor.is_floating_point():
        return tensor.detach()
    stored = tensor.detach().to(getattr(torch, dtype))
    if not torch.isfinite(stored).all():
        value = float(tensor.detach().abs().max())
        remedy = 'take dtype="float32"' if math.isfinite(value) else "take a lower `lr`"
        raise FileProblem(
            f"'{name}' has values up to {value:g}, which {dtype} does not hold; {remedy}"
        )
    return stored


@torch.no_grad()
def scores(
    post: Posterior, task: Task
) -> tuple[tuple[float, ...] | None, tuple[float | None, ...] | None]:
    """Return accuracy and NLL of every network on the test set; None where there is none."""
    if task.test is None or not post.likelihood.classification:
        return None, None
    right, nll, rows = torch.zeros(()), torch.zeros(()), 0
    for x, y in task.test.batches(EVALUATED):
        prediction = post.predict_batch(x.to(post.stack.dtype))
        assert isinstance(prediction, CategoricalPrediction)
        log_probs: Tensor = prediction.log_probs.double()  # (S, B, C)
        right = right + (log_probs.argmax(-1) == y).sum(1)
        nll = nll - log_probs.gather(-1, y.expand(len(log_probs), -1).unsqueeze(-1)).sum((1, 2))
        rows += len(y)
    finite = [value if math.isfinite(value) else None for value in (nll / rows).tolist()]
    return (
        tuple(round(v, 6) for v in (right / rows).tolist()),
        tuple(None if v is None else round(v, 6) for v in finite),
    )
