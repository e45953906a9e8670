"""Estimators within scikit-learn: its own checks, pipelines, searches, tables, files."""

from __future__ import annotations

import json
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import polymode as pm
from polymode.core.safe_files import FileProblem
from polymode.sklearn import PolymodeClassifier, PolymodeRegressor

QUICK = {"num_modes": 2, "epochs": 4, "hidden": (8,), "lr": 0.02}
STOCHASTIC = {
    "check_sample_weight_equivalence_on_dense_data": "batches are drawn, and steps and encodings"
    " count rows, so that repeating a row is not weighing it"
}


@pytest.mark.cpu_seconds(40)
@pytest.mark.parametrize(
    "estimator",
    [
        PolymodeRegressor(num_modes=2, epochs=60, hidden=(16,), lr=0.02),
        PolymodeClassifier(num_modes=2, epochs=40, hidden=(16,), lr=0.02),
    ],
    ids=["regressor", "classifier"],
)
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn_pass(estimator) -> None:
    """All of `check_estimator`; with drawn batches, weights and copies of rows cannot be equal."""
    results = check_estimator(estimator, expected_failed_checks=STOCHASTIC, on_skip=None)
    statuses = [result["status"] for result in results]
    assert statuses.count("passed") >= 55 and "failed" not in statuses


@pytest.mark.cpu_seconds(12)
def test_pipelines_searches_and_cross_validation_without_warnings() -> None:
    x, y = load_iris(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipe = make_pipeline(StandardScaler(), PolymodeClassifier(**QUICK))
        assert pipe.fit(x, y).predict(x).shape == (150,)
        search = GridSearchCV(PolymodeClassifier(**QUICK), {"num_modes": [1, 2]}, cv=2)
        assert search.fit(x, y).best_params_["num_modes"] in (1, 2)
        scores = cross_val_score(PolymodeRegressor(**QUICK), *load_diabetes(return_X_y=True), cv=2)
        assert scores.shape == (2,)
    again = clone(pipe[-1])
    assert again.get_params() == pipe[-1].get_params() and not hasattr(again, "posterior_")


@pytest.mark.cpu_seconds(10)
def test_it_learns_with_its_defaults() -> None:
    """Every tenth row of iris is held out: at least 13 of 15 right, and a regression with 300 rows
    whose intervals hold 80 % or more."""
    x, y = load_iris(return_X_y=True)
    held_out = np.arange(150) % 10 == 0
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = PolymodeClassifier(num_modes=2, epochs=60).fit(x[~held_out], names[~held_out])
    assert model.score(x[held_out], names[held_out]) >= 13 / 15
    assert set(model.predict(x)) <= set(names) and model.classes_.tolist() == sorted(set(names))
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (300, 1))
    y = np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=300)
    model = PolymodeRegressor(num_modes=2, epochs=80).fit(x[:200], y[:200])
    assert model.score(x[200:], y[200:]) > 0.8
    low, high = model.predict_interval(x[200:], 0.9).T
    assert 0.8 < ((low <= y[200:]) & (y[200:] <= high)).mean() <= 1.0
    quantiles = model.predict_quantiles(x[200:], [0.1, 0.5, 0.9])
    assert quantiles.shape == (100, 3) and (np.diff(quantiles) > 0).all()
    assert len(model.predict_distribution(x[200:])) == 100


def test_weights_of_rows_count() -> None:
    """Two targets at the same input: rows of ten times the weight draw the mean to theirs."""
    x, y = np.tile([[0.0], [1.0]], (40, 1)), np.repeat([0.0, 1.0], 40)
    weights = np.where(y == 1, 10.0, 1.0)
    options = {"num_modes": 1, "epochs": 100, "hidden": (8,), "lr": 0.02}
    plain = PolymodeRegressor(**options).fit(x, y).predict(x)
    weighed = PolymodeRegressor(**options).fit(x, y, sample_weight=weights).predict(x)
    assert abs(plain.mean() - 0.5) < 0.15 and weighed.mean() > 0.75
    part = PolymodeRegressor(**options).fit(x, y)
    np.testing.assert_array_equal(part.predict(x)[::7], part.predict(x[::7]))  # to the last bit
    with pytest.raises(ValueError, match="at least one non-zero"):
        PolymodeRegressor(**options).fit(x, y, sample_weight=np.zeros(80))


