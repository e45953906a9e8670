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
from polymode import conformal
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


GROUPS = ["north" if value > 0 else "south" for value in X[:, 2].tolist()]
RATIO = X[:, 0].exp()


def ensemble(values: torch.Tensor, likelihood: object) -> pm.Posterior:
    task = pm.Task(train=(X[:60], values[:60]), likelihood=likelihood)
    return pm.fit("deep_ensemble", net=net, task=task, num_modes=2, **QUICK)


def classes_of(rule: str) -> tuple[pm.Posterior, dict[str, object]]:
    """Return a posterior of classes with a rule, and what `answer` needs for its 120 inputs."""
    post = ensemble(LABELS, "categorical")
    fixed = pm.recalibration.recalibrate(post.predict(X[60:]), LABELS[60:])
    corrected = fixed(post.predict(X[60:]))
    if rule == "class":
        by_class = conformal.by_class(corrected, LABELS[60:], 0.8, "aps")
        return post.bundled(recalibration=fixed, conformal=by_class), {}
    groups = conformal.by_group(corrected, LABELS[60:], GROUPS[60:], 0.8, "raps")
    return post.bundled(recalibration=fixed, conformal=groups), {"groups": GROUPS}


def values_of(rule: str) -> tuple[pm.Posterior, dict[str, object]]:
    """The same for values, with two outputs."""
    post = ensemble(VALUES, Gaussian(noise="learned"))
    prediction = post.predict(X[60:])
    if rule == "strata":
        strata = conformal.difficulty_groups(post.predict(X[:60]), 2)
        by_stratum = conformal.by_group(prediction, VALUES[60:], strata(prediction), joint=True)
        return post.bundled(conformal=by_stratum, groups=strata), {}
    if rule == "weighted":
        fixed = pm.recalibration.recalibrate(prediction, VALUES[60:], "quantile_cdf", num_levels=5)
        shifted = conformal.weighted(fixed(prediction), VALUES[60:], RATIO[60:], 0.8)
        return post.bundled(recalibration=fixed, conformal=shifted), {"weights": RATIO}
    if rule == "box":
        fixed = pm.recalibration.recalibrate(prediction, VALUES[60:], "isotonic_cdf")
        box = conformal.conformal_intervals(
            fixed(prediction), VALUES[60:], 0.8, "cqr_r", joint=True
        )
        return post.bundled(recalibration=fixed, conformal=box), {}
    folds = conformal.fold_numbers(60, 2)
    cross = conformal.cross_conformal(prediction, VALUES[60:], folds, 0.8)
    return post.bundled(conformal=cross), {}


MAKERS = {"class": classes_of, "group": classes_of}
MAKERS |= dict.fromkeys(("strata", "weighted", "box", "folds"), values_of)


@pytest.mark.parametrize("rule", MAKERS)
def test_every_rule_answers_after_a_file_as_it_does_by_hand(rule, tmp_path) -> None:
    post, inputs = MAKERS[rule](rule)
    answer = post.answer(X, seed=2, **inputs)
    bundle = post.bundle
    assert bundle is not None and bundle.conformal is not None
    prediction = post.predict(X, seed=2)
    if bundle.recalibration is not None:
        prediction = bundle.recalibration(prediction)
    by_hand: dict[str, object] = {
        "class": {"seed": 2}, "group": {"seed": 2, **inputs}, "weighted": inputs, "box": {},
        "strata": {"groups": bundle.groups and bundle.groups(prediction)}, "folds": {},
    }[rule]  # fmt: skip
    expected = bundle.conformal(prediction, **by_hand)
    post.save(tmp_path)
    again = pm.load(tmp_path, net=net).answer(X, seed=2, **inputs)
    for region in (answer.region, again.region):
        for name in ("members", "lower", "upper"):
            if hasattr(expected, name):
                assert torch.equal(getattr(region, name), getattr(expected, name))


