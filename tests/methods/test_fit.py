"""`fit`: what it learns, what it takes and what it tells."""

from __future__ import annotations

import copy
import math
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.stack.fast.plan import Plan
from polymode.tasks.augment import Crop, Flip
from polymode.training.events import Event

from .small_fits import QUICK, X, Y, net, same, task

# ------------------------------------------------------------------------------------ it learns


def test_map_finds_the_exact_posterior_mean() -> None:
    """Oracle: in conjugate linear regression MAP is the exact posterior mean."""
    linear = pm.task("linear_regression")
    post = pm.fit(
        "map",
        net=lambda: nn.Linear(linear.input_shape[0], 1),
        task=linear,
        dtype=torch.float64,
        epochs=2000,
        batch_size=len(linear.train),
        lr=0.03,
        schedule="cosine",
        prior_precision=linear.exact.prior_precision,
        progress="silent",
    )
    found = torch.cat([post.stack.params[n][0].flatten() for n in ("weight", "bias")])
    torch.testing.assert_close(found, linear.exact.mean, rtol=1e-4, atol=1e-5)


def test_prior_strength_is_per_data_set_not_per_batch() -> None:
    """The batch size must not change how much the prior weighs."""
    posts = [
        pm.fit(
            "map", net=lambda: nn.Linear(3, 2), task=task(), dtype=torch.float64, batch_size=size,
            epochs=600, lr=0.05, schedule="cosine", prior_precision=20.0, progress="silent",
            holdout=0,
        )
        for size in (60, 30)
    ]  # fmt: skip
    full, mini = (post.stack.params["weight"] for post in posts)
    torch.testing.assert_close(full, mini, rtol=2e-2, atol=2e-3)


def test_learned_noise_reaches_the_truth() -> None:
    """Noise of s.d. 0.3 around a line, N = 1,000: the estimate's own s.d. is 0.3 / √(2 N) = 0.007.

    Tolerance 0.03, four of those: false-alarm rate below 1e-4.
    """
    stream = torch.Generator().manual_seed(3)
    x = torch.rand(1000, 1, generator=stream) * 4 - 2
    y = 2 * x + 0.3 * torch.randn(1000, 1, generator=stream)
    post = pm.fit(
        "deep_ensemble",
        net=lambda: nn.Linear(1, 1),
        task=pm.Task(train=(x, y), likelihood=Gaussian(noise="learned")),
        num_modes=2,
        epochs=60,
        lr=0.05,
        prior_precision=0.0,
        progress="silent",
    )
    assert post.target_scaling is not None
    noise = post.stack.extra["log_noise"].exp() * post.target_scaling.scale
    assert noise.shape == (2,)
    assert (noise - 0.3).abs().max() < 0.03
    prediction = post.predict(x[:5])
    torch.testing.assert_close(prediction.aleatoric_variance, noise.square().mean().expand(5, 1))


def test_regression_members_are_a_mixture_not_an_average() -> None:
    """A peer averages the members' parameters, and two members at ±5 lose their spread."""
    members = [nn.Linear(1, 1) for _ in range(2)]
    for module, centre in zip(members, (-5.0, 5.0), strict=True):
        nn.init.zeros_(module.weight)
        nn.init.constant_(module.bias, centre)
    post = pm.fit(
        "deep_ensemble", net=members, epochs=0, progress="silent",
        task=pm.Task(train=(torch.zeros(4, 1), torch.zeros(4, 1)), likelihood=Gaussian(noise=0.1)),
    )  # fmt: skip
    prediction = post.predict(torch.zeros(1, 1))
    assert prediction.std.item() == pytest.approx(math.sqrt(25 + 0.01))
    assert prediction.mean.item() == pytest.approx(0.0)


# ------------------------------------------------------------------------------- what it takes


def test_data_in_every_form() -> None:
    """Arrays of NumPy, tensors and a TensorDataset agree; a shuffling loader repeats itself."""
    sources = [(X, Y), (X.numpy(), Y.numpy()), TensorDataset(X, Y)]
    posts = [pm.fit("map", net=net, task=task(train=source), **QUICK) for source in sources]
    assert same(posts[0], posts[1])
    assert same(posts[0], posts[2])
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    first, second = (pm.fit("map", net=net, task=task(train=loader), **QUICK) for _ in range(2))
    assert same(first, second)
    assert first.predict(loader).mean.shape == (60, 2)


