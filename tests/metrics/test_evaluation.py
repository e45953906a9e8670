"""`evaluate` and `Results`: what is scored, on what, and that it survives JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.core.registry import Entry
from polymode.likelihoods.components import Categories
from polymode.likelihoods.kinds import Gaussian
from polymode.likelihoods.scaling import Scaling
from polymode.metrics import Results, classification, evaluate, regression
from polymode.metrics.evaluation import _row
from polymode.metrics.results import Cost, Row
from polymode.metrics.score import CLASSIFICATION, Score, entries
from polymode.prediction import CategoricalPrediction, predict_from


@pytest.fixture(scope="module")
def digits():
    task = pm.task("digits")
    fits = [
        pm.fit(name, net=pm.nets.mlp, task=task, epochs=1, progress="silent", **options)
        for name, options in (("map", {}), ("deep_ensemble", {"num_modes": 2}))
    ]
    return task, [evaluate(post, task, train_seconds=1.5) for post in fits]


def test_every_data_set_is_scored(digits):
    _, (_, results) = digits
    shifts = [f"shift:{name}:{s}" for name in ("gaussian_noise", "rotation") for s in range(1, 6)]
    assert results.datasets == ["test", *shifts, "ood:patches", "ood:scrambled"]
    scored = {row.metric for row in results.rows if row.dataset == "shift:rotation:5"}
    assert scored == set(CLASSIFICATION.names())
    outside = {row.metric for row in results.rows if row.dataset == "ood:patches"}
    assert {"auroc_predictive_entropy", "auroc_mutual_information"} <= outside
    assert "nll" not in outside
    assert all(row.unit and row.n and row.direction in ("up", "down", "") for row in results.rows)


def test_numbers_are_those_of_the_metrics(digits):
    task, (_, results) = digits
    kept = results.kept["test"]
    assert results["test", "nll"].value == classification.nll(kept.prediction, task.test.y).value
    row = results["ood:patches", "auroc_predictive_entropy"]
    assert (row.n, row.direction) == (800, "up")


def test_what_does_not_apply_says_so_and_is_null_in_json(digits):
    _, (alone, _) = digits
    row = alone["test", "mutual_information"]
    assert (row.value, row.note) == (None, "n/a (needs ≥ 2 samples)")
    assert "n/a (needs ≥ 2 samples)" in alone.table()
    content = json.loads(alone.to_json(), parse_constant=pytest.fail)
    values = {r["metric"]: r["value"] for r in content["rows"] if r["dataset"] == "test"}
    assert values["mutual_information"] is None
    assert "nan" not in alone.to_json().lower()


def test_impossible_labels_have_a_finite_nll(monkeypatch):
    """A label that every member gives probability 0 counts 745.1 nats."""
    task = pm.Task(
        train=(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1])),
        test=(torch.zeros(2, 1), torch.tensor([0, 1])),
        likelihood="categorical",
    )
    post = pm.fit("map", net=torch.nn.Linear(1, 2), task=task, epochs=0, progress="silent")
    monkeypatch.setattr(type(post), "predict", _certain)  # log-softmax never gives -inf itself
    results = evaluate(post, task)
    assert results["test", "nll"].value == pytest.approx(-math.log(5e-324) / 2)
    json.loads(results.to_json(), parse_constant=pytest.fail)


@pytest.mark.parametrize(("value", "word"), [(math.inf, "infinite"), (math.nan, "undefined")])
def test_what_json_cannot_hold_is_null_with_a_note(value, word):
    facts = CLASSIFICATION.get("nll").metadata
    entry = Entry("mine", lambda prediction, targets: Score(value, 1, value), facts)
    row = _row("test", entry, CategoricalPrediction.from_probs([[0.5, 0.5]]), torch.tensor([0]))
    assert (row.value, row.standard_error, row.note) == (None, None, f"n/a ({word})")


def _certain(self, x, batch_size=256):
    log_probs = torch.tensor([0.0, -math.inf]).expand(1, len(x), 2)
    return CategoricalPrediction(log_probs)


class Drawing:
    """A posterior of 2 modes that draws; it notes how it was asked."""

    def __init__(self, post):
        self.post, self.asked = post, []

    def __getattr__(self, name):
        return getattr(self.post, name)

    def predict(self, x, *, batch_size, samples_per_mode=3, **options):
        self.asked.append({"samples_per_mode": samples_per_mode, **options})
        log_probs = self.post.predict(x, batch_size=batch_size).by_mode.log_probs
        return predict_from(Categories(log_probs.expand(-1, samples_per_mode, -1, -1)))


def test_samples_per_mode_reach_predictions_and_cost():
    task = pm.task("two_moons")
    post = Drawing(
        pm.fit(
            "deep_ensemble", net=pm.nets.mlp, task=task, num_modes=2, epochs=0, progress="silent"
        )
    )
    results = evaluate(post, task)
    assert post.asked[0] == {"samples_per_mode": 3}  # its own default: nothing was handed on
    assert (results.cost.num_modes, results.cost.num_samples) == (2, 6)
    post.asked.clear()
    results = evaluate(post, task, samples_per_mode=5, seed=7)
    assert len(post.asked) > 2  # test and OOD sets, and the figure's grid
    assert all(asked == {"samples_per_mode": 5, "seed": 7} for asked in post.asked)
    assert results.cost.num_samples == results.kept["plane"].prediction.num_samples == 10
    assert results.cost.parameters == 2 * post.stack.num_parameters


def test_stored_costs_without_samples_have_one_per_mode(digits):
    _, (_, results) = digits
    stored = json.loads(results.to_json())
    assert stored["cost"].pop("num_samples") == 2
    assert Results.from_dict(stored) == results
    assert Results.from_dict(stored).cost.num_samples == 2


def test_json_round_trip_and_access(digits):
    _, (_, results) = digits
    assert Results.from_json(results.to_json()) == results
    assert "\n" not in results.to_json()
    assert results.cost.train_seconds == 1.5
    assert results.cost.parameters == 2 * (64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10)
    assert results.cost.predict_examples == 13 * 400
    with pytest.raises(KeyError, match="Did you mean 'test'"):
        results["tset", "nll"]
    with pytest.raises(KeyError, match="Did you mean 'accuracy'"):
        results["test", "acuracy"]
    with pytest.raises(KeyError, match="asked by data set and metric"):
        results["test"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"schema": 99}, "schema version 99"),
        ({}, "they have no schema version"),
        ({"schema": 1, "rows": []}, "not results of polymode"),
        ({"schema": 1, "rows": [{"colour": "red"}]}, "not results of polymode"),
        ({"schema": 1, "rows": 3}, "not results of polymode"),
        ({"schema": True}, "they have no schema version"),
    ],
)
def test_other_files_are_refused(content, message):
    with pytest.raises(ValueError, match=message):
        Results.from_dict(content)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("task",), 3),
        (("seed",), "0"),
        (("seed",), True),
        (("config",), []),
        (("config",), {"search": 3}),
        (("label",), None),
        (("near_ood",), [1]),
        (("target_scale",), ["a"]),
        (("cost", "train_seconds"), "long"),
        (("cost", "num_modes"), None),
        (("rows", 0, "value"), "0.1"),
        (("rows", 0, "value"), float("nan")),
        (("rows", 0, "value"), [1]),
        (("rows", 0, "direction"), "left"),
        (("rows", 0, "direction"), []),
        (("rows", 0, "n"), None),
        (("rows", 0, "dataset"), {}),
        (("rows", 0, "note"), 1),
    ],
)
def test_results_of_wrong_types_are_refused(place, value):
    rows = (Row("test", "nll", 0.1, "nats/example", "down", 4, None),)
    content = Results("t", "map", "mlp", 0, {}, rows, Cost(1, 1, 3, 0.1, 4)).to_dict()
    assert Results.from_dict(content).rows == rows
    within = content
    for step in place[:-1]:
        within = within[step]
    within[place[-1]] = value
    with pytest.raises(ValueError, match=f"not results of polymode: `{place[-1]}` is"):
        Results.from_dict(content)


def test_regression_keeps_a_curve_and_scores_ood_targets():
    task = pm.task("gap_regression")
    options = {"num_modes": 2, "epochs": 2, "progress": "silent"}
    post = pm.fit("deep_ensemble", net=pm.nets.mlp, task=task, **options)
    results = evaluate(post, task)
    assert results.datasets == ["test", "ood:gap", "ood:outside"]
    kept = results.kept["ood:gap"]
    assert results["ood:gap", "rmse"].value == regression.rmse(*kept[:2]).value
    curve = results.kept["curve"]
    assert curve.inputs.shape == curve.targets.shape == (200, 1)
    assert curve.inputs.min() < -3
    assert len(results.kept["train"].prediction) == 100
    assert results["ood:outside", "auroc_epistemic_variance"].n == 400


def test_a_shuffling_loader_is_scored_in_one_pass():
    """Predictions and targets must come from the same pass: a second one has another order."""
    task = pm.task("two_moons")
    loader = DataLoader(TensorDataset(task.test.x, task.test.y), batch_size=64, shuffle=True)

    class Plain:  # not a TensorDataset, which would be taken as arrays
        def __iter__(self):
            return iter(loader)

    with_loader = pm.Task(train=task.train, test=Plain(), likelihood="categorical")
    post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=30, progress="silent")
    whole, parts = evaluate(post, task), evaluate(post, with_loader)
    assert parts["test", "nll"].value == pytest.approx(whole["test", "nll"].value, rel=1e-5)
    assert parts["test", "accuracy"].value > 0.8


def test_bad_tasks_are_refused():
    task = pm.task("two_moons")
    post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=0, progress="silent")
    with pytest.raises(ValueError, match="has no test data"):
        evaluate(post, pm.Task(train=task.train, likelihood="categorical"))
    with pytest.raises(ValueError, match="categorical likelihood, the task a gaussian one"):
        evaluate(post, pm.task("gap_regression"))


def test_repr_is_short():
    row = Row("test", "nll", 0.12345, "nats/example", "down", 10, None)
    results = Results("digits", "map", "lenet", 3, {}, (row,), Cost(1, 1, 10, 0.1, 10))
    assert repr(results) == "Results(map on digits, seed 3: nll=0.1235; 1 data sets)"


def test_time_to_make_a_shift_is_not_time_to_predict(monkeypatch) -> None:
    x, y = torch.randn(20, 2), torch.arange(20) % 2
    real, lost = time.perf_counter, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: real() + lost[0])

    def slowly():
        lost[0] += 1000
        return x, y

    task = pm.Task(train=(x, y), test=(x, y), likelihood="categorical", shifts={"s": {1: slowly}})
    post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=1, progress="silent")
    assert pm.evaluate(post, task).cost.predict_seconds < 1000


def test_any_metric_can_be_computed_later_with_its_examples(digits):
    task, (_, results) = digits
    score = results.score("test", "nll")
    assert score.value == results["test", "nll"].value
    assert score.each.shape == (len(task.test),)
    assert score.each.double().mean().item() == pytest.approx(score.value)
    outside = results.score("ood:patches", "auroc_predictive_entropy")
    assert outside.value == results["ood:patches", "auroc_predictive_entropy"].value
    with pytest.raises(ValueError, match="was not kept.* Did you mean 'test'"):
        results.score("tset", "nll")
    with pytest.raises(ValueError, match="Did you mean 'nll'"):
        results.score("test", "nl")
    with pytest.raises(ValueError, match="against the test set"):
        results.score("test", "auroc_predictive_entropy")


def test_what_is_kept_is_the_users_choice(digits):
    task, (_, before) = digits
    post = pm.fit(
        "deep_ensemble", net=pm.nets.mlp, task=task, epochs=1, progress="silent", num_modes=2
    )
    some = evaluate(post, task, keep=("test", "ood:*"))
    assert sorted(some.kept) == ["ood:patches", "ood:scrambled", "test"]
    none = evaluate(post, task, keep=False)
    assert not none.kept
    samples = [entry.name for entry in entries(CLASSIFICATION) if entry.metadata["samples"]]
    rows, fewer, all_kept = (
        [row for row in results.rows if row.metric not in samples]
        for results in (some, none, before)
    )
    assert rows == fewer == all_kept


def test_near_sets_and_memory_are_said(digits):
    _, (_, results) = digits
    assert results.cost.memory_bytes == 4 * results.cost.parameters  # float32, no buffers
    again = Results.from_json(results.replace(near_ood=("patches",)).to_json())
    assert again.near_ood == ("patches",)
    assert "ood:patches (near)" in again.table()


def test_results_of_the_first_schema_are_still_read(digits):
    _, (_, results) = digits
    content = results.to_dict()
    for key in ("near_ood", "target_scale"):
        del content[key]
    del content["cost"]["memory_bytes"]
    old = Results.from_dict({**content, "schema": 1})
    assert old.rows == results.rows
    assert (old.near_ood, old.target_scale, old.cost.memory_bytes) == ((), None, None)


def test_full_table_has_every_metric(digits):
    _, (_, results) = digits
    full, short = results.table(full=True), results.table()
    assert "disagreement" in full
    assert "disagreement" not in short
    assert "Calibration" in full


def test_classes_on_two_inputs_keep_a_plane():
    task = pm.task("two_moons")
    post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=1, progress="silent")
    results = evaluate(post, task)
    plane, train = results.kept["plane"], results.kept["train"]
    assert plane.inputs.shape == (100 * 100, 2)
    assert len(plane.prediction) == 100 * 100
    assert plane.inputs[1, 0] > plane.inputs[0, 0]  # the first input is the fastest
    assert plane.inputs[1, 1] == plane.inputs[0, 1]
    low, high = task.test.x.amin(0), task.test.x.amax(0)
    torch.testing.assert_close(plane.inputs[0], low - (high - low))
    torch.testing.assert_close(plane.inputs[-1], high + (high - low))
    torch.testing.assert_close(train.inputs, task.train.x)
    assert {row.dataset for row in results.rows}.isdisjoint({"plane", "train"})
    assert sorted(evaluate(post, task, keep=("pl*", "train")).kept) == ["plane", "train"]
    assert "plane" not in evaluate(post, task, keep=("test",)).kept
    assert not evaluate(post, task, keep=False).kept


def test_standardised_scores_are_named_apart_and_follow_the_training_targets():
    """NLL falls by log(scale), RMSE by the factor, whatever the units of the targets."""
    x = torch.linspace(-1, 1, 40)[:, None]
    data = (x, 300 * x + 1000)
    task = pm.Task(train=data, test=data, likelihood=Gaussian(noise=0.5), target_unit="kPa")
    post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=1, progress="silent")
    results = evaluate(post, task)
    scale = data[1].std(correction=0).item()
    assert results.target_scale == pytest.approx((scale,))
    rmse, nll = results["test", "rmse"], results["test", "nll"]
    assert rmse.unit == "kPa"
    assert results["test", "rmse_standardised"].unit == "standard deviations"
    assert results["test", "rmse_standardised"].value == pytest.approx(rmse.value / scale)
    expected = nll.value - math.log(scale)
    assert results["test", "nll_standardised"].value == pytest.approx(expected, rel=1e-4)
    again = Results.from_json(results.to_json()).replace(kept=results.kept)
    same = again.score("test", "rmse_standardised").value
    assert same == pytest.approx(results["test", "rmse_standardised"].value)


def test_standardised_scores_need_a_scale():
    x, y = torch.randn(8, 1), torch.zeros(8, 1)
    task = pm.Task(train=(x, y), test=(x, y), likelihood=Gaussian(noise=0.5))
    post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=1, progress="silent")
    row = evaluate(post, task)["test", "rmse_standardised"]
    assert (row.value, row.note) == (None, "n/a (needs the scale of the training targets)")


@pytest.mark.cpu_seconds(8)
def test_importing_the_package_enters_every_metric():
    """Another process that evaluates must have the same table, whatever else it has imported."""
    code = (
        "import sys, polymode.metrics; from polymode.metrics.score import TABLES;"
        "before = [t.names() for t in TABLES.values()]; import polymode.report, polymode.cli.app;"
        "import polymode.plots as p; [getattr(p, n) for n in p.__all__];"
        "sys.exit(before != [t.names() for t in TABLES.values()])"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def own(shift: float = 0.0, **more) -> pm.Task:
    """A nameless task on one input; `shift` moves its test set."""
    x = torch.linspace(-1, 1, 12)[:, None]
    sets = {"train": (x, 3 * x), "test": (x + shift, 3 * x), **more}
    return pm.Task(likelihood=Gaussian(0.1), **sets)


def linear(task: pm.Task, method: str = "map"):
    return pm.fit(method, net=torch.nn.Linear(1, 1), task=task, epochs=0, progress="silent")


def test_nameless_tasks_with_other_data_are_not_compared():
    here, there = own(), own(0.5)
    ours, theirs = evaluate(linear(here), here), evaluate(linear(there, "deep_ensemble"), there)
    assert ours.task == theirs.task
    with pytest.raises(ValueError, match="'test' is different data for map"):
        pm.compare([ours, theirs])
    same = evaluate(linear(there, "deep_ensemble"), own())
    assert pm.compare([ours, same]).labels == ["map", "deep_ensemble"]


def test_every_data_set_has_a_fingerprint(digits):
    task, (first, second) = digits
    assert list(first.data) == first.datasets
    assert first.data == second.data
    assert len(set(first.data.values())) == len(first.data)
    assert first.data["test"] == task.test.fingerprint()[:16]


def test_the_fingerprint_of_a_loader_does_not_depend_on_its_order():
    def results(y: torch.Tensor, seed: int) -> Results:
        x, stream = torch.linspace(-1, 1, 12)[:, None], torch.Generator().manual_seed(seed)
        loader = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True, generator=stream)
        task = own(test=loader)
        return evaluate(linear(task), task)

    y = torch.linspace(0, 1, 12)[:, None]
    assert results(y, 0).data == results(y, 1).data
    assert results(y, 0).data != results(y + 1, 0).data


def test_prediction_is_timed_after_a_warm_up(monkeypatch):
    """A clock that the first prediction moves by an hour, every further one by a second."""
    task, now = own(), 0.0
    post = linear(task)
    predict, calls = type(post).predict, []

    def slow(self, x, **options):
        nonlocal now
        now += 1.0 if calls else 3600.0
        calls.append(len(x))
        return predict(self, x, **options)

    monkeypatch.setattr(type(post), "predict", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert evaluate(post, task, keep=False).cost.predict_seconds == 1.0
    assert calls == [12, 12]


def test_standardised_scores_have_one_standard_deviation():
    """The same number whether the task scales its targets or not: that of the population."""
    plain = own()
    scaled = own(target_scaling=Scaling.of(plain.train.y))
    first, second = (evaluate(linear(task), task).target_scale for task in (plain, scaled))
    assert first == pytest.approx((plain.train.y.double().std(0, correction=0).item(),))
    assert first == pytest.approx(second)


def test_wrong_arguments_are_named():
    task = own()
    post = linear(task)
    with pytest.raises(ValueError, match=r"swapped: pm.evaluate\(post, task\)"):
        evaluate(task, post)
    with pytest.raises(ValueError, match="`post` of evaluate is a Linear; give what pm.fit"):
        evaluate(torch.nn.Linear(1, 1), task)
    with pytest.raises(ValueError, match="`task` of evaluate is a tuple; give a name"):
        evaluate(post, (1, 2))
    with pytest.raises(ValueError, match="Unknown task 'digts'. Did you mean 'digits'"):
        evaluate(post, "digts")
