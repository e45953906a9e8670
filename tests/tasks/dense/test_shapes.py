"""Tasks of shapes: what is said of labels holds, and what networks learn of it."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr

import polymode as pm
from polymode.core.rng import generator
from polymode.tasks.dense.scenes import Kind, draw_scenes
from polymode.tasks.dense.shapes import KINDS, LABEL_NOISE, UNSEEN
from polymode.tasks.shifts import MOVING, SHIFTS, corrupt, corrupt_pair


@pytest.fixture(scope="module")
def task() -> pm.Task:
    return pm.task("shapes", num_test=60, shifts=("rotation",))


def test_shares_are_those_of_painting_in_order() -> None:
    """Against painting pixel by pixel, shape after shape, in float64."""
    scenes = draw_scenes(KINDS, 3, 16, generator(0, "t"))
    assert torch.allclose(scenes.shares.sum(1), torch.ones(3, 16, 16))
    hard = tuple(Kind(k.name, k.outline, k.colour, 1e-6) for k in KINDS)
    sharp = draw_scenes(hard, 3, 16, generator(0, "t"))
    assert bool(((sharp.shares < 1e-6) | (sharp.shares > 1 - 1e-6)).all())
    soft = scenes.shares.argmax(1)
    assert (soft == sharp.shares.argmax(1)).double().mean() > 0.95
    assert torch.equal(scenes.of_kinds(3).sum(1), scenes.of_kinds(3).sum(1).clamp(0.999, 1.001))


def test_labels_follow_their_distribution(task) -> None:
    """Frequencies of labels in bins of their probability: 20 differences from it, each of at least
    1,000 pixels, within 4.5 standard errors, wrong with probability below 2e-4."""
    probs, labels = task.exact.probs["train"], task.train.y
    torch.testing.assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]))
    hits = torch.nn.functional.one_hot(labels, 4).double()
    checked = 0
    for label in range(4):
        p, hit = probs[..., label].flatten().double(), hits[..., label].flatten()
        for low in (0.0, 0.05, 0.2, 0.5, 0.8):
            inside = (p >= low) & (p < low + {0.0: 0.05, 0.05: 0.15}.get(low, 0.3))
            if inside.sum() < 1000:
                continue
            error = (p[inside] * (1 - p[inside])).sum().sqrt() / inside.sum()
            assert abs(hit[inside].mean() - p[inside].mean()) < 4.5 * error
            checked += 1
    assert checked >= 12
    entropy = task.exact.entropy("train")
    assert entropy.shape == labels.shape and 0 < entropy.mean() < torch.tensor(4.0).log()
    rows = torch.tensor(LABEL_NOISE, dtype=torch.float64)
    torch.testing.assert_close(rows.sum(1), torch.ones(4, dtype=torch.float64))


def test_sets_of_unseen_things_say_where_they_are(task) -> None:
    shares = {}
    for name in ("stars", "pasted", "noise"):
        data = task.ood[name]
        assert data.x.shape[1:] == (3, 32, 32)
        shares[name] = (data.y == UNSEEN).double().mean().item()
        assert bool((data.y == UNSEEN).flatten(1).any(1).double().mean() > 0.95)
    assert 0.02 < shares["stars"] < 0.2 and 0.05 < shares["pasted"] < 0.25
    assert shares["noise"] == 1.0
    pasted = task.ood["pasted"]
    same = (pasted.x == task.test.x).all(1)
    assert torch.equal(same[pasted.y != UNSEEN], torch.ones_like(same[pasted.y != UNSEEN]))


def test_masks_move_with_their_pixels() -> None:
    """A picture of its own mask stays that; blurs leave the mask alone."""
    stream = torch.Generator().manual_seed(0)
    rough = torch.rand(600, 1, 4, 4, generator=stream)
    images = torch.nn.functional.interpolate(rough, (24, 24), mode="nearest").round()
    masks = images[:, 0].long()
    masks[:, :2] = -100
    for kind in MOVING:
        moved, moved_masks = corrupt_pair(images, masks, kind, 3, seed=1)
        assert torch.equal(moved, corrupt(images, kind, 3, seed=1))
        observed = moved_masks != -100
        agree = (moved[:, 0].round().long() == moved_masks)[observed].double().mean()
        assert agree > 0.98, kind
        assert 0.5 < observed.double().mean() < 0.97
        assert (masks == moved_masks).double().mean() < 0.9
        values, moved_values = images[:, 0], corrupt_pair(images, images[:, 0], kind, 3, seed=1)[1]
        seen = ~moved_values.isnan()
        assert (moved_values[seen] - moved[:, 0][seen]).abs().mean() < 0.02
        assert values.shape == moved_values.shape
    assert torch.equal(corrupt_pair(images, masks, "gaussian_blur", 3)[1], masks)
    assert set(MOVING) <= set(SHIFTS.names())
    with pytest.raises(ValueError, match="must begin with"):
        corrupt_pair(images, masks[:, 1:], "rotation", 1)


@pytest.mark.cpu_seconds(12)
def test_entropy_is_near_the_known_one_and_stars_are_not_known(task) -> None:
    """A small U-Net, one seed: measured 0.71 rank correlation, 0.10 nats of NLL above the known
    labels' entropy, seven times the mutual information on stars; the bounds leave room."""
    net = lambda: pm.nets.unet((3, 32, 32), 4, channels=(8, 16), skips=(4,))  # noqa: E731
    post = pm.fit("deep_ensemble", net=net, task=task, num_modes=3, epochs=12, lr=1e-2,
                  progress="silent")  # fmt: skip
    pred, known = post.predict(task.test.x), task.exact.entropy("test")
    rank = spearmanr(pred.predictive_entropy.flatten(), known.flatten())[0]
    assert rank > 0.65
    assert (pred.predictive_entropy.mean() - known.mean()).abs() < 0.2
    nll = -pred.log_prob(task.test.y).mean()
    best = -task.exact.probs["test"].gather(-1, task.test.y[..., None]).log().mean()
    assert best < nll < best + 0.15
    unseen = task.ood["stars"]
    information = post.predict(unseen.x).mutual_information
    star = unseen.y == UNSEEN
    assert information[star].mean() > 4 * information[~star].mean()
    results = pm.evaluate(post, task, keep=False)
    assert results["ood:stars", "pixel_auroc_mutual_information"].value > 0.85
    assert results["shift:rotation:3", "nll"].n < results["test", "nll"].n == 60 * 32 * 32


