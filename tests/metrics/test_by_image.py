"""Posteriors compared image by image where fewer than two seeds are shared."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import t as student
from scipy.stats import ttest_rel

from polymode.metrics.by_image import difference_by_image
from polymode.metrics.compare import compare
from polymode.metrics.results import Cost, Results, Row


def numbers(seed: int, shift: float = 0.0, images: int = 25) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    difficulty = torch.Generator().manual_seed(99)
    level = torch.rand(images, generator=difficulty).double() + shift
    labels = torch.tensor([60.0, 30.0, 10.0]).double().expand(images, 3)
    hits = (labels * (0.9 - 0.3 * level[:, None])).round()
    return {
        "pixels": torch.full((images,), 100.0).double(),
        "nll": 100 * (level + 0.05 * torch.randn(images, generator=stream).double()),
        "joint": -90 * level + torch.randn(images, generator=stream).double(),
        "labels": labels, "hits": hits, "predicted": labels,
    }  # fmt: skip


def test_means_are_paired_t_tests() -> None:
    """With equally many pixels: the t-test of scipy."""
    first, second = numbers(1, 0.02), numbers(2)
    gap = difference_by_image(first, second, "nll")
    expected = ttest_rel(first["nll"] / 100, second["nll"] / 100)
    assert gap.n == 25
    assert gap.p_value == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert (gap.low, gap.high) == pytest.approx((low, high))
    joint = difference_by_image(first, second, "joint_nll")
    assert joint.mean == pytest.approx((second["joint"] - first["joint"]).mean().item())


def test_miou_is_paired_by_the_jackknife() -> None:
    """Each image a group: leave-one-out by hand."""
    first, second = numbers(1), numbers(2, 0.1)

    def miou(part, rows):
        counts = {k: part[k][rows].sum(0) for k in ("labels", "predicted", "hits")}
        return (
            (counts["hits"] / (counts["labels"] + counts["predicted"] - counts["hits"]))
            .mean()
            .item()
        )

    rows = torch.arange(25)
    gap = difference_by_image(first, second, "miou")
    assert gap.mean == pytest.approx(miou(first, rows) - miou(second, rows))
    left = torch.tensor(
        [miou(first, rows != k) - miou(second, rows != k) for k in range(25)],
        dtype=torch.float64,
    )
    error = (24 / 25 * (left - left.mean()).square().sum()).sqrt().item()
    assert gap.standard_error == pytest.approx(error, rel=1e-6)
    assert gap.high - gap.mean == pytest.approx(student.ppf(0.975, 24) * error, rel=1e-6)


@pytest.mark.parametrize("metric", ["ece", "aurc", "rmse"])
def test_other_scores_have_none(metric) -> None:
    assert difference_by_image(numbers(1), numbers(2), metric) is None
    assert difference_by_image(numbers(1), numbers(2, images=24), "nll") is None
    assert difference_by_image({}, numbers(2), "nll") is None


def results(method: str, seed: int, by_image) -> Results:
    value = by_image["nll"].sum().item() / by_image["pixels"].sum().item()
    rows = (Row("test", "nll", value, "nats/pixel", "down", 2500, 0.06),)
    return Results("t", method, "net", seed, {}, rows, Cost(1, 1, 1, 1.0, 1),
                   by_image={"test": by_image})  # fmt: skip


def test_leaderboards_pair_images_of_one_seed_and_seeds_of_several() -> None:
    """One seed each: far closer than errors over images, and yet told apart."""
    good, bad = (
        (lambda k: results("a", k, numbers(k))),
        (lambda k: results("b", k, numbers(10 + k, 0.1))),
    )
    board = compare([good(0), bad(0)])
    gap = board.difference("b", "a")
    assert gap.n == 25 and gap.clear and 0.05 < gap.mean < 0.15
    assert board["a", "test", "nll"].best
    assert not board["b", "test", "nll"].tied and not board["b", "test", "nll"].untested
    several = compare([good(0), bad(0), good(1), bad(1), good(2), bad(2)])
    assert several.difference("b", "a").n == 3
    apart = compare([good(0), bad(1)])
    assert apart.difference("b", "a") is None and apart["b", "test", "nll"].untested
