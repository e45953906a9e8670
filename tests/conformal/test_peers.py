"""Mondrian, weighted and CV+ rules against crepes and MAPIE, where their definitions agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polymode.conformal import by_class, by_group, conformal_intervals, cross_conformal
from polymode.prediction import CategoricalPrediction, MixturePrediction


def draw(n: int = 199, seed: int = 0):
    rng = np.random.default_rng(seed)
    centre, width = rng.normal(size=n), 0.5 + rng.random(n)
    values = centre + width * rng.normal(size=n)
    loc, scale = torch.as_tensor(centre).view(1, n, 1), torch.as_tensor(width).view(1, n, 1)
    return MixturePrediction(loc, scale), values, centre, width


@pytest.mark.parametrize("method", ["split", "scaled"])
def test_groups_are_those_of_crepes(method) -> None:
    crepes = pytest.importorskip("crepes")
    prediction, values, centre, width = draw()
    groups = np.arange(199) % 3
    peer = crepes.ConformalRegressor()
    sigmas = width if method == "scaled" else None
    peer.fit(values - centre, sigmas=sigmas, bins=groups)
    expected = peer.predict_int(centre, sigmas=sigmas, bins=groups, confidence=0.9)
    rule = by_group(prediction, torch.as_tensor(values), groups, 0.9, method)
    ours = rule(prediction, groups)
    np.testing.assert_allclose(ours.lower[:, 0].numpy(), expected[:, 0], rtol=1e-9)
    np.testing.assert_allclose(ours.upper[:, 0].numpy(), expected[:, 1], rtol=1e-9)


def test_classes_are_those_of_crepes() -> None:
    """Label-conditional sets from 1 - p, without smoothing."""
    crepes = pytest.importorskip("crepes")
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(3), size=150)
    labels = np.array([rng.choice(3, p=p) for p in probs])
    peer = crepes.ConformalClassifier()
    peer.fit(1 - probs[np.arange(150), labels], bins=labels)
    new = rng.dirichlet(np.ones(3), size=40)
    columns = [
        peer.predict_set(1 - new, bins=np.full(40, c), confidence=0.9, smoothing=False)[:, c]
        for c in range(3)
    ]
    prediction = CategoricalPrediction.from_probs(torch.as_tensor(probs))
    rule = by_class(prediction, torch.as_tensor(labels), 0.9)
    ours = rule(CategoricalPrediction.from_probs(torch.as_tensor(new))).members.numpy()
    np.testing.assert_array_equal(ours, np.stack(columns, 1).astype(bool))


def test_folds_and_split_are_those_of_mapie() -> None:
    """CV+ of linear regression with the folds of MAPIE; split with absolute residuals."""
    mapie = pytest.importorskip("mapie.regression")
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import KFold

    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 3))
    y = x.sum(1) + rng.normal(size=60)
    new = rng.normal(size=(20, 3))
    splits = KFold(5)
    peer = mapie.CrossConformalRegressor(
        LinearRegression(), confidence_level=0.9, method="plus", cv=splits
    )
    expected = peer.fit_conformalize(x, y).predict_interval(new)[1][:, :, 0]
    folds, models = torch.empty(60, dtype=torch.long), []
    for k, (train, held_out) in enumerate(splits.split(x)):
        folds[held_out] = k
        models.append(LinearRegression().fit(x[train], y[train]))

    def predict(at: np.ndarray) -> list[MixturePrediction]:
        means = [torch.as_tensor(model.predict(at)).view(1, -1, 1) for model in models]
        return [MixturePrediction(mean, 1.0) for mean in means]

    ours = cross_conformal(predict(x), torch.as_tensor(y), folds, 0.9, "split")(predict(new))
    np.testing.assert_allclose(ours.lower[:, 0].numpy(), expected[:, 0], rtol=1e-9)
    np.testing.assert_allclose(ours.upper[:, 0].numpy(), expected[:, 1], rtol=1e-9)

    whole = LinearRegression().fit(x[:30], y[:30])
    split = mapie.SplitConformalRegressor(whole, confidence_level=0.9, prefit=True)
    split.conformalize(x[30:], y[30:])
    expected = split.predict_interval(new)[1][:, :, 0]

    def one(at: np.ndarray) -> MixturePrediction:
        return MixturePrediction(torch.as_tensor(whole.predict(at)).view(1, -1, 1), 1.0)

    rule = conformal_intervals(one(x[30:]), torch.as_tensor(y[30:]), 0.9, "split")
    np.testing.assert_allclose(rule(one(new)).lower[:, 0].numpy(), expected[:, 0], rtol=1e-9)
