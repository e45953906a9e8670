"""Independent networks of a recipe: a shard of a zoo, and one network after another."""

from __future__ import annotations

import tempfile

import torch
import torch.nn.functional as F

from ..cases import Case
from . import Job

ALONE = 5  # networks that the plain loop trains


def polymode(case: Case) -> Job:
    """One shard, trained as a stack, scored and written."""
    from polymode.zoo import RECIPES, train

    recipe = RECIPES.get(case.option).value.with_settings({"epochs": case.epochs})

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(folder, recipe, case.num_modes, networks_per_shard=case.num_modes)

    return Job(run, case.num_steps)


def plain_loop(case: Case) -> Job:
    """The same training for single networks, each scored and written to a file."""
    from polymode.zoo import RECIPES

    recipe = RECIPES.get(case.option).value
    task, options = recipe.make_task(), recipe.options
    (x, y), (test_x, test_y) = ((data.x, data.y) for data in (task.train, task.test))
    make = recipe.make_net(task.input_shape, task.num_outputs)

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(ALONE):
                torch.manual_seed(number)
                net = make()
                optimizer = torch.optim.SGD(
                    net.parameters(), lr=options["lr"], momentum=options["momentum"],
                    nesterov=True, weight_decay=options["prior_precision"] / len(x),
                )  # fmt: skip
                steps = case.epochs * -(-len(x) // options["batch_size"])
                schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
                for _ in range(case.epochs):
                    for rows in torch.randperm(len(x)).split(options["batch_size"]):
                        optimizer.zero_grad()
                        F.cross_entropy(net(x[rows]), y[rows]).backward()
                        optimizer.step()
                        schedule.step()
                with torch.no_grad():
                    (net(test_x).argmax(-1) == test_y).float().mean().item()
                torch.save(net.half().state_dict(), f"{folder}/{number}.pt")

    return Job(run, case.num_steps, scale=case.num_modes / ALONE)
