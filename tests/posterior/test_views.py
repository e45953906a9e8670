"""Test-time augmentation: means over views by hand, identities under the group, maps moved back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.equivariance import group
from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.tasks.augment import augmentation

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(6, 2, 4, 4, generator=STREAM, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
MASKS = torch.randint(3, (6, 4, 4), generator=STREAM)
OPTIONS = {"epochs": 1, "dtype": torch.float64, "progress": "silent", "num_modes": 2, "seed": 1}
pytestmark = pytest.mark.filterwarnings("ignore:doubtful posterior")


def flat(outputs: int):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 5), nn.Tanh(), nn.Linear(5, outputs))


def conv(outputs: int):
    return lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, outputs, 3, padding=1)
    )


def classes(method: str = "deep_ensemble", **options) -> pm.Posterior:
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    return pm.fit(method, net=flat(3), task=task, **(OPTIONS | options))


def maps() -> pm.Posterior:
    task = pm.Task(train=(X, MASKS), likelihood="categorical")
    return pm.fit("deep_ensemble", net=conv(3), task=task, **OPTIONS)


def depths(axes: int) -> pm.Posterior:
    """Of means and noise, one output each."""
    likelihood, y = pm.likelihoods.HeteroscedasticGaussian(), X.sum(1, keepdim=True)
    net, y = (conv(2), y) if axes else (flat(2), y.mean((2, 3)))
    task = pm.Task(train=(X, y), likelihood=likelihood)
    return pm.fit("deep_ensemble", net=net, task=task, **OPTIONS)


@pytest.mark.parametrize("method", ["deep_ensemble", "swag", "laplace"])
def test_classes_are_means_of_probabilities_sample_by_sample(method) -> None:
    post = classes(method, **({"prior_precision": 1.0} if method == "laplace" else {}))
    d4, samples = group("D4"), {"samples_per_mode": 4} if method != "deep_ensemble" else {}
    by_hand = torch.stack([post.predict(d4.act(X, i), **samples).probs for i in range(8)]).mean(0)
    prediction = post.augmented("D4").predict(X, **samples)
    torch.testing.assert_close(prediction.probs, by_hand)
    assert prediction.num_modes == 2 and prediction.num_samples == len(by_hand)


def test_maps_are_moved_back_before_they_are_averaged() -> None:
    post, d4 = maps(), group("D4")
    total = torch.zeros(2, 6, 4, 4, 3, dtype=torch.float64)
    for index in range(8):
        turns, x = index % 4, X.flip(-1) if index >= 4 else X
        moved = post.predict(x.rot90(turns, (2, 3))).probs.rot90(-turns, (2, 3))
        total += moved.flip(3) if index >= 4 else moved
    prediction = post.augmented(d4).predict(X)
    torch.testing.assert_close(prediction.probs, total / 8)


def test_values_are_mixtures_of_all_views() -> None:
    """The density is the mean of the views' densities; a mode's samples lie together."""
    post, c4 = depths(0), group("C4")
    views = [post.predict(c4.act(X, i)) for i in range(4)]
    prediction = post.augmented("C4").predict(X)
    assert (prediction.num_modes, prediction.num_samples) == (2, 8)
    y = torch.randn(6, 1, generator=STREAM, dtype=torch.float64)
    densities = torch.stack([view.log_prob(y).exp() for view in views]).mean(0)
    torch.testing.assert_close(prediction.log_prob(y).exp(), densities)
    first = torch.stack([view.loc[0] for view in views])
    torch.testing.assert_close(prediction.take_modes([0]).loc, first)


@pytest.mark.parametrize("name", ["C2", "C4", "D1", "D4"])
def test_invariant_and_equivariant_under_the_group(name) -> None:
    """F(g x) = F(x), of maps g F(x), to rounding: an orbit is the same in another order."""
    acting = group(name)
    for post in (classes(), depths(0), maps(), depths(2)):
        averaged = post.augmented(name)
        parts = averaged.predict(X)
        for index in range(len(acting)):
            moved = averaged.predict(acting.act(X, index))
            for part in ("mean", "variance", "predictive_entropy"):
                truth = getattr(parts, part)
                if post.likelihood.num_axes:
                    lacks = truth.dim() == 3
                    truth = truth.unsqueeze(-1) if lacks else truth
                    truth = acting.act(truth.movedim(-1, 1), index).movedim(1, -1)
                    truth = truth.squeeze(-1) if lacks else truth
                torch.testing.assert_close(getattr(moved, part), truth, rtol=1e-9, atol=1e-12)


def test_outputs_that_change_places_or_signs() -> None:
    """f(g x) = ρ(g) f(x): two classes that a mirror image exchanges; an odd function."""
    swap = torch.stack([torch.eye(3), torch.eye(3)[[1, 0, 2]]])
    averaged = classes().augmented(group("D1").with_output(swap))
    torch.testing.assert_close(
        averaged.predict(X.flip(-1)).mean, averaged.predict(X).mean[:, [1, 0, 2]]
    )
    odd = depths(0).augmented("sign->input")
    torch.testing.assert_close(odd.predict(-X).mean, -odd.predict(X).mean)
    torch.testing.assert_close(odd.predict(-X).variance, odd.predict(X).variance)


def test_drawn_views_do_not_depend_on_the_batch() -> None:
    post = classes()
    averaged = post.augmented(augmentation="crop:1+flip", draws=3, seed=2)
    prediction = averaged.predict(X)
    torch.testing.assert_close(averaged.predict(X, batch_size=2).probs, prediction.probs)
    torch.testing.assert_close(averaged.predict(X[4:]).probs, prediction.probs[:, 4:])
    assert not torch.allclose(prediction.probs, post.predict(X).probs)
    other = post.augmented(augmentation=augmentation("crop:1+flip"), draws=3, seed=3).predict(X)
    assert not torch.allclose(prediction.probs, other.probs)


def test_all_that_predicts_averages() -> None:
    """predict, stream, predict_batch, averages, evaluate and recalibration agree."""
    post = maps().augmented("C4")
    prediction = post.predict(X)
    streamed = torch.cat([part.mean for part in post.stream(X, batch_size=2)])
    torch.testing.assert_close(streamed, prediction.mean)
    torch.testing.assert_close(post.averages(X).mean, prediction.mean)
    x = X[:1].clone().requires_grad_()
    batch = post.predict_batch(x)
    torch.testing.assert_close(batch.mean.detach(), prediction.mean[:1])
    assert torch.autograd.grad(batch.predictive_entropy.sum(), x)[0].abs().sum() > 0
    task = pm.Task(train=(X, MASKS), test=(X, MASKS), likelihood="categorical")
    results = pm.evaluate(post, task)
    nll = next(row.value for row in results.rows if (row.dataset, row.metric) == ("test", "nll"))
    assert nll == pytest.approx(float(-prediction.log_prob(MASKS).mean()), rel=1e-6)
    assert results.config["augmented"] == "C4"


@pytest.mark.parametrize("views", [{"group": "D4"}, {"augmentation": "flip", "draws": 2}])
def test_saved_and_loaded_with_its_views(views, tmp_path) -> None:
    post = classes().augmented(**views)
    post.save(tmp_path / "post")
    again = pm.load(tmp_path / "post", net=flat(3))
    torch.testing.assert_close(again.predict(X).probs, post.predict(X).probs)
    assert repr(again) == repr(post)


@pytest.mark.parametrize(
    ("post", "call", "says"),
    [
        (classes, {}, "needs one of group='D4' and augmentation='crop.flip', got neither"),
        (classes, {"group": "D4", "augmentation": "flip"}, "got both"),
        (classes, {"group": "D5x"}, "Unknown group 'D5x'"),
        (classes, {"augmentation": "twist"}, "Unknown augmentation 'twist'"),
        (classes, {"augmentation": "orbit:C4"}, "group='C4'"),
        (classes, {"augmentation": "flip", "draws": 0}, "draws"),
        (maps, {"augmentation": "flip"}, "not undone.*group='D4'"),
        (maps, {"group": "C8"}, "interpolates"),
        (maps, {"group": "sign"}, "groups of the plane"),
        (lambda: depths(0), {"group": "C4->input"}, "C4 acts on images"),
        (lambda: depths(0), {"group": "turns-haar-4-0->input"}, "set of draws"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused_in_one_line(post, call, says) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        post().augmented(**call)
    assert "\n" not in str(caught.value)


def test_further_refusals(tmp_path) -> None:
    post = classes()
    with pytest.raises(ValueError, match="has views already"):
        post.augmented("C4").augmented("C4")
    given = post.augmented(group("D1").with_output(torch.eye(3).expand(2, 3, 3)))
    with pytest.raises(ValueError, match="are not saved: save the posterior itself"):
        given.save(tmp_path / "post")
    wide = pm.Task(train=(X[..., :3], LABELS), likelihood="categorical")
    net = lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 3))  # noqa: E731
    with pytest.raises(ValueError, match="needs square ones, got 4x3"):
        pm.fit("map", net=net, task=wide, epochs=1, progress="silent").augmented("D4")
    mixed = depths(0).augmented("C4")
    assert isinstance(mixed.predict(X), MixturePrediction)
    assert isinstance(post.augmented("C4").predict(X), CategoricalPrediction)
