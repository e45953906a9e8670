"""Options are refused in one form; the optimiser keeps members apart; schedules end."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from polymode.stack.stack import Stack
from polymode.training.optimiser import Optimization, Training, clip_each_member


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, "`epochs` of Training must be an integer of at least 0, got -1"),
        ({"epochs": 1.5}, "`epochs`"),
        ({"batch_size": 0}, "`batch_size` of Training must be an integer of at least 1, got 0"),
        ({"lr": 0.0}, "`lr` of Training must be > 0, got 0.0"),
        ({"lr": math.nan}, "`lr`"),
        ({"momentum": 1.0, "optimizer": "sgd"}, r"`momentum` of Training must be in \[0, 1\)"),
        ({"momentum": 0.9}, "`momentum` belongs to sgd, nesterov, rmsprop, not to adam"),
        ({"optimizer": "nesterov"}, "`momentum` of Training must be > 0 for nesterov, got 0"),
        ({"optimizer": "adm"}, "Did you mean 'adam'"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"schedule_unit": "batch"}, "must be one of epoch, step"),
        ({"data_order": "owned"}, "Did you mean 'own'"),
        ({"clip_norm": -1.0}, "`clip_norm` of Training must be > 0 or None, got -1.0"),
        ({"augment": 3}, "`augment`"),
    ],
)
def test_bad_options(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        Training(**options)


def stack(count: int = 3) -> Stack:
    made = Stack(lambda: nn.Linear(2, 2), count, dtype=torch.float64)
    for leaf in made.leaves():
        leaf.grad = torch.ones_like(leaf)
    return made


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "adagrad"])
def test_members_move_as_if_alone(name) -> None:
    """Three members in one optimiser move as each does in an optimiser of its own."""
    together = stack()
    alone = [stack()[k : k + 1].clone() for k in range(3)]
    runs = [Optimization(Training(optimizer=name), s.leaves(), 5, 10) for s in (together, *alone)]
    for number in range(4):
        for part, run in zip((together, *alone), runs, strict=True):
            for leaf in part.leaves():
                leaf.grad = leaf.detach() * (number + 1)
            run.update(number)
    for k, single in enumerate(alone):
        for joint, own in zip(together.leaves(), single.leaves(), strict=True):
            torch.testing.assert_close(joint[k], own[0], rtol=1e-12, atol=0)


def test_clipping_is_by_member() -> None:
    made = stack()
    for leaf in made.leaves():
        leaf.grad *= torch.tensor([0.01, 1.0, 100.0]).view(3, *(1,) * (leaf.dim() - 1))
    norm = math.sqrt(6)
    clip_each_member(made.leaves(), 1.0)
    got = sum(leaf.grad.flatten(1).square().sum(1) for leaf in made.leaves()).sqrt()
    torch.testing.assert_close(got, torch.tensor([0.01 * norm, 1.0, 1.0], dtype=torch.float64))


def test_clipping_counts_one_number_per_member() -> None:
    """As learned noise is; (M,) has no further axes."""
    leaf = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    leaf.grad = torch.tensor([3.0, -0.5], dtype=torch.float64)
    clip_each_member([leaf], 1.0)
    torch.testing.assert_close(leaf.grad, torch.tensor([1.0, -0.5], dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "middle"), [("cosine", 0.5), ("linear", 0.5), ("constant", 1.0), ("ramp", 1.0)]
)
def test_named_schedules(name, middle) -> None:
    made = stack()
    run = Optimization(Training(optimizer="sgd", lr=0.2, schedule=name), made.leaves(), 5, 10)
    rates = []
    for number in range(10):
        run.update(number)
        rates.append(run.optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(0.2)
    assert rates[5] == pytest.approx(0.2 * middle)
    assert name == "constant" or 0 < rates[-1] < 0.05
    if name == "ramp":
        assert rates[7] == pytest.approx(0.2 * (1 - 0.99 / 2))
        assert rates[9] == pytest.approx(0.002)


def test_nesterov_is_torchs() -> None:
    """Two steps of a constant gradient g from 0: v = g, then 1.9 g; θ moves by g + 0.9 v each."""
    made = stack(1)
    start = [leaf.detach().clone() for leaf in made.leaves()]
    training = Training(optimizer="nesterov", momentum=0.9, lr=0.1)
    run = Optimization(training, made.leaves(), 5, 10)
    run.update(0)
    run.update(1)
    for leaf, before in zip(made.leaves(), start, strict=True):
        moved = torch.full_like(leaf, -0.1 * (1.9 + 1 + 0.9 * 1.9))
        torch.testing.assert_close(leaf.detach() - before, moved, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("unit", "expected"), [("epoch", 0.01), ("step", 1e-10)])
def test_torch_schedulers_step_by_epoch_or_step(unit, expected) -> None:
    made = stack()
    training = Training(
        optimizer=lambda leaves: torch.optim.SGD(leaves, lr=1.0),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1),
        schedule_unit=unit,
    )
    run = Optimization(training, made.leaves(), 5, 10)
    for number in range(10):
        run.update(number)
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_short_way_of_adam_is_torchs(kind) -> None:
    """Also when a scheduler moves rate and betas, and when a hook wants to see every step."""
    calls = []

    def cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)

    def hooked(leaves):
        optimizer = kind(leaves, lr=0.01, fused=True)
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        return optimizer

    def short(leaves):
        return kind(leaves, lr=0.01, fused=True)

    ends = []
    for make in (short, hooked):
        made = stack()
        training = Training(optimizer=make, schedule=cycle, schedule_unit="step")
        run = Optimization(training, made.leaves(), 5, 15)
        for number in range(15):
            for leaf in made.leaves():
                leaf.grad = leaf.detach() * (number + 1) - 0.3
            run.update(number)
        ends.append([leaf.detach().clone() for leaf in made.leaves()])
    assert len(calls) == 15
    for mine, theirs in zip(*ends, strict=True):
        assert torch.equal(mine, theirs)


def test_optimisers_that_couple_members_are_refused() -> None:
    with pytest.raises(ValueError, match="LBFGS mixes the entries"):
        Optimization(Training(optimizer=torch.optim.LBFGS), stack().leaves(), 1, 1)
    with pytest.raises(ValueError, match="returned a list"):
        Optimization(Training(optimizer=list), stack().leaves(), 1, 1)


def test_a_named_adamw_has_no_weight_decay() -> None:
    """The prior is the method's: parameters without a gradient stay where they are."""
    made = stack()
    before = [leaf.detach().clone() for leaf in made.leaves()]
    run = Optimization(Training(optimizer="adamw", lr=0.5), made.leaves(), 5, 10)
    for number in range(3):
        for leaf in made.leaves():
            leaf.grad = torch.zeros_like(leaf)
        run.update(number)
    for leaf, start in zip(made.leaves(), before, strict=True):
        assert torch.equal(leaf, start)


