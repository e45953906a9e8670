"""Which input an attack hands back, against all that it looked at; and raw or scaled inputs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import polymode as pm
from polymode.adversary import attack, transfer
from polymode.adversary.ball import Ball
from polymode.adversary.objective import Aim
from polymode.adversary.search import Search
from polymode.likelihoods.scaling import Scaling
from polymode.prediction import CategoricalPrediction

from .small_posteriors import posterior

LOOKS, BATCH, CLASSES, SAMPLES = 25, 40, 3, 4


class Script:
    """A victim that predicts what it is told, look by look, whatever the input."""

    draws, seed = True, 0

    def __init__(self, log_probs: Tensor) -> None:
        self.predictions = [CategoricalPrediction(each) for each in log_probs]

    def judge(self, x: Tensor) -> CategoricalPrediction:
        return self.predictions[int(x.flatten()[0])]


def scripted(aim: Aim, seed: int) -> tuple[Search, list[CategoricalPrediction]]:
    """Look at inputs 0, 1, ..., whose predictions are random."""
    stream = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(LOOKS, SAMPLES, BATCH, CLASSES, generator=stream, dtype=torch.float64)
    victim: Any = Script(logits.log_softmax(-1))
    search = Search(victim, aim, Ball(torch.zeros(BATCH, 2).double(), float("inf"), "linf", None))
    for number in range(LOOKS):
        search.look(torch.full((BATCH, 2), float(number), dtype=torch.float64))
    return search, victim.predictions


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("score", [None, "predictive_entropy", "mutual_information"])
@pytest.mark.parametrize("loss", ["log_prob", "margin"])
def test_the_best_of_all_looks_is_kept(score, targeted, loss) -> None:
    """Whatever the order: of those that reach the aim the one with the lowest score, or the largest
    loss without a score; if none does, the largest loss. By hand, example by example."""
    labels = torch.arange(BATCH) % CLASSES
    aim = Aim(labels, (labels + 1) % CLASSES if targeted else None, loss, score, weight=0.7)
    search, predictions = scripted(aim, seed=1)
    reached_by_any = 0
    for row in range(BATCH):
        keys = []
        for number, prediction in enumerate(predictions):
            reached = bool(aim.reached(prediction.classes)[row])
            worth = float(aim.rise(prediction)[row])
            if score is not None and reached:
                worth = -float(getattr(prediction, score)[row])
            keys.append((reached, worth, -number))
        best = max(keys)
        reached_by_any += best[0]
        assert search.best[row, 0] == -best[2]
        assert bool(search.reached[row]) == best[0]
    assert reached_by_any > BATCH // 2


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_restarts_begin_elsewhere_and_the_first_where_one_alone_begins(norm, monkeypatch) -> None:
    """Each input of a later batch, too, begins where it would in one batch of all."""
    from polymode.adversary import gradient_steps

    starts: list[Tensor] = []
    climb = gradient_steps.climb

    def noted(search: Search, start: Tensor, **how: Any) -> list[Tensor]:
        starts.append(start.clone())
        return climb(search, start, **how)

    monkeypatch.setattr(gradient_steps, "climb", noted)
    post, x = posterior("mlp"), raw_inputs(12)
    how: dict[str, Any] = {"kind": "pgd", "eps": 0.1, "norm": norm, "steps": 2}
    for options in ({"restarts": 1}, {"restarts": 3}, {"restarts": 3, "batch_size": 5}):
        attack(post, x, torch.zeros(12, dtype=torch.long), scaling=None, **how, **options)
    one, three, parts = starts[0], starts[1:4], starts[4:]
    assert torch.equal(one, three[0])
    assert all(not torch.isclose(a, b).all(1).any() for a, b in zip(three, three[1:], strict=False))
    for number, whole in enumerate(three):
        assert torch.equal(torch.cat(parts[number::3]), whole)


@pytest.mark.parametrize("kind", ["bim", "fgsm"])
def test_away_from_what_is_predicted_whatever_the_labels_say(kind) -> None:
    """Labels, right for some and wrong for others, then score the attack and do not lead it."""
    post, x = posterior("mlp"), raw_inputs()
    predicted = post.predict(x).classes
    labels = torch.where(torch.arange(20) % 2 == 0, predicted, (predicted + 1) % 4)
    how: dict[str, Any] = {"kind": kind, "eps": 0.2, "scaling": None, "batch_size": 7}
    found = attack(post, x, labels, away_from="predicted", **how)
    led = attack(post, x, predicted, **how)
    assert torch.equal(found.adversarial, led.adversarial)
    assert torch.equal(found.labels, labels) and found.clean_accuracy == 0.5
    other = attack(post, x, labels, **how)
    assert not torch.equal(found.adversarial[1::2], other.adversarial[1::2])


def test_the_cost_counts_the_networks_of_all_modes() -> None:
    post, x = posterior("mlp", 3, dropout=0.3, samples_per_mode=2), raw_inputs(4)
    how: dict[str, Any] = {"kind": "pgd", "eps": 0.1, "steps": 3, "restarts": 2}
    labels = torch.zeros(4, dtype=torch.long)
    usual = attack(post, x, labels, scaling=None, **how).cost
    assert (usual.gradients, usual.samples, usual.eval_samples) == (6, 3 * 2, 3 * 2)
    own = attack(
        post, x, labels, scaling=None, samples_per_mode=4, eval_samples_per_mode=5, **how
    ).cost
    assert (own.gradients, own.samples, own.eval_samples) == (6, 3 * 4, 3 * 5)


def raw_inputs(count: int = 20) -> Tensor:
    return torch.rand(count, 6, generator=torch.Generator().manual_seed(1))


def test_known_inputs_belong_to_their_examples_in_every_batch() -> None:
    """An attack of one random draw that knows better inputs hands these back, whatever the batch
    size."""
    post, x = posterior("mlp"), raw_inputs()
    y = post.predict(x).classes
    strong = attack(post, x, y, kind="pgd", eps=0.2, steps=10)
    assert strong.success.sum() > 5
    for size in (7, 20):
        again = attack(post, x, y, kind="noise", eps=0.2, known=strong.adversarial, batch_size=size)
        assert torch.equal(again.success, strong.success | again.success)
        same = (again.adversarial == strong.adversarial).all(1)
        assert same[strong.success].float().mean() > 0.8


SCALING = Scaling(torch.tensor(0.5), torch.tensor(0.25))


def behind_a_scaling() -> pm.Posterior:
    """A posterior of a task that had scaled its inputs."""
    post = posterior("mlp", scale=1.0)
    post.input_scaling = SCALING
    return post


def test_raw_inputs_without_their_scaling_warn() -> None:
    post, x = behind_a_scaling(), raw_inputs()
    y = post.predict(SCALING(x)).classes
    how: dict[str, Any] = {"kind": "fgsm", "eps": 0.01}
    message = "inputs of mean 0.5.* as they are, .*trained on scaled.*scaling=post.input_scaling"
    with pytest.warns(UserWarning, match=message) as caught:
        attack(post, x, y, **how)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = attack(post, x, y, scaling=SCALING, **how)
        assert given.clean_accuracy == 1
        attack(post, SCALING(x), y, box=None, **how)  # scaled already
        attack(posterior("mlp"), x, y, **how)  # nothing is known of a scaling


def test_the_scaling_of_inputs_stays_with_a_posterior(tmp_path) -> None:
    task = pm.task("digits")
    post = pm.fit("deep_ensemble", net=pm.nets.mlp, task=task, num_modes=2, epochs=0)
    post.save(tmp_path)
    for each in (post, post[1:], pm.load(tmp_path, net=pm.nets.mlp)):
        torch.testing.assert_close(each.input_scaling.scale.float(), task.input_scaling.scale)
        torch.testing.assert_close(each.input_scaling.shift.float(), task.input_scaling.shift)


def test_transfer_scales_what_it_shows() -> None:
    """The diagonal is the attack's own, and what one posterior is shown of another's inputs is
    scaled as well."""
    posts = {"a": behind_a_scaling(), "b": posterior("mlp", seed=5, scale=1.0)}
    x = raw_inputs(60)
    y = posts["a"].predict(SCALING(x)).classes
    found = transfer(posts, x, y, kind="fgsm", eps=0.05, scaling=SCALING)
    for row, (name, other) in enumerate((("a", "b"), ("b", "a"))):
        shown = posts[other].predict(SCALING(found.attacks[name].adversarial)).classes
        assert found.accuracy[row, 1 - row] == (shown == y).double().mean().item()
        as_it_is = posts[other].predict(found.attacks[name].adversarial).classes
        assert (as_it_is != shown).any()
