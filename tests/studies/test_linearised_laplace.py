"""The study of linearised Laplace: what is known of the talk, its numbers, and what is shown."""

from __future__ import annotations

import numpy as np
import pytest

from polymode.examinations import Findings, measure
from polymode.runs.part import Experiment
from polymode.studies import STUDIES, Runs
from polymode.studies.linearised_laplace import experiments, published, tables
from polymode.studies.linearised_laplace.claims import claims
from polymode.studies.linearised_laplace.networks import IMAGE_NETS, NORMALISED, as_image_net
from polymode.studies.linearised_laplace.occam import occam as experiments_of_occam

STUDY = STUDIES.get("linearised_laplace").value


def test_the_preset_paper_is_what_is_known_of_the_talk() -> None:
    parts = STUDY.parts("paper")
    assert list(parts) == [
        "training", "scale", "occam", "networks", "unet", "shifts", "large",
    ]  # fmt: skip
    both = {*parts["networks"].arms, *parts["unet"].arms}
    assert both == set(published.TABLE) == set(IMAGE_NETS)
    assert "rotation" in parts["shifts"].task_options["shifts"]
    assert parts["shifts"].net == parts["large"].net == "resnet18"
    toy = experiments.nets.mlp((1,), 1, hidden=(50, 50), norm="batch", bias=False)
    assert sum(toy.get_parameter(name).numel() for name in experiments.FREE) == 2600
    assert NORMALISED == [name for name in IMAGE_NETS if name != "fixup"]


def test_networks_have_about_fifty_thousand_weights() -> None:
    for name, (build, options) in IMAGE_NETS.items():
        net = as_image_net(build, options, 1.0)((1, 14, 14), 196 if name == "unet" else 10)
        assert 35_000 < sum(p.numel() for p in net.parameters()) < 55_000, name


def test_the_preset_cpu_has_three_seeds_and_every_scale() -> None:
    parts = STUDY.parts("cpu")
    assert all(len(part.seeds) >= 3 for part in parts.values())
    assert {arm["k"] for arm in parts["scale"].arms.values()} == {1 / 3, 1.0, 3.0, 10.0}
    methods = {arm.method for arm in parts["shifts"].arms.values()}
    assert methods == {"map", "laplace", "dropout", "deep_ensemble", "swag"}
    structures = {a.options.get("structure") for a in parts["shifts"].arms.values()}
    assert {"kron", "diag", "last_layer", "subnetwork"} < structures
    assert isinstance(parts["networks"], Experiment)


def test_numbers_of_the_talk() -> None:
    assert published.TABLE["resnet"].linear_single == (0.017, 0.0)
    assert published.TABLE["resnet"].trained_single == (0.252, 0.006)
    assert published.TABLE["fixup"].linear_multiple == (0.061, 0.005)
    assert published.TABLE["unet"].trained_multiple == (-1.703, 0.023)


@pytest.fixture
def runs(make):
    """At θ* λ is 4 times as large, the gap half as wide and the NLL of a ResNet 0.5 lower; the
    per-group predictive moves by 0.1 % with k, that of one λ by 50 %."""
    found: dict[str, list] = {"training": [], "scale": [], "networks": []}

    def add(part: str, arm: str, seed: int, numbers: dict[str, float]) -> None:
        rows = {(f"examined:{part}", name): value for name, value in numbers.items()}
        found[part].append(make(arm, seed, rows))

    for seed in range(3):
        noise = 1 + 0.01 * seed
        for arm, far in (("200 steps", 2.0), ("1,000 steps", 1.0)):
            add("training", arm, seed, {
                "precision_linear": 4.0 * noise, "precision_trained": 1.0,
                "gap_sd_linear_single": 1.0, "gap_sd_trained_single": 2.0 * noise,
                "wasserstein_single": far * noise,
            })  # fmt: skip
        for arm, moved in (("k = 1", 0.0), ("k = 3", 1.0)):
            add("scale", arm, seed, {
                f"change_{form}_{place}_{kind}": moved * (50.0 if kind == "single" else 0.1) * noise
                for form in tables.FORMS for place in tables.PLACES for kind in tables.KINDS
            })  # fmt: skip
        add("networks", "resnet", seed, {
            "nll_linear_single": 0.5 * noise, "nll_trained_single": 1.0,
            "nll_linear_multiple": 0.5 * noise + 0.001 * (seed - 1), "nll_trained_multiple": 0.9,
            "nll_map": 0.45,
        })  # fmt: skip
    return Runs(found)