def test_networks_in_every_form() -> None:
    trained = net()
    kept = pm.fit("map", net=trained, task=task(), epochs=0, progress="silent")
    assert torch.equal(kept.stack.params["0.weight"][0], trained[0].weight)
    several = pm.fit("deep_ensemble", net=[net() for _ in range(3)], task=task(), **QUICK)
    assert several.num_modes == 3
    built = pm.fit("map", net=pm.nets.mlp, task=task(), **QUICK)
    assert built.predict(X).mean.shape == (60, 2)
    with pytest.raises(ValueError, match="1 trained network was given"):
        pm.fit("deep_ensemble", net=trained, num_modes=4, task=task(), **QUICK)


def test_a_network_may_have_more_classes_than_the_labels_show() -> None:
    """With a warning, unless the task says how many there are."""
    with pytest.warns(UserWarning, match=r"gives 5 outputs for 2 classes.*target_size=5"):
        post = pm.fit("map", net=lambda: nn.Linear(3, 5), task=task(), **QUICK)
    assert post.predict(X).mean.shape == (60, 5)
    pm.fit("map", net=lambda: nn.Linear(3, 5), task=task(target_size=5), **QUICK)


def test_options_object_and_names_agree() -> None:
    named = pm.fit("deep_ensemble", net=net, task=task(), num_modes=2, **QUICK)
    config = pm.methods.DeepEnsemble(num_modes=2, epochs=3, batch_size=16)
    assert same(named, pm.fit(config, net=net, task=task(), progress="silent"))
    with pytest.raises(ValueError, match="put them into it"):
        pm.fit(config, net=net, task=task(), lr=0.1)


def test_functional_core_equals_fit() -> None:
    """A loop of one's own over `init` and `step` gives the weights of `fit`."""
    from polymode.core.rng import fold
    from polymode.methods import deep_ensemble
    from polymode.stack.stack import Stack
    from polymode.training.loop import Batch

    config = pm.methods.DeepEnsemble(num_modes=2, epochs=3, batch_size=16)
    problem = pm.methods.Problem(task().likelihood, 60, 2, 4)
    stack = Stack(net, 2, seed=0, execution="batched")  # another may be measured than for 12 steps
    state = deep_ensemble.init(config, problem, stack)
    state.stack.train()
    for epoch in range(3):
        seeds = [fold(member, "order", epoch) for member in stack.seeds]
        for x, y in task().train.epoch_each(16, seeds):
            state, info = deep_ensemble.step(config, problem, state, Batch(x, y, own=True))
    assert info.loss.shape == (2,)
    post = pm.fit(config, net=net, task=task(), progress="silent", execution="batched")
    for name, tensor in post.stack.tensors().items():
        assert torch.equal(tensor, state.stack.tensors()[name])


