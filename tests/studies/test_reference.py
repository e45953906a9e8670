"""The study of the reference posterior: its set-up, and what is made of results."""

from __future__ import annotations

import pytest

from polymode.examinations import read_asked
from polymode.methods import METHODS
from polymode.methods.fit import check_options
from polymode.studies import STUDIES, Runs
from polymode.studies.reference import setup, tables
from polymode.studies.reference.claims import claims

STUDY = STUDIES.get("reference").value
LABEL = "examined:reference:chains=4"


@pytest.mark.parametrize("preset", ["smoke", "cpu", "paper"])
def test_every_arm_has_options_that_its_method_takes(preset) -> None:
    """Nothing is trained here: options are checked, and so is the examination."""
    for part in STUDY.parts(preset).values():
        assert {arm.method for arm in part.arms.values()} >= {"map", "hmc", "mile", "sghmc"}
        for arm in part.arms.values():
            check_options(arm.method, arm.options)
            METHODS.get(arm.method).value.config(**arm.options)
        for text in part.examine:
            name, options = read_asked(text)
            assert name == "reference" and options["hidden"] == part.net_options["hidden"]


def test_the_regression_is_that_of_the_competition() -> None:
    """An MLP 8-50-2 whose second output is the noise, prior variance 1/30, gap split of energy."""
    part = STUDY.parts("cpu")["energy_gap"]
    assert part.task == "uci_energy" and part.net_options == {"hidden": [50]}
    assert part.task_options == {"gap": 0, "val_fraction": 0.0, "noise": "output"}
    assert {arm.options["prior_precision"] for arm in part.arms.values()} == {30.0}
    gaps = [p.task_options.get("gap") for p in STUDY.parts("paper").values()]
    assert gaps == [*range(8), None]


def test_one_mode_and_many_differ_in_nothing_else() -> None:
    part = STUDY.parts("cpu")["plane"]
    for family in setup.families(1, 1, 5, 1.0):
        if family.single and family.many:
            one, many = (part.arms[name.format(10)] for name in (family.single, family.many))
            assert one.options | {"num_modes": 10} == many.options
            assert one.net_options == many.net_options


def runs_of(make, numbers: dict[str, tuple[int, list[float]]]) -> Runs:
    """Return runs of a classification with these distances by arm, one a seed; and their modes."""
    results = []
    for arm, (modes, values) in numbers.items():
        for seed, value in enumerate(values):
            found = make(
                arm,
                seed,
                {
                    ("test", "accuracy"): 0.9,
                    ("test", "nll"): 0.3,
                    (LABEL, "total_variation"): value,
                    (LABEL, "agreement"): 1 - value,
                    (LABEL, "reference_r_hat"): 1.01,
                },
            )
            results.append(found.replace(cost=found.cost._replace(num_modes=modes)))
    return Runs({"plane": results})


NUMBERS = {
    "MAP": (1, [0.30, 0.31, 0.30]),
    "SGHMC": (1, [0.21, 0.20, 0.19]),
    "mean-field VI": (1, [0.25, 0.26, 0.25]),
    "deep ensemble": (10, [0.20, 0.21, 0.195]),
    "SGHMC × 10": (10, [0.10, 0.11, 0.10]),
    "HMC, shorter": (4, [0.01, 0.01, 0.02]),
}


def test_arms_stand_in_the_order_of_their_distance(make) -> None:
    runs = runs_of(make, NUMBERS)
    table = tables.tables(runs)["distance_plane"]
    names = [line[0] for line in table.lines]
    assert names == [
        "HMC, shorter", "SGHMC × 10", "SGHMC", "deep ensemble", "mean-field VI", "MAP",
    ]  # fmt: skip
    assert table.head[1:4] == ("modes", "agreement ↑", "TV ↓")
    assert table.lines[1][1] == "10" and table.lines[1][3].startswith("0.103")
    assert "R-hat of the reference's predictions up to 1.01" in table.note
    modes = {line[0]: line[3] for line in tables.tables(runs)["modes_plane"].lines}
    assert modes.keys() == {"map", "sghmc"} and modes["sghmc"].startswith("−0.09")


def test_claims_are_judged_by_paired_differences(make) -> None:
    verdicts = {c.text.partition(": ")[2]: c.verdict for c in claims(runs_of(make, NUMBERS))}
    assert verdicts == {
        "the closest approximation to HMC has many modes": "holds",
        "methods with many modes are closer to HMC than with one": "holds",
        "deep ensembles are closer to HMC than mean-field VI": "holds",
        "of the approximations with one mode, mean-field VI is the furthest from HMC": "holds",
        "deep ensembles are about as close to HMC as stochastic-gradient MCMC": "holds",
    }
    swapped = NUMBERS | {"mean-field VI": (1, [0.05, 0.05, 0.06])}
    verdicts = [c.verdict for c in claims(runs_of(make, swapped))]
    assert verdicts == ["does not hold", "holds", "does not hold", "does not hold", "holds"]
    without = {arm: each for arm, each in NUMBERS.items() if arm != "mean-field VI"}
    verdicts = [c.verdict for c in claims(runs_of(make, without))]
    assert verdicts[2:4] == ["not run", "not run"]


def test_the_figure_has_a_dot_per_seed(make) -> None:
    display = tables.figures(runs_of(make, NUMBERS))["distance_plane"]
    assert display.data["values"].shape == (6, 3)
    assert display.data["group"].tolist() == ["many modes"] * 2 + ["one mode"] + [
        "many modes", "one mode", "one mode",
    ]  # fmt: skip
    svg = display.to_svg()
    assert svg.startswith("<?xml") and svg == display.to_svg()
