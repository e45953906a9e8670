"""The examination `chains`: numbers of chains that are known, figures, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.chains import ess_bulk, nested_rhat, rhat
from polymode.likelihoods.kinds import Gaussian
from polymode.metrics import evaluate
from polymode.posterior import Samples
from polymode.report.alerts import alerts

X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
DATA = (X, X[:, :1])
TASK = pm.Task(train=DATA, test=DATA, likelihood=Gaussian(noise=0.5), target_scaling=None)


def net() -> nn.Module:
    return nn.Linear(2, 1)


def with_chains(draws: torch.Tensor, **facts: torch.Tensor) -> pm.Posterior:
    """Return a posterior whose chains have these weights (L, M, 1, 2); the bias is 0."""
    length, chains = draws.shape[:2]
    post = pm.fit(
        "sghmc", net=net, task=TASK, num_modes=chains, epochs=4, samples_per_mode=2,
        progress="silent",
    )  # fmt: skip
    kept = {name[5:]: t for name, t in post.weights.tensors().items() if name[:5] == "kept/"}
    kept["network/weight"] = draws
    kept["network/bias"] = torch.zeros(length, chains, 1)
    post.weights = Samples(post.weights.stack, kept, facts)
    return post


def normal(length: int = 200, chains: int = 4) -> torch.Tensor:
    return torch.randn(length, chains, 1, 2, generator=torch.Generator().manual_seed(1))


def test_chains_that_have_mixed_and_chains_that_have_not() -> None:
    """Independent draws have R-hat near 1 and as many effective draws; one chain apart is found, by
    predictions and by weights, and the report says so."""
    fine = pm.examine(with_chains(normal()), TASK, "chains", inputs=20)
    assert fine["r_hat"].value < 1.03
    assert fine["ess_bulk"].value > 400
    assert fine["r_hat"].n == 20
    assert fine["draws"].value == 200
    apart = normal()
    apart[:, 0] += 2
    post = with_chains(apart)
    found = pm.examine(post, TASK, "chains")
    assert found["r_hat"].value > 1.3 and found["weight_r_hat"].value > 1.3
    assert found["ess_bulk"].value < 20
    board = pm.compare([found.beside(evaluate(post, TASK))])
    (alert,) = [each for each in alerts(board) if "mixed" in each.title]
    assert alert.title == "Chains have not mixed: sghmc" and "R-hat is up to" in alert.text
    assert not [
        each
        for each in alerts(pm.compare([fine.beside(evaluate(post, TASK))]))
        if "mixed" in each.title
    ]


def test_symmetries_trouble_weights_and_not_predictions() -> None:
    """Two chains in mirrored corners of a network with tanh units make the same functions."""
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0]).view(1, 4, 1, 1)
    stream = torch.Generator().manual_seed(2)

    def mirrored() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 1, bias=False), nn.Tanh(), nn.Linear(1, 1, bias=False))

    post = pm.fit(
        "sghmc", net=mirrored, task=TASK, num_modes=4, epochs=4, samples_per_mode=2,
        progress="silent",
    )  # fmt: skip
    kept = {
        "network/0.weight": signs * (2 + torch.randn(200, 4, 1, 2, generator=stream)),
        "network/2.weight": signs * (2 + torch.randn(200, 4, 1, 1, generator=stream)),
    }
    post.weights = Samples(post.weights.stack, kept)
    found = pm.examine(post, TASK, "chains")
    assert found["r_hat"].value < 1.05 and found["weight_r_hat_median"].value > 1.5


def test_quantities_are_predictions_of_each_sample() -> None:
    """Locations of a linear network, R-hat and ESS computed from them here."""
    post = with_chains(normal(40), acceptance=torch.tensor([0.5, 0.7, 0.9, 0.7]))
    found = pm.examine(post, TASK, "chains", inputs=7)
    draws = torch.einsum("lmod,nd->lmn", post.weights.kept["network/weight"], X[:7])
    assert found["r_hat"].value == pytest.approx(rhat(draws).max().item(), rel=1e-4)
    assert found["ess_bulk"].value == pytest.approx(ess_bulk(draws).min().item(), rel=1e-3)
    assert found["acceptance"].value == pytest.approx(0.7)
    assert "r_hat_nested" not in [row.metric for row in found.rows]
    eight = pm.examine(with_chains(normal(5, 8)), TASK, "chains", superchains=2)
    assert eight["r_hat_nested"].value < 1.5


def test_figures_have_the_worst_and_the_median_prediction() -> None:
    found = pm.examine(with_chains(normal(50)), TASK, "chains")
    displays = found.displays(label="mine")
    assert set(displays) == {"traces", "autocorrelation"}
    for display in displays.values():
        assert display.to_svg().startswith("<?xml")
        assert "4 chains of 50 draws" in display.caption
    worst, middle = displays["traces"].data["r_hat"]
    assert worst == found["r_hat"].value and middle <= worst
    assert len(displays["traces"].figure().axes) == 2
    assert displays["autocorrelation"].data["autocorrelation"][:, 0].tolist() == [[1.0] * 4] * 2


@pytest.mark.parametrize("length", [1, 2])
def test_many_short_chains_have_a_nested_r_hat(length) -> None:
    """Too short for R-hat and ESS of single chains, but groups of them can be compared, and groups
    apart are told."""
    draws = normal(length, 64)
    found = pm.examine(with_chains(draws), TASK, "chains", inputs=5)
    assert [row.metric for row in found.rows] == ["r_hat_nested", "draws"]
    expected = torch.einsum("lmod,nd->lmn", draws, X[:5])
    assert found["r_hat_nested"].value == pytest.approx(nested_rhat(expected, 4).max().item())
    assert found.displays() == {}
    draws[:, :16] += 3
    post = with_chains(draws)
    apart = pm.examine(post, TASK, "chains")
    board = pm.compare([apart.beside(evaluate(post, TASK))])
    assert [each.title for each in alerts(board)].count("Chains have not mixed: sghmc") == 1


def test_chains_that_stand_still_are_told() -> None:
    """Their R-hat is infinite, which is no number of a table, and the report says it all the
    same."""
    post = with_chains(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1).expand(8, 2, 1, 2).clone())
    found = pm.examine(post, TASK, "chains")
    assert found["r_hat"].value is None and "infinite" in found["r_hat"].note
    (alert,) = [
        each
        for each in alerts(pm.compare([found.beside(evaluate(post, TASK))]))
        if "mixed" in each.title
    ]
    assert "R-hat is up to inf" in alert.text
    assert all(display.to_svg().startswith("<?xml") for display in found.displays().values())


def test_what_has_no_chains_is_refused() -> None:
    with pytest.raises(ValueError, match="R-hat compares chains, and there is 1: fit with num_mod"):
        pm.examine(with_chains(normal(20, 1)), TASK, "chains")
    with pytest.raises(ValueError, match="at least 4 draws per chain, got 3: keep more sampl"):
        pm.examine(with_chains(normal(3)), TASK, "chains")
    ensemble = pm.fit("map", net=net, task=TASK, num_modes=2, epochs=1, progress="silent")
    with pytest.raises(ValueError, match=r"\(map\) has no chains: 1 sample"):
        pm.examine(ensemble, TASK, "chains")
    with pytest.raises(ValueError, match="`inputs` of chains must be an integer of at least 1"):
        pm.examine(ensemble, TASK, "chains", inputs=0)