def noisy_stack() -> Stack:
    made = stack()
    made.add_parameters({"log_noise": torch.zeros(3)})
    return made


def descend(run: Optimization, made: Stack, numbers: range) -> None:
    for number in numbers:
        for leaf in made.leaves():
            leaf.grad = leaf.detach() * (number + 1) - 0.3
        run.update(number)


@pytest.mark.parametrize(
    ("name", "lr", "rate"),
    [("adam", 1e-3, 0.02), ("adamw", 1e-3, 0.02), ("rmsprop", 1e-3, 0.02), ("adam", 0.05, 0.05)],
)
def test_noise_has_a_rate_of_its_own_where_steps_are_as_long_as_the_rate(name, lr, rate) -> None:
    """It is that of an optimiser of its own, and the schedule multiplies both rates."""
    made, apart = noisy_stack(), noisy_stack()
    together = Optimization(
        Training(optimizer=name, lr=lr, schedule="cosine"), made.leaves(), 5, 10, num_noise=1
    )
    *network, noise = apart.leaves()
    runs = [
        Optimization(Training(optimizer=name, lr=one, schedule="cosine"), leaves, 5, 10)
        for one, leaves in ((lr, network), (rate, [noise]))
    ]
    descend(together, made, range(6))
    for number in range(6):
        for leaf in apart.leaves():
            leaf.grad = leaf.detach() * (number + 1) - 0.3
        for run in runs:
            run.update(number)
    for mine, theirs in zip(made.leaves(), apart.leaves(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=0)
    assert made.extra["log_noise"].abs().max() > 0


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adagrad"])
def test_noise_has_the_rate_of_the_weights_elsewhere(name) -> None:
    training = Training(optimizer=name, lr=1e-3, momentum=0.0 if name == "adagrad" else 0.5)
    run = Optimization(training, noisy_stack().leaves(), 5, 10, num_noise=1)
    assert [group["lr"] for group in run.optimizer.param_groups] == [1e-3]


def test_two_groups_resume_where_they_were() -> None:
    """The short way of two groups, put away and taken up again, ends in the same bits."""
    training = Training(lr=1e-3, schedule="linear")
    straight, broken = noisy_stack(), noisy_stack()
    runs = [Optimization(training, s.leaves(), 5, 10, num_noise=1) for s in (straight, broken)]
    descend(runs[0], straight, range(8))
    descend(runs[1], broken, range(3))
    second = Optimization(training, broken.leaves(), 5, 10, num_noise=1)
    second.load(runs[1].tensors(), runs[1].numbers())
    descend(second, broken, range(3, 8))
    for mine, theirs in zip(straight.leaves(), broken.leaves(), strict=True):
        assert torch.equal(mine, theirs)


MOVED = {
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5),
    "cycle of rate and betas": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, max_lr=0.1, total_steps=12
    ),
    "cosine of torch": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9),
    "two after another": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, total_iters=4),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.8),
        ],
        [4],
    ),
    "ramp": "ramp",
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")
@pytest.mark.parametrize("unit", ["step", "epoch"])
@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
@pytest.mark.parametrize("schedule", MOVED)
def test_rates_that_moved_are_taken_up_again(schedule, name, unit) -> None:
    """Rates and betas are those of the moment, not of the beginning, for the noise as well."""
    unit_option = {} if schedule == "ramp" else {"schedule_unit": unit}
    momentum = 0.0 if name == "adam" else 0.5
    training = Training(
        optimizer=name, lr=0.02, momentum=momentum, schedule=MOVED[schedule], clip_norm=2.0,
        **unit_option,
    )  # fmt: skip
    straight, broken = noisy_stack(), noisy_stack()
    runs = [Optimization(training, s.leaves(), 2, 10, num_noise=1) for s in (straight, broken)]
    descend(runs[0], straight, range(10))
    for begin, end in ((0, 5), (5, 8), (8, 10)):
        run = Optimization(training, broken.leaves(), 2, 10, num_noise=1)
        if begin:
            run.load(runs[1].tensors(), runs[1].numbers())
        descend(run, broken, range(begin, end))
        runs[1] = run
    for mine, theirs in zip(straight.leaves(), broken.leaves(), strict=True):
        assert torch.equal(mine, theirs)


def test_small_data_are_passed_over_until_there_are_a_thousand_steps() -> None:
    usual = Training()
    assert [usual.num_epochs(steps) for steps in (1, 2, 3, 20, 21, 500)] == [
        1000, 500, 334, 50, 50, 50,
    ]  # fmt: skip
    assert usual.total_steps(2) == 1000
    assert Training(epochs=3).total_steps(2) == 6
