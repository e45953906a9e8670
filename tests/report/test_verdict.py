"""The verdict: who leads, and whether that is more than noise."""

from __future__ import annotations

from polymode.metrics import Results, compare
from polymode.metrics.results import Cost, Row
from polymode.report.verdict import verdict


def result(method: str, seed: int, nll: float | None) -> Results:
    rows = (Row("test", "nll", nll, "nats/example", "down", 400, 0.02),)
    return Results("digits", method, "mlp", seed, {}, rows, Cost(1, 1, 10, 0.1, 100))


def board(**methods: list[float | None]):
    return compare([result(m, s, v) for m, values in methods.items() for s, v in enumerate(values)])


def test_clear_winner() -> None:
    text = verdict(board(map=[0.30, 0.31, 0.29], other=[0.10, 0.11, 0.09]))
    assert text.startswith(
        "other has the lowest test NLL on digits: 0.100 ± 0.006 nats per example against 0.300"
    )
    assert "paired difference 0.200 ± 0.000 (95 % interval 0.200 to 0.200, 3 seeds)" in text


def test_within_noise() -> None:
    text = verdict(board(map=[0.10, 0.14, 0.12], other=[0.11, 0.12, 0.11]))
    assert text.startswith("No clear winner on digits by test NLL: other has 0.113")
    assert "interval −0.0" in text  # a minus, not a hyphen


def test_others_that_are_not_clearly_worse_are_named() -> None:
    text = verdict(board(a=[0.10, 0.14, 0.12], b=[0.11, 0.13, 0.13], c=[0.12, 0.11, 0.15]))
    assert "Not clearly worse either: c." in text


def test_many_comparisons_need_more_than_one() -> None:
    """A gap that one test at 95 % calls clear is not clear among nine, by Holm's correction."""
    base, gaps = [0.10, 0.11, 0.09, 0.10], [0.012, 0.018, 0.010, 0.020]
    near = [value + gap for value, gap in zip(base, gaps, strict=True)]
    noisy = {
        f"m{k}": [v + k * d for v, d in zip(base, (0.04, 0.09, 0.01, 0.1), strict=True)]
        for k in range(2, 10)
    }
    assert verdict(board(best=base, near=near)).startswith("best has the lowest")
    many = verdict(board(best=base, near=near, **noisy))
    assert many.startswith("No clear winner")
    assert "too little for one of 9 comparisons" in many


def test_one_seed_and_one_method() -> None:
    text = verdict(board(map=[0.3], other=[0.1]))
    assert "0.100 ± 0.020 nats per example against 0.300 ± 0.020" in text
    assert text.endswith("one seed, ± over examples, so this may be luck.")
    text = verdict(board(map=[0.2, 0.2]))
    assert text == "map reaches a test NLL of 0.200 ± 0.000 nats per example on digits."


def test_seeds_that_are_not_shared_are_not_called_one_seed() -> None:
    ours = [result("map", seed, 0.1) for seed in (0, 1, 2)]
    apart = verdict(compare([*ours, *(result("other", seed, 0.3) for seed in (3, 4, 5))]))
    assert apart.endswith("they share no seed, so this may be luck.")
    once = verdict(compare([*ours, *(result("other", seed, 0.3) for seed in (2, 4, 5))]))
    assert once.endswith("they share one seed, so this may be luck.")


def test_no_finite_score() -> None:
    assert verdict(board(map=[None], other=[None])) == "No method has a finite test NLL on digits."
