"""Streamed scores of masks against direct computation on all pixels at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import binary_erosion
from scipy.stats import t as student
from sklearn.metrics import confusion_matrix, jaccard_score, recall_score, roc_auc_score

from polymode.metrics import calibration, classification, selective
from polymode.metrics.clusters import clustered
from polymode.metrics.dense import histogram as fine
from polymode.metrics.dense.borders import border_width, near_border, patch_counts
from polymode.metrics.dense.segmentation import PATCH, SegmentationSums
from polymode.metrics.dense.segmentation_scores import ious
from polymode.metrics.dense.sums import GROUPS, GroupSums, jackknife, ratio_of_sums
from polymode.metrics.score import SEGMENTATION, Score
from polymode.prediction import CategoricalPrediction

S, N, H, W, C = 3, 7, 13, 18, 4


def made_up(num: int = N, seed: int = 0) -> tuple[CategoricalPrediction, torch.Tensor]:
    """Return predictions whose labels follow one of the samples, a sixth of them ignored."""
    stream = torch.Generator().manual_seed(seed)
    rough = 4 * torch.randn(S, num, C, 4, 5, generator=stream)
    smooth = torch.nn.functional.interpolate(rough.flatten(0, 1), (H, W), mode="bilinear")
    logits = smooth.unflatten(0, (S, num)).movedim(2, -1)
    prediction = CategoricalPrediction(logits.log_softmax(-1))
    draws = torch.rand(num, H, W, 1, generator=stream)
    labels = (draws >= logits[0].softmax(-1).cumsum(-1)[..., :-1]).sum(-1)
    labels[torch.rand(num, H, W, generator=stream) < 1 / 6] = -100
    return prediction, labels


def scores_of(prediction, labels) -> dict[str, Score]:
    seen = SegmentationSums(C)
    seen.add(prediction, labels)
    return {name: SEGMENTATION.get(name).value(seen) for name in SEGMENTATION.names()}


@pytest.fixture(scope="module")
def case():
    prediction, labels = made_up()
    return prediction, labels, scores_of(prediction, labels)


def test_sums_over_pixels_are_exact(case) -> None:
    """Proper scores, accuracy and binned errors: those of all pixels as rows, errors by image."""
    prediction, labels, scores = case
    rows = prediction.observations(labels)
    for name, metric in {
        "nll": classification.nll,
        "brier": classification.brier,
        "accuracy": classification.accuracy,
    }.items():
        expected = clustered(metric(rows.prediction, rows.targets), rows.examples)
        assert scores[name].value == pytest.approx(expected.value, rel=1e-6)
        assert scores[name].standard_error == pytest.approx(expected.standard_error, rel=1e-6)
        assert scores[name].n == len(rows.targets)
    for name, metric in {"ece": calibration.ece, "mce": calibration.mce}.items():
        value = metric(rows.prediction, rows.targets).value
        assert scores[name].value == pytest.approx(value, rel=1e-6)
    for name in ("predictive_entropy", "expected_entropy", "mutual_information"):
        value = getattr(rows.prediction, name).double().mean().item()
        assert scores[name].value == pytest.approx(value, rel=1e-6)
    joint = -prediction.joint_log_prob(labels).double()
    assert scores["joint_nll"].value == pytest.approx(joint.mean().item(), rel=1e-6)
    assert scores["joint_nll"].n == N


def test_overlaps_are_those_of_scikit_learn(case) -> None:
    prediction, labels, scores = case
    seen = labels != -100
    truth, guess = labels[seen].numpy(), prediction.classes[seen].numpy()
    iou = jaccard_score(truth, guess, average="macro")
    assert scores["miou"].value == pytest.approx(iou, rel=1e-9)
    recall = recall_score(truth, guess, average="macro")
    assert scores["mean_accuracy"].value == pytest.approx(recall, rel=1e-9)


def test_classes_that_do_not_occur_are_left_out() -> None:
    """As torchmetrics and scikit-learn do with the labels that are there."""
    counts = {"labels": torch.tensor([[4.0, 2.0, 0.0]]).double(),
              "predicted": torch.tensor([[5.0, 1.0, 0.0]]).double(),
              "hits": torch.tensor([[4.0, 1.0, 0.0]]).double()}  # fmt: skip
    assert ious(counts).nan_to_num(-1).tolist() == [[4 / 5, 1 / 2, -1]]
    matrix = confusion_matrix([0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1])
    assert (matrix.diagonal() / (matrix.sum(0) + matrix.sum(1) - matrix.diagonal())).tolist() == [
        4 / 5, 1 / 2
    ]  # fmt: skip


def test_ranks_are_those_of_all_pixels_up_to_a_bin(case) -> None:
    """AUROC within its bound of scikit-learn's, AURC and adaptive ECE near those of sorted rows."""
    prediction, labels, scores = case
    rows = prediction.observations(labels)
    wrong = rows.prediction.classes != rows.targets
    for name, values in {
        "error_auroc": rows.prediction.one_minus_confidence,
        "error_auroc_predictive_entropy": rows.prediction.predictive_entropy,
        "error_auroc_mutual_information": rows.prediction.mutual_information,
    }.items():
        exact = roc_auc_score(wrong, values)
        slack = fine.auroc_slack(fine.histogram(values, wrong).double()).item()
        assert slack < 0.01
        assert abs(scores[name].value - exact) <= slack + 1e-9
    for name in ("aurc", "e_aurc"):
        exact = getattr(selective, name)(rows.prediction, rows.targets).value
        assert scores[name].value == pytest.approx(exact, abs=3 * math.log(len(wrong)) / len(wrong))
    exact = calibration.adaptive_ece(rows.prediction, rows.targets).value
    assert scores["adaptive_ece"].value == pytest.approx(exact, abs=0.01)