@pytest.mark.parametrize("kind", [PolymodeClassifier, PolymodeRegressor])
def test_files_and_pickles(kind, tmp_path) -> None:
    x, y = load_iris(return_X_y=True)
    targets = np.array(["a", "b", "c"])[y] if kind is PolymodeClassifier else x[:, 0]
    model = kind(**QUICK).fit(x, targets)
    model.save(tmp_path / "m")
    assert {p.suffix for p in (tmp_path / "m").rglob("*.*")} <= {".json", ".safetensors", ".lock"}
    for again in (kind.load(tmp_path / "m"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict(x), model.predict(x))
    other = PolymodeRegressor if kind is PolymodeClassifier else PolymodeClassifier
    with pytest.raises(FileProblem, match=f"not a {other.__name__}"):
        other.load(tmp_path / "m")
    path = tmp_path / "m" / "estimator.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "single": False}))
    with pytest.raises(FileProblem, match="changed after it was written"):
        kind.load(tmp_path / "m")
    with pytest.raises(ValueError, match="`net` of its own"):
        kind(**QUICK, net=pm.nets.mlp).fit(x, targets).save(tmp_path / "n")


@pytest.mark.cpu_seconds(8)
def test_columns_of_many_categories_get_embeddings(tmp_path) -> None:
    """A hundred categories, each with an effect of its own; files and pickles know the network."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    place, effects = rng.integers(0, 100, 1500), rng.normal(size=100)
    table = pandas.DataFrame({"place": [f"p{k}" for k in place], "x": rng.normal(size=1500)})
    y = effects[place] + 0.1 * rng.normal(size=1500)
    model = PolymodeRegressor(num_modes=1, epochs=30, lr=0.01).fit(table, y)
    assert model.posterior_.encoder.codes and model.score(table, y) > 0.9
    model.save(tmp_path / "m")
    for again in (PolymodeRegressor.load(tmp_path / "m"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict(table), model.predict(table))


@pytest.mark.cpu_seconds(8)
def test_tables_with_every_kind_of_column() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(
        {
            "size": np.where(rng.random(200) < 0.1, np.nan, rng.normal(100, 20, 200)),
            "city": rng.choice(["Bonn", "Kiel", "Ulm"], 200),
            "new": rng.random(200) < 0.5,
            "sold": pandas.Timestamp("2020-01-01")
            + pandas.to_timedelta(rng.integers(0, 900, 200), "D"),
        }
    )
    price = 50.0 * (table["city"] == "Ulm") + rng.normal(0, 1, 200)
    options = {"num_modes": 1, "epochs": 40, "hidden": (16,), "lr": 0.02}
    model = PolymodeRegressor(**options).fit(table, price)
    assert model.score(table, price) > 0.8 and model.feature_names_in_.tolist() == [*table]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table.drop(columns="city"))
    assert np.mean(cross_val_score(PolymodeRegressor(**options), table, price, cv=2)) > 0.5
    scale = ColumnTransformer([("n", StandardScaler(), ["size"])], remainder="passthrough")
    piped = make_pipeline(scale.set_output(transform="pandas"), PolymodeRegressor(**options))
    assert piped.fit(table, price).score(table, price) > 0.8


def test_wrong_calls() -> None:
    x, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="Unknown method 'deep_ensembl'"):
        PolymodeClassifier(method="deep_ensembl").fit(x, y)
    with pytest.raises(ValueError, match="one class"):
        PolymodeClassifier().fit(x, np.zeros(150))
    with pytest.raises(ValueError, match="`numeric` of Encoding must be one of"):
        PolymodeRegressor(numeric="rank").fit(x, y)
    with pytest.raises(ValueError, match="infinity"):
        PolymodeRegressor(**QUICK).fit(np.r_[x, [[np.inf] * 4]], np.r_[y, 0])


def test_bad_weights_labels_and_targets_are_named() -> None:
    x = np.linspace(0, 1, 20)[:, None]
    with pytest.raises(ValueError, match="`sample_weight` must be >= 0, got -1 in row 3"):
        weights = np.ones(20)
        weights[3] = -1
        PolymodeRegressor(**QUICK).fit(x, x[:, 0], sample_weight=weights)
    labels = np.array(["a", "b"] * 10, dtype=object)
    labels[4] = None
    with pytest.raises(
        ValueError, match=r"y is missing \(NaN\) in 1 of 20 rows, the first is row 4"
    ):
        PolymodeClassifier(**QUICK).fit(x, labels)


@pytest.mark.parametrize("method", ["dropout", "concrete_dropout"])
def test_methods_that_need_noise_get_a_network_that_has_it(method, tmp_path) -> None:
    x = np.linspace(0, 1, 40)[:, None]
    model = PolymodeRegressor(method, num_modes=1, epochs=2, hidden=(8,)).fit(x, x[:, 0])
    assert model.predict_distribution(x[:2]).num_samples > 1
    model.save(tmp_path)
    again = PolymodeRegressor.load(tmp_path)
    copied = pickle.loads(pickle.dumps(model))
    for other in (again, copied):
        np.testing.assert_array_equal(other.predict(x), model.predict(x))


class Named:
    """A table with as much of a DataFrame's interface as is needed."""

    def __init__(self, **columns) -> None:
        self.columns, self.data = list(columns), columns
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, name):
        return self.data[name]


class Series(np.ndarray):
    """An array with a name, as a column of a DataFrame has one."""

    name = "price"


def test_a_target_that_is_also_a_column_is_refused() -> None:
    y = np.linspace(0, 1, 20)
    table = Named(size=y + 1, price=y)
    with pytest.raises(ValueError, match="the target 'price' is also a column of X; drop it"):
        PolymodeRegressor(**QUICK).fit(table, y.view(Series))
    PolymodeRegressor(**QUICK).fit(Named(size=y + 1), y.view(Series))
