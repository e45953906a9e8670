"""Who takes part: methods of polymode with the defaults of its estimators, and scikit-learn's.

Each is a function from a division to predictions of any part. scikit-learn's regressions give no
density, so each is given one, the same kind of mixture as ours:

- gradient boosting: a model for each of 19 quantiles at (k - 1/2)/19, sorted; at each a Student
  component (5 degrees of freedom, for the tails) as wide as half the gap between quantiles there,
  and at least a tenth of the standard deviation of the row's quantiles;
- random forest: its mean plus its own out-of-bag residuals, 199 quantiles of them, with the kernel
  of Silverman's rule. This is the predictive distribution of conformal regression;
- Gaussian process: squared exponential, a lengthscale per input of at most 12 and otherwise one for
  all; noise; on at most 500 rows.

All have scikit-learn's defaults otherwise. Probabilities of the forest are those of its trees with
one tree more for each class, since 0 has no logarithm.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction
from polymode.studies.tables.data import Division, Frame
from polymode.tasks.frames.columns import read_columns
from polymode.tasks.frames.encoder import Encoding, TableEncoder

OURS = {
    "deep ensemble": "deep_ensemble",
    "MultiSWAG": "swag",
    "Laplace": "laplace",
    "TabM": "tabm",
    "SGHMC": "sghmc",
    "MILE": "mile",
}
NUM_QUANTILES = 19
NUM_RESIDUALS = 199
GP_ROWS, GP_LENGTHSCALES = 500, 12
NARROWEST = 1e-3  # width of a component, in standard deviations of the targets

Predict = Callable[[Frame], Prediction]


def fit_contender(name: str, data: Division, seed: int) -> Predict:
    """Return what predicts parts of the table after a fit to `data.fit`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _fit_ours(OURS[name], data, seed) if name in OURS else FITS[name](data, seed)


def _fit_ours(method: str, data: Division, seed: int) -> Predict:
    from polymode.sklearn import PolymodeClassifier, PolymodeRegressor

    kind = PolymodeClassifier if data.classes else PolymodeRegressor
    modes: dict[str, Any] = (
        {"num_modes": None} if method == "tabm" else {}
    )  # 32 is what makes it TabM
    estimator = kind(method, random_state=seed, **modes).fit(data.fit.x, data.fit.y)
    return lambda x: estimator.predict_distribution(x)


def _fit_boosting(data: Division, seed: int) -> Predict:
    from sklearn.ensemble import HistGradientBoostingClassifier as Classifier
    from sklearn.ensemble import HistGradientBoostingRegressor as Regressor

    columns = _native_columns(data)
    categorical = [place for place, levels in enumerate(columns.values()) if levels is not None]
    options: dict[str, Any] = {"categorical_features": categorical, "random_state": seed}
    x, y = _native(data.fit.x, columns), data.fit.y
    if data.classes:
        model = Classifier(**options).fit(x, y)
        return lambda frame: _classes(model.predict_proba(_native(frame, columns)))
    levels = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    models = [Regressor(loss="quantile", quantile=q, **options).fit(x, y) for q in levels]

    def predict(frame: Frame) -> Prediction:
        at = _native(frame, columns)
        ends = np.sort(np.stack([model.predict(at) for model in models]), 0)
        gaps = np.diff(ends, axis=0)
        widths = 0.5 * np.concatenate([gaps[:1], 0.5 * (gaps[1:] + gaps[:-1]), gaps[-1:]])
        narrowest = 0.1 * ends.std(0) + NARROWEST * y.std()
        return _mixture(ends, np.maximum(widths, narrowest), df=5.0)

    return predict


def _fit_forest(data: Division, seed: int) -> Predict:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    encode = _encoder(data)
    x, y = encode(data.fit.x), data.fit.y
    if data.classes:
        model = RandomForestClassifier(random_state=seed).fit(x, y)
        trees, num = len(model.estimators_), len(data.classes)
        return lambda frame: _classes(
            (trees * model.predict_proba(encode(frame)) + 1) / (trees + num)
        )
    forest = RandomForestRegressor(oob_score=True, random_state=seed).fit(x, y)
    residuals = y - forest.oob_prediction_
    levels = (np.arange(NUM_RESIDUALS) + 0.5) / NUM_RESIDUALS
    shifts = np.quantile(residuals, levels)
    quartiles = np.quantile(residuals, [0.25, 0.75])
    spread = min(residuals.std(), float(np.diff(quartiles)[0]) / 1.34)
    width = max(0.9 * spread * len(y) ** -0.2, NARROWEST * y.std())
    return lambda frame: _mixture(
        forest.predict(encode(frame))[None] + shifts[:, None], np.full((1, 1), width)
    )


def _fit_process(data: Division, seed: int) -> Predict:
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    encode = _encoder(data)
    x, y = encode(data.fit.x)[:GP_ROWS], data.fit.y[:GP_ROWS]
    if data.classes:
        kernel = ConstantKernel() * RBF(np.sqrt(x.shape[1]))
        model = GaussianProcessClassifier(kernel, random_state=seed).fit(x, y)
        places = np.searchsorted(np.arange(len(data.classes)), model.classes_)

        def probabilities(frame: Frame) -> Prediction:
            probs = np.full((len(frame), len(data.classes)), 1e-6)
            probs[:, places] += model.predict_proba(encode(frame))
            return _classes(probs / probs.sum(1, keepdims=True))

        return probabilities
    few = x.shape[1] <= GP_LENGTHSCALES
    scales = np.full(x.shape[1] if few else 1, np.sqrt(x.shape[1]))
    kernel = ConstantKernel() * RBF(scales) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(x, y)

    def predict(frame: Frame) -> Prediction:
        mean, std = process.predict(encode(frame), return_std=True)
        return _mixture(mean[None], std[None])

    return predict


FITS: dict[str, Callable[[Division, int], Predict]] = {
    "gradient boosting": _fit_boosting,
    "random forest": _fit_forest,
    "Gaussian process": _fit_process,
}


def _encoder(data: Division) -> Callable[[Frame], np.ndarray]:
    """Return what makes numbers of a table: standard scores, a column for each category."""
    encoder = TableEncoder.fit(read_columns(data.fit.x), Encoding(numeric="standard"))
    return lambda frame: encoder.encode(read_columns(frame)).double().numpy()


def _native_columns(data: Division) -> dict[str, list[str] | None]:
    """Return the categories of each column of the fit, None for numbers."""
    return {
        name: sorted({*map(str, column.values)} - {"None"}) if column.kind == "category" else None
        for name, column in read_columns(data.fit.x).items()
    }


def _native(frame: Frame, columns: dict[str, list[str] | None]) -> np.ndarray:
    """Return numbers as they are and codes of categories; NaN where missing or new."""
    read = read_columns(frame)
    arrays = []
    for name, levels in columns.items():
        if levels is None:
            arrays.append(read[name].values.astype(float))
            continue
        codes = {level: code for code, level in enumerate(levels)}
        arrays.append(np.array([codes.get(str(v), np.nan) for v in read[name].values], float))
    return np.column_stack(arrays)


def _mixture(loc: np.ndarray, scale: np.ndarray, df: float | None = None) -> Prediction:
    """Return the regression with components (S, n)."""
    places = torch.as_tensor(loc)[..., None]
    return MixturePrediction(places, torch.as_tensor(scale)[..., None].expand_as(places), df)


def _classes(probs: np.ndarray) -> Prediction:
    return CategoricalPrediction.from_probs(torch.as_tensor(probs))
