"""Losses that are no likelihood: their formulas, their effect, and who warns or refuses."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import polymode as pm
from polymode.likelihoods import (
    BetaNLL,
    Categorical,
    FocalLoss,
    HeteroscedasticGaussian,
    LabelSmoothing,
    Positions,
)
from polymode.likelihoods.kinds import likelihood_from_config
from polymode.tasks.augment import Mixup, augmentation

STREAM = torch.Generator().manual_seed(0)
LOGITS = torch.randn(3, 40, 5, generator=STREAM, dtype=torch.float64)
LABELS = torch.randint(5, (40,), generator=STREAM)


def test_label_smoothing_is_torchs():
    for k, loss in enumerate(LabelSmoothing(0.2).nll(LOGITS, LABELS, {})):
        expected = F.cross_entropy(LOGITS[k], LABELS, label_smoothing=0.2)
        torch.testing.assert_close(loss, expected)


def test_focal_loss_is_its_formula_and_finite_where_it_is_sure():
    p = LOGITS.softmax(-1).gather(-1, LABELS.expand(3, -1)[..., None])[..., 0]
    expected = (-((1 - p) ** 2.5) * p.log()).mean(-1)
    torch.testing.assert_close(FocalLoss(2.5).nll(LOGITS, LABELS, {}), expected)
    sure = torch.tensor([[[400.0, 0.0]]], requires_grad=True)
    FocalLoss(0.5).nll(sure, torch.tensor([0]), {}).sum().backward()
    assert sure.grad.isfinite().all()


def test_beta_nll_weighs_the_gradients_of_the_nll():
    outputs = torch.randn(30, 4, generator=STREAM, dtype=torch.float64, requires_grad=True)
    y = torch.randn(30, 2, generator=STREAM, dtype=torch.float64)
    base = HeteroscedasticGaussian()
    each = torch.autograd.grad(base.log_prob(outputs, y, {}).sum(), outputs)[0]
    variance = base.components(outputs, {}).scale.square().detach()
    weights = (variance**0.7).repeat(1, 2)  # means, then raw scales
    found = torch.autograd.grad(BetaNLL(beta=0.7).nll(outputs, y, {}), outputs)[0]
    torch.testing.assert_close(found, -weights * each / 30)


@pytest.mark.parametrize("loss", [LabelSmoothing(), FocalLoss()], ids=str)
def test_classes_are_scored_by_the_likelihood_and_trained_by_the_loss(loss):
    plain = Categorical()
    torch.testing.assert_close(
        loss.log_prob(LOGITS, LABELS, {}), plain.log_prob(LOGITS, LABELS, {})
    )
    value, gradient = loss.nll_gradient(LOGITS, LABELS)
    leaf = LOGITS.clone().requires_grad_()
    loss.nll(leaf, LABELS, {}).sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)
    assert (value - plain.nll(LOGITS, LABELS, {})).abs().max() > 0.01
    at = Positions(loss, axes=1, outputs="last")
    maps, labels = LOGITS[0].view(8, 5, 5), LABELS.view(8, 5)
    torch.testing.assert_close(at.nll(maps, labels, {}), loss.nll(LOGITS[0], LABELS, {}))
    first = Positions(loss, axes=1, outputs="first")
    torch.testing.assert_close(first.nll(maps.mT, labels, {}), loss.nll(LOGITS[0], LABELS, {}))
    assert likelihood_from_config(loss.to_config()) == loss


def test_each_loss_reaches_the_optimum_that_it_is_known_for():
    """Free logits of one input with label frequencies .9 and .1: the NLL finds them, smoothing
    mixes them with 1/2, the focal loss is less sure."""
    labels = torch.tensor([0] * 9 + [1])

    def optimum(law):
        logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([logits], max_iter=100, line_search_fn="strong_wolfe")

        def step():
            optimiser.zero_grad()
            loss = law.nll(logits.expand(10, 2), labels, {})
            loss.backward()
            return loss

        optimiser.step(step)
        return logits.detach().softmax(-1)[0, 0].item()

    assert optimum(Categorical()) == pytest.approx(0.9, abs=1e-4)
    assert optimum(LabelSmoothing(0.2)) == pytest.approx(0.8 * 0.9 + 0.1, abs=1e-4)
    assert 0.5 < optimum(FocalLoss(2.0)) < 0.87


def test_mixup_mixes_values_and_draws_labels():
    """Of 20,000 pairs the share of kept labels is the mean of the mixing weight, given that
    weight, within five standard errors (1 in 10⁶)."""
    x = torch.arange(20000, dtype=torch.float64)[:, None]
    labels = torch.arange(20000)
    mixed, drawn = Mixup(0.5).pairs(x, labels, torch.Generator().manual_seed(1))
    again = Mixup(0.5).pairs(x, x, torch.Generator().manual_seed(1))
    torch.testing.assert_close(again[0], mixed)
    torch.testing.assert_close(again[1], mixed)  # values as the inputs
    partner = torch.where(drawn != labels, drawn, -1)
    moved = partner >= 0
    away = (mixed[moved, 0] - x[moved, 0]) / (partner[moved] - labels[moved])
    assert away.min() >= -1e-9 and away.max() <= 1 + 1e-9
    # E[(1 − λ) | moved] = E[(1 − λ)²] / E[1 − λ] with λ ~ Beta(½, ½): (3/8) / (1/2)
    assert abs(away.mean() - 0.75) < 5 * away.std() / math.sqrt(len(away))
    assert abs(moved.double().mean() - 0.5) < 5 * 0.5 / math.sqrt(20000)
    assert augmentation("mixup:0.4") == Mixup(0.4)
    assert augmentation(Mixup(0.4).to_config()) == Mixup(0.4)
    with pytest.raises(ValueError, match="mixup needs one tensor of floats.*int64"):
        Mixup().pairs(labels, labels, STREAM)
    with pytest.raises(ValueError, match="`alpha` of Mixup must be"):
        Mixup(0.0)


def task(likelihood="categorical"):
    stream = torch.Generator().manual_seed(2)
    x = torch.randn(60, 3, generator=stream)
    y = (x[:, 0] > 0).long() if likelihood != "beta_nll" else x[:, :1]
    return pm.Task(train=(x, y), test=(x, y), likelihood=likelihood)


@pytest.mark.parametrize("name", ["label_smoothing", "focal", "beta_nll"])
def test_losses_are_named_in_a_task_and_have_an_effect(name, tmp_path):
    net = lambda: torch.nn.Linear(3, 2)  # noqa: E731
    plain = "heteroscedastic_gaussian" if name == "beta_nll" else "categorical"
    quick = {"net": net, "epochs": 3, "progress": "silent"}
    posts = [pm.fit("map", task=task(law), **quick) for law in (name, plain)]
    assert not torch.equal(*(post.weights.stack.leaves()[0] for post in posts))
    assert math.isfinite(pm.evaluate(posts[0], task(name))["test", "nll"].value)
    posts[0].save(tmp_path / "post")
    assert pm.load(tmp_path / "post", net=net).likelihood.name == name


def test_methods_of_a_posterior_warn_or_refuse():
    quick = {"net": lambda: torch.nn.Linear(3, 2), "epochs": 2, "progress": "silent"}
    with pytest.warns(UserWarning, match="sgld has a posterior as its target.*label smoothing"):
        pm.fit("sgld", task=task("label_smoothing"), **quick)
    with pytest.warns(UserWarning, match="sgld has a posterior as its target.*mixup trains"):
        pm.fit("sgld", task=task(), augment="mixup:0.2", **quick)
    with pytest.raises(ValueError, match="laplace approximates.*focal loss"):
        pm.fit("laplace", task=task("focal"), **quick)
    with pytest.raises(ValueError, match="laplace approximates.*mixup"):
        pm.fit("laplace", task=task(), augment="mixup", **quick)
    with pytest.raises(ValueError, match="takes the evidence of a likelihood, and label smoothing"):
        pm.fit("map", task=task("label_smoothing"), prior_precision="auto", **quick)
    pm.fit("deep_ensemble", task=task("focal"), augment="mixup", num_modes=2, **quick)


@pytest.mark.parametrize(
    "wrong", [lambda: LabelSmoothing(0.0), lambda: LabelSmoothing(1.0), lambda: FocalLoss(0),
              lambda: BetaNLL(beta=2.0), lambda: FocalLoss("2")],
)  # fmt: skip
def test_options_without_effect_or_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must be a number"):
        wrong()
