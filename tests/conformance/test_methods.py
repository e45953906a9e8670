"""The contract of a method: every registered method passes all of this, with no code of its own.

A method added to the registry is picked up by name; see docs/add-a-method.md.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.safe_files import read_tensors
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import METHODS
from polymode.training.checkpoint import axis_of_modes

from .small_fits import (
    LABELS,
    X,
    assert_near,
    assert_same,
    check_resume,
    classes,
    drawing_net_for,
    fit,
    net_for,
    tensors,
    with_policies,
)

VALUES = X[:, :2].sin()

pytestmark = [
    pytest.mark.parametrize("method", METHODS.names()),
    pytest.mark.filterwarnings("ignore:.* uses the given networks as they are:UserWarning"),
]


def values() -> pm.Task:
    return pm.Task(train=(X, VALUES), likelihood=Gaussian(noise="learned"))


def test_shapes(method) -> None:
    post = fit(method)
    prediction = post.predict(X)
    samples = prediction.num_samples
    assert samples >= post.num_modes >= 1
    assert prediction.log_probs.shape == (samples, 48, 2)
    assert prediction.mean.shape == (48, 2)
    torch.testing.assert_close(prediction.mean.sum(-1), torch.ones(48))
    regression = fit(method, task=values()).predict(X)
    assert regression.mean.shape == regression.variance.shape == (48, 2)
    assert (regression.aleatoric_variance > 0).all()


def test_number_of_modes(method) -> None:
    post = fit(method, num_modes=3)
    assert post.num_modes == len(post.members) == 3


def test_deterministic_under_the_seed(method) -> None:
    first, second, other = fit(method, seed=4), fit(method, seed=4), fit(method, seed=5)
    assert_same(first, second)
    assert torch.equal(first.predict(X).mean, second.predict(X).mean)
    assert not torch.equal(first.predict(X).mean, other.predict(X).mean)


def test_global_stream_is_neither_used_nor_moved(method) -> None:
    torch.manual_seed(1)
    first = fit(method, net=with_policies)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    second = fit(method, net=with_policies)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert_same(first, second)


def test_learns(method) -> None:
    """After training, the predictive log-likelihood is clearly better than at the start."""
    before, after = (
        fit(method, epochs=epochs, lr=0.01).predict(X).log_prob(LABELS).mean().item()
        for epochs in (0, 80)
    )
    assert after > before + 0.1


def test_save_and_load(method, tmp_path) -> None:
    for net, task in ((with_policies, classes()), (net_for(method), values())):
        post = fit(method, net=net, task=task)
        post.save(tmp_path)
        loaded = pm.load(tmp_path, net=net)
        assert_same(post, loaded)
        assert torch.equal(post.predict(X).mean, loaded.predict(X).mean)
        assert torch.equal(post.predict(X).variance, loaded.predict(X).variance)


def test_resume_equals_an_uninterrupted_run(method, tmp_path) -> None:
    check_resume(method, tmp_path)


def test_predictions_do_not_depend_on_the_batch_size(method) -> None:
    post = fit(method, net=with_policies, dtype=torch.float64)
    whole = post.predict(X).mean
    for size in (1, 7, 48):
        torch.testing.assert_close(post.predict(X, batch_size=size).mean, whole, rtol=1e-10, atol=0)


def test_float64(method) -> None:
    post = fit(method, dtype=torch.float64)
    values = (tensor for tensor in tensors(post).values() if tensor.is_floating_point())
    assert all(tensor.dtype == torch.float64 for tensor in values)
    assert post.predict(X).mean.dtype == torch.float64


def test_executions_agree(method) -> None:
    """The same posterior in every execution, in float64 to 1e-8 after twelve steps."""
    posts = {
        execution: fit(
            method, net=with_policies, execution=execution, dtype=torch.float64, num_modes=3
        )
        for execution in ("loop", "batched", "threads", "chunked", "auto")
    }
    for execution, post in posts.items():
        assert_near(post, posts["loop"], execution)


def test_normalisation_and_dropout_policy(method) -> None:
    """Prediction is in evaluation mode: repeatable, and independent of other examples."""
    post = fit(method, net=with_policies)
    assert torch.equal(post.predict(X).mean, post.predict(X).mean)
    torch.testing.assert_close(post.predict(X[:1]).mean, post.predict(X).mean[:1])
    running = tensors(post)["network/1.running_mean"]
    assert (running != 0).any()


def test_the_users_network_is_not_changed(method) -> None:
    module = net_for(method)()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    fit(method, net=[module, net_for(method)()], num_modes=2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_draws_are_functions_of_seed_mode_and_number(method) -> None:
    """For methods that draw; others have the same networks whatever the seed."""
    post = fit(method, num_modes=3, net=drawing_net_for(method))
    if not post.weights.of_networks:  # the networks do not vary, what they predict does
        assert torch.equal(post.weights.draw(1, 8)(X), post.weights.draw(0, 7)(X))
        predictions = [post.predict(X, seed=seed).log_probs for seed in (7, 7, 8)]
        assert torch.equal(*predictions[:2]) and not torch.equal(*predictions[1:])
        return
    draws = post.weights.most is None

    def outputs(post: pm.Posterior, number: int, seed: int) -> torch.Tensor:
        return post.weights.draw(number, seed)(X).detach()

    first = outputs(post, 0, 7)
    assert torch.equal(first, outputs(post, 0, 7))
    assert torch.equal(first, outputs(post, 0, 8)) is not draws
    if draws or post.weights.samples_per_mode > 1:
        other = outputs(post, 1, 7)
        assert all(not torch.equal(a, b) for a, b in zip(first, other, strict=True))
    if METHODS.get(method).metadata["kind"] == "one mode":  # members do not see each other
        alone = fit(method, num_modes=1, net=drawing_net_for(method))
        torch.testing.assert_close(outputs(alone, 0, 7)[0], first[0], rtol=1e-4, atol=1e-5)


def test_samples_are_modes_times_samples_per_mode(method) -> None:
    task = pm.Task(train=(X, LABELS), test=(X, LABELS), likelihood="categorical")
    post = fit(method, num_modes=2)
    samples = post.weights.samples_per_mode
    prediction = post.predict(X)
    assert (
        (prediction.num_modes, prediction.num_samples) == (2, 2 * samples) == (2, post.num_samples)
    )
    cost = pm.evaluate(post, task).cost
    assert (cost.num_modes, cost.num_samples) == (2, 2 * samples)
    if samples > 1:
        assert post.predict(X, samples_per_mode=2).num_samples == 4
        assert pm.evaluate(post, task, samples_per_mode=2).cost.num_samples == 4
    if post.weights.most is not None:
        with pytest.raises(ValueError, match=f"kept {post.weights.most} per mode"):
            post.predict(X, samples_per_mode=post.weights.most + 1)


def test_predictions_are_differentiable_in_the_inputs(method) -> None:
    """Against central differences in float64, whose error is below 1e-7 here."""
    post = fit(method, dtype=torch.float64)
    x = X[:3].double().requires_grad_()

    def log_prob(x: torch.Tensor) -> torch.Tensor:
        return post.predict_batch(x, seed=5).log_prob(LABELS[:3]).sum()

    (gradient,) = torch.autograd.grad(log_prob(x), x)
    assert gradient.abs().sum() > 0
    for row, column in ((0, 1), (2, 3)):
        shift = torch.zeros_like(x)
        shift[row, column] = 1e-5
        slope = (log_prob(x + shift) - log_prob(x - shift)).item() / 2e-5
        assert gradient[row, column].item() == pytest.approx(slope, abs=1e-7, rel=1e-5)
    torch.testing.assert_close(post.predict_batch(X[:3].double()).mean, post.predict(X[:3]).mean)


def test_takes_a_posterior_as_networks(method) -> None:
    """Methods that work on trained networks leave them bit by bit; others train on."""
    given = fit("map", net=net_for(method), num_modes=2)
    post = fit(method, net=given)
    assert post.num_modes == post.config["num_modes"] == 2
    same = all(
        torch.equal(a, b)
        for mine, theirs in zip(post.members, given.members, strict=True)
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True)
    )
    assert same is METHODS.get(method).value.post_hoc
    with pytest.raises(ValueError, match="`num_modes` is 5, but 2 trained networks were given"):
        fit(method, net=given, num_modes=5)


def test_some_modes_are_the_first_samples(method) -> None:
    post = fit(method, num_modes=3, dtype=torch.float64)
    part, whole = post[:2].predict(X), post.predict(X)
    first = whole.log_probs[: 2 * post.weights.samples_per_mode]
    torch.testing.assert_close(part.log_probs, first, rtol=1e-10, atol=1e-12)


def test_inference_mode_changes_nothing(method) -> None:
    """Derivatives that predictions need are there, and what is drawn has its streams."""
    post = fit(method)
    wanted = post.predict(X).log_probs
    with torch.inference_mode():
        found = post.predict(X.clone()).log_probs
    assert torch.equal(found, wanted)


def test_predicting_moves_nothing(method) -> None:
    post = fit(method, net=with_policies)
    before = {name: tensor.clone() for name, tensor in tensors(post).items()}
    post.predict(X)
    post.predict_batch(X, seed=3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(post).items())


def test_bad_data_has_a_clear_error(method) -> None:
    with pytest.raises(ValueError, match="empty"):
        fit(method, task=pm.Task(train=(X[:0], LABELS[:0]), likelihood="categorical"))
    broken = X.clone()
    broken[3] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        fit(method, task=pm.Task(train=(broken, LABELS), likelihood="categorical"))
    with pytest.raises(ValueError, match="needs 2"):
        fit(method, net=lambda: nn.Linear(4, 1))


def test_unknown_options_name_the_nearest(method) -> None:
    with pytest.raises(ValueError, match=r"Unknown option 'epoch' .*Did you mean 'epochs'"):
        fit(method, epoch=3)


def test_registered_with_what_lists_and_reports_need(method) -> None:
    entry = METHODS.get(method)
    assert {"summary", "kind", "cost", "paper", "bibtex"} <= entry.metadata.keys()
    assert entry.metadata["bibtex"].lstrip().startswith("@")
    assert dataclasses.is_dataclass(entry.value.config)
    assert entry.value.config.__doc__
    assert entry.value.init.__doc__
    assert entry.value.step.__doc__


def test_a_checkpoint_shows_where_its_modes_are(method: str, tmp_path) -> None:
    """Ranks that resume take their modes from files of others: every tensor of a state has the
    modes on one axis that is known, or is shared by all of them."""
    shapes = []
    for number in (3, 4):
        folder = tmp_path / str(number)
        fit(method, num_modes=number, checkpoint=folder)
        tensors, metadata = read_tensors(folder / "training.safetensors")
        shapes.append({name: list(tensor.shape) for name, tensor in tensors.items()})
    for name, tensor in tensors.items():
        axis = axis_of_modes(name, tensor, metadata["mode_axes"])
        three, four = (shape[name] for shape in shapes)
        if axis is not None:
            assert (three[axis], four[axis]) == (3, 4), name
            three[axis] = 4
        if METHODS.get(method).metadata.get("sizes") != "by number of modes":
            assert three == four, name
