"""`PolymodeClassifier` and `PolymodeRegressor`: `pm.fit` behind scikit-learn's interface."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from polymode.core.safe_files import FileProblem, read_json, write_json
from polymode.likelihoods.kinds import Gaussian, Likelihood, as_likelihood
from polymode.methods import METHODS, fit
from polymode.nets.tabular import tabular
from polymode.posterior import Posterior, load
from polymode.prediction import CategoricalPrediction, Prediction
from polymode.tasks.frames.columns import is_frame, is_missing, read_columns
from polymode.tasks.frames.encoder import Encoding, TableEncoder
from polymode.tasks.task import Task

_STEPS = 4000  # of training by default, as far as epochs are from 10 to 300
_EPOCHS = (10, 300)
_BATCH = 64
_RATE = 3e-3
_ROWS = 256  # predicted at a time
_DROPOUT = 0.1  # of networks for methods that need noise
_NUMBERS: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
_FILE = "estimator.json"
_POSTERIOR = "posterior"
_SCHEMA = 1


class _Polymode(BaseEstimator):  # type: ignore[misc]
    """What both estimators share; see `PolymodeRegressor` for the parameters."""

    def __init__(
        self,
        method: str = "deep_ensemble",
        *,
        num_modes: int | None = 5,
        epochs: int | None = None,
        lr: float | None = None,
        hidden: Sequence[int] = (64, 64),
        net: Any = None,
        likelihood: str | Likelihood = "auto",
        numeric: str = Encoding.numeric,
        most_categories: int = Encoding.most_categories,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.num_modes = num_modes
        self.epochs = epochs
        self.lr = lr
        self.hidden = hidden
        self.net = net
        self.likelihood = likelihood
        self.numeric = numeric
        self.most_categories = most_categories
        self.options = options
        self.random_state = random_state

    def predict_distribution(self, X: Any) -> Prediction:
        """Return the predictive distribution, with everything that a `Prediction` has."""
        check_is_fitted(self)
        x = self._encoded(X)
        # batches of one size: a row's prediction does not depend on how many others there are
        padding = x.new_zeros(-len(x) % _ROWS, x.shape[1])
        return self.posterior_.predict(torch.cat([x, padding]), batch_size=_ROWS)[: len(x)]

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder: safetensors and JSON, no pickles."""
        check_is_fitted(self)
        if self.net is not None:
            raise ValueError("an estimator with a `net` of its own is saved by est.posterior_.save")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.posterior_.save(folder / _POSTERIOR)
        names = getattr(self, "feature_names_in_", None)
        write_json(
            folder / _FILE,
            {
                "schema": _SCHEMA,
                "kind": type(self).__name__,
                "params": _storable(self.get_params()),
                "n_features": self.n_features_in_,
                "names": None if names is None else [str(name) for name in names],
                "single": self.single_,
                "codes": cast(TableEncoder, self.posterior_.encoder).codes,
                "classes": _stored_classes(getattr(self, "classes_", None)),
            },
        )

    @classmethod
    def load(cls, folder: str | Path) -> Any:
        """Return the estimator that `save` wrote."""
        folder = Path(folder)
        stored = read_json(folder / _FILE, _SCHEMA)
        if stored.get("kind") != cls.__name__:
            raise FileProblem(f"{folder} holds a {stored.get('kind')!r:.40}, not a {cls.__name__}")
        try:
            estimator = cls(**stored["params"])
            estimator.n_features_in_ = int(stored["n_features"])
            estimator.single_ = bool(stored["single"])
            if stored["names"] is not None:
                estimator.feature_names_in_ = np.array(stored["names"], dtype=object)
            if stored["classes"] is not None:
                estimator.classes_ = np.array(
                    stored["classes"]["values"], dtype=np.dtype(stored["classes"]["dtype"])
                )
            params = stored["params"]
            network = _network(params["hidden"], stored["codes"], params["method"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileProblem(f"{folder / _FILE} is not an estimator's: {error!r:.80}") from None
        estimator.posterior_ = load(folder / _POSTERIOR, net=network)
        return estimator

    def __getstate__(self) -> dict[str, Any]:
        """Return a state in which the posterior is the bytes of its files."""
        state = dict(super().__getstate__())
        if "posterior_" in state:
            with tempfile.TemporaryDirectory() as folder:
                posterior = cast(Posterior, state.pop("posterior_"))
                posterior.save(folder)
                state["_codes"] = cast(TableEncoder, posterior.encoder).codes
                files = (path for path in Path(folder).iterdir() if path.is_file())
                state["_files"] = {path.name: path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files, codes = state.pop("_files", None), state.pop("_codes", [])
        super().__setstate__(state)
        if files is not None:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in files.items():
                    (Path(folder) / name).write_bytes(content)
                network = self.net
                if network is None:
                    network = _network(self.hidden, codes, self.method)
                self.posterior_ = load(folder, net=network)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def _inputs(self, X: Any, y: Any, *, targets: Mapping[str, Any]) -> tuple[Tensor, Any]:
        """Return the encoded training inputs and y, checked; sets what scikit-learn expects."""
        if is_frame(X):
            if y is None:
                raise ValueError(
                    f"This {type(self).__name__} estimator requires y to be passed, but the target"
                    " y is None."
                )
            columns = read_columns(X, "X")
            _refuse_target_among(columns, y)
            validate_data(self, X, skip_check_array=True)
            check_consistent_length(X, y)
            if len(X) < 2:
                raise ValueError(f"a fit needs at least 2 rows, got {len(X)} sample")
        else:
            X, y = validate_data(self, X, y, **_NUMBERS, ensure_min_samples=2, **targets)
            columns = read_columns(_by_number(X), "X")
        encoding = Encoding(
            numeric=self.numeric,
            most_categories=self.most_categories,
            large_categories="codes" if self.net is None else "frequent",
        )
        self._encoder = TableEncoder.fit(columns, encoding)
        return self._encoder.encode(columns, "X"), y

    def _encoded(self, X: Any) -> Tensor:
        """Return the encoded inputs of a prediction."""
        encoder = self.posterior_.encoder
        assert encoder is not None
        if is_frame(X):
            validate_data(self, X, reset=False, skip_check_array=True)
            named = any(name in encoder.columns for name in map(str, X.columns))
            if named:
                return encoder(X, "X")
            X = np.asarray(X, dtype=np.float64)
        X = validate_data(self, X, reset=False, **_NUMBERS)
        return encoder(dict(zip(encoder.columns, X.T, strict=True)), "X")

    def _fit(self, x: Tensor, y: Tensor, law: Likelihood, weights: Any, size: int) -> Any:
        if weights is not None:
            counted = torch.as_tensor(weights, dtype=torch.get_default_dtype())
            x, y, weights = (rows[counted > 0] for rows in (x, y, counted))
        task = Task(
            train=(x, y), likelihood=law, target_size=size, weights=weights, input_scaling=None
        )
        task.encoder = self._encoder
        network = self.net
        if network is None:
            network = _network(self.hidden, self._encoder.codes, self.method)
        del self._encoder
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        options = self._options(len(x))
        self.posterior_ = fit(
            self.method, net=network, task=task, seed=seed, progress="silent", **options
        )
        return self

    def _options(self, num_examples: int) -> dict[str, Any]:
        """Return options of the method: those given, and defaults for those that it has."""
        accepted = {f.name for f in dataclasses.fields(METHODS.get(self.method).value.config)}
        steps = -(-num_examples // _BATCH)
        epochs = min(max(-(-_STEPS // steps), _EPOCHS[0]), _EPOCHS[1])
        usual = {"epochs": epochs, "lr": _RATE, "batch_size": _BATCH, "schedule": "cosine"}
        chosen = {name: value for name, value in usual.items() if name in accepted}
        given = {"num_modes": self.num_modes, "epochs": self.epochs, "lr": self.lr}
        chosen |= {name: value for name, value in given.items() if value is not None}
        return chosen | dict(self.options or {})


class PolymodeRegressor(RegressorMixin, _Polymode):  # type: ignore[misc]
    """A regression with a predictive distribution, as a scikit-learn estimator.

    X is an array, or a DataFrame with numbers, categories, truth values, dates and missing values,
    which are encoded from the training rows (`tasks/frames/encoder.py`). y has one column or
    several.

    Args:
        method: of `pm.list_methods()`.
        num_modes: networks; None for the method's own number.
        epochs: passes over the data; by default about 4,000 steps in all, from 10 to 300 passes.
        lr: learning rate, 0.003 if None.
        hidden: units of each hidden layer of the network.
        net: another network, as `pm.fit` takes it; None is an MLP with `hidden`.
        likelihood: "auto" is "heteroscedastic_gaussian"; "gaussian" learns its noise.
        numeric, most_categories: how columns are encoded.
        options: further options of the method.
        random_state: seed of everything random.

    Attributes:
        posterior_: the `Posterior`, with `save`, `predict` and everything else.
        n_features_in_, feature_names_in_: as scikit-learn has them.

    >>> import numpy as np
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> reg = PolymodeRegressor(num_modes=2, epochs=1).fit(x, x[:, 0])
    >>> reg.predict_interval(x[:3], level=0.9).shape
    (3, 2)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the posterior and return the estimator."""
        targets = {"multi_output": True, "y_numeric": True}
        x, values = self._inputs(X, y, targets=targets)
        if hasattr(values, "to_numpy"):
            values = values.to_numpy()
        values = np.asarray(values, dtype=np.float64)
        self.single_ = values.ndim == 1
        if values.ndim == 2 and values.shape[1] == 1:
            values = column_or_1d(values, warn=True)
            self.single_ = True
        weights = _weights(sample_weight, x)
        rows = torch.tensor(values.reshape(len(values), -1), dtype=torch.get_default_dtype())
        if not rows.isfinite().all():
            wrong = int((~rows.isfinite()).any(1).sum())
            raise ValueError(f"y contains NaN or infinity in {wrong} of {len(rows)} rows")
        return self._fit(x, rows, _regression(self.likelihood), weights, rows.shape[1])

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictive mean, (N,) or (N, D)."""
        return self._shaped(self.predict_distribution(X).mean)

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Return the ends of the central interval of probability `level`: (N, 2) or (N, D, 2)."""
        ends = self.predict_distribution(X).interval(level)
        return np.stack([self._shaped(end) for end in ends], -1)

    def predict_quantiles(self, X: Any, q: Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Return the quantiles at levels `q`: (N, Q) or (N, D, Q)."""
        values = self.predict_distribution(X).quantile(torch.as_tensor(q, dtype=torch.float64))
        return np.stack([self._shaped(value) for value in values], -1)

    def _shaped(self, values: Tensor) -> np.ndarray:
        array = values.detach().double().numpy()
        return array[:, 0] if self.single_ else array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class PolymodeClassifier(ClassifierMixin, _Polymode):  # type: ignore[misc]
    """A classifier with a predictive distribution, as a scikit-learn estimator.

    Classes may have names. For X and the parameters see `PolymodeRegressor`; `likelihood="auto"` is
    "categorical".

    Attributes:
        classes_: names of the classes, sorted, in the order of `predict_proba`.
        posterior_: the `Posterior`.

    >>> import numpy as np
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> clf = PolymodeClassifier(num_modes=2, epochs=1).fit(x, np.where(x[:, 0] > 0.5, "a", "b"))
    >>> clf.predict_proba(x[:3]).shape, clf.classes_.tolist()
    ((3, 2), ['a', 'b'])
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the posterior and return the estimator."""
        x, labels = self._inputs(X, y, targets={})
        labels = column_or_1d(labels, warn=True)
        _refuse_missing_labels(labels)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        self.single_ = True
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}; a classifier needs two")
        weights = _weights(sample_weight, x)
        law = as_likelihood("categorical" if self.likelihood == "auto" else self.likelihood)
        rows = torch.as_tensor(numbers, dtype=torch.long)
        return self._fit(x, rows, law, weights, len(self.classes_))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each input, (N,)."""
        places = self.predict_proba(X).argmax(1)
        return self.classes_[places]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the mean probabilities of the classes, (N, C)."""
        prediction = self.predict_distribution(X)
        assert isinstance(prediction, CategoricalPrediction)
        probs = prediction.mean.detach().double().numpy()
        return probs / probs.sum(1, keepdims=True)


def _network(hidden: Sequence[int], codes: Sequence[Sequence[int]], method: str) -> Any:
    """Return the builder of the network of a table, with dropout for a method that needs it."""
    noisy = METHODS.get(method).metadata.get("needs") == "noise"
    options: dict[str, Any] = {"dropout": _DROPOUT} if noisy else {}
    return partial(tabular, hidden=tuple(map(int, hidden)), codes=codes, **options)


def _weights(sample_weight: Any, x: Tensor) -> np.ndarray | None:
    """Return weights of rows, or None; scikit-learn has more than one way to say "none below 0"."""
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, x)
    if (weights < 0).any():
        row = int((weights < 0).argmax())
        raise ValueError(f"`sample_weight` must be >= 0, got {weights[row]:g} in row {row}")
    return weights


def _refuse_missing_labels(labels: np.ndarray) -> None:
    missing = np.array([is_missing(label) for label in labels]) if labels.dtype == object else None
    if missing is not None and missing.any():
        raise ValueError(
            f"y is missing (NaN) in {int(missing.sum())} of {len(labels)} rows, the first is row"
            f" {int(missing.argmax())}; drop these rows"
        )


def _refuse_target_among(columns: Any, y: Any) -> None:
    """Refuse a table that still has the column that is the target."""
    names = [getattr(y, "name", None), *getattr(y, "columns", ())]
    for name in names:
        if isinstance(name, str) and name in columns:
            raise ValueError(
                f"the target '{name}' is also a column of X; drop it: X.drop(columns='{name}')"
            )


def _by_number(X: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of an array by the names x0, x1, ..."""
    return {f"x{place}": column for place, column in enumerate(X.T)}


def _regression(likelihood: str | Likelihood) -> Likelihood:
    if isinstance(likelihood, str) and likelihood == "gaussian":
        return Gaussian(noise="learned")
    return as_likelihood("heteroscedastic_gaussian" if likelihood == "auto" else likelihood)


def _storable(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON has them, or say which of them cannot be saved."""
    stored = {}
    for name, value in params.items():
        value = [*value] if isinstance(value, tuple) else value
        value = None if name == "random_state" and not isinstance(value, int) else value
        if not isinstance(value, (str, int, float, bool, list, dict, type(None))):
            raise ValueError(f"`{name}` cannot be saved: {value!r:.60}")
        stored[name] = value
    return stored


def _stored_classes(classes: np.ndarray | None) -> dict[str, Any] | None:
    if classes is None:
        return None
    return {"values": classes.tolist(), "dtype": classes.dtype.str}
