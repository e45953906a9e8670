"""The study of heads on one body: its set-up, and what is made of results."""

from __future__ import annotations

import pytest

from polymode.examinations import read_asked
from polymode.methods import METHODS
from polymode.methods.fit import check_options
from polymode.studies import STUDIES, Runs
from polymode.studies.one_body import setup, tables
from polymode.studies.one_body.claims import claims
from polymode.tasks.bodies.feature_tasks import SOURCES

STUDY = STUDIES.get("one_body").value
LABEL = "examined:reference:chains=4"


@pytest.mark.parametrize("preset", ["smoke", "cpu", "paper"])
def test_every_arm_has_options_that_its_method_takes(preset) -> None:
    """Nothing is trained here: options are checked, and so is the examination."""
    parts = STUDY.parts(preset)
    for name, part in parts.items():
        assert part.task_options["data"] in SOURCES
        for arm in part.arms.values():
            check_options(arm.method, arm.options)
            METHODS.get(arm.method).value.config(**arm.options)
        for text in part.examine:
            assert read_asked(text)[1]["hidden"] == part.net_options["hidden"]
        assert bool(part.examine) != name.endswith("_prior")
        assert len(part.seeds) >= (2 if preset == "smoke" else 5)
    methods = {arm.method for arm in parts["images"].arms.values()}
    methods |= {arm.method for arm in parts["images_small_head"].arms.values()}
    assert len(methods) >= 24


def test_all_arms_of_a_part_have_one_prior() -> None:
    """Else they would be held against different posteriors."""
    for part in STUDY.parts("cpu").values():
        if part.examine:
            priors = {arm.options["prior_precision"] for arm in part.arms.values()}
            assert priors in ({setup.AUTO}, {setup.SMALL_PRIOR})


def runs_of(make, part: str, numbers: dict[str, dict[tuple[str, str], list[float]]]) -> Runs:
    """Return runs of a part with these numbers by arm, one per seed."""
    results = []
    for arm, values in numbers.items():
        for seed in range(3):
            shared = {
                ("test", "accuracy"): 0.9,
                (LABEL, "reference_r_hat"): 1.07 if "small" in part else 1.005,
                (LABEL, "reference_r_hat_median"): 1.001,
            }
            found = make(arm, seed, {**shared, **{key: v[seed] for key, v in values.items()}})
            results.append(found)
    return Runs({part: results})


def numbers(distance: float, information: float, nll: float) -> dict[tuple[str, str], list[float]]:
    def near(value: float) -> list[float]:
        return [value, value * 1.01, value * 0.99]

    return {
        (LABEL, "total_variation"): near(distance),
        ("test", "mutual_information"): near(information),
        ("test", "nll"): near(nll),
    }


GOOD = {
    setup.LAPLACE: numbers(0.020, 0.05, 0.70),
    setup.HMC: numbers(0.019, 0.05, 0.69),
    setup.ENSEMBLE: numbers(0.05, 0.001, 0.75),
    "MAP": numbers(0.05, 0.0, 0.75),
}


def test_claims_are_judged_by_ratios(make) -> None:
    verdicts = [claim.verdict for claim in claims(runs_of(make, "images", GOOD))]
    assert verdicts == ["holds", "holds", "holds"]
    bad = GOOD | {
        setup.LAPLACE: numbers(0.10, 0.2, 0.85),
        setup.ENSEMBLE: numbers(0.05, 0.02, 0.75),
    }
    verdicts = [claim.verdict for claim in claims(runs_of(make, "images", bad))]
    assert verdicts == ["does not hold"] * 3
    (small,) = claims(runs_of(make, "images_small_head", bad))
    assert small.verdict == "holds" and "small heads is not one function" in small.text


def test_the_grid_is_judged_against_its_best(make) -> None:
    """The prior by the evidence is .03 nats worse than the best for one method."""
    values = {}
    for method, auto in (("MAP", 0.705), ("Laplace", 0.73)):
        for precision in setup.GRID:
            values[setup.prior_arm(method, precision)] = numbers(0, 0, 0.8)
        values[setup.prior_arm(method, 10.0)] = numbers(0, 0, 0.70)
        values[setup.prior_arm(method, setup.AUTO)] = numbers(0, 0, auto)
    results = [
        cell
        for cell in runs_of(make, "images_prior", values).all("images_prior")
    ]  # fmt: skip
    stripped = [
        cell.replace(rows=tuple(row for row in cell.rows if row.dataset == "test"))
        for cell in results
    ]
    runs = Runs({"images_prior": stripped})
    verdicts = [claim.verdict for claim in claims(runs)]
    assert verdicts == ["holds", "does not hold", "not run"]
    table = tables.tables(runs)["images_prior"]
    assert [line[0] for line in table.lines][:2] == ["1", "3"] and len(table.lines) == 7


def test_a_reference_that_has_not_mixed_is_said(make) -> None:
    for part, said in (("images", False), ("images_small_head", True)):
        runs = runs_of(make, part, GOOD)
        shown = tables.tables(runs)
        table = shown[f"distance_{part}"]
        assert table.lines[0][0] == setup.HMC
        assert ("have not mixed" in table.note) == said and "R-hat" in table.note
        assert tables.figures(runs)["r_hat"].to_svg().startswith("<?xml")
