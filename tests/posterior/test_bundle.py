"""The bundle: corrected, with a set or an interval, and accepted or not, also after a file."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.safe_files import FileProblem, read_json, write_json
from polymode.likelihoods import Gaussian
from polymode.metrics.score import NotDefined
from polymode.metrics.selective import coverage_at_risk, threshold_at_risk
from polymode.posterior.bundle import Bundle
from polymode.posterior.manifest import SCHEMA
from polymode.prediction import CategoricalPrediction

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(120, 3, generator=STREAM)
LABELS = (X[:, 0] + 0.7 * torch.randn(120, generator=STREAM) > 0).long()
VALUES = X[:, :2].sin()
IMAGES = torch.randn(12, 2, 4, 4, generator=STREAM)
MASKS = (IMAGES.sum(1) > 0).long()
QUICK = {"epochs": 3, "progress": "silent"}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def conv() -> nn.Module:
    return nn.Conv2d(2, 2, 3, padding=1)


def bundled_classes() -> pm.Posterior:
    task = pm.Task(train=(X[:60], LABELS[:60]), likelihood="categorical")
    post = pm.fit("map", net=net, task=task, **QUICK)
    prediction = post.predict(X[60:])
    fixed = pm.recalibration.recalibrate(prediction, LABELS[60:])
    corrected = fixed(prediction)
    sets = pm.conformal.conformal_sets(corrected, LABELS[60:], 0.8, "aps")
    return post.bundled(recalibration=fixed, conformal=sets, threshold=0.7)


def bundled_values() -> pm.Posterior:
    task = pm.Task(train=(X[:60], VALUES[:60]), likelihood=Gaussian(noise="learned"))
    post = pm.fit("map", net=net, task=task, **QUICK)
    prediction = post.predict(X[60:])
    fixed = pm.recalibration.recalibrate(prediction, VALUES[60:], "scale")
    intervals = pm.conformal.conformal_intervals(fixed(prediction), VALUES[60:], 0.9, "scaled")
    return post.bundled(recalibration=fixed, conformal=intervals, threshold=0.8)


def test_answers_of_classes_are_its_parts() -> None:
    post = bundled_classes()
    assert post.bundle is not None
    fixed, sets = post.bundle.recalibration, post.bundle.conformal
    assert fixed is not None and sets is not None
    answer = post.answer(X, seed=3)
    expected = fixed(post.predict(X, seed=3))
    assert torch.equal(answer.prediction.mean, expected.mean)
    assert torch.equal(answer.region.members, sets(expected, seed=3).members)  # type: ignore
    assert torch.equal(answer.accepted, expected.confidence >= 0.7)  # type: ignore
    assert 0 < int(answer.accepted.sum()) < 120  # type: ignore[union-attr]
    assert torch.equal(post.predict(X).mean, post.predict(X).mean)  # never corrected unasked


@pytest.mark.parametrize("make", [bundled_classes, bundled_values])
def test_files_hold_the_bundle(make, tmp_path) -> None:
    post = make()
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=net)
    assert loaded.bundle == post.bundle
    first, second = post.answer(X), loaded.answer(X)
    assert torch.equal(first.prediction.mean, second.prediction.mean)
    assert torch.equal(first.accepted, second.accepted)  # type: ignore[arg-type]
    assert dataclasses.asdict(first.region).keys() == dataclasses.asdict(second.region).keys()  # type: ignore[call-overload]
    assert loaded[:1].bundle is None


def test_a_fresh_process_answers_the_same(tmp_path) -> None:
    post = bundled_values()
    post.save(tmp_path / "model")
    torch.save(X, tmp_path / "x.pt")
    code = (
        "import sys, torch, polymode as pm; from torch import nn\n"
        "net = lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))\n"
        "x = torch.load(sys.argv[1] + '/x.pt')\n"
        "answer = pm.load(sys.argv[1] + '/model', net=net).answer(x)\n"
        "print(answer.region.upper.sum().item(), int(answer.accepted.sum()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    upper, accepted = run.stdout.split()
    answer = post.answer(X)
    assert float(upper) == pytest.approx(answer.region.upper.sum().item())  # type: ignore[union-attr]
    assert int(accepted) == int(answer.accepted.sum())  # type: ignore[union-attr]


def test_older_files_have_none(tmp_path) -> None:
    post = bundled_classes()
    post.bundle = None
    post.save(tmp_path)
    path = tmp_path / "posterior.json"
    manifest = read_json(path, SCHEMA)
    del manifest["bundle"]
    write_json(path, manifest)
    loaded = pm.load(tmp_path, net=net)
    assert loaded.bundle is None
    with pytest.raises(ValueError, match="no rules to answer by: give it some"):
        loaded.answer(X)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b.pop("threshold"),
        lambda b: b.update(threshold="much"),
        lambda b: b.update(threshold=1.5),
        lambda b: b["recalibration"].update(method="magic"),
        lambda b: b["recalibration"].update(parameters={}),
        lambda b: b["recalibration"].update(num_outputs=7),
        lambda b: b["conformal"].update(kind="os.system"),
        lambda b: b["conformal"].update(quantile="nan"),
        lambda b: b["conformal"].update(num_classes=9),
        lambda b: b["conformal"].pop("level"),
    ],
)
def test_damaged_bundles_are_refused_in_one_line(damage, tmp_path) -> None:
    bundled_classes().save(tmp_path)
    path = tmp_path / "posterior.json"
    manifest = read_json(path, SCHEMA)
    damage(manifest["bundle"])
    write_json(path, manifest)
    with pytest.raises(FileProblem, match="`bundle` cannot be read") as caught:
        pm.load(tmp_path, net=net)
    assert "\n" not in str(caught.value)


def test_a_vacuous_rule_survives_json() -> None:
    post = bundled_values()
    rule = dataclasses.replace(post.bundle.conformal, quantile=(math.inf, 0.5))  # type: ignore
    bundle = Bundle(conformal=rule)
    again = Bundle.from_dict(json.loads(json.dumps(bundle.to_dict(), allow_nan=False)))
    assert again == bundle


def test_positions_are_answered_one_by_one() -> None:
    task = pm.Task(train=(IMAGES, MASKS), likelihood="categorical")
    post = pm.fit("deep_ensemble", net=conv, task=task, num_modes=2, **QUICK)
    rows = post.predict(IMAGES).observations(MASKS)
    fixed = pm.recalibration.recalibrate(rows.prediction, rows.targets)
    sets = pm.conformal.conformal_sets(fixed(rows.prediction), rows.targets, 0.9, "thr")
    post = post.bundled(recalibration=fixed, conformal=sets, threshold=0.6)
    answer = post.answer(IMAGES)
    assert answer.region.members.shape == (12, 4, 4, 2)  # type: ignore[union-attr]
    assert answer.accepted.shape == (12, 4, 4)  # type: ignore[union-attr]
    torch.testing.assert_close(answer.prediction.mean, fixed(post.predict(IMAGES)).mean)
    flat = fixed(rows.prediction)
    torch.testing.assert_close(answer.prediction.mean.flatten(0, 2), flat.mean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recalibration": "temperature"}, "`recalibration` of Bundle must be what"),
        ({"conformal": 0.9}, "`conformal` of Bundle must be what"),
        ({"threshold": math.nan}, "`threshold` of Bundle must be a finite number"),
        ({"threshold": True}, "`threshold` of Bundle"),
    ],
)
def test_wrong_parts(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        Bundle(**options)


def test_rules_of_another_posterior_are_neither_taken_nor_saved(tmp_path) -> None:
    post, other = bundled_classes(), bundled_values().bundle
    assert other is not None
    with pytest.raises(ValueError, match="scale cannot recalibrate a prediction of classes"):
        post.bundled(recalibration=other.recalibration)
    post.bundle = other
    with pytest.raises(ValueError, match="scale cannot recalibrate a prediction of classes"):
        post.save(tmp_path)


def test_threshold_at_risk_accepts_what_the_coverage_says() -> None:
    """As many examples as `coverage_at_risk`, with the risk that was asked for."""
    stream = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(400, 4, generator=stream, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=stream)[:, 0]
    prediction = CategoricalPrediction.from_logits(logits)
    for risk in (0.05, 0.2):
        accepted = prediction.confidence >= threshold_at_risk(prediction, labels, risk)
        coverage = coverage_at_risk(prediction, labels, risk).value
        assert accepted.double().mean().item() == pytest.approx(coverage)
        wrong = (prediction.classes != labels)[accepted].double().mean()
        assert wrong <= risk
    with pytest.raises(NotDefined, match="no coverage of these 1 examples"):
        threshold_at_risk(prediction[:1], 1 - prediction.classes[:1].clamp(max=1), 0.0)
