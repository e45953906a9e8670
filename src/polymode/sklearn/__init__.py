"""Posteriors as scikit-learn estimators: `PolymodeClassifier` and `PolymodeRegressor`.

They take arrays, and tables with columns of any kind, and work in pipelines, searches and
cross-validation. `estimators` has them; nothing is computed here that `pm.fit` does not do.
"""

from __future__ import annotations

from polymode.sklearn.estimators import PolymodeClassifier, PolymodeRegressor

__all__ = ["PolymodeClassifier", "PolymodeRegressor"]