def test_few_members_at_a_time_give_the_same() -> None:
    """`auto` takes batched products for these; then chunks of two follow."""
    posts = [
        pm.fit("deep_ensemble", net=net, task=task(), num_modes=5, chunk_size=size, **QUICK)
        for size in (None, 2)
    ]
    plans = [post.stack.plans["gradients"] for post in posts]
    assert plans == [
        Plan("batched", num_threads=1), Plan("chunked", chunk_size=2, num_threads=1)
    ]  # fmt: skip
    for a, b in zip(posts[0].stack.leaves(), posts[1].stack.leaves(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_own_data_order_makes_members_differ_by_it_alone() -> None:
    """Equal starts and orders agree up to rounding, which depends on a member's place in memory."""
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    for order, equal in (("shared", True), ("own", False)):
        members = [copy.deepcopy(start) for _ in range(2)]
        post = pm.fit("deep_ensemble", net=members, task=task(), data_order=order, **QUICK)
        first, second = post.stack.params["0.weight"]
        assert torch.allclose(first, second, rtol=1e-5, atol=1e-6) is equal


def test_augmentation_by_name_is_kept_in_the_configuration() -> None:
    x, y = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 2
    images = pm.Task(train=(x, y), likelihood="categorical")
    options = {"net": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), "task": images}
    posts = [
        pm.fit("map", augment=augment, **options, **QUICK)
        for augment in ("crop:2+flip", Crop(2) + Flip(), None)
    ]
    named, same, plain = (post.stack.params["1.weight"] for post in posts)
    assert torch.equal(named, same) and not torch.equal(named, plain)
    assert posts[0].config["augment"]["steps"][0] == Crop(2).to_config()
    with pytest.raises(ValueError, match="Unknown augmentation 'flp'"):
        pm.fit("map", augment="flp", **options)


def test_augmentation_is_seeded_and_seen() -> None:
    def jitter(x: torch.Tensor, stream: torch.Generator) -> torch.Tensor:
        return x + torch.randn(x.shape, generator=stream)

    for order in ("shared", "own"):
        options = QUICK | {"num_modes": 2, "data_order": order}
        plain = pm.fit("deep_ensemble", net=net, task=task(), **options)
        first, second = (
            pm.fit("deep_ensemble", net=net, task=task(), augment=jitter, **options)
            for _ in range(2)
        )
        assert same(first, second)
        assert not same(first, plain)


def test_numpy_inputs_predict() -> None:
    post = pm.fit("map", net=net, task=task(), **QUICK)
    assert torch.equal(post.predict(X.numpy().astype(np.float64)).mean, post.predict(X).mean)


# ---------------------------------------------------------------------------------- what it tells


def test_events_have_an_eta() -> None:
    events: list[Event] = []

    def observe(event: Event) -> None:
        events.append(event)
        if event.kind == "start":
            time.sleep(0.11)  # progress is told of after 0.1 s

    options = {"epochs": 3, "batch_size": 4, "progress": "silent", "on_event": observe}
    pm.fit("map", net=net, task=task(), **options)
    assert [events[0].kind, events[-1].kind] == ["start", "end"]
    assert events[-1].step == events[-1].total == 45
    middle = [event for event in events if event.kind == "progress"]
    assert middle
    assert all(event.eta > 0 and math.isfinite(event.loss) for event in middle)


def test_lines_are_one_for_each_tenth(capsys) -> None:
    pm.fit("map", net=net, task=task(), epochs=60, batch_size=4, progress="lines")
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 10
    assert "100 %" in lines[-1]
    assert "to go" in lines[-1]


# ------------------------------------------------------------------------------- said as a warning


def test_a_softmax_at_the_end_is_told() -> None:
    with pytest.warns(UserWarning, match="like those of a softmax; the likelihood takes logits"):
        made = lambda: nn.Sequential(nn.Linear(3, 2), nn.Softmax(-1))  # noqa: E731
        pm.fit("map", net=made, task=task(), **QUICK)
    logs = lambda: nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(-1))  # noqa: E731
    pm.fit("map", net=logs, task=task(), **QUICK)  # they are logits, too


def test_new_networks_without_training_are_told() -> None:
    with pytest.warns(UserWarning, match="epochs=0 with a function that makes new networks"):
        pm.fit("map", net=net, task=task(), epochs=0, progress="silent")
    pm.fit("map", net=net(), task=task(), epochs=0, progress="silent")


def test_a_batch_size_beside_a_loader_is_told() -> None:
    own = task(train=DataLoader(TensorDataset(X, Y), batch_size=10))
    with pytest.warns(UserWarning, match="batch_size=20 has no effect: the DataLoader keeps"):
        pm.fit("map", net=net, task=own, epochs=1, batch_size=20, progress="silent")
    for size in ({}, {"batch_size": 10}):
        pm.fit("map", net=net, task=own, epochs=1, progress="silent", **size)


def test_the_prior_weighs_by_what_a_sampler_draws() -> None:
    """20 of 60 rows, λ = 40: the maximum is that of a task with these rows alone."""
    rows = list(range(20))
    loader = DataLoader(TensorDataset(X, Y), sampler=SubsetRandomSampler(rows), batch_size=20)
    options = {"net": lambda: nn.Linear(3, 2), "dtype": torch.float64, "epochs": 300, "lr": 0.05}
    options |= {"prior_precision": 40.0, "schedule": "cosine", "progress": "silent"}
    found = pm.fit("map", task=task(train=loader), **options)
    expected = pm.fit("map", task=task(train=(X[:20], Y[:20])), **options)
    torch.testing.assert_close(
        found.stack.params["weight"], expected.stack.params["weight"], rtol=1e-3, atol=1e-5
    )
