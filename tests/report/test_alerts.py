"""Alerts: each appears when it should, with its number, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polymode.metrics import Results, compare
from polymode.metrics.results import Cost, Row
from polymode.report.alerts import alerts


def result(method: str, seed: int, nll: float | None, *rows: Row) -> Results:
    found = (Row("test", "nll", nll, "nats/example", "down", 400, 0.02), *rows)
    return Results("digits", method, "mlp", seed, {}, found, Cost(1, 1, 10, 0.1, 100))


def row(dataset: str, metric: str, value: float | None, note: str = "") -> Row:
    return Row(dataset, metric, value, "", "up" if "auroc" in metric else "", 400, 0.0, note)


def titles(found) -> list[str]:
    return [alert.title for alert in found]


def two_seeds(*rows: Row):
    return compare([result("map", seed, 0.1, *rows) for seed in (0, 1)])


def test_nothing_to_say() -> None:
    assert alerts(two_seeds()) == []
    clear = [result(m, s, v + s / 100) for m, v in (("a", 0.1), ("b", 0.3)) for s in range(3)]
    assert alerts(compare(clear)) == []


def test_one_seed() -> None:
    found = alerts(compare([result("map", 0, 0.3), result("other", 0, 0.1)]))
    assert titles(found) == ["One seed only"]
    assert "map, other" in found[0].text


def test_failures_come_first() -> None:
    single = compare([result("map", 0, 0.3)])
    assert titles(alerts(single, failures=2)) == ["2 cells failed", "One seed only"]
    known = [{"method": "swag", "seed": 3, "error": "ValueError: diverged"}]
    first = alerts(single, failures=known)[0]
    assert first.title == "1 cell failed" and first.level == "error"
    assert "swag, seed 3: ValueError: diverged." in first.text


def test_within_noise_names_the_tie() -> None:
    seeds = zip([0.10, 0.14, 0.12], [0.11, 0.12, 0.11], strict=True)
    close = [
        result(m, s, v) for s, pair in enumerate(seeds) for m, v in zip("ab", pair, strict=True)
    ]
    found = alerts(compare(close))
    assert titles(found) == ["Difference within noise"]
    assert "NLL (b ≈ a)" in found[0].text


@pytest.mark.parametrize(
    ("spread", "collapsed"),
    [
        ({"test": 0.003, "ood:patches": 0.004}, True),
        ({"test": 0.003, "ood:patches": 0.3}, False),  # easy data, but the members do differ
        ({"test": 0.003}, True),
        ({}, False),
    ],
)
def test_collapse_is_said_where_members_agree_everywhere(spread, collapsed) -> None:
    found = alerts(two_seeds(*(row(name, "disagreement", v) for name, v in spread.items())))
    assert titles(found) == (["Members collapsed: map"] if collapsed else [])


@pytest.mark.parametrize(("share", "said"), [(0.004, True), (0.4, False)])
def test_small_epistemic_share(share, said) -> None:
    found = alerts(two_seeds(row("test", "epistemic_share", share)))
    assert titles(found) == (["Epistemic share below 1 %: map"] if said else [])
    rows = row("test", "predictive_entropy", 0.5), row("test", "mutual_information", 0.5 * share)
    found = alerts(two_seeds(*rows))
    assert titles(found) == (["Epistemic share below 1 %: map"] if said else [])
    if said:
        assert "At most 0.4 %" in found[0].text


@pytest.mark.parametrize(("value", "said"), [(1.31, True), (1.01, False)])
def test_chains_that_did_not_mix(value, said) -> None:
    found = alerts(two_seeds(row("test", "r_hat_functions", value)))
    assert titles(found) == (["Chains have not mixed: map"] if said else [])
    assert not said or "1.31" in found[0].text


@pytest.mark.parametrize(("values", "said"), [((0.44, 0.54), False), ((0.46, 0.48), True)])
def test_scores_near_chance_are_below_it_by_two_errors_of_their_seeds(values, said) -> None:
    rows = [row("ood:far", "auroc_predictive_entropy", value) for value in values]
    found = alerts(compare([result("map", seed, 0.1, each) for seed, each in enumerate(rows)]))
    assert ("AUROC, entropy below 0.5" in titles(found)) == said


def test_scores_that_rank_backwards() -> None:
    below = alerts(two_seeds(row("ood:far", "auroc_mutual_information", 0.2)))
    assert titles(below) == ["AUROC, MI below 0.5"]
    assert "map on far 0.200" in below[0].text
    assert alerts(two_seeds(row("ood:far", "auroc_mutual_information", 0.8))) == []


def test_missing_seeds_and_numbers_are_explained() -> None:
    rows = [
        result("a", s, 0.1 + s / 100, row("test", "mine", None, "n/a (needs ≥ 2 samples)"))
        for s in range(3)
    ]
    found = alerts(compare([*rows, result("b", 0, 0.9), result("b", 1, 0.95)]))
    assert "Not all seeds" in titles(found)
    assert "n/a: needs ≥ 2 samples" in titles(found)
    text = next(a.text for a in found if a.title.startswith("n/a: needs"))
    assert text == "mine, for a."


def curves(**numbers: tuple[float, float | None]) -> list[Row]:
    return [
        Row("examined:convergence", name, value, "", "", 20, error)
        for name, (value, error) in numbers.items()
    ]


@pytest.mark.parametrize(
    ("slope", "error", "told"),
    [(-0.1, 0.01, True), (-0.1, 0.06, False), (-0.04, 0.001, False), (0.1, 0.01, False)],
)
def test_a_loss_that_still_falls_clearly_is_not_converged(slope, error, told) -> None:
    """By more than two standard errors, and by more than a twentieth of its whole fall."""
    found = alerts(two_seeds(*curves(train_slope=(slope, error), train_drop=(1.0, None))))
    assert titles(found) == (["Not converged"] if told else [])
    if told:
        assert "map by 0.1 ± 0.01 nats/example, 10 % of its whole fall" in found[0].text
        assert "--set epochs" in found[0].text


@pytest.mark.parametrize(("loss", "told"), [(0.4, True), (0.25, False)])
def test_a_method_far_behind_the_others_is_perhaps_undertrained(loss, told) -> None:
    """By a fifth of the others' fall, 0.9; bounds and energies are not compared."""
    ends = {"map": 0.1, "forde": 0.12, "swag": loss, "vi": 2.0, "mile": 3.0}
    options = {"optimizer": "adam"}
    more = {"vi": {"kl_weight": 1.0}, "mile": {"temperature": 1.0}}
    found = []
    for method, end in ends.items():
        rows = curves(train_loss=(end, 0.01), train_drop=(0.9, None))
        for seed in (0, 1):
            cell = result(method, seed, 0.1 + seed / 100, *rows)
            found.append(replace(cell, config=options | more.get(method, {})))
    told_of = [a for a in alerts(compare(found)) if a.title == "Undertrained?"]
    assert len(told_of) == told
    if told:
        assert "swag 0.4, the others 0.11 nats/example" in told_of[0].text


