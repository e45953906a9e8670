"""SWAG from networks that were kept along a run elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polymode.methods.fit import fit
from polymode.methods.swag.swag import (
    SWAG,
    State,
    covariance,
    no_snapshots,
    rank_of,
    set_mean,
    take_snapshot,
)
from polymode.nets.user_network import networks_for
from polymode.posterior import Gaussian, Posterior, Samples, load
from polymode.posterior.weights import with_own_statistics
from polymode.stack.stack import Stack
from polymode.tasks.named import as_task
from polymode.tasks.task import Task
from polymode.training.data import Data


def from_snapshots(
    snapshots: Iterable[Any],
    *,
    task: Task | str,
    net: Any = None,
    rank: int | None = None,
    diagonal: bool = True,
    samples_per_mode: int = 30,
    batch_size: int = 128,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> Posterior:
    """Return the Gaussian of networks that were trained elsewhere, as `fit("swag", ...)` does.

    Args:
        snapshots: T of them along one run, in their order. Each is a module, a state dictionary, a
            posterior or a folder in which one was saved; or, for several modes, a list of modules
            or state dictionaries, one per run. Posteriors stand for their networks, one per mode.
        task: whose training data give running statistics to each draw, and the noise of a
            regression where it is learned: its maximum-likelihood estimate at the mean network.
        net: builder of the network, where snapshots are state dictionaries or folders; or a module
            of its architecture, which is copied.
        rank, diagonal, samples_per_mode: as in `SWAG`. batch_size: of passes over the data.

    >>> import polymode as pm, torch
    >>> modules = [torch.nn.Linear(2, 2) for _ in range(5)]
    >>> post = from_snapshots(modules, task=pm.task("two_moons"), rank=3)
    >>> post.num_modes, post.num_samples
    (1, 30)
    """
    if isinstance(snapshots, (str, Path, Mapping, nn.Module)) or not (snapshots := [*snapshots]):
        raise ValueError("`snapshots` must be a list of at least one snapshot")
    task = as_task(task, "from_snapshots")
    config = SWAG(
        rank=rank, diagonal=diagonal, samples_per_mode=samples_per_mode, epochs=0,
        batch_size=batch_size,
    )  # fmt: skip
    first = _networks(snapshots[0], net, task)
    stack = Stack(_members(first), seed=seed, dtype=dtype)
    idle: Any = None  # nothing is trained
    state = State(stack, idle, *no_snapshots(stack, rank_of(config, len(snapshots))), 0)
    for number, snapshot in enumerate(snapshots):
        snapshot_stack = Stack(_members(_networks(snapshot, net, task)), seed=seed, dtype=dtype)
        shapes, snapshot_shapes = (
            {n: tuple(p.shape) for n, p in s.params.items()} for s in (stack, snapshot_stack)
        )
        if shapes != snapshot_shapes:
            raise ValueError(
                f"snapshot {number} is not like the first: parameters are (modes, ...)"
                f" {snapshot_shapes}, those of the first {shapes}"
            )
        take_snapshot(state._replace(stack=snapshot_stack), number)
    set_mean(stack, state)
    trained: Any = stack.members()
    if isinstance(first, Posterior):
        trained = copy.copy(first)
        trained.weights = Samples(stack)
    post = fit(config, net=trained, task=task, seed=seed, dtype=dtype, progress="silent")
    std, deviations = covariance(config, state, len(snapshots))
    samples = samples_per_mode if std or deviations else 1
    gaussian = Gaussian(post.stack, std, deviations, samples)
    assert task.train is not None
    data = task.train.to(post.stack.dtype, post.stack.device)
    batches = partial(_inputs, data, batch_size)
    post.weights = with_own_statistics(gaussian, batches, samples, seed)
    post.config["num_snapshots"] = len(snapshots)
    return post


def _inputs(data: Data, batch_size: int) -> Iterator[Tensor]:
    return (x for x, _ in data.batches(batch_size))


def _networks(snapshot: Any, net: Any, task: Task) -> Any:
    """Return a snapshot as a posterior or a list of modules, one per mode."""
    if isinstance(snapshot, (Posterior, nn.Module)):
        return snapshot
    if isinstance(snapshot, (str, Path, Mapping)) and net is None:
        kind = "state dictionaries" if isinstance(snapshot, Mapping) else "folders"
        raise ValueError(f"snapshots that are {kind} need `net`, the builder of the network")
    if isinstance(snapshot, (str, Path, Mapping)):
        make = networks_for(net, task.input_shape, task.num_outputs)
        make = partial(copy.deepcopy, net) if isinstance(net, nn.Module) else make
        if isinstance(snapshot, Mapping):
            module = make()
            module.load_state_dict(snapshot)
            return module
        if Path(snapshot).is_file():
            raise ValueError(
                f"{snapshot} is a file, not the folder of a posterior: give what it holds, the"
                " state dictionary that torch.load(path, weights_only=True) returns"
            )
        return load(snapshot, net=make)
    if isinstance(snapshot, Sequence):
        return [_networks(part, net, task) for part in snapshot]
    raise ValueError(
        "a snapshot must be a module, a state dictionary, a posterior, the folder of one, or a list"
        f" of modules or state dictionaries, got a {type(snapshot).__name__}"
    )


def _members(networks: Any) -> list[nn.Module]:
    if isinstance(networks, nn.Module):
        return [networks]
    return networks.members if isinstance(networks, Posterior) else list(networks)
