"""The study of tomography: its presets, every part at smoke size, and what it makes of scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polymode.core.rng import generator
from polymode.examinations import Findings, measure
from polymode.metrics.results import Cost, Results
from polymode.studies import STUDIES, Runs
from polymode.studies.tomography import images, setup, tables
from polymode.studies.tomography.claims import claims, values
from polymode.studies.tomography.scored import METHODS, METRICS
from polymode.tasks.files import MissingData

STUDY = STUDIES.get("tomography").value
# networks of smoke size are hardly trained, as the warning rightly says
pytestmark = pytest.mark.filterwarnings("ignore:the evidence chose noise:UserWarning")


def kept(part: str, arm: str, found: Findings) -> Results:
    """Results of a cell, as a run keeps them."""
    none = Results(part, part, "", 0, {}, (), Cost(0, 0, 0, 0.0, 0, 1.0), label=arm)
    return found.signed(part).beside(none)


@pytest.fixture(scope="module")
def smoke() -> Runs:
    parts = STUDY.parts("smoke")
    return Runs(
        {
            name: [kept(name, arm, part.function(0, **o)) for arm, o in part.arms.items()]
            for name, part in parts.items()
        }
    )


@pytest.mark.cpu_seconds(10)
def test_every_part_runs_at_smoke_size(smoke) -> None:
    assert smoke.parts == ["small", "large", "priors"]
    found = smoke.findings("small", setup.MAIN)[0]
    assert set(METHODS) <= set(found.arrays)
    assert all(np.isfinite(found.arrays[method]).all() for method in METHODS)
    assert found["coverage_90_dropout"].n == 2
    assert found.arrays["pictures"].shape == (5, 10, 10)


@pytest.mark.cpu_seconds(5)
def test_tables_figures_and_claims_of_the_smoke_run(smoke) -> None:
    tables, figures = STUDY.tables(smoke), STUDY.figures(smoke)
    assert len(tables["small_20_angles__5___noise"].lines) == len(METHODS)
    assert set(tables) >= {"settings_log_density", "tuned", "priors", "large_shepp_logan"}
    assert set(figures) == {
        "calibration_small_20_angles__5___noise", "pictures_small_20_angles__5___noise",
        "calibration_large_shepp_logan", "pictures_large_shepp_logan", "priors",
        "pictures_small_5_angles__5___noise",
    }  # fmt: skip
    assert all(display.to_svg() for display in figures.values())
    assert len(STUDY.claims(smoke)) == 10
    assert STUDY.comparisons("paper", smoke) == []


def runs_with(columns: dict[str, float], spread: float = 0.001) -> Runs:
    """Ten images; each method's log-density is the given one, calibration error its negative."""
    arrays = {}
    for number, (method, level) in enumerate(columns.items()):
        noise = torch.randn(10, generator=generator(number), dtype=torch.float64).numpy()
        table = np.zeros((10, len(METRICS)))
        for metric in ("log_density", "log_density_noise"):
            table[:, list(METRICS).index(metric)] = level + spread * noise
        table[:, list(METRICS).index("calibration_error")] = -level + spread * noise
        arrays[method] = table
    rows = (measure("weights", 1.0, n=1),)
    return Runs({"small": [kept("small", setup.MAIN, Findings(rows, arrays))]})


def test_claims_are_judged_by_paired_intervals() -> None:
    levels = {"linear_matern_predcp": 3.0, "linear_matern": 3.0, "linear_isotropic": 2.5,
              "trained_matern": 3.5, "trained_matern_predcp": 1.0, "dropout": 2.0,
              "constant": 4.0}  # fmt: skip
    found = {claim.text.partition(": ")[2]: claim.verdict for claim in claims(runs_with(levels))}
    assert list(found.values()) == [
        *["holds"] * 3, *["does not hold"] * 3,
        "holds", "does not hold", "holds", "does not hold",
    ]  # fmt: skip
    wide = claims(runs_with(levels, spread=30.0))
    assert {claim.verdict for claim in wide} == {"undecided"}
    assert claims(Runs({})) == []


def test_values_of_what_was_not_run_are_none() -> None:
    runs = runs_with({"dropout": 1.0})
    assert values(runs, "small", setup.MAIN, "ensemble", "psnr") == []
    assert len(values(runs, "small", setup.MAIN, "dropout", "psnr")) == 10


def test_preset_cpu_has_ten_images_where_claims_rest_and_all_settings() -> None:
    parts = STUDY.parts("cpu")
    small = parts["small"]
    assert small.arms[setup.MAIN]["images"] >= 10 and small.data == ("kmnist",)
    assert {(arm["angles"], arm["noise"]) for arm in small.arms.values()} == set(setup.KMNIST)
    assert not parts["large"].arms["CT slice"]["show"]  # no pictures of these go anywhere


def test_preset_paper_is_the_reference_s() -> None:
    """Iterations, γ, U-Net and samples as the reference sheet has them."""
    parts = STUDY.parts("paper")
    arm = parts["small"].arms["20 angles, 5 % noise"]
    assert (arm["steps"], arm["tv_weights"], arm["lr"]) == (41_000, [1e-4], 1e-4)
    assert arm["images"] == 50 and "channels" not in arm  # those of the default are the reference's
    assert (arm["dropouts"], arm["num_samples"]) == ([0.05], 16_384)
    assert setup.KMNIST[5, 0.1] == (7_400, 3e-5) and len(setup.KMNIST) == 8
    assert parts["walnut"].arms["120 angles"] == {"tv_weight": 4e-6, "steps": 2500}


def test_tuning_images_are_others_than_those_scored() -> None:
    scored, others = images.images_of("ellipses:12", 2, 3)
    assert scored.shape == (2, 1, 12, 12) and len(others) == 3
    assert all(not torch.equal(a, b) for a in scored for b in others)


def test_missing_files_are_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("POLYMODE_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=r"ct_slices_128.npz is not there; put a file with"):
        images.images_of("ct", 1, 1)
    with pytest.raises(MissingData, match=r"walnut.npz is not there.*observations, truth"):
        images.walnut()
    with pytest.raises(ValueError, match="must be kmnist, ellipses, shepp_logan or ct, got"):
        images.images_of("lena", 1, 1)


def test_a_walnut_file_is_read(tmp_path, monkeypatch) -> None:
    from scipy.sparse import random as sparse_random

    matrix = sparse_random(12, 16, 0.5, format="csr", random_state=0)
    np.savez(
        tmp_path / "walnut.npz", observations=np.ones(12), truth=np.ones((4, 4)), noise_sd=0.1,
        data=matrix.data, indices=matrix.indices, indptr=matrix.indptr, shape=[12, 16],
    )  # fmt: skip
    monkeypatch.setenv("POLYMODE_DATA", str(tmp_path))
    scan = images.walnut()
    np.testing.assert_allclose(scan.operator.matrix().numpy(), matrix.toarray())
    assert scan.truth.shape == (1, 1, 4, 4) and float(scan.noise_sd) == pytest.approx(0.1)


def test_titles_of_parts_and_methods_are_there() -> None:
    assert set(tables.DRAWN) <= set(METHODS) and set(tables.SCORED) == set(tables.TITLES)
