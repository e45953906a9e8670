"""The study of tables: its divisions, its contenders, and what is made of results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import beta

from polymode.metrics.results import Results
from polymode.prediction import MixturePrediction
from polymode.studies import STUDIES, Runs
from polymode.studies.tables import tables
from polymode.studies.tables.claims import claims
from polymode.studies.tables.contenders import FITS, OURS, fit_contender
from polymode.studies.tables.data import REGRESSIONS, Division, divide
from polymode.studies.tables.experiments import contest, score

STUDY = STUDIES.get("tables").value


@pytest.mark.parametrize("name", ["diabetes", "breast_cancer"])
def test_divisions_share_no_row_and_differ(name) -> None:
    first, second = divide(name, 0, 10**6), divide(name, 1, 10**6)
    parts = (first.fit, first.calibration, first.test)
    rows = [
        tuple(row) for part in parts for row in np.column_stack([*part.x.data.values()]).tolist()
    ]
    total = {"diabetes": 442, "breast_cancer": 569}[name]
    assert len(rows) == len({*rows}) == total
    assert len(first.test.y) == pytest.approx(0.1 * total, abs=1)
    assert len(first.calibration.y) == pytest.approx(0.18 * total, abs=1)
    column = first.test.x.columns[0]
    assert not np.array_equal(first.test.x[column], second.test.x[column])
    few = divide(name, 0, 60)
    assert len(few.fit.y) == 60 and {*few.fit.groups} == {*first.fit.groups}
    if name in REGRESSIONS:  # thirds of the fit
        counts = np.bincount(first.fit.groups)
        assert len(counts) == 3 and counts.min() >= len(first.fit.y) // 3 - 1
    else:
        assert np.array_equal(first.test.groups, first.test.y)


def test_presets_name_what_is_there() -> None:
    for preset in ("smoke", "cpu", "paper"):
        for name, part in STUDY.parts(preset).items():  # type: ignore[attr-defined]
            assert {arm["data"] for arm in part.arms.values()} == {name}
            assert {arm["contender"] for arm in part.arms.values()} <= {*OURS, *FITS}
    cpu = STUDY.parts("cpu")
    assert len(cpu) == 13 and {"deep ensemble", *FITS} <= {*cpu["diamonds"].arms}


def small(name: str) -> Division:
    return divide(name, 0, 120)


def test_regressions_of_scikit_learn_become_the_densities_that_are_stated() -> None:
    data = small("diabetes")
    at = data.test.x
    boosting = fit_contender("gradient boosting", data, 0)(at)
    assert isinstance(boosting, MixturePrediction) and boosting.loc.shape[0] == 19
    assert (boosting.loc.diff(dim=0) >= 0).all()
    forest = fit_contender("random forest", data, 0)(at)
    from sklearn.ensemble import RandomForestRegressor

    from polymode.tasks.frames.columns import read_columns
    from polymode.tasks.frames.encoder import Encoding, TableEncoder

    encoder = TableEncoder.fit(read_columns(data.fit.x), Encoding(numeric="standard"))
    x, new = (
        encoder.encode(read_columns(part.x)).double().numpy() for part in (data.fit, data.test)
    )
    model = RandomForestRegressor(oob_score=True, random_state=0).fit(x, data.fit.y)
    shift = np.mean(data.fit.y - model.oob_prediction_)
    expected = model.predict(new) + shift  # the mean of its own residuals' quantiles, nearly
    np.testing.assert_allclose(forest.mean[:, 0].numpy(), expected, atol=0.02 * data.fit.y.std())


@pytest.mark.parametrize("name", ["diabetes", "breast_cancer"])
def test_scores_are_those_of_the_predictions(name) -> None:
    """NLL and coverage by a loop over the test rows, and groups that add up."""
    data = small(name)
    predict = fit_contender("Gaussian process", data, 0)
    calibration, test = predict(data.calibration.x), predict(data.test.x)
    findings = score(data, calibration, test)
    rows = {row.metric: row.value for row in findings.rows}
    nll = -np.mean(
        [float(test[k].log_prob(data.test.targets[k : k + 1])) for k in range(len(test))]
    )
    assert rows["nll"] == pytest.approx(nll)
    for rule in ("plain", "mondrian"):
        inside, count = findings.arrays[f"{rule}_inside"], findings.arrays[f"{rule}_count"]
        assert count.sum() == len(data.test.y) and (inside <= count).all()
        assert rows[f"{rule}_coverage"] == pytest.approx(inside.sum() / count.sum())
    if name == "diabetes":
        low, high = test.double().interval(0.9)
        y = data.test.targets
        assert rows["plain_coverage"] == pytest.approx(
            ((low <= y) & (y <= high)).double().mean().item()
        )


@pytest.mark.cpu_seconds(6)
def test_the_default_is_run_as_its_estimator_runs_it() -> None:
    torch.manual_seed(0)
    findings = contest(0, data="breast_cancer", contender="deep ensemble", most_rows=60)
    again = contest(0, data="breast_cancer", contender="deep ensemble", most_rows=60)
    first, second = ({r.metric: r.value for r in f.rows} for f in (findings, again))
    assert first["nll"] == second["nll"] and 0.0 < first["nll"] < 1.0
    assert first["accuracy"] > 0.85 and first["fit_seconds"] > 0


def made_up(make, part: str, numbers: dict[str, list[float]]) -> Runs:
    """Return runs of a table with NLL and second score by contender, one for each division."""
    second = tables.metrics_of(part)[1]
    results: list[Results] = []
    for arm, values in numbers.items():
        for seed, value in enumerate(values):
            scores = {(f"examined:{part}", m): value for m in ("nll", second)}
            results.append(make(arm, seed, scores))
    return Runs({part: results})


@pytest.mark.parametrize(
    ("default", "verdict", "text"),
    [
        ([1.0, 1.1, 1.2], "holds", "best on diabetes"),
        ([2.05, 2.3, 2.0], "holds", "tied on diabetes"),
        ([3.0, 3.1, 3.2], "does not hold", "worse on diabetes"),
    ],
)
def test_claims_follow_the_numbers(make, default, verdict, text) -> None:
    """Against 2.0, 2.1, 2.2: clearly lower; +.02 ± .2; clearly higher. A third is far behind."""
    numbers = {"deep ensemble": default, "random forest": [2.0, 2.1, 2.2], "far": [9.0, 9.0, 9.0]}
    judged = claims(made_up(make, "diabetes", numbers))
    assert [claim.verdict for claim in judged[:2]] == [verdict, verdict]
    assert text in judged[0].ours and judged[2].verdict == "not run"


def test_the_worst_group_joins_divisions(make, monkeypatch) -> None:
    """5 + 8 of 20 in one group, 9 + 9 of 20 in the other; its exact interval."""
    runs = made_up(make, "diabetes", {"deep ensemble": [1.0, 1.0]})
    arrays = {"mondrian_inside": [[5, 9], [8, 9]], "mondrian_count": [[10, 10], [10, 10]]}

    def peer_arrays(part: str, contender: str, name: str) -> list[np.ndarray]:
        return [np.array(row, float) for row in arrays[name]]

    monkeypatch.setattr(tables, "peer_arrays", peer_arrays)
    group = tables.worst_group(runs, "diabetes", "deep ensemble", "mondrian")
    assert group is not None and group.share == 13 / 20 and group.size == 20
    assert group.low == pytest.approx(beta.ppf(0.025, 13, 8))
    assert group.high == pytest.approx(beta.ppf(0.975, 14, 7))
    assert claims(runs)[2].verdict == "does not hold"  # 13 of 20 is clearly below 0.85
