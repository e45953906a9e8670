"""Equivariance: groups, orbits, how far predictions are from symmetric, kernels of wide networks.

Read `groups` first (`planar` and `vectors` define the families), then `orbits`, the metrics. The
`examination` and its `plots` apply them to a posterior; `broken_layers` looks at its architecture.
`average`, `canonical` and `steerable` make predictors symmetric. `infinite_ensemble` has the mean
and covariance of infinitely many wide networks, from `kernels`.
"""

from __future__ import annotations

from polymode.equivariance.groups import Group, group

__all__ = ["Group", "group"]