@pytest.mark.cpu_seconds(12)
def test_predicted_noise_is_near_the_known_one() -> None:
    """Depths: a small U-Net with heads for mean and scale, one seed; measured 0.82 rank correlation
    and an error of the mean of 0.32 m, a quarter of the depths' spread."""
    task = pm.task("shapes_depth", shifts=("translation",))
    net = lambda: pm.nets.unet((3, 32, 32), 2, channels=(8, 16), skips=(4,))  # noqa: E731
    post = pm.fit("deep_ensemble", net=net, task=task, num_modes=2, epochs=20, batch_size=25,
                  lr=1e-2, progress="silent")  # fmt: skip
    pred, known = post.predict(task.test.x), task.exact
    mean, noise = known.mean["test"], known.noise["test"]
    errors = (task.test.y - mean) / noise
    assert abs(errors.mean()) < 0.02 and abs(errors.std() - 1) < 0.02  # 102,400 normal numbers
    assert (pred.mean - mean).square().mean().sqrt() < 0.5 * mean.std()
    assert spearmanr(pred.aleatoric_variance.flatten(), noise.flatten())[0] > 0.6
    results = pm.evaluate(post, task, keep=False)
    row = results["test", "rmse"]
    assert row.unit == "m" and row.n == 102_400
    assert results["shift:translation:5", "rmse"].n < 0.8 * row.n
    assert results["ood:stars", "auroc_epistemic_variance_top"].value > 0.6