def test_area_of_many_pixels_is_that_of_the_curve() -> None:
    """With distinct bins the only difference is that of a sum over ranks and an integral."""
    stream = torch.Generator().manual_seed(1)
    doubt = torch.rand(20_000, generator=stream)
    wrong = torch.rand(20_000, generator=stream) < doubt
    counts = fine.histogram(doubt, wrong).double()
    exact = selective.risk_coverage(-doubt, wrong.double())
    assert fine.aurc(counts).item() == pytest.approx(exact.aurc, abs=1e-4)
    assert fine.best_aurc(counts).item() == pytest.approx(exact.oracle_aurc, abs=1e-4)


def test_bins_are_in_order_and_narrow() -> None:
    edges = fine.edges()
    values = torch.tensor([0.0, 1e-30, 2**-40, 1e-6, 0.3, 0.5, 1.0, 200.0])
    places = fine.bins_of(values)
    assert places.tolist() == sorted(places.tolist()) and places[0] == 0
    assert bool((edges.diff() > 0).all())
    inside = places > 0
    assert bool((edges[places[inside]] <= values[inside]).all())
    assert float((edges[2:] / edges[1:-1]).max()) <= 1 + 1 / 512


def test_borders_are_what_erosion_takes_away(case) -> None:
    """Near a border = in the mask of its class and not in the mask eroded by a square."""
    prediction, labels, scores = case
    reach = border_width(H, W)
    square = np.ones((2 * reach + 1, 2 * reach + 1))
    shared = np.zeros(C)
    union = np.zeros(C)
    for place in range(N):
        seen = (labels[place] != -100).numpy()
        maps = [m.masked_fill(labels[place] == -100, -1).numpy()
                for m in (labels[place], prediction.classes[place])]  # fmt: skip
        near = near_border(torch.from_numpy(maps[0]), reach).numpy()
        for label in range(C):
            inner = [binary_erosion(m == label, square) for m in maps]
            borders = [(m == label) & ~i for m, i in zip(maps, inner, strict=True)]
            assert (near[maps[0] == label] == borders[0][maps[0] == label]).all()
            shared[label] += (borders[0] & borders[1] & seen).sum()
            union[label] += ((borders[0] | borders[1]) & seen).sum()
    assert scores["boundary_iou"].value == pytest.approx((shared / union).mean(), rel=1e-9)


def test_patches_by_hand(case) -> None:
    prediction, labels, scores = case
    total = right = 0
    for place in range(N):
        for top in range(0, H, PATCH):
            for left in range(0, W, PATCH):
                part = (place, slice(top, top + PATCH), slice(left, left + PATCH))
                seen = labels[part] != -100
                if not seen.any():
                    continue
                hits = (prediction.classes[part] == labels[part])[seen].double().mean() > 0.5
                doubt = (1 - prediction.confidence[part])[seen].mean() > 0.5
                total, right = total + 1, right + int(bool(hits) != bool(doubt))
    assert scores["pavpu"].value == pytest.approx(right / total)
    assert scores["pavpu"].n == total
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    assert patch_counts(nothing, torch.ones(4, 4), nothing, 4).tolist() == [0, 0, 0, 0]


