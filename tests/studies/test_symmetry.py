"""The study of symmetries: the paper's numbers, its set-up, and what is made of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polymode import nets
from polymode.examinations import measure
from polymode.metrics.results import EXAMINED
from polymode.studies import STUDIES, Runs
from polymode.studies.symmetry import comparisons, published, setup, tables
from polymode.studies.symmetry.claims import claims

ROOT = Path(__file__).parents[2]
STUDY = STUDIES.get("symmetry").value
LABEL = setup.examined("digits-lenet", 1000)


def test_numbers_of_the_paper():
    """The lines that the claims rest on, as printed."""
    assert published.CIFAR100["DE"] == (0.0, 0.0, 79.5, 1.6, 0.6, 28.7, 81.1, 45.6, 22.5, 58.0)
    assert published.CIFAR100["SGHMC, one"][:3] == (7.5, 7.9, 73.7)
    assert published.TINY_IMAGENET["Laplace, one"].ood_mi == 228.0
    for table in published.TABLES.values():
        for name in setup.NAMES:
            one, many = table.get(f"{name}, one"), table.get(f"{name}, multi")
            if one and many:  # what the claims say of the paper
                assert many.accuracy > one.accuracy and many.brier < one.brier
                assert many.id_mi > one.id_mi and many.ood_mi > one.ood_mi and many.mmd < one.mmd
                assert (many.ece < one.ece) is (name != "Laplace")


def test_the_preset_paper():
    """ResNet-18 with the usual training of the group; the published networks as reference."""
    parts = STUDY.parts("paper")
    for name, classes, examples in (("cifar100", 100, 50_000), ("tiny_imagenet", 200, 100_000)):
        part = parts[name]
        assert part.net == "resnet18" and part.task == name
        assert part.examine[0].endswith(f"zoo=checkpoints/{name.replace('_', '-')}-resnet18")
        ensemble = part.arms["DE"].options
        assert ensemble["prior_precision"] / examples == pytest.approx(5e-4)
        assert (ensemble["lr"], ensemble["momentum"], ensemble["epochs"]) == (0.1, 0.9, 75)
        assert setup.OOD[name] == "svhn"
        net = nets.resnet18((3, 32, 32), classes)
        assert sum(p.numel() for p in net.parameters()) > 11e6
    assert parts["mass"].arms["mnist-optunet"]["number"] == 1024


def test_the_preset_cpu():
    parts = STUDY.parts("cpu")
    part = parts["digits"]
    assert part.seeds == (0, 1, 2, 3, 4) and part.examine == (LABEL,)
    assert parts["zoo"].arms["digits-lenet"]["number"] == 1000
    assert parts["toy"].arms["2-2-1"]["number"] == 10_000
    names = {"Dropout", "viBNN", "SWAG", "Laplace", "SGHMC"}
    both = {f"{name}, {kind}" for name in names for kind in ("one", "multi")}
    assert set(part.arms) == {*both, "DE"}
    for name, arm in part.arms.items():
        modes = 1 if name.endswith("one") else 5
        assert arm.options["num_modes"] == modes
        assert arm.options.get("samples_per_mode", 50 // modes) == 50 // modes
    zoo = setup.parts("cpu")["zoo"].arms["digits-lenet"]["name"]
    from polymode.zoo import RECIPES

    assert RECIPES.get(zoo).value.options == {
        key: value for key, value in part.arms["DE"].options.items() if key != "num_modes"
    }  # the reference is trained as the ensemble is


def test_rates_and_lengths_are_those_chosen_on_validation():
    """The preset runs what `benchmarks/symmetry_tuning.py` chose, for one mode and for several."""
    arms = STUDY.parts("cpu")["digits"].arms
    found = json.loads((ROOT / "results" / "symmetry" / "tuning.json").read_text())["arms"]
    assert set(found) == {"DE", *setup.NAMES}
    for name, held in found.items():
        for arm in ["DE"] if name == "DE" else [f"{name}, one", f"{name}, multi"]:
            have = {**arms[arm].options, **arms[arm].net_options}
            assert {key: have[key] for key in held["chosen"]} == held["chosen"], arm
    trained = found["DE"]["chosen"]  # dropout and Laplace are trained as the zoo is
    for name in ("Dropout", "Laplace"):
        assert {key: arms[f"{name}, one"].options[key] for key in trained} == trained


@pytest.fixture
def runs(make):
    """Several modes are better by more than the noise, except in ECE, which chance decides."""
    found = []
    for seed in range(4):
        for name in ("Dropout", "SGHMC"):
            for kind, better in (("one", 0.0), ("multi", 0.02)):
                noise = 1e-3 * (seed if kind == "one" else 3 - seed)
                numbers = {
                    ("test", "accuracy"): 0.9 + better + noise,
                    ("test", "ece"): 0.03 + (0.01 if (seed + (kind == "one")) % 2 else 0.0),
                    ("test", "brier"): 0.2 - better + noise,
                    ("test", "mutual_information"): 0.01 + better + noise,
                    ("ood:patches", "mutual_information"): 0.1 - better + noise,
                    (EXAMINED + LABEL, "mmd"): 0.4 - 10 * better + noise,
                    (EXAMINED + LABEL, "corollary_p"): 1e-4,
                }
                found.append(make(f"{name}, {kind}", seed, numbers))
    zoo = make("digits-lenet", 0, {})
    rows = (
        measure("networks", 1000, n=1000),
        measure("accuracy", 0.975, n=1000, standard_error=0.001),
        measure("ood_pair_mi", 0.3, n=499_500, standard_error=0.01),
        measure("corollary_p", 0.4, n=1000),
        measure("correlation", 0.3, n=1000, standard_error=0.05),
        measure("least_id_pair_mi", 0.02, n=499_500),
        measure("id_pair_mi", 0.04, n=499_500),
    )
    zoo = zoo.replace(rows=tuple(row._replace(dataset=EXAMINED + "zoo") for row in rows))
    mass = make("mnist-optunet", 0, {})
    rows = (
        measure("excess", 0.2, n=64, standard_error=0.01),
        measure("least_excess", 0.002, n=64),
    )
    mass = mass.replace(rows=tuple(row._replace(dataset=EXAMINED + "mass") for row in rows))
    return Runs({"digits": found, "zoo": [zoo], "mass": [mass]})


def test_claims_follow_the_numbers(runs):
    verdicts = {claim.text: claim.verdict for claim in claims(runs)}

    def of(words):
        (found,) = [verdict for text, verdict in verdicts.items() if words in text]
        return found

    assert of("accuracy is higher") == "holds"
    assert of("ECE is lower") == "undecided"
    assert of("the Brier score is lower") == "holds"
    assert of("diversity on the OOD set is higher") == "does not hold"
    assert of("MMD to independent networks is lower") == "holds"
    assert of("not uniform for a single chain") == "holds"
    assert of("is uniform for independent networks") == "holds"
    assert of("only weakly correlated") == "holds"  # 0.3 ± 0.1 is below 0.5
    assert of("no functional collapse") == "holds"
    assert of("does not reach the minimum mass") == "does not hold"  # one network has


def test_the_table(runs):
    table = STUDY.tables(runs)["table_digits"]
    lines = {line[0]: dict(zip(table.head, line, strict=True)) for line in table.lines}
    assert list(lines) == ["Dropout, one", "Dropout, multi", "SGHMC, one", "SGHMC, multi"]
    assert lines["SGHMC, multi"]["accuracy % ↑"].startswith("92.15 ±")
    assert lines["SGHMC, multi"]["MMD ↓"].startswith("0.2015 ±")
    assert lines["SGHMC, multi"]["NS, sorted ↓"] == "n/a"
    (zoo,) = STUDY.tables(runs)["zoo"].lines
    assert zoo[:3] == ("digits-lenet", "1,000", "97.50 ± 0.10")
    assert zoo[4:6] == ("30.00 ± 1.00", "0.30 ± 0.05")
    paper = STUDY.tables(runs)["paper_cifar100"]
    assert ("DE", "0", "0", "79.5") == paper.lines[-1][:4]
    assert tables.label_of(runs, "digits") == LABEL


def test_only_the_papers_set_up_is_held_against_its_numbers(make):
    found = [make("DE", seed, {("test", "accuracy"): 0.8}) for seed in range(2)]
    runs = Runs({"cifar100": found})
    assert comparisons("cpu", runs) == []
    (ours,) = [c for c in comparisons("paper", runs) if c.label == "DE, cifar100, accuracy"]
    assert ours.paper == 79.5 and ours.ours == pytest.approx(80.0)
    assert not any("mmd" in c.label for c in comparisons("paper", runs))
