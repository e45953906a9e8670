"""Evaluation at positions: rows of observations, errors over examples, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.examinations.findings import NotApplicable
from polymode.likelihoods import HeteroscedasticGaussian
from polymode.metrics.clusters import clustered
from polymode.metrics.score import CLASSIFICATION, entries, score_of

STREAM = torch.Generator().manual_seed(0)
IMAGES = torch.randn(24, 2, 6, 6, generator=STREAM)
NOISE = torch.randn(24, 6, 6, generator=STREAM)
MASKS = (IMAGES.sum(1) + NOISE > 0).long()
MASKS[:, 0] = 255
TOKENS = torch.randint(20, (20, 7), generator=STREAM)
TAGS = TOKENS % 3
TAGS[:5, 4:] = -100
X = torch.randn(30, 4, generator=STREAM)
SEVERAL = (X[:, :3] + torch.randn(30, 3, generator=STREAM) > 0).long()
MEANS = ("nll", "brier", "accuracy", "predictive_entropy", "expected_entropy",
         "mutual_information")  # fmt: skip
EXACT = (*MEANS, "ece", "mce")
QUICK = {"epochs": 2, "num_modes": 2, "progress": "silent"}

pytestmark = pytest.mark.filterwarnings("ignore:doubtful posterior")


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


def conv() -> nn.Module:
    return nn.Conv2d(2, 2, 3, padding=1)


def segmentation(test=None) -> pm.Task:
    test = (IMAGES, MASKS) if test is None else test
    return pm.Task(
        train=(IMAGES, MASKS), test=test, ood={"flat": torch.zeros(4, 2, 6, 6)},
        likelihood="categorical", ignore_index=255,
    )  # fmt: skip


def tagging() -> pm.Task:
    return pm.Task(train=(TOKENS, TAGS), test=(TOKENS, TAGS), likelihood="categorical")


def labelling() -> pm.Task:
    return pm.Task(train=(X, SEVERAL), test=(X, SEVERAL), likelihood="bernoulli")


def results_by_name(results: pm.metrics.Results) -> dict[str, pm.metrics.Row]:  # type: ignore[name-defined]
    return {row.metric: row for row in results.rows if row.dataset == "test"}


@pytest.mark.cpu_seconds(6)
@pytest.mark.parametrize(
    ("make", "net", "number"),
    [(segmentation, conv, 24 * 30), (tagging, Tagger, 20 * 7 - 15), (labelling, pm.nets.mlp, 90)],
    ids=["segmentation", "tags", "labels"],
)
def test_scores_are_those_of_the_rows(make, net, number) -> None:
    """Every metric of classes; means have the error over examples, others none.

    Masks have metrics of their own, see dense/; those of the same name that are exact are compared.
    """
    task = make()
    post = pm.fit("deep_ensemble", net=net, task=task, **QUICK)
    seen = results_by_name(pm.evaluate(post, task, keep=False))
    rows = post.predict(task.test.x).observations(task.test.y)
    assert len(rows.targets) == number
    compared, masks = 0, make is segmentation
    for entry in entries(CLASSIFICATION):
        if masks and entry.name not in EXACT:
            continue
        row = seen[entry.name]
        if row.value is None:
            continue
        score = clustered(score_of(entry, rows.prediction, rows.targets), rows.examples)
        assert row.n == score.n
        assert row.value == pytest.approx(score.value, rel=1e-5, abs=1e-6), entry.name
        if masks and entry.name not in MEANS:
            continue  # errors of others are by the jackknife
        if score.standard_error is None:
            assert row.standard_error is None, entry.name
        else:
            assert row.standard_error == pytest.approx(score.standard_error, rel=1e-3, abs=1e-7)
        compared += 1
    assert compared == len(MEANS) if masks else compared > 15
    joint = -post.predict(task.test.x).joint_log_prob(task.test.y).double()
    assert seen["joint_nll"].value == pytest.approx(joint.mean().item(), rel=1e-5)
    assert seen["joint_nll"].n == len(joint)
    assert seen["joint_nll"].standard_error == pytest.approx(
        joint.std().item() / len(joint) ** 0.5, rel=1e-4
    )
    assert seen["nll"].n == number


def test_pixels_do_not_count_as_pictures() -> None:
    """Pictures whose labels are all right or all wrong: the error is that of 24 examples."""
    task = segmentation()
    post = pm.fit("map", net=conv, task=task, epochs=1, progress="silent")
    right = post.predict(IMAGES).classes
    flipped = torch.where(torch.arange(24)[:, None, None] % 2 == 0, right, 1 - right)
    task = segmentation(test=(IMAGES, flipped.masked_fill(MASKS == 255, 255)))
    row = results_by_name(pm.evaluate(post, task))["accuracy"]
    assert row.value == pytest.approx(0.5)
    assert row.standard_error == pytest.approx(0.5 * math.sqrt(1 / 23))


@pytest.mark.parametrize("batch_size", [5, 24])
def test_loaders_and_memory_change_nothing(batch_size, monkeypatch) -> None:
    """Batches of any size, samples held or not, pictures predicted one at a time."""
    task = segmentation()
    post = pm.fit("deep_ensemble", net=conv, task=task, **QUICK)
    expected = results_by_name(pm.evaluate(post, task))
    loader = DataLoader(TensorDataset(IMAGES, MASKS), batch_size=batch_size)
    monkeypatch.setattr("polymode.metrics.observed.PIECE", 2 * 36 * 2 * 4)
    for keep in (True, False):
        seen = results_by_name(pm.evaluate(post, segmentation(test=loader), keep=keep))
        for name, row in expected.items():
            if row.value is not None and (keep or name != "dyadic_nll"):  # which needs samples
                assert seen[name].value == pytest.approx(row.value, rel=1e-4, abs=1e-6), name


def test_depths() -> None:
    """Maps of values, scored in their own units where pixels were observed."""
    depths = 5 + 3 * IMAGES[:, :1]
    depths[:, :, 0] = 0.0
    task = pm.Task(
        train=(IMAGES, depths), test=(IMAGES, depths), ignore_index=0.0,
        likelihood=HeteroscedasticGaussian(),
    )  # fmt: skip
    assert task.target_scaling is not None
    torch.testing.assert_close(task.target_scaling.shift, depths[:, :, 1:].mean().view(1))
    post = pm.fit("deep_ensemble", net=conv, task=task, **{**QUICK, "epochs": 60})
    seen = results_by_name(pm.evaluate(post, task))
    rows = post.predict(IMAGES).observations(task.test.y)
    errors = rows.prediction.mean - rows.targets
    assert seen["rmse"].value == pytest.approx(errors.square().mean().sqrt().item(), rel=1e-4)
    assert seen["rmse"].n == 24 * 30
    assert seen["nll"].value == pytest.approx(-rows.prediction.log_prob(rows.targets).mean().item())


def test_unseen_pictures_are_compared_picture_by_picture() -> None:
    task = segmentation()
    post = pm.fit("deep_ensemble", net=conv, task=task, **QUICK)
    rows = [row for row in pm.evaluate(post, task).rows if row.dataset == "ood:flat"]
    auroc = next(row for row in rows if row.metric == "auroc_predictive_entropy")
    assert auroc.n == 24 + 4
    test, outside = (
        post.predict(x).predictive_entropy.flatten(1).mean(1)
        for x in (IMAGES, task.ood["flat"])  # type: ignore[arg-type]
    )
    assert auroc.value == pytest.approx((outside[:, None] > test).double().mean().item())
    pixels = next(row for row in rows if row.metric == "pixel_auroc_predictive_entropy")
    assert pixels.note == "n/a (needs labels of pixels)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ignore_index": None}, "give ignore_index=255 to Task"),
        ({"ignore_index": None, "target_size": 2}, "in 0..1, got 255 at .0, 0, 0."),
        ({"train": (IMAGES, MASKS.float())}, r"must be integers, got torch.float32"),
        ({"train": (IMAGES, torch.full((24, 6, 6), 255))}, "ignored"),
        ({"test": (IMAGES, torch.full((24, 6, 6), 255))}, "test targets: all 864 are ignored"),
        ({"test": (IMAGES, MASKS[:, 0])}, r"shape \(N, H, W\)"),
    ],
)
def test_wrong_masks_take_one_line(changes, message) -> None:
    given = {"train": (IMAGES, MASKS), "likelihood": "categorical", "ignore_index": 255} | changes
    with pytest.raises(ValueError, match=message) as caught:
        pm.Task(**given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_masks_of_another_size_are_found_when_a_network_is_there() -> None:
    task = pm.Task(train=(IMAGES, MASKS[:, :4]), likelihood="categorical", ignore_index=255)
    with pytest.raises(ValueError, match=r"\(2, 2, 6, 6\); targets at positions E = \(4, 6\)"):
        pm.fit("map", net=conv, task=task, epochs=1, progress="silent")


def test_masks_of_one_class_warn() -> None:
    with pytest.warns(UserWarning, match="a single class, 1, at all positions"):
        pm.Task(train=(IMAGES, torch.ones(24, 6, 6).long()), likelihood="categorical",
                target_size=2)  # fmt: skip


def test_augmentations_that_leave_masks_behind_are_refused() -> None:
    task = pm.Task(train=(IMAGES, MASKS), likelihood="categorical", ignore_index=255)
    with pytest.raises(ValueError, match="moves pixels of inputs, but not of the targets"):
        pm.fit("map", net=conv, task=task, augment="flip", epochs=1, progress="silent")


@pytest.mark.parametrize("name", ["attack", "equivariance"])
def test_examinations_of_one_target_say_so(name) -> None:
    task = segmentation()
    post = pm.fit("map", net=conv, task=task, epochs=1, progress="silent")
    with pytest.raises(NotApplicable, match="one target per example.*at positions"):
        pm.examine(post, task, name)


def test_labels_of_images_mark_no_pixels() -> None:
    """OOD sets of other tasks come with a label for each image: they say nothing of pixels."""
    task = pm.Task(
        train=(IMAGES, MASKS), test=(IMAGES, MASKS), likelihood="categorical", ignore_index=255,
        ood={"labelled": (IMAGES[:4], torch.arange(4))},
    )  # fmt: skip
    post = pm.fit("map", net=conv, task=task, epochs=1, progress="silent")
    results = pm.evaluate(post, task)
    assert results["ood:labelled", "auroc_predictive_entropy"].value is not None
    row = results["ood:labelled", "pixel_auroc_predictive_entropy"]
    assert row.value is None and row.note == "n/a (needs labels of pixels)"