def test_claims_follow_the_numbers(runs) -> None:
    verdicts = {claim.text: claim.verdict for claim in claims(runs)}
    assert verdicts == {
        "1-D: the evidence at θ̃ chooses a smaller prior precision than that at θ*": "holds",
        "1-D: recommendation 1 narrows the error bars between the data": "holds",
        "1-D: training longer does not make the predictives of both evidences agree": "holds",
        "Proposition 3: with a precision per group the predictive does not depend on k": "holds",
        "With one precision for all weights the predictive does depend on k": "holds",
        "ResNet: the test NLL at θ* is below that at θ̃": "holds",
        "ResNet: at θ*, multiple λ are not worse than a single one": "undecided",
    }


def test_tables_and_figures_are_made_of_results(runs) -> None:
    tables = STUDY.tables(runs)
    assert {"training", "scale", "networks", "networks_differences", "networks_paper"} <= set(
        tables
    )
    rows = {line[0]: line[1:] for line in tables["scale"].lines}
    assert rows["h = Jθ, statistics frozen, single λ"] == ("0 %", "51 %")
    assert rows["h = Jθ, statistics frozen, multiple λ"] == ("0 %", "0.1 %")
    gaps = {line[0]: line[1] for line in tables["networks_differences"].lines}
    assert gaps["θ* − θ̃, single λ"].startswith("−0.495")
    assert "cannot be" in tables["networks_paper"].note  # the talk's second table is not used
    assert "error_bars" not in STUDY.figures(runs)  # no arrays, no bands
    assert "along_training" in STUDY.figures(runs)
    assert STUDY.comparisons("paper", runs) == []


@pytest.mark.parametrize("right", [True, False])
def test_the_evidence_is_judged_by_what_its_pick_tests(make, right) -> None:
    """Three networks, the middle one tests best; the evidence knows it or prefers the worst."""
    nlls = {"1 layer of 10": 0.5, "5 layers of 10": 0.1, "20 layers of 10": 0.9}
    cells = []
    for seed in range(3):
        for arm, nll in nlls.items():
            score = nll + 0.01 * seed
            numbers = {
                "nll_linear": score, "log_evidence_trained": -nll,
                "log_evidence_linear": (-nll if right else nll) * (1 + seed),
            }  # fmt: skip
            rows = {("examined:occam", name): value for name, value in numbers.items()}
            cells.append(make(arm, seed, rows))
    runs = Runs({"occam": cells})
    verdicts = [claim.verdict for claim in claims(runs)]
    usual = "holds" if right else "does not hold"
    same = "undecided" if right else "does not hold"  # both pick the same network
    assert verdicts == ["holds", usual, usual, same]
    lines = {line[0]: line for line in STUDY.tables(runs)["occam"].lines}
    assert lines["5 layers of 10"][-1] == ("3/3/3" if right else "3/0/3")


def test_error_bars_are_drawn(make) -> None:
    grid = np.linspace(-1, 1, 5)
    names = [f"sd_{mean}_{kind}" for mean, kind in tables.VARIANTS]
    arrays = {"grid": grid, "mean": grid} | {n: 0.1 * k + 0 * grid for k, n in enumerate(names)}
    found = Findings((measure("closeness", 0.1, n=5),), arrays).signed("training")
    results = found.beside(make("10 steps", 0, {("test", "nll"): 1.0}))
    display = tables.figure_error_bars(Runs({"training": [results]}))
    assert display is not None and "0.3" in display.caption
    assert display.to_svg().startswith("<?xml")


@pytest.mark.cpu_seconds(8)
def test_experiments_run() -> None:
    """The scale at its smallest: Proposition 3 in float64. A network on few digits: θ* has the
    larger evidence, which it maximises."""
    found = experiments.scale(0, k=3.0, steps=2)
    assert found["outputs_moved"].value < 1e-9
    assert found["change_jacobian_frozen_multiple"].value < 0.01
    razor = experiments_of_occam(0, depth=2, width=4, steps=2, num_train=12)
    ours, theirs = (razor[f"log_evidence_{mean}"].value for mean in ("linear", "trained"))
    assert ours > theirs and razor["weights"].value == 4 + 16 + 4
    small = {"task": "digits", "num_train": 20, "num_test": 10, "epochs": 1, "width": 0.25}
    for net in ("resnet", "unet"):
        rows = experiments.networks(0, net=net, **small)
        for kind in tables.KINDS:
            ours, theirs = (rows[f"log_evidence_{m}_{kind}"].value for m in ("linear", "trained"))
            assert ours > theirs