def test_concerns_of_the_look_are_repeated_with_their_seeds() -> None:
    concern = {"name": "a point", "text": "each mode has one sample"}
    cells = [
        replace(result("swag", seed, 0.1), config={"concerns": [concern]} if seed else {})
        for seed in range(3)
    ]
    (found,) = (a for a in alerts(compare(cells)) if a.title.startswith("Doubtful"))
    assert found.title == "Doubtful: swag, a point"
    assert found.text == "2 of 3 seeds; seed 1: each mode has one sample."


@pytest.mark.parametrize(
    ("rise", "error", "place", "told"),
    [
        (0.2, 0.01, 0.4, True),
        (0.2, None, 0.4, True),
        (0.2, 0.15, 0.4, False),
        (0.02, 0.001, 0.4, False),
        (0.2, 0.01, 0.95, False),
    ],
)
def test_a_validation_loss_that_rises_again_is_overfitting(rise, error, place, told) -> None:
    numbers = curves(
        val_rise=(rise, error), best_val_nll=(0.5, 0.1), best_val_at=(place, None)
    )  # fmt: skip
    found = alerts(two_seeds(*numbers))
    assert titles(found) == (["Overfits"] if told else [])
    if told:
        assert "map from 0.5 at 40 % of training to 0.7" in found[0].text
        assert "fewer epochs" in found[0].text
