"""Weights of every kind: a draw is a function of (seed, mode, number), whatever else is asked."""

from __future__ import annotations

import pytest
import torch

from polymode.likelihoods.kinds import Categorical
from polymode.posterior import Gaussian, Noisy, Samples
from polymode.posterior.weights import changing_tensors

from .made_up import KINDS, X, by_draws, made_up, posterior

EXACT = {"rtol": 1e-11, "atol": 1e-13}


@pytest.mark.parametrize("kind", KINDS)
def test_draws_can_be_made_again_in_parts_and_in_any_order(kind) -> None:
    weights = made_up(kind)
    samples = weights.samples_per_mode
    whole = by_draws(weights, samples, seed=5)
    backwards = [weights.draw(number, 5)(X) for number in reversed(range(samples))]
    torch.testing.assert_close(torch.stack(backwards[::-1], 1).detach(), whole, **EXACT)
    torch.testing.assert_close(by_draws(weights[1:3], samples, seed=5), whole[1:3], **EXACT)
    torch.testing.assert_close(by_draws(made_up(kind, 2), samples, seed=5), whole[:2], **EXACT)
    every_second = weights[::2]
    torch.testing.assert_close(by_draws(every_second, samples, seed=5), whole[::2], **EXACT)
    different = len({tuple(each.flatten().tolist()) for each in whole.flatten(0, 1)})
    assert different == 4 * samples
    other = by_draws(weights, samples, seed=6)
    assert torch.equal(other, whole) is (weights.most is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_draws(kind, monkeypatch) -> None:
    """All at once, and draw after draw where there is no memory to hold them."""
    weights = made_up(kind)
    samples = weights.samples_per_mode
    expected = by_draws(weights, samples, seed=5)
    with torch.no_grad():
        together = weights.outputs(samples, 5)
        for part in (slice(0, 4), slice(4, 9)):
            torch.testing.assert_close(together(X[part]), expected[:, :, part], **EXACT)
        monkeypatch.setattr("polymode.posterior.weights.free_bytes", lambda device: 0)
        torch.testing.assert_close(weights.outputs(samples, 5)(X), expected, **EXACT)
        fewer = weights.outputs(min(2, samples), 5)(X)
    torch.testing.assert_close(fewer, expected[:, :2], **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_slices_share_memory(kind) -> None:
    weights = made_up(kind)
    before = by_draws(weights[2:], weights.samples_per_mode, seed=0)
    with torch.no_grad():
        for tensor in weights.tensors().values():
            if tensor.is_floating_point():
                tensor.mul_(1.5)
    part, whole = weights[2:], by_draws(weights, weights.samples_per_mode, seed=0)
    assert not torch.allclose(whole[2:], before)
    torch.testing.assert_close(by_draws(part, weights.samples_per_mode, 0), whole[2:], **EXACT)
    for name, tensor in part.tensors().items():
        axis = part.mode_axis(name)
        own = weights.tensors()[name].narrow(axis, 2, 2)
        assert tensor.data_ptr() == own.data_ptr(), name


@pytest.mark.parametrize("kind", ["one", "samples", "gaussian"])
def test_kept_draws_are_the_draws(kind) -> None:
    weights = made_up(kind)
    kept = weights.keep(weights.samples_per_mode, seed=5)
    assert isinstance(kept, Samples)
    expected = by_draws(weights, weights.samples_per_mode, seed=5)
    torch.testing.assert_close(by_draws(kept, weights.samples_per_mode, seed=99), expected, **EXACT)


def test_noise_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="passes, not tensors"):
        made_up("noisy").keep(2, seed=0)


@pytest.mark.parametrize("kind", ["one", "samples", "gaussian"])
def test_gathered_networks_are_those_of_the_draws(kind) -> None:
    """Parameters, statistics and noise of each, with memory of their own."""
    weights = made_up(kind)
    last = weights.samples_per_mode - 1
    chosen = [(2, last), (0, 0), (2, 0), (2, last)]
    stack = weights.gather(chosen, seed=5)
    for place, (mode, number) in enumerate(chosen):
        drawn = weights.draw(number, 5).tensors()
        for name, tensor in stack.tensors().items():
            assert torch.equal(tensor[place], drawn[name][mode]), name
    before = by_draws(weights, last + 1, seed=5)
    with torch.no_grad():
        for leaf in stack.leaves():
            leaf.zero_()
    assert torch.equal(by_draws(weights, last + 1, seed=5), before)


def test_gathered_noise_is_pinned_and_of_each_its_own() -> None:
    weights = made_up("noisy")
    stack = weights.gather([(1, 0), (1, 1), (2, 0), (1, 0)], seed=5)
    with torch.no_grad():
        outputs = stack(X)
        assert torch.equal(outputs, stack(X))
        torch.testing.assert_close(stack(X[:2]), outputs[:, :2], **EXACT)
    assert torch.equal(outputs[0], outputs[3])
    assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    assert stack.mode == "noisy" and weights.stack.mode == "eval"


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_takes_modes_and_samples_uniformly(kind) -> None:
    """χ² over 4 modes, or 4 × 3 kept samples, with 1,200 networks. 16.3 with 3 degrees of freedom
    and 31.3 with 11 are exceeded by chance once in 1,000 seeds each; the seed is fixed."""
    weights = made_up(kind)
    post = posterior(weights)
    drawn, again = post.sample(1200, seed=5), post.sample(1200, seed=5)
    assert drawn.num_modes == 1200
    name, bound = ("0.weight", 31.3) if kind == "samples" else ("4.bias", 16.3)
    values = {**drawn.params, **drawn.frozen}[name]
    assert torch.equal(values, {**again.params, **again.frozen}[name])
    _, counts = values.flatten(1).unique(dim=0, return_counts=True)
    cells = 12 if kind == "samples" else 4
    assert len(counts) == cells and counts.sum() == 1200
    expected = 1200 / cells
    assert ((counts - expected).square() / expected).sum() < bound
    if kind == "gaussian":  # draws never end: no network twice
        assert len(drawn.params["0.weight"].flatten(1).unique(dim=0)) == 1200


def test_samples_are_what_was_kept() -> None:
    weights = made_up("samples")
    assert isinstance(weights, Samples) and weights.kept is not None
    assert (weights.samples_per_mode, weights.most) == (3, 3)
    for number in range(3):
        for name, tensor in changing_tensors(weights.draw(number, seed=0)).items():
            assert torch.equal(tensor, weights.kept[name][number]), name


@pytest.mark.parametrize("where", [slice(None), slice(1, None), slice(None, None, 2)])
def test_samples_that_change_in_place_are_seen_after_a_prediction(where) -> None:
    """Also those of some modes, which lie apart in memory, and of fewer samples than are kept."""
    weights = made_up("samples")[where]
    assert isinstance(weights, Samples) and weights.kept is not None
    for number in (3, 2):
        before = weights.outputs(number, 0)(X)
        with torch.no_grad():
            weights.kept["network/0.weight"] += 0.5
        after = weights.outputs(number, 0)(X)
        expected = torch.stack([weights.draw(k, 0)(X) for k in range(number)], 1)
        torch.testing.assert_close(after, expected)
        assert not torch.allclose(before, after)


def test_a_gaussian_draw_is_its_formula() -> None:
    """mean + std ε + Σ_r z_r d_r, with what the streams give for ε and z."""
    weights = made_up("gaussian")
    assert isinstance(weights, Gaussian)
    epsilon, z = weights.stack.normal("draw", 5, 1), weights._coefficients(2, 5, 1)
    drawn = weights.draw(1, seed=5)
    for name, mean in weights.stack.params.items():
        low_rank = torch.einsum("mr,mr...->m...", z, weights.deviations[name])
        expected = mean + weights.std[name] * epsilon[name] + low_rank
        torch.testing.assert_close(drawn.params[name], expected.detach(), **EXACT)
    for name, buffer in weights.stack.buffers.items():
        assert drawn.buffers[name] is buffer


@pytest.mark.parametrize("part", ["std", "deviations"])
def test_each_part_of_a_gaussian_follows_seed_mode_and_number(part) -> None:
    whole = made_up("gaussian")
    assert isinstance(whole, Gaussian)
    std, deviations = (whole.std, None) if part == "std" else (None, whole.deviations)
    weights = Gaussian(whole.stack, std, deviations, 2)
    drawn = [weights.draw(*which).params["0.weight"] for which in ((0, 0), (1, 0), (0, 1))]
    assert len(torch.cat(drawn).flatten(1).unique(dim=0)) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_mixtures_of_the_draws(kind) -> None:
    """Also with fewer samples, another seed, some modes, and batches; learned noise is each
    sample's own."""
    weights = made_up(kind)
    post = posterior(weights)
    samples = weights.samples_per_mode
    assert post.num_samples == 4 * samples
    for seed, number in ((0, samples), (3, 1)):
        expected = by_draws(weights, number, seed)
        found = post.predict(X, seed=seed, samples_per_mode=number, batch_size=4)
        torch.testing.assert_close(found.loc.unflatten(0, (4, number)), expected, **EXACT)
        noise = [weights.draw(j, seed).extra["log_noise"].exp() for j in range(number)]
        scale = torch.stack(noise, 1)[..., None, None].expand_as(expected).flatten(0, 1)
        torch.testing.assert_close(found.scale, scale.detach(), **EXACT)
        streamed = list(post.stream(X, seed=seed, samples_per_mode=number, batch_size=4))
        assert [len(part) for part in streamed] == [4, 4, 1]
        torch.testing.assert_close(torch.cat([p.loc for p in streamed], 1), found.loc, **EXACT)
    part = post[1:3].predict(X)
    torch.testing.assert_close(
        part.loc, post.predict(X).loc.unflatten(0, (4, samples))[1:3].flatten(0, 1), **EXACT
    )
    drawn = [stack(X) for stack in post.draws(seed=2)]
    torch.testing.assert_close(torch.stack(drawn, 1).detach(), by_draws(weights, samples, 2))


def test_samples_per_mode_is_checked() -> None:
    post = posterior(made_up("samples"))
    with pytest.raises(ValueError, match="`samples_per_mode` is 4, but made_up kept 3 per mode"):
        post.predict(X, samples_per_mode=4)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="`samples_per_mode` must be an integer of at least 1"):
            post.predict(X, samples_per_mode=wrong)
    assert posterior(made_up("noisy")).predict(X, samples_per_mode=50).num_samples == 200
    with pytest.raises(TypeError, match="slice of its modes, got 1"):
        post[1]  # type: ignore[index]
    with pytest.raises(ValueError, match="no member chosen of 4"):
        post[4:]


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_have_gradients_with_respect_to_inputs_alone(kind) -> None:
    post = posterior(made_up(kind), Categorical())
    x = X.clone().requires_grad_()
    post.predict_batch(x, seed=1).log_prob(torch.zeros(9, dtype=torch.int64)).sum().backward()
    assert x.grad is not None and (x.grad != 0).any()
    assert all(leaf.grad is None for leaf in post.stack.leaves())
    assert post.predict(x).log_probs.requires_grad is False


def test_noisy_weights_leave_their_stack_as_it_is() -> None:
    weights = made_up("noisy")
    assert isinstance(weights, Noisy)
    before = weights.stack(X).detach()
    posterior(weights).predict(X)
    assert (weights.stack.mode, weights.stack.pinned) == ("eval", None)
    assert torch.equal(weights.stack(X).detach(), before)