def test_groups_come_from_a_column_also_in_a_fresh_process(tmp_path) -> None:
    """The table's own column names the groups; the two have quantiles that differ."""
    table = {"a": X[:, 0].tolist(), "site": GROUPS, "y": VALUES[:, 0].tolist()}
    table["y"] = [
        y + (2.0 * e if site == "north" else 0.0)
        for y, e, site in zip(table["y"], X[:, 1].tolist(), GROUPS, strict=True)
    ]
    train, held, new = ({k: v[s] for k, v in table.items()} for s in
                        (slice(60), slice(60, 110), slice(110, None)))  # fmt: skip
    task = pm.Task.from_frame(train, target="y", test_fraction=0.0)
    post = pm.fit("map", net=pm.nets.mlp, task=task, **QUICK)
    rule = conformal.by_group(post.predict(held), torch.tensor(held["y"]), held["site"], 0.8)
    post = post.bundled(conformal=rule, groups="site")
    answer = post.answer(new)
    expected = rule(post.predict(new), new["site"])
    assert torch.equal(answer.region.upper, expected.upper)  # type: ignore[union-attr]
    assert len({*rule.quantiles.values()}) == 2
    post.save(tmp_path / "model")
    (tmp_path / "new.json").write_text(json.dumps(new))
    code = (
        "import sys, json, polymode as pm\n"
        "answer = pm.load(sys.argv[1] + '/model', net=pm.nets.mlp).answer("
        "json.load(open(sys.argv[1] + '/new.json')))\n"
        "print(answer.region.upper.sum().item())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(run.stdout) == expected.upper.sum().item()
    with pytest.raises(ValueError, match="groups are column 'site' of a table; give a table"):
        post.answer(task.train)
    with pytest.raises(ValueError, match="the table has no column 'site'"):
        post.answer({"a": [0.0]})


@pytest.mark.parametrize(
    ("rule", "damage"),
    [
        ("group", lambda c: c["groups"][0][1].append(1.0)),
        ("group", lambda c: c.update(groups=[])),
        ("class", lambda c: c["quantiles"].pop()),
        ("class", lambda c: c["region"].update(method="magic")),
        ("weighted", lambda c: c["scores"].reverse()),
        ("weighted", lambda c: c["sums"].pop()),
        ("folds", lambda c: c["folds"].__setitem__(0, 7)),
        ("folds", lambda c: c.update(num_models=3)),
        ("folds", lambda c: c["scores"][0].__setitem__(0, "nan")),
    ],
)
def test_damaged_rules_are_refused(rule, damage) -> None:
    post, _ = MAKERS[rule](rule)
    stored = post.bundle.to_dict()  # type: ignore[union-attr]
    damage(stored["conformal"])
    with pytest.raises((ValueError, TypeError, KeyError)):
        Bundle.from_dict(stored).check(post.likelihood.classification, 2, post.num_modes)


def test_rules_that_lack_something_say_what() -> None:
    grouped, inputs = classes_of("group")
    with pytest.raises(ValueError, match="by group: give the group of each input"):
        grouped.answer(X)
    shifted, _ = values_of("weighted")
    with pytest.raises(ValueError, match="give the ratio of densities"):
        shifted.answer(X)
    with pytest.raises(ValueError, match="`groups` are for a rule of by_group"):
        shifted.answer(X, weights=RATIO, **inputs)
    with pytest.raises(ValueError, match="`weights` are for a rule of weighted"):
        grouped.answer(X, weights=RATIO, **inputs)
    post, _ = values_of("folds")
    with pytest.raises(ValueError, match="Calibrated on 2 models, got predictions of 1"):
        post[:1].bundled(conformal=post.bundle.conformal)  # type: ignore[union-attr]
    fixed = shifted.bundle.recalibration  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="'quantile_cdf' corrects their mixture"):
        post.bundled(recalibration=fixed, conformal=post.bundle.conformal)  # type: ignore
    with pytest.raises(ValueError, match="`groups` of Bundle are those of a rule of"):
        Bundle(groups="site")
    tuples = conformal.by_group(
        grouped.predict(X), LABELS, [("a", 1)] * 120
    )  # a pair has no place in JSON
    with pytest.raises(ValueError, match="must be text, numbers or truth values"):
        Bundle(conformal=tuples)
