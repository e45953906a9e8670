"""The study of efficient ensembles: its set-up, and what is made of results."""

from __future__ import annotations

import pytest
import torch

import polymode as pm
from polymode.examinations import examine
from polymode.methods import METHODS
from polymode.methods.fit import check_options
from polymode.nets import cnn, mlp
from polymode.studies import STUDIES, Runs
from polymode.studies.efficient import setup, tables
from polymode.studies.efficient.claims import claims
from polymode.studies.efficient.published import SAID

STUDY = STUDIES.get("efficient").value
PRICE = "examined:price"


@pytest.mark.parametrize("preset", ["smoke", "cpu", "paper"])
def test_every_arm_has_options_that_its_method_takes(preset) -> None:
    """Nothing is trained here: options are checked, and so are all methods that are registered."""
    for part in STUDY.parts(preset).values():
        for arm in part.arms.values():
            check_options(arm.method, arm.options)
            METHODS.get(arm.method).value.config(**arm.options)
        assert {setup.SINGLE, setup.ENSEMBLE, setup.WIDE, "packed"} <= {*part.arms}
    names = {said.first for said in SAID} | {said.second for said in SAID}
    special = {setup.SINGLE, setup.ENSEMBLE, setup.WIDE, setup.THIN, "FoRDE"}
    assert names <= {*special, *setup.METHODS_OF_THE_BOX}


def test_the_wide_network_has_four_times_the_parameters() -> None:
    """Within five per cent, as has the deep ensemble exactly."""
    for name, build, shape, outputs in (
        ("digits", mlp, (1, 8, 8), 10), ("uci_energy", mlp, (8,), 2),
        ("fashion_mnist", cnn, (1, 28, 28), 10),
    ):  # fmt: skip
        part = STUDY.parts("cpu")[name]
        small, wide = (
            sum(p.numel() for p in build(shape, outputs, **options).parameters())
            for options in (part.net_options, part.arms[setup.WIDE].net_options)
        )
        assert wide == pytest.approx(4 * small, rel=0.05), name


def test_arms_of_equal_time_differ_in_epochs_only() -> None:
    part = STUDY.parts("cpu")["digits"]
    for name in part.arms:
        if not name.endswith(setup.timed("")):
            continue
        plain = part.arms[name.removesuffix(setup.timed(""))]
        changed = part.arms[name].options
        assert changed | {"epochs": plain.options["epochs"]} == plain.options
        factor = changed["epochs"] / plain.options["epochs"]
        assert factor == pytest.approx(setup.SMALL[plain.method], rel=0.1)


def made_up(make, arm: str, nll: list[float], held: float, seconds: float = 2.0) -> list:
    results = []
    for seed, value in enumerate(nll):
        numbers = {
            ("test", "accuracy"): 0.9, ("test", "nll"): value, ("test", "ece"): 0.1,
            ("ood:far", "auroc_predictive_entropy"): 0.9 - value / 10,
            (PRICE, "numbers_held"): held, (PRICE, "flops"): 100.0,
        }  # fmt: skip
        cell = make(arm, seed, numbers)
        results.append(cell.replace(cost=cell.cost._replace(train_seconds=seconds)))
    return results


def test_tables_and_claims_say_what_numbers_say(make) -> None:
    arms = {
        "one network": ([0.50, 0.52, 0.51], 100.0, 1.0),
        "one network, equal time": ([0.48, 0.50, 0.49], 100.0, 4.0),
        "deep ensemble": ([0.40, 0.41, 0.40], 400.0, 4.0),
        "packed": ([0.401, 0.411, 0.402], 104.0, 1.1),
        "batch_ensemble": ([0.50, 0.53, 0.50], 110.0, 4.4),
    }
    runs = Runs({"digits": [cell for arm, n in arms.items() for cell in made_up(make, arm, *n)]})
    verdicts = {claim.text: claim.verdict for claim in claims(runs)}
    assert verdicts == {
        "digits: a deep ensemble has a lower NLL than one network": "holds",
        "digits: Packed matches the ensemble at a quarter of the cost": "holds",
        "digits: Packed has a lower NLL than one network": "holds",
        "digits: BatchEnsemble beats one network": "undecided",
    }
    by_name = tables.tables(runs)
    lines = {name: [line[0] for line in by_name[f"{name}_digits"].lines]
             for name in ("training", "parameters", "time")}  # fmt: skip
    assert lines == {
        "training": ["one network", "deep ensemble", "packed", "batch_ensemble"],
        "parameters": ["one network", "packed", "batch_ensemble"],
        "time": ["one network, equal time", "deep ensemble", "batch_ensemble"],
    }
    assert "AUROC, far % ↑" in by_name["training_digits"].head
    assert tables.figures(runs).keys() == {"nll_digits"}


def test_the_price_of_a_linear_network_is_known() -> None:
    """Two flops per weight and example, three members; weights and biases are held."""
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    task = pm.Task(train=(x, (x[:, 0] > 0).long()), test=(x, (x[:, 0] > 0).long()),
                   likelihood="categorical")  # fmt: skip
    post = pm.fit("deep_ensemble", net=lambda: torch.nn.Linear(5, 2), task=task, num_modes=3,
                  epochs=1, progress="silent", execution="batched")  # fmt: skip
    findings = examine(post, task, "price")
    assert findings["numbers_held"].value == 3 * 12
    assert findings["flops"].value == 3 * 2 * 10