def test_batches_change_nothing(case) -> None:
    """To the bit: what is held is held by image."""
    prediction, labels, scores = case
    seen = SegmentationSums(C)
    for start, stop in ((0, 1), (1, 4), (4, N)):
        seen.add(prediction[start:stop], labels[start:stop])
    for name, score in scores.items():
        again = SEGMENTATION.get(name).value(seen)
        assert again[:3] == score[:3], name


def test_memory_does_not_grow_with_pixels() -> None:
    seen = SegmentationSums(C)
    prediction, labels = made_up(1)
    for _ in range(3):
        seen.add(prediction, labels)
    held = sum(part.numel() for parts in seen._parts.values() for part in parts)
    assert held < 3 * 100
    assert seen.groups._sums["wrong:doubt"].shape == (GROUPS, fine.NUM_BINS, 2)


def test_jackknife_of_a_mean_is_the_usual_error() -> None:
    """With one image in each group, and to 3 % with groups of unequal sizes."""
    stream = torch.Generator().manual_seed(2)
    values = torch.randn(30, generator=stream).double()
    sums = GroupSums()
    for value in values:
        sums.add({"value": value, "count": torch.tensor(1)})
    score = sums.score(lambda s: s["value"] / s["count"], ("value", "count"), 30)
    assert score.value == pytest.approx(values.mean().item())
    assert score.standard_error == pytest.approx(values.std().item() / 30**0.5)
    plain = ratio_of_sums(values, torch.ones(30).double())
    assert plain.standard_error == pytest.approx(score.standard_error)


@pytest.mark.cpu_seconds(8)
def test_intervals_cover_where_pixels_of_an_image_are_alike() -> None:
    """95 % intervals of accuracy and mIoU cover their limits in 93 to 97 % of 1,200 simulations;
    intervals that count pixels cover less than half as often.

    Images have 3 classes and an accuracy of their own, Beta(4, 2). The limits are those of 2
    million images, to 0.0005. A coverage of .95 has a standard error of .0063 here, so that a right
    interval fails either end with probability 0.002 (two metrics: 0.004).
    """
    stream = np.random.default_rng(3)
    images, pixels, rounds = 60, 400, 1200

    def draw(number: int) -> dict[str, torch.Tensor]:
        accuracy = stream.beta(4, 2, number)
        shares = stream.dirichlet([2.0, 1.0, 1.0], number)
        labels = stream.multinomial(pixels, shares)
        hits = stream.binomial(labels, accuracy[:, None])
        missed = labels - hits
        predicted = hits.copy()
        for label in range(3):
            first = stream.binomial(missed[:, label], 0.5)
            predicted[:, (label + 1) % 3] += first
            predicted[:, (label + 2) % 3] += missed[:, label] - first
        counts = {"labels": labels, "predicted": predicted, "hits": hits}
        return {name: torch.from_numpy(values).double() for name, values in counts.items()}

    limit = {name: values.sum(0, keepdim=True) for name, values in draw(500_000).items()}
    limits = (limit["hits"].sum() / limit["labels"].sum()).item(), ious(limit).mean().item()
    covered = np.zeros(3)
    for _ in range(rounds):
        counts = draw(images)
        groups = {name: values.view(images // 3, 3, 3).sum(1) for name, values in counts.items()}
        of_miou = jackknife(lambda sums: ious(sums).nanmean(-1), groups, images)
        of_accuracy = ratio_of_sums(counts["hits"].sum(1), counts["labels"].sum(1))
        for place, (score, degrees) in enumerate(((of_accuracy, images - 1), (of_miou, 19))):
            reach = student.ppf(0.975, degrees) * score.standard_error
            covered[place] += abs(score.value - limits[place]) <= reach
        by_pixel = 1.96 * math.sqrt(of_accuracy.value * (1 - of_accuracy.value) / (images * pixels))
        covered[2] += abs(of_accuracy.value - limits[0]) <= by_pixel
    shares = covered / rounds
    assert 0.93 <= shares[0] <= 0.97 and 0.93 <= shares[1] <= 0.97, shares
    assert shares[2] < 0.4, shares
