"""Equivariance: groups, orbits and how far predictions are from symmetric; kernels of wide nets."""

from __future__ import annotations

from polymode.equivariance.groups import Group, group

__all__ = ["Group", "group"]
