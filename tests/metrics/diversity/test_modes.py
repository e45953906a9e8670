"""Distances of weights and of input gradients, on networks whose gradients are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from polymode.likelihoods.kinds import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian
from polymode.metrics.diversity import (
    input_gradient_distance,
    mean_pairwise,
    weight_cosine,
)
from polymode.posterior import Posterior, Samples
from polymode.stack.stack import Stack


def posterior(modules, likelihood, input_shape, target_size) -> Posterior:
    stack = Stack(modules)
    stack.add_parameters(likelihood.init(len(modules), target_size, dtype=stack.dtype))
    return Posterior(
        Samples(stack),
        likelihood,
        method="given",
        config={},
        seed=0,
        input_shape=input_shape,
        target_size=target_size,
    )


def linear(weights) -> nn.Linear:
    """A network whose input gradients are its rows."""
    weights = torch.tensor(weights)
    layer = nn.Linear(weights.shape[1], weights.shape[0], bias=False)
    layer.weight.data = weights
    return layer


def networks(number, inputs=3, outputs=4, hidden=16) -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()
        for _ in range(number)
    ]


def twin(modules, x, choose) -> torch.Tensor:
    """Distances (B, S, S) from the whole Jacobian of each network at each input, one by one."""
    rows = []
    for n, row in enumerate(x):
        jacobians = [torch.autograd.functional.jacobian(net, row).detach() for net in modules]
        vectors = [choose(jacobian, n).flatten() for jacobian in jacobians]
        cosine = torch.tensor(
            [[a @ b / (a.norm() * b.norm()) for b in vectors] for a in vectors],
            dtype=torch.float64,
        )
        rows.append(1 - cosine)
    return torch.stack(rows)


def test_labels_choose_the_logit():
    """Rows (1, 0), (0, 1) at class 0: orthogonal; (1, 1), (1, 0) at class 1: 45 degrees."""
    nets = [linear([[1.0, 0.0], [1.0, 1.0]]), linear([[0.0, 1.0], [1.0, 0.0]])]
    post = posterior(nets, Categorical(), (2,), 2)
    distance = input_gradient_distance(post, torch.randn(2, 2), torch.tensor([0, 1]))
    expected = [1.0, 1.0 - math.sqrt(0.5)]
    torch.testing.assert_close(distance.each, torch.tensor(expected, dtype=torch.float64))
    assert distance.matrix[0, 1].item() == pytest.approx(sum(expected) / 2)
    assert distance.matrix.diagonal().tolist() == [0.0, 0.0]


def test_opposite_gradients_have_distance_two_and_scale_does_not_count():
    nets = [linear([[2.0, 1.0], [0.0, 0.0]]), linear([[-1e-30, -5e-31], [0.0, 0.0]])]
    post = posterior(nets, Categorical(), (2,), 2)
    distance = input_gradient_distance(post, torch.ones(1, 2), [0])
    assert distance.each.item() == pytest.approx(2.0)
    assert distance.num_zero == 0


def test_zero_gradients_are_far_from_all_but_each_other():
    nets = [linear([row, [1.0, 0.0]]) for row in ([0.0, 0.0], [0.0, 0.0], [3.0, 4.0])]
    post = posterior(nets, Categorical(), (2,), 2)
    distance = input_gradient_distance(post, torch.ones(1, 2), [0])
    assert distance.matrix.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    assert distance.each.item() == pytest.approx(2 / 3)
    assert distance.num_zero == 2


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_equal_whole_jacobians_whatever_the_batch(batch, monkeypatch):
    nets = networks(5)
    post = posterior(nets, Categorical(), (3,), 4)
    x = torch.randn(11, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr("polymode.metrics.diversity.modes.GRADIENT_BYTES", batch * 8 * 5 * 3)
    labels = torch.arange(11) % 4
    for targets, classes in ((labels, labels), (None, post.predict(x).classes)):
        expected = twin(nets, x, lambda jacobian, n, classes=classes: jacobian[classes[n]])
        distance = input_gradient_distance(post, x, targets)
        torch.testing.assert_close(distance.matrix, expected.mean(0), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(distance.each, expected.sum((1, 2)) / 20, rtol=1e-9, atol=1e-12)
        assert distance.each.mean().item() == pytest.approx(mean_pairwise(distance.matrix))


@pytest.mark.parametrize(
    ("likelihood", "outputs"), [(Gaussian(noise="learned"), 2), (HeteroscedasticGaussian(), 4)]
)
def test_regressions_take_the_gradients_of_all_locations(likelihood, outputs):
    nets = networks(3, outputs=outputs)
    post = posterior(nets, likelihood, (3,), 2)
    x = torch.randn(5, 3, dtype=torch.float64)
    expected = twin(nets, x, lambda jacobian, n: jacobian[:2]).mean(0)
    distance = input_gradient_distance(post, x)
    torch.testing.assert_close(distance.matrix, expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="no class"):
        input_gradient_distance(post, x, torch.zeros(5, 2))


def test_one_logit_for_two_classes_and_no_gradient_mode():
    nets = networks(3, outputs=1)
    post = posterior(nets, Bernoulli(), (3,), 2)
    x = torch.randn(5, 3, dtype=torch.float64)
    expected = twin(nets, x, lambda jacobian, n: jacobian).mean(0)
    with torch.no_grad():
        distance = input_gradient_distance(post, x, [0, 1, 0, 1, 1])
    torch.testing.assert_close(distance.matrix, expected, rtol=1e-9, atol=1e-12)
    assert all(parameter.grad is None for parameter in post.stack.params.values())


def test_bad_input_is_refused():
    post = posterior(networks(2), Categorical(), (3,), 4)
    x = torch.randn(5, 3)
    for inputs, targets, message in [
        (x[:, :2], None, "inputs have shape"),
        (x.long(), None, "must be floats"),
        (x, [0, 1], "2 label.* for 5 input"),
        (x, [0, 1, 2, 3, 4], "in 0..3"),
    ]:
        with pytest.raises(ValueError, match=message):
            input_gradient_distance(post, inputs, targets)
    with pytest.raises(ValueError, match="at least 2 members"):
        input_gradient_distance(posterior(networks(1), Categorical(), (3,), 4), x)
    post.stack.params["0.weight"].data[1] = math.nan
    with pytest.raises(ValueError, match="member 1 .* not finite"):
        input_gradient_distance(post, x, [0, 1, 2, 3, 0])


def test_weight_cosine_is_that_of_the_flattened_parameters(monkeypatch):
    nets = networks(6)
    post = posterior(nets, Gaussian(noise="learned"), (3,), 4)
    flat = torch.stack([nn.utils.parameters_to_vector(net.parameters()) for net in nets]).detach()
    expected = torch.nn.functional.cosine_similarity(flat[:, None], flat[None], dim=-1)
    torch.testing.assert_close(weight_cosine(post), expected, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr("polymode.metrics.diversity.modes.COLUMNS_BYTES", 8 * 6 * 5)
    torch.testing.assert_close(weight_cosine(post), expected, rtol=1e-12, atol=1e-12)


def test_weight_cosine_of_equal_opposite_and_zero_weights():
    nets = [linear([[scale, -2 * scale]]) for scale in (1.0, 3.0, -1.0, 0.0)]
    cosine = weight_cosine(posterior(nets, Gaussian(noise=1.0), (2,), 1))
    expected = [[1, 1, -1, 0], [1, 1, -1, 0], [-1, -1, 1, 0], [0, 0, 0, 1]]
    torch.testing.assert_close(cosine, torch.tensor(expected, dtype=torch.float64))


def test_weight_cosine_sees_a_permutation_that_the_function_does_not():
    (net,) = networks(1)
    other = networks(1)[0]
    order = torch.arange(15, -1, -1)
    other[0].weight.data, other[0].bias.data = net[0].weight[order].data, net[0].bias[order].data
    other[2].weight.data = net[2].weight[:, order].data
    post = posterior([net, other], Categorical(), (3,), 4)
    x = torch.randn(9, 3, dtype=torch.float64)
    torch.testing.assert_close(net(x), other(x))
    assert weight_cosine(post)[0, 1] < 0.5
    assert input_gradient_distance(post, x).matrix[0, 1] < 1e-12
