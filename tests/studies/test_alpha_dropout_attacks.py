"""The attacks of the study: the paper's settings, and tables and verdicts from made-up curves."""

from __future__ import annotations

import numpy as np
import pytest

from polymode.examinations import Findings, measure, read_asked
from polymode.studies.alpha_dropout import attacks
from polymode.studies.alpha_dropout.attacks import PART, STRONG, examinations
from polymode.studies.study import Runs

ARMS = ("NN", "α = 0", "α = 0.5", "α = 1", "DE", "FoRDE")


def test_the_paper_preset_is_the_papers():
    part = attacks.parts("paper")[PART]
    assert part.net_options == {"hidden": [1000, 1000, 1000]} and tuple(part.arms) == ARMS
    for arm in ARMS[1:4]:
        options = part.arms[arm].options
        assert (options["num_passes"], options["samples_per_mode"]) == (10, 10)
        assert part.arms[arm].net_options == {"dropout": 0.5, "input_dropout": 0.5}
        assert (options["optimizer"], options["lr"], options["epochs"]) == ("sgd", 0.01, 500)
        assert options["batch_size"] == 128
    asked = {name: read_asked(text).options for name, text in examinations("paper").items()}
    np.testing.assert_allclose(asked["fgsm"]["eps"], np.arange(26) * 0.02)
    assert asked["fgsm"]["away_from"] == "predicted"
    path = asked["targeted"]
    assert (path["target"], path["step_size"], path["steps"], path["keep"]) == (
        0,
        0.01,
        100,
        "last",
    )
    assert asked["adaptive"] == {**asked["pgd"], "adaptive": "predictive_entropy"}


def curves(entropy: float, area: float, seed: int) -> dict[str, np.ndarray]:
    """Return curves over ε and steps whose last values are given, a little apart for each seed."""
    eps, noise = np.array([0.0, 0.1, STRONG, 0.5]), 1e-3 * seed
    rising = np.array([0.1, 0.5, 1.0, 0.8]) * entropy + noise
    steps = np.linspace(0.1, entropy, 41) + noise
    made = {
        "eps": eps, "accuracy": np.array([0.97, 0.5, 0.1, 0.0]) + noise,
        "predictive_entropy": rising, "auroc predictive_entropy": np.full(4, area) + noise,
        "auroc successful predictive_entropy": np.full(4, area) + noise,
        "accepted wrong": np.full(4, 1 - area), "step predictive_entropy": steps,
        "step success": np.linspace(0, 1, 41), "step accuracy": np.linspace(1, 0, 41),
        "examples": np.array([300]), "flags": np.array(["noise: as good" if seed == 2 else ""]),
    }  # fmt: skip
    return made


@pytest.fixture
def runs(make):
    """Dropout is less certain than the plain network; the adaptive attack lowers all but DE's."""
    results = []
    for arm in ARMS:
        for seed in range(3):
            cell = make(arm, seed, {("test", "nll"): 0.1})
            for name, label in examinations("cpu").items():
                lowered = name == "adaptive" and arm != "DE"
                found = curves(0.2 if arm == "NN" else 1.5, 0.5 if lowered else 0.9, seed)
                rows = (measure("attacked_accuracy", 0.1, n=300),)
                cell = Findings(rows, found).signed(label).beside(cell)
            results.append(cell)
    return Runs({PART: results})


def test_tables_and_figures_have_what_was_found(runs):
    tables = attacks.tables(runs)
    assert set(tables) == {"attack_fgsm", "attack_targeted", "attack_adaptive"}
    assert tables["attack_fgsm"].head == ("arm", "η = 0.1", "η = 0.2", "η = 0.3", "η = 0.5")
    fgsm = {line[0]: line[1:] for line in tables["attack_fgsm"].lines}
    assert fgsm["α = 0.5, entropy, nats"][1:3] == ("1.501 ± 0.001", "n/a")
    assert tables["attack_targeted"].head[-1] == "step 40"
    adaptive = {line[0]: line[3] for line in tables["attack_adaptive"].lines}
    assert adaptive["FoRDE, pgd"] == "0.901 ± 0.001"
    assert adaptive["FoRDE, adaptive"] == "0.501 ± 0.001"
    figures = attacks.figures(runs)
    assert set(figures) == {
        "attack_fgsm", "attack_fgsm_detection", "attack_targeted", "attack_pgd", "attack_adaptive"
    }  # fmt: skip
    assert figures["attack_fgsm"].caption.endswith("Flags raised: noise.")  # by the last seed
    assert figures["attack_adaptive"].data["DE auroc predictive_entropy"][0] == pytest.approx(0.901)


def test_verdicts_follow_the_numbers(runs):
    verdicts = {claim.text: claim.verdict for claim in attacks.claims(runs)}
    assert len(verdicts) == 4 + len(ARMS)
    told = list(verdicts.values())
    assert told[0] == "holds"  # less certain than the plain network
    assert told[1] == "does not hold"  # entropy falls again
    assert told[2] == "undecided"  # α = 1 and α = 0 alike
    assert told[3] == "holds"  # so is it along the targeted steps
    lowered = dict(zip(ARMS, told[4:], strict=True))
    assert lowered.pop("DE") == "undecided" and set(lowered.values()) == {"holds"}


def test_nothing_is_said_of_what_was_not_run():
    assert attacks.claims(Runs({})) == [] and attacks.tables(Runs({})) == {}
    assert attacks.figures(Runs({})) == {}
