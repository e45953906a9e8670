"""The leaderboard: means over seeds, best marks, paired differences, names of entries."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from polymode.metrics import Results, compare
from polymode.metrics.leaderboard import group_title
from polymode.metrics.paired import not_rejected, paired
from polymode.metrics.results import Cost, Row


def result(method: str, seed: int, nll: float | None, accuracy: float = 0.9, **config) -> Results:
    note = "" if nll is not None else "n/a (needs ≥ 2 samples)"
    rows = (
        Row("test", "accuracy", accuracy, "fraction", "up", 400, 0.01),
        Row("test", "nll", nll, "nats/example", "down", 400, 0.02, note),
        Row("test", "disagreement", 0.1, "fraction of pairs", "", 400, 0.01),
        Row("shift:noise:1", "accuracy", accuracy - 0.1, "fraction", "up", 400, 0.01),
        Row("shift:noise:2", "accuracy", accuracy - 0.3, "fraction", "up", 300, 0.01),
    )
    return Results("digits", method, "lenet", seed, config, rows, Cost(1, 1, 100, 0.5, 1000, 2.0))


A, B = [0.10, 0.14, 0.12], [0.09, 0.12, 0.11]


@pytest.fixture
def board():
    first = [result("map", seed, value) for seed, value in enumerate(A)]
    return compare([*first, *(result("other", seed, value) for seed, value in enumerate(B))])


def test_costs_have_the_units_of_their_names() -> None:
    """Milliseconds for 1,000 inputs, each seed by the inputs it predicted; MB are 10⁶ bytes."""
    first, second = result("map", 0, 0.1), result("map", 1, 0.2)
    made = compare(
        [
            replace(first, cost=Cost(2, 6, 100, 0.5, 1000, 2.0, 3_500_000)),
            replace(second, cost=Cost(2, 6, 100, 3.0, 2000, 4.0, 3_500_000)),
        ]
    )
    found = made.to_dict()["costs"]["map"]
    assert found == {
        "train_seconds": 3.0, "predict_ms": pytest.approx(1000.0), "num_modes": 2, "num_samples": 6,
        "parameters": 100, "memory_mb": 3.5,
    }  # fmt: skip


def test_mean_and_standard_error_over_seeds(board):
    cell = board["map", "test", "nll"]
    assert cell.mean == pytest.approx(np.mean(A))
    assert cell.standard_error == pytest.approx(np.std(A, ddof=1) / np.sqrt(3))
    assert (cell.n, cell.best) == (3, False)
    assert board["other", "test", "nll"].best


def test_ties_are_all_best_and_descriptions_have_none(board):
    assert board["map", "test", "accuracy"].best
    assert board["other", "test", "accuracy"].best
    assert not board["map", "test", "disagreement"].best


def test_mean_over_shifts(board):
    cell = board["map", "shift:mean", "accuracy"]
    assert cell.mean == pytest.approx(0.7)
    assert "shifts (mean of 2)" in board.table()


def test_difference_is_paired_with_a_t_interval(board):
    gap = board.difference("map", "other")
    interval = stats.ttest_rel(A, B).confidence_interval(0.95)
    assert gap.mean == pytest.approx(np.mean(A) - np.mean(B))
    assert (gap.low, gap.high) == pytest.approx((interval.low, interval.high))
    assert gap.n == 3
    assert not gap.clear
    constant = compare([result(m, s, v) for m, v in (("a", 0.3), ("b", 0.1)) for s in (0, 1)])
    assert constant.difference("a", "b").clear


def test_difference_uses_shared_seeds_only():
    board = compare([result("a", 0, 0.3), result("a", 1, 9.0), result("b", 0, 0.1)])
    gap = board.difference("a", "b")
    assert (gap.mean, gap.n, gap.standard_error, gap.clear) == (pytest.approx(0.2), 1, None, False)
    assert compare([result("a", 0, 0.3), result("b", 1, 0.1)]).difference("a", "b") is None


def test_one_seed_has_a_spread_over_examples():
    board = compare([result("map", 0, 0.1), result("other", 0, 0.2)])
    cell = board["map", "test", "nll"]
    assert (cell.standard_error, cell.example_error, cell.error) == (None, 0.02, 0.02)
    assert "1 seed: value ± s.e. over examples" in board.table()
    assert "0.100 ± 0.020*" in board.table()
    assert board["map", "shift:mean", "accuracy"].error is None  # shifts share their examples
    assert json.loads(board.to_json())["cells"][0]["example_error"] == 0.01


def test_what_was_examined_has_no_spread_over_examples():
    row = Row("examined:convergence", "train_loss", 0.5, "nats", "down", 3, 0.1)
    one = result("map", 0, 0.1)
    board = compare([one.replace(rows=(*one.rows, row))])
    assert board["map", "examined:convergence", "train_loss"].error is None


def test_entries_of_several_seeds_beside_one_of_one_seed():
    board = compare([*(result("a", s, v) for s, v in enumerate(A)), result("b", 0, 0.5)])
    assert "mean ± s.e. over seeds, of one seed over examples" in board.table()
    assert board["a", "test", "nll"].example_error is None


@pytest.mark.parametrize("seeds", [(7, 8, 9), (0, 8, 9)])
def test_without_two_shared_seeds_nothing_is_called_worse(seeds):
    """No paired test exists, so the mark says that nobody tested."""
    far = [result("far", seed, value) for seed, value in zip(seeds, (5.0, 5.1, 5.2), strict=True)]
    board = compare([*(result("near", s, v) for s, v in enumerate(A)), *far])
    cell = board["far", "test", "nll"]
    assert (cell.best, cell.tied, cell.untested, cell.sign) == (False, False, True, "?")
    assert "? too few seeds (fewer than 3 shared)" in board.table()
    assert "5.100 ± 0.058?" in board.table()
    tested = compare([result(m, s, v) for m in "ab" for s, v in enumerate(A)])
    assert "?" not in tested.table()


def test_better_on_the_shared_seeds_is_not_clearly_worse():
    """a is best by its mean over five seeds; on the three that it shares, b is ahead."""
    a = [result("a", s, v) for s, v in enumerate([0.5, 0.6, 0.55, 0.1, 0.1])]
    b = [result("b", s, v) for s, v in enumerate([0.4001, 0.5, 0.45])]
    board = compare([*a, *b])
    assert board.difference("b", "a").p_value < 0.05
    assert board["a", "test", "nll"].best and board["b", "test", "nll"].tied


def test_results_on_other_data_are_refused_by_fingerprint():
    one = result("map", 0, 0.1).replace(task="own", data={"test": "aa", "ood:far": "cc"})
    other = result("other", 0, 0.2).replace(task="own", data={"test": "bb", "ood:far": "cc"})
    with pytest.raises(
        ValueError, match=r"'test' is different data for map, seed 0, and other.*aa"
    ):
        compare([one, other])
    outside = other.replace(data={"test": "aa", "ood:far": "dd"})
    with pytest.raises(ValueError, match="'ood:far' is different data"):
        compare([one, outside])
    assert compare([one, other.replace(data={"test": "aa"})]).labels == ["map", "other"]
    assert Results.from_json(one.to_json()).data == one.data
    old = {key: value for key, value in one.to_dict().items() if key != "data"}
    assert compare([Results.from_dict(old), other]).labels == ["map", "other"]  # nobody knows


def test_compare_says_what_it_takes():
    one = result("map", 0, 0.1)
    assert compare(one).labels == ["map"]
    for given, said in (
        (["runs/a"], "a str; `polymode compare"),
        ([one, 3], "a int"),
        (3, "a int"),
    ):
        with pytest.raises(ValueError, match=rf"compare takes results of pm.evaluate.*{said}"):
            compare(given)
    with pytest.raises(ValueError, match=r"one list of results: pm.compare\(\[first, second\]\)"):
        compare(one, one)


def test_what_does_not_apply_stays_so_and_is_never_best():
    board = compare([result("map", 0, None), result("other", 0, 0.2)])
    cell = board["map", "test", "nll"]
    assert (cell.mean, cell.note) == (None, "n/a (needs ≥ 2 samples)")
    assert not board["other", "test", "nll"].best
    json.loads(board.to_json(), parse_constant=pytest.fail)


def test_options_that_differ_name_the_entries():
    board = compare(
        [result("e", 0, 0.1, num_modes=2, lr=1), result("e", 0, 0.2, num_modes=5, lr=1)]
    )
    assert board.labels == ["e (num_modes=2)", "e (num_modes=5)"]
    assert compare([result("e", 0, 0.1, lr=1), result("f", 0, 0.2, lr=2)]).labels == ["e", "f"]


def test_what_a_search_chose_does_not_part_the_seeds():
    def tuned(seed: int, alpha: float) -> Results:
        found = {"chosen": {"alpha": alpha}, "candidates": [{"alpha": alpha, "score": seed}]}
        options = {"lengthscales": "tuned", "alpha": alpha, "search": found}
        return result("forde", seed, A[seed], **options)

    plain = [result("forde", seed, A[seed], lengthscales="pca", alpha=1.0) for seed in range(2)]
    board = compare([tuned(0, 0.2), tuned(1, 0.4), *plain])
    assert board.labels == ["forde (lengthscales=tuned)", "forde (lengthscales=pca, alpha=1.0)"]
    assert [entry.seeds for entry in board.entries] == [[0, 1], [0, 1]]
    assert [each.config["alpha"] for each in board.entries[0].results] == [0.2, 0.4]


def test_table_marks_the_best_and_fits_a_terminal(board):
    table = board.table()
    line = next(each for each in table.splitlines() if each.startswith("  other"))
    assert "0.107 ± 0.009*" in line
    assert "NLL ↓" in table
    assert "disagreement" not in table
    assert max(map(len, table.splitlines())) <= 80


def outside(method: str, seed: int, values: dict[str, float], near=()) -> Results:
    rows = [Row("test", "nll", 0.1, "nats/example", "down", 400, 0.02)]
    for name, value in values.items():
        rows.append(Row(f"ood:{name}", "auroc_predictive_entropy", value, "p", "up", 800, 0.01))
    cost = Cost(1, 1, 100, 0.5, 1000, 2.0)
    return Results("digits", method, "lenet", seed, {}, tuple(rows), cost, near_ood=tuple(near))


def test_near_and_far_sets_have_a_mean_of_their_own():
    values = {"a": 0.9, "b": 0.7, "c": 0.6, "d": 0.4}
    board = compare([outside(m, 0, values, near=("a", "b")) for m in ("map", "other")])
    metric = "auroc_predictive_entropy"
    assert board["map", "ood:mean:near", metric].mean == pytest.approx(0.8)
    assert board["map", "ood:mean:far", metric].mean == pytest.approx(0.5)
    titles = [group_title(group, board) for group in board.groups()]
    assert titles[1:4] == [
        "near OOD sets (mean of 2)", "far OOD sets (mean of 2)", "a (near OOD), n = 800",
    ]  # fmt: skip
    alone = compare([outside("map", 0, {"a": 0.9, "c": 0.6}, near=("a",))])
    assert not [column for column in alone.columns if column.dataset.startswith("ood:mean")]


def test_a_mean_lacks_where_one_set_lacks():
    values = {"a": 0.9, "b": None}
    board = compare([outside("map", 0, values)])
    assert board["map", "ood:mean:far", "auroc_predictive_entropy"].mean is None


def test_ties_by_paired_tests_with_holms_correction():
    """c is worse in every seed by about the same; b differs from a by noise alone."""
    values = {
        "a": [0.10, 0.14, 0.12, 0.11],
        "b": [0.11, 0.13, 0.13, 0.11],
        "c": [0.31, 0.34, 0.33, 0.31],
    }
    board = compare([result(m, s, v) for m, vs in values.items() for s, v in enumerate(vs)])
    cells = {label: board[label, "test", "nll"] for label in board.labels}
    assert [cells[name].best for name in "abc"] == [True, False, False]
    assert [cells[name].tied for name in "abc"] == [False, True, False]
    for name in "bc":
        p_value = stats.ttest_rel(values[name], values["a"]).pvalue
        assert board.difference(name, "a").p_value == pytest.approx(p_value)
    alone = compare([result(m, 0, v) for m, v in (("a", 0.1), ("b", 0.2))])
    assert not alone["b", "test", "nll"].tied  # one seed tells nothing
    assert alone["b", "test", "nll"].untested


def test_holm_rejects_less_than_single_tests():
    """Hand-worked: 0.001 < 0.05/3; 0.03 > 0.05/2, so it and all after it stand."""
    assert not_rejected({"a": 0.001, "b": 0.03, "c": 0.04}) == {"b", "c"}
    assert not_rejected({"a": 0.001, "b": 0.02, "c": 0.04}) == set()
    assert not_rejected({}) == set()


def test_equal_gaps_have_no_spread_but_a_verdict():
    assert paired([0.0, 0.0]).p_value == 1.0
    assert paired([0.5, 0.5]).p_value == 0.0
    assert paired([]) is None
    assert paired([0.5]).p_value is None


def test_pareto_front():
    def at(method: str, nll: float, train: float | None, predict: float) -> Results:
        cost = Cost(1, 1, 100, predict, 1000, train)
        return result(method, 0, nll).replace(cost=cost)

    board = compare(
        [at("cheap", 0.3, 1, 1), at("good", 0.1, 9, 1), at("beaten", 0.3, 2, 1),
         at("twin", 0.3, 1, 1), at("untimed", 0.01, None, 1), at("quick", 0.4, 3, 0.5)]
    )  # fmt: skip
    assert board.pareto() == ["cheap", "good", "twin", "quick"]
    marked = [line.split()[1] for line in board.table().splitlines() if line.startswith("◆")]
    assert marked == board.pareto()
    by_accuracy = compare([at("a", 0.3, 1, 1), at("b", 0.1, 2, 1)])
    assert by_accuracy.pareto("accuracy") == ["a"]  # equal accuracy, higher cost
    assert json.loads(board.to_json())["pareto"] == board.pareto()


def test_unknown_entry_names_the_nearest(board):
    with pytest.raises(KeyError, match="Did you mean 'other'"):
        board.difference("map", "othr")


def test_memory_is_a_cost():
    first = result("map", 0, 0.1)
    board = compare([first.replace(cost=first.cost._replace(memory_bytes=2_500_000))])
    assert board.table().splitlines()[-1].endswith("2.5")


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="0 results"):
        compare([])
    with pytest.raises(ValueError, match="one seed twice"):
        compare([result("a", 0, 0.1), result("a", 0, 0.1)])
    with pytest.raises(ValueError, match="one task can be compared, got digits, moons"):
        compare([result("a", 0, 0.1), result("a", 0, 0.1).replace(task="moons")])


def test_priors_that_each_fit_found_are_one_entry() -> None:
    """Apart from a prior that is given, and together over seeds whose data gave other numbers."""
    choice = {"by": "evidence of the linear layer"}
    chosen = [
        result("map", seed, value, prior_precision=30.0 + seed, prior_choice=choice)
        for seed, value in enumerate(A)
    ]
    given = [result("map", seed, value, prior_precision=1.0) for seed, value in enumerate(B)]
    labels = [entry.label for entry in compare([*chosen, *given]).entries]
    assert labels == ["map (prior_precision=auto)", "map (prior_precision=1.0)"]


@pytest.mark.parametrize(("seeds", "sign"), [(2, "?"), (3, "≈")])
def test_two_seeds_are_too_few_to_call_entries_near(seeds, sign):
    """The differences change sign, so no test separates them, however many seeds there are."""
    values = {"a": (0.10, 0.30, 0.20), "b": (0.20, 0.22, 0.25)}
    board = compare([result(m, s, values[m][s]) for m in "ab" for s in range(seeds)])
    assert board["b", "test", "nll"].sign == sign
    assert ("too few seeds" in board.table()) == (sign == "?")
