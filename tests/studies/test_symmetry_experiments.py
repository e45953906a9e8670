"""The experiments of the study of symmetries, small."""

from __future__ import annotations

import numpy as np
import pytest

from polymode.studies.symmetry.experiments import mass, toy, zoo
from polymode.studies.symmetry.tables import mass_profile, plane_steps


def test_the_toy_is_a_ring_then_half_of_it():
    """Radii are alike as trained; sorted, nothing is left above the diagonal."""
    found = toy(0, number=60)
    points = found.arrays["as trained"]
    radius = np.linalg.norm(points, axis=1)
    assert found["kept"].value > 0.9 and len(points) == round(60 * found["kept"].value)
    assert radius.min() > 0.6 * radius.max()
    assert (found.arrays["scaled"][:, 1] > found.arrays["scaled"][:, 0]).any()
    assert (found.arrays["sorted"][:, 1] <= found.arrays["sorted"][:, 0]).all()
    assert found["above_diagonal"].value == 0
    assert "0 % after" in plane_steps(found.arrays).alt


def test_mass_is_above_the_least_mass_at_every_moment():
    found = mass(0, name="two_moons-mlp", number=4, moments=[0, 1, 3])
    assert found.arrays["mass"].shape == (3, 4)
    assert (found.arrays["mass"] > found.arrays["least mass"]).all()
    last = found.arrays["mass"][-1] / found.arrays["least mass"][-1] - 1
    assert found["excess"].value == pytest.approx(last.mean())
    assert found["least_excess"].value == pytest.approx(last.min())
    assert "4 networks" in mass_profile(found.arrays, label="moons").alt
    with pytest.raises(ValueError, match=r"must be \(T, N\) with T epochs"):
        mass_profile({**found.arrays, "epochs": [0, 1]})


def test_the_zoo_is_trained_once(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    first = zoo(0, name="two_moons-mlp", number=30)
    (index,) = tmp_path.glob("zoo/*/index.jsonl")
    before = index.stat().st_mtime_ns
    again = zoo(0, name="two_moons-mlp", number=30)
    assert index.stat().st_mtime_ns == before
    assert [row.value for row in first.rows] == [row.value for row in again.rows]
    assert 0 < first["corollary_p"].value <= 1 and first["correlation"].n == 30
    assert first["id_pair_mi"].n == 30 * 29 // 2
    assert first.arrays["counts 0.weight"].sum() == 30
