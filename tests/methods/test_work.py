"""What a fit says of its cost, and when."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.methods import METHODS, Laplace, Problem
from polymode.methods.work import TIMES, Work, tell_work
from polymode.stack.stack import Stack

DEAR = Work(90.0, "laplace, structure='kron'", "structure='last_layer'")


def said(*arguments) -> list[str]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        tell_work(*arguments)
    return [str(each.message) for each in heard]


def test_a_dear_fit_of_given_networks_names_passes_and_a_cheaper_choice() -> None:
    (text,) = said(DEAR, 0, 10_000, 106_000)
    assert text.startswith("laplace, structure='kron' takes about 90 passes over the data per mode")
    assert text.endswith("Cheaper: structure='last_layer'")


def test_nothing_is_said_of_what_is_cheap_quick_or_short_beside_the_training() -> None:
    assert said(None, 0, 10_000, 106_000) == []
    assert said(DEAR._replace(passes=TIMES), 0, 10_000, 106_000) == []
    assert said(DEAR, 0, 300, 5_000) == []  # a second
    assert said(DEAR, 50, 10_000, 106_000) == []


def images(number: int) -> tuple[Problem, pm.Task]:
    stream = torch.Generator().manual_seed(0)
    x = torch.rand(number, 1, 8, 8, generator=stream)
    y = (x.flatten(1).mean(1).argsort().argsort() * 10) // number
    task = pm.Task(train=(x, y), likelihood="categorical")
    return Problem(task.likelihood, number, 10, number // 128, task.train), task


def convnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 128),
                         nn.ReLU(), nn.Linear(128, 10))  # fmt: skip


def test_the_default_of_laplace_is_at_most_ten_passes() -> None:
    problem, _ = images(3000)
    stack, work = Stack(convnet, 1), METHODS.get("laplace").value.work
    assert stack.num_parameters > 20_000
    usual = work(Laplace(), problem, stack)
    assert usual.passes <= 10
    whole = work(Laplace(structure="kron", prior_examples=3000), problem, stack)
    assert whole.passes > 90
    assert "structure='last_layer', or prior_examples=1,000" in whole.cheaper


def test_hmc_counts_a_gradient_per_leapfrog_step() -> None:
    problem, _ = images(256)
    config = pm.methods.HMC(epochs=100, leapfrog_steps=30)
    work = METHODS.get("hmc").value.work(config, problem._replace(steps_per_epoch=1), None)
    assert work.passes == 3000


@pytest.mark.filterwarnings("ignore:the evidence switched:UserWarning")
@pytest.mark.parametrize(("size", "structure"), [(40, "kron"), (200, "last_layer")])
def test_laplace_takes_the_last_layer_of_large_networks(size, structure) -> None:
    _, task = images(128)

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, size), nn.Tanh(), nn.Linear(size, size),
                             nn.Tanh(), nn.Linear(size, 10))  # fmt: skip

    post = pm.fit("laplace", net=net, task=task, epochs=20, progress="silent")
    assert post.config["structure"] == structure
    (precisions,) = post.config["prior_precisions"]
    assert precisions["all"] == pytest.approx(float(next(iter(post.weights.precision.values()))))
