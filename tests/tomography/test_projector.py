"""Projectors: closed forms, rays worked out by hand, the dot test, and the ASTRA toolbox."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from polymode.tomography import fan_beam, parallel_beam
from polymode.tomography.projector import Projector, chord_matrix, projector_of

ASK_ASTRA = """
import json, sys
import astra, numpy as np
spec = json.loads(sys.argv[1])
volume = astra.create_vol_geom(spec["side"], spec["side"])
distances = [spec["source"], spec["detector"]] if spec["kind"] == "fan" else []
kind, kernel = ("fanflat", "line_fanflat") if distances else ("parallel", "line")
angles = np.array(spec["angles"])
scan = astra.create_proj_geom(kind, spec["spacing"], spec["cells"], angles, *distances)
matrix = astra.matrix.get(astra.projector.matrix(astra.create_projector(kernel, scan, volume)))
np.save(sys.argv[2], matrix.toarray())
"""


def small_fan(side: int = 16, angles: int = 9) -> Projector:
    return fan_beam(side, angles, source_distance=1.9 * side, detector_distance=0.7 * side)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_rays_worked_out_by_hand() -> None:
    """A diagonal, a ray inside a row, one along an edge, one with slope 1/2, one that misses."""
    points = np.array([[0, 0], [5, 0.5], [0, 9], [-1, 0.25], [0, 8]], dtype=float)
    directions = np.array([[1, 1], [-3, 0], [0, 1], [2, 1], [1, 0]], dtype=float)
    lengths = chord_matrix(points, directions, (2, 2)).toarray()
    root, slope = math.sqrt(2), math.sqrt(5) / 2
    expected = np.array(
        [
            [0, root, root, 0],  # row 0 is at the top
            [1, 1, 0, 0],
            [0.5, 0.5, 0.5, 0.5],
            [slope, slope / 2, 0, 0],
            [0, 0, 0, 0],
        ]
    )
    np.testing.assert_allclose(lengths, expected, atol=1e-9)


@pytest.mark.parametrize("make", [lambda: parallel_beam(16, [0.1, 0.8, 1.4, 2.9]), small_fan])
def test_lengths_add_up_to_the_chord_of_the_square(make) -> None:
    """The sum over the pixels is the length of the ray in the square, clipped half-planes."""
    projector = make()
    points, directions = projector.geometry.rays()
    directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):  # one ray of the fan is upright
        ends = np.sort((np.array([-8.0, 8.0])[:, None, None] - points) / directions, axis=0)
    chords = np.clip(np.nanmin(ends[1], 1) - np.nanmax(ends[0], 1), 0, None)
    found = projector(torch.ones(1, 16, 16, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(found, chords, atol=1e-6)


@pytest.mark.parametrize("kind", ["parallel", "fan"])
def test_disc_has_the_projection_of_a_disc(kind) -> None:
    """2 sqrt(r² - s²) at distance s from the centre; a jagged edge is off by about a pixel."""
    side, radius, (x0, y0) = 96, 30.0, (7.0, -11.0)
    make = {
        "parallel": lambda: parallel_beam(side, 7, rays_per_detector=4),
        "fan": lambda: fan_beam(side, 7, source_distance=200.0, detector_distance=90.0),
    }[kind]
    projector = make()
    axis = torch.arange(side) - (side - 1) / 2
    disc = (axis - x0) ** 2 + (-axis[:, None] - y0) ** 2 < radius**2
    points, directions = projector.geometry.rays()
    offset = np.array([x0, y0]) - points
    distance = np.abs(offset[:, 0] * directions[:, 1] - offset[:, 1] * directions[:, 0])
    distance /= np.linalg.norm(directions, axis=1)
    expected = 2 * np.sqrt(np.clip(radius**2 - distance**2, 0, None))
    found = projector(disc.double()[None]).numpy()
    inside = distance < 0.9 * radius
    assert np.abs(found - expected)[inside].max() < 2.5  # two edges, each jagged
    assert np.abs((found - expected)[inside].mean()) < 0.1
    assert np.all(found[distance > radius + 1.5] == 0)


@pytest.mark.parametrize("make", [lambda: parallel_beam(128, 60), lambda: small_fan(64, 30)])
def test_dot_product_with_white_noise(make) -> None:
    """<A x, u> = <x, A^T u> in float32, the scan of the benchmark among them."""
    A = make()
    x = noise(1, 1, *A.image_shape, dtype=torch.float32)
    u = noise(1, A.shape[0], seed=1, dtype=torch.float32)
    forward, back = (A(x).double() * u).sum(), (x.double() * A.T(u)).sum()
    assert abs(forward - back) < 1e-6 * A(x).norm() * u.norm()


def test_finer_geometry_sees_the_same_object() -> None:
    """Pixels cut into four have the same projections, in units of the small pixels."""
    for coarse in (parallel_beam(12, 5), small_fan(12, 5)):
        image = noise(1, 12, 12)
        fine = image.repeat_interleave(2, -1).repeat_interleave(2, -2)
        found = projector_of(coarse.geometry.finer(2))(fine) / 2
        torch.testing.assert_close(found, coarse(image), atol=1e-6, rtol=0)


def test_several_rays_of_a_cell_are_averaged() -> None:
    projector, wide = parallel_beam(8, 3, spacing=0.25), parallel_beam(8, 3, rays_per_detector=4)
    cells = wide.geometry.num_detectors
    narrow = parallel_beam(8, 3, spacing=0.25, num_detectors=4 * cells)
    image = noise(1, 8, 8)
    means = narrow.sinogram(narrow(image)).unflatten(-1, (cells, 4)).mean(-1)
    torch.testing.assert_close(wide.sinogram(wide(image)), means)
    assert projector.geometry.num_detectors == 47


def test_default_detectors_see_the_whole_image() -> None:
    """Every corner is seen at every angle; 41 and 183 cells are those of published scans."""
    assert parallel_beam(28, 5).geometry.sinogram_shape == (5, 41)
    assert parallel_beam(128, 2).geometry.num_detectors == 183
    for plain in (parallel_beam(16, 9), small_fan()):
        projector = projector_of(plain.geometry, rays_per_detector=16)
        for k in range(projector.geometry.num_angles):
            one = torch.zeros(projector.geometry.sinogram_shape, dtype=torch.float64)
            one[k] = 1
            seen = projector.T(one.flatten())[0]
            assert float(seen[::15, ::15].min()) > 0


@pytest.mark.parametrize("kind", ["parallel", "fan"])
def test_matrix_is_that_of_the_astra_toolbox(kind, tmp_path) -> None:
    """ASTRA works in float32: lengths agree to 2e-3 of a pixel, sums of a ray to 3e-4."""
    python = os.environ.get("POLYMODE_ASTRA_PYTHON", sys.executable)
    probe = subprocess.run([python, "-c", "import astra"], capture_output=True)
    if probe.returncode:
        pytest.skip("no ASTRA toolbox: name an interpreter that has it in POLYMODE_ASTRA_PYTHON")
    angles = (0.1 + np.arange(12) * 2 * math.pi / 12).tolist()
    spec = {"kind": kind, "side": 32, "angles": angles, "cells": 47, "spacing": 1.5,
            "source": 80.0, "detector": 40.0}  # fmt: skip
    file = tmp_path / "matrix.npy"
    subprocess.run([python, "-c", ASK_ASTRA, json.dumps(spec), str(file)], check=True)
    if kind == "parallel":
        mine = parallel_beam(32, angles, num_detectors=47, spacing=1.5)
    else:
        mine = fan_beam(
            32, angles, source_distance=80.0, detector_distance=40.0, num_detectors=47, spacing=1.5
        )
    theirs, matrix = torch.from_numpy(np.load(file)), mine.matrix()
    assert (matrix - theirs).abs().max() < 2e-3
    assert (matrix.sum(1) - theirs.sum(1)).abs().max() < 3e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: parallel_beam(8, 0),
            "`angles` of parallel_beam must be at least 1, got 0: no ray, no data",
        ),
        (lambda: parallel_beam(8, []), "must have at least 1 angle, got 0"),
        (lambda: parallel_beam(8, [0.0, math.nan]), "must be finite, got 1 that are not"),
        (lambda: parallel_beam(8, [0.0, 90.0]), "must be in radians, got 90"),
        (lambda: parallel_beam((8, 9), 3), "`side` of parallel_beam must be an integer"),
        (lambda: parallel_beam(8, 3, num_detectors=0), "at least 1, got 0"),
        (lambda: parallel_beam(8, 3, spacing=0.0), "`spacing` of parallel_beam must be > 0"),
        (lambda: parallel_beam(8, 3, rays_per_detector=0), "must be at least 1, got 0"),
        (lambda: fan_beam(8, 3, source_distance=5.0), "must be > 5.7 pixels"),
        (lambda: fan_beam(8, 3, source_distance=9.0, detector_distance=-1.0), ">= 0 pixels"),
        (lambda: parallel_beam(10**4, 10**4), "of memory"),
    ],
)
def test_wrong_geometries_are_refused(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_sinograms_are_refused() -> None:
    projector = parallel_beam(8, 3)
    with pytest.raises(ValueError, match=r"3 angles, 13 detector cells\), got \(3, 12\)"):
        projector.observations(np.zeros((3, 12)))
    broken = np.zeros((3, 13))
    broken[1, 2] = np.inf
    with pytest.raises(ValueError, match="must be finite, got 1 of 39 values"):
        projector.observations(broken)
    assert projector.observations(np.zeros((2, 3, 13), dtype=int)).shape == (2, 39)
