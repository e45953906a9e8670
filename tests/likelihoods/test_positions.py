"""Observations at positions: the same as rows, whatever the layout; what is ignored weighs 0."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Positions,
    StudentT,
)
from polymode.likelihoods.components import Categories
from polymode.likelihoods.kinds import likelihood_from_config

BASES = [
    Categorical(),
    Bernoulli(),
    Gaussian(noise=0.3),
    Gaussian(noise="learned_per_output"),
    HeteroscedasticGaussian(),
    StudentT(df=4.0, scale="learned"),
]
SIZES = (5, 3, 2)  # B, and two axes of positions
LAYOUTS = ["first", "last"]


def rows_of(base: Likelihood, lead: tuple[int, ...] = (4,)) -> tuple[Tensor, Tensor, dict]:
    """Outputs (*lead, B, 3, 2, K), targets (B, 3, 2[, D]), parameters."""
    draw = torch.Generator().manual_seed(0)
    size = 2 if isinstance(base, Bernoulli) else 3
    outputs = torch.randn(*lead, *SIZES, base.num_outputs(size), generator=draw).double()
    if base.classification:
        targets = torch.randint(size, SIZES, generator=draw)
    else:
        targets = torch.randn(*SIZES, size, generator=draw).double()
    spread = torch.rand(math.prod(lead), size, generator=draw).double() + 0.5
    params = base.init(math.prod(lead), size, torch.float64, spread) if base.learns else {}
    return outputs, targets, {k: v.view(*lead, *v.shape[1:]) for k, v in params.items()}


def laid_out(outputs: Tensor, layout: str) -> Tensor:
    return outputs.movedim(-1, -3) if layout == "first" else outputs


def as_rows(targets: Tensor) -> Tensor:
    return targets.flatten(0, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", BASES, ids=repr)
def test_positions_are_rows(base, layout) -> None:
    """Loss, its gradient, log-likelihood, errors and predictions of B E rows."""
    outputs, targets, params = rows_of(base)
    outputs.requires_grad_()
    flat = outputs.flatten(1, 3)
    positions = Positions(base, axes=2, outputs=layout)
    expected = base.nll(flat, as_rows(targets), params)
    loss = positions.nll(laid_out(outputs, layout), targets, params)
    torch.testing.assert_close(loss, expected)
    gradients = [torch.autograd.grad(value.sum(), outputs)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients)
    sums = base.log_prob(flat, as_rows(targets), params).unflatten(1, SIZES).sum((2, 3))
    logs = positions.log_prob(laid_out(outputs, layout), targets, params)
    torch.testing.assert_close(logs, sums)
    assert positions.num_observations(targets) == math.prod(SIZES)
    predicted = positions.components(laid_out(outputs, layout), params)
    for part, rows in zip(predicted, base.components(flat, params), strict=True):
        if isinstance(part, Tensor):
            torch.testing.assert_close(part, rows.unflatten(1, SIZES))
    if not base.classification and base.name != "heteroscedastic_gaussian":
        errors = positions.squared_errors(laid_out(outputs, layout), targets)
        torch.testing.assert_close(errors, base.squared_errors(flat, as_rows(targets)))


@pytest.mark.parametrize("base", BASES, ids=repr)
def test_ignored_targets_change_nothing(base) -> None:
    """Loss and gradient are those without the ignored rows, whose outputs may be anything."""
    outputs, targets, params = rows_of(base)
    absent = torch.rand(SIZES, generator=torch.Generator().manual_seed(1)) < 0.4
    absent[2] = True  # an example without any target
    none = -100 if base.classification else math.nan
    masked = targets.masked_fill(absent if base.classification else absent[..., None], none)
    positions = Positions(base, axes=2, outputs="last")
    outputs = outputs.masked_fill(absent[..., None], 1e4).requires_grad_()
    flat, observed = outputs.flatten(1, 3), ~absent.flatten()
    expected = base.nll(flat[:, observed], as_rows(targets)[observed], params)
    loss = positions.nll(outputs, masked, params)
    torch.testing.assert_close(loss, expected)
    gradient = torch.autograd.grad(loss.sum(), outputs)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), outputs)[0])
    assert (gradient[:, absent] == 0).all()
    assert positions.num_observations(masked) == int(observed.sum())
    assert (positions.log_prob(outputs, masked, params)[:, 2] == 0).all()


def test_a_batch_without_targets_has_no_loss() -> None:
    """A picture of nothing but void pixels must not turn the gradient into NaN."""
    outputs = torch.randn(2, 3, 4, 4, requires_grad=True)
    targets = torch.full((2, 4, 4), -100)
    loss = Positions(Categorical(), 2, "first").nll(outputs, targets, {})
    loss.backward()
    assert loss.item() == 0
    assert outputs.grad is not None
    assert (outputs.grad == 0).all()


def test_as_torch_has_it() -> None:
    """Cross-entropy over (B, C, H, W) with an ignored label, and of several labels."""
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 3, 5, 6, generator=draw)
    targets = torch.randint(-1, 3, (4, 5, 6), generator=draw)
    positions = Positions(Categorical(), 2, "first", ignore=-1)
    loss = positions.nll(outputs, positions.check(targets, 3), {})
    torch.testing.assert_close(loss, F.cross_entropy(outputs, targets, ignore_index=-1))
    logits, labels = outputs[:, 0, 0], targets[:, 0].clamp(0, 1)
    loss = Positions(Bernoulli(), 1, "none").nll(logits, labels, {})
    expected = F.binary_cross_entropy_with_logits(logits, labels.float())
    torch.testing.assert_close(loss, expected)


def test_class_weights_as_torch_has_them() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 3, 5, generator=draw)
    targets = torch.randint(3, (4, 5), generator=draw)
    targets[0, :2] = -100
    weights = (0.5, 2.0, 0.0)
    positions = Positions(Categorical(), 1, "first", class_weights=weights)
    expected = F.cross_entropy(outputs, targets, torch.tensor(weights))
    torch.testing.assert_close(positions.nll(outputs, targets, {}), expected)
    counts = targets[targets >= 0].bincount(minlength=3)
    number = sum(n * w for n, w in zip(counts.tolist(), weights, strict=True))
    assert positions.num_observations(targets) == pytest.approx(number)


@pytest.mark.parametrize("base", [Categorical(), Gaussian(noise="learned")], ids=repr)
def test_targets_of_each_member(base) -> None:
    """Targets with the member axis, as with an order of the data for each member."""
    outputs, targets, params = rows_of(base)
    positions = Positions(base, 2, "last")
    targets = torch.stack([targets.roll(k, 0) for k in range(4)])
    together = positions.nll(outputs, targets, params)
    alone = [
        positions.nll(outputs[k], targets[k], {n: t[k] for n, t in params.items()})
        for k in range(4)
    ]
    torch.testing.assert_close(together, torch.stack(alone))
    assert positions.examples_per_observation(targets).shape == (4,)


@pytest.mark.parametrize(
    "likelihood",
    [
        Positions(Categorical(), 2, "first", ignore=255),
        Positions(Bernoulli(), 1, "none", labels=7, class_weights=(1.0, 3.0)),
        Positions(Gaussian(noise=(0.1, 0.2)), 2, ignore=math.nan),
    ],
    ids=repr,
)
def test_config_survives_json(likelihood) -> None:
    config = json.loads(json.dumps(likelihood.to_config(), allow_nan=False))
    assert repr(likelihood_from_config(config)) == repr(likelihood)


def test_layouts_found_in_shapes() -> None:
    positions, y = Positions(Categorical(), 2), torch.zeros(2, 5, 4).long()
    assert positions.placed(torch.zeros(2, 3, 5, 4), y, 3).outputs == "first"
    assert positions.placed(torch.zeros(2, 5, 4, 3), y, 3).outputs == "last"
    labels = Positions(Bernoulli(), 1, labels=6)
    assert labels.num_outputs(2) == 6
    placed = labels.placed(torch.zeros(2, 6), torch.zeros(2, 6).long(), 2)
    assert (placed.outputs, placed.num_outputs(2)) == ("none", 6)
    masks = Positions(Bernoulli(), 2)
    assert masks.placed(torch.zeros(2, 1, 5, 4), y, 2).outputs == "first"
    assert masks.num_outputs(2) == 1


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        ((2, 3, 3), (3,), "may be first or last for positions E = .3,.: say which"),
        ((2, 4, 5), (3,), r"need \(B, 3, \*E\), \(B, \*E, 3\)"),
        ((2, 3), (3,), "need"),
        ((2, 3, 4, 5), (4, 4), "need"),
    ],
)
def test_layouts_that_do_not_fit(shape, sizes, message) -> None:
    with pytest.raises(ValueError, match=message):
        positions = Positions(Categorical(), len(sizes))
        positions.placed(torch.zeros(shape), torch.zeros(2, *sizes).long(), 3)


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (torch.zeros(2, 4, 4), {}, r"must be integers, got torch.float32.*\.long\(\)"),
        (torch.zeros(2, 1, 4, 4).long(), {}, r"shape \(N, H, W\).*squeeze\(1\)"),
        (torch.full((2, 4, 4), 255), {"size": 3}, r"in 0..2, got 255 at \(0, 0, 0\) \(32 of 32\)"),
        (torch.full((2, 4, 4), -1), {}, "give ignore_index=-1 to Task"),
        (torch.zeros(0, 4, 4).long(), {}, "empty"),
    ],
)
def test_wrong_masks(targets, options, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Positions(Categorical(), 2).check(targets, options.get("size"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (torch.full((2, 1, 4, 4), math.nan), {}, "finite, got .nan. at .0, 0, 0.*ignore"),
        (torch.zeros(2, 3, 4), {"axes": 1}, r"may be \(N, D, T\) or \(N, T, D\)"),
        (torch.zeros(2, 4, 4) > 0, {}, "real numbers"),
    ],
)
def test_wrong_maps_of_values(targets, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        Positions(Gaussian(noise=0.1), options.get("axes", 2)).check(targets)


def test_values_lie_last_once_they_are_checked() -> None:
    """(N, D, H, W) as users have it, (N, H, W, D) as targets are held; twice changes nothing."""
    maps = Positions(Gaussian(noise=0.1), 2, ignore=0.0)
    values = torch.randn(2, 3, 5, 4)
    values[0, :, 1, 2] = 0.0
    checked = maps.check(values)
    assert checked.shape == (2, 5, 4, 3)
    assert checked[0, 1, 2].isnan().all()
    assert maps.target_size(checked) == 3
    torch.testing.assert_close(maps.check(checked, 3), checked, equal_nan=True)
    assert Positions(Gaussian(noise=0.1), 2).check(torch.zeros(2, 5, 4)).shape == (2, 5, 4, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Positions("categorical"), "base"),  # type: ignore[arg-type]
        (lambda: Positions(Positions(Categorical())), "likelihood of one observation"),
        (lambda: Positions(Categorical(), axes=-1), "axes"),
        (lambda: Positions(Categorical(), outputs="middle"), "outputs"),
        (lambda: Positions(Categorical(), ignore=0.5), "labels are integers"),
        (lambda: Positions(Gaussian(noise=1.0), class_weights=(1.0,)), "classes"),
        (lambda: Positions(Categorical(), class_weights=(0.0, 0.0)), "must not all be 0"),
        (lambda: Positions(Categorical(), class_weights=(1.0, -1.0)), "class_weights"),
    ],
)
def test_wrong_options(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_normalisers_of_maps() -> None:
    """The energy of a pixel is that of its logits."""
    logits = torch.randn(2, 3, 5, 4)
    parts = Positions(Categorical(), 2, "first").components(logits, {})
    assert isinstance(parts, Categories)
    assert parts.log_normalizer is not None
    torch.testing.assert_close(parts.log_normalizer, logits.logsumexp(1))
