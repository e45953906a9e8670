"""Detection by uncertainty, the examination `attack`, and its figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import polymode as pm
from polymode.adversary import attack, detection, sweep
from polymode.adversary.detection import threshold
from polymode.adversary.examination import inputs_of
from polymode.metrics.ood import auroc

from .small_posteriors import posterior


@pytest.fixture(scope="module")
def fitted():
    task = pm.task("digits")
    options = {"net": pm.nets.mlp, "task": task, "progress": "silent", "seed": 0}
    return pm.fit("deep_ensemble", num_modes=4, epochs=15, **options), task


@pytest.fixture(scope="module")
def data(fitted):
    x, y, scaling, box = inputs_of(fitted[1], 150)
    return {"x": x, "y": y, "scaling": scaling, "box": box}


def test_the_adaptive_attack_lowers_detection(fitted, data):
    """It fools as many inputs, and the score that it knows tells fewer of them from clean ones.

    Seeds are fixed. The inputs are the same 150, so that the difference of two AUROCs varies less
    than one of them, whose standard error is 0.03.
    """
    plain = attack(fitted[0], eps=0.2, **data)
    for score in ("predictive_entropy", "mutual_information"):
        adaptive = attack(fitted[0], eps=0.2, adaptive=score, **data)
        assert adaptive.success_rate > plain.success_rate - 0.05 > 0.8
        before, after = detection(plain)[score], detection(adaptive)[score]
        assert after.auroc < before.auroc - 0.06
        assert after.auroc_successful < before.auroc_successful - 0.06
        assert after.accepted_wrong > before.accepted_wrong


def test_numbers_of_a_detector_by_hand(fitted, data):
    found = attack(fitted[0], eps=0.08, **data)
    made = detection(found, rejection=0.1)
    before, after = (each.predictive_entropy for each in (found.clean, found.attacked))
    mine = made["predictive_entropy"]
    assert mine.auroc == auroc(before, after).value
    assert mine.auroc_successful == auroc(before, after[found.success]).value
    limit = before.sort().values[-16]  # 15 of 150 lie above
    accepted = after <= limit
    assert (before > limit).sum() == 15
    right = (found.attacked.classes == found.labels)[accepted]
    assert mine.accepted == pytest.approx(accepted.double().mean().item())
    assert mine.accepted_accuracy == pytest.approx(right.double().mean().item())
    assert mine.accepted_wrong == pytest.approx((~right).sum().item() / 150)
    assert set(made) == {
        "predictive_entropy", "mutual_information", "one_minus_confidence", "energy",
        "epistemic_variance",
    }  # fmt: skip
    unmoved = detection(attack(fitted[0], eps=0.0, **data), rejection=0.1)["predictive_entropy"]
    assert unmoved.auroc == 0.5 and unmoved.accepted == pytest.approx(0.9)  # 135 of 150
    with pytest.raises(ValueError, match="`rejection` of an attack must be < 1, got 1"):
        detection(found, rejection=1)


def test_threshold_rejects_no_more_than_it_may():
    scores = torch.tensor([3.0, 1.0, 1.0, 2.0, 1.0])
    assert [threshold(scores, r).item() for r in (0.01, 0.2, 0.39, 0.4)] == [3, 2, 2, 1]


def test_one_network_has_no_mutual_information():
    post = posterior("mlp", num_modes=1)
    x = torch.rand(20, 6)
    found = sweep(post, x, post.predict(x).classes, eps=[0.0, 0.1], steps=2)
    assert "mutual_information" not in found.scores and "predictive_entropy" in found.scores
    assert found.of("predictive_entropy")[0] == 0.5
    assert "AUROC entropy" in str(found) and "MI" not in str(found)
    with pytest.raises(ValueError, match="`eps` of sweep must be a sequence .* got 0.1"):
        sweep(post, x, post.predict(x).classes, eps=0.1)


def test_the_examination_has_rows_curves_and_figures(fitted):
    found = pm.examine(*fitted, "attack", eps=0.2, steps=4, num_examples=60)
    assert found.label == "attack:eps=0.2,num_examples=60,steps=4"
    assert found["attacked_accuracy"].value < found["unattacked_accuracy"].value
    assert found["attacked_accuracy"].n == 60 and found["accepted_wrong"].unit == "fraction"
    arrays = found.arrays
    np.testing.assert_allclose(arrays["eps"], [0, 0.04, 0.08, 0.12, 0.16, 0.2])
    assert (np.diff(arrays["accuracy"]) <= 0).all()  # balls are nested
    assert arrays["accuracy"][-1] == found["attacked_accuracy"].value
    assert len(arrays["step accuracy"]) == 5
    assert arrays["images"].shape == (4, 5, 1, 8, 8) and arrays["images"].max() <= 1
    displays = found.displays(label="ensemble")
    assert set(displays) == {"strength", "detection", "scores", "steps", "trajectory"}
    assert displays["detection"].data["ensemble accepted accuracy"].shape == (6,)
    areas = displays["scores"].data
    scores = ("predictive entropy", "mutual information", "one minus confidence", "energy")
    assert {areas[f"{score} auroc"].shape for score in scores} == {(6,)}
    targeted = pm.examine(*fitted, "attack", kind="bim", eps=[0.1], steps=2, target=0,
                          num_examples=60)  # fmt: skip
    assert targeted["attacked_accuracy"].n < 60  # zeros are left out


def test_the_report_shows_the_attack(fitted, tmp_path):
    post, task = fitted
    found = pm.examine(post, task, "attack", kind="fgsm", eps=0.2, num_examples=30)
    small = pm.Task(train=task.train, test=task.test.head(30), likelihood="categorical")
    pm.report([found.beside(pm.evaluate(post, small))], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "attacked accuracy" in page and "Scores under attack against eps" in page
    assert "AUROC of attacked against clean inputs by predictive entropy" in page  # the glossary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "pdg"}, "Unknown kind of attack 'pdg'"),
        ({"eps": -1}, "`eps` of an attack must be a finite number >= 0, or several, got -1"),
        ({"steps": 0}, "`steps` of an attack must be an integer of at least 1, got 0"),
        ({"step_size": -1}, "`step_size` of an attack must be > 0 or None, got -1"),
        ({"samples_per_mode": 0}, "`samples_per_mode` of an attack must be an integer of at least"),
        ({"target": "x"}, "`target` of an attack must be a class, an integer, got 'x'"),
        ({"kind": "square", "norm": "l2"}, "`norm` of square must be 'linf', got 'l2'"),
        (
            {"eps": "large"},
            "`eps` of an attack must be a finite number >= 0, or several, got 'large'",
        ),
        ({"kind": "fgsm", "steps": 3}, "Unknown option 'steps' for the attack 'fgsm'"),
        ({"adaptive": "entropy"}, "`adaptive` of an attack must be one of"),
        ({"num_examples": 0}, "`num_examples` of an attack must be an integer of at least 1"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_trained(options, message):
    from polymode.examinations.examination import ask

    with pytest.raises(ValueError, match=message):
        ask("attack", options)


def test_inputs_that_are_no_images_have_no_box():
    task = pm.task("two_moons")
    x, y, scaling, box = inputs_of(task, 30)
    assert scaling is None and box is None and x.shape == (30, 2) and len(y) == 30
    pixels = inputs_of(pm.task("digits"), 10)
    assert pixels[3] == (0.0, 1.0) and pixels[0].min() == 0 and pixels[0].max() == 1
    torch.testing.assert_close(pixels[2](pixels[0]), pm.task("digits").test.head(10)[0])
