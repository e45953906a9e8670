"""`pm.reference`: kept by what it depends on; and the distances of posteriors to it."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.core.safe_files import FileProblem, cache_folder
from polymode.examinations import reference_posterior as module
from polymode.examinations.reference_posterior import fresh
from polymode.likelihoods.kinds import Gaussian

X = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
SHORT = {"num_modes": 2, "epochs": 12, "leapfrog_steps": 2, "samples_per_mode": 4}
QUIET = {"progress": "silent", "training_steps": 4} | SHORT


def net() -> nn.Module:
    return nn.Linear(2, 1)


def task(shift: float = 0.0, noise: float = 0.5) -> pm.Task:
    data = (X, X[:, :1] + shift)
    return pm.Task(train=data, test=data, likelihood=Gaussian(noise=noise), target_scaling=None)


@pytest.fixture
def fits(monkeypatch) -> list[int]:
    """Counts the fits that are made."""
    made: list[int] = []
    real = module.fit
    monkeypatch.setattr(module, "fit", lambda *a, **k: made.append(1) or real(*a, **k))
    return made


def test_a_reference_is_fitted_once(fits) -> None:
    """The second call reads it; other data, noise, network, option or seed are another one."""
    first = pm.reference(task(), net=net, **QUIET)
    again = pm.reference(task(), net=net, **QUIET)
    assert len(fits) == 2 and first.folder == again.folder
    assert first.folder.parent == cache_folder() / "references"
    assert torch.equal(first.predict(X).mean, again.predict(X).mean)
    assert "R-hat" in repr(again) and "2 chains × 4 draws" in repr(again)
    others = [
        pm.reference(task(shift=0.1), net=net, **QUIET),
        pm.reference(task(noise=0.6), net=net, **QUIET),
        pm.reference(task(), net=lambda: nn.Linear(2, 1, bias=False), **QUIET),
        pm.reference(task(), net=net, **QUIET | {"epochs": 13}),
        pm.reference(task(), net=net, seed=1, **QUIET),
        pm.reference(task(), net=net, **QUIET | {"training_steps": 0}),
    ]
    assert len({each.folder for each in [first, *others]}) == 7
    assert len(fits) == 13  # six of them after a deep ensemble


def test_only_what_was_kept_as_this_reference_is_taken(fits, tmp_path, monkeypatch) -> None:
    """A posterior of another method, seed or damage in its place is fitted anew, with a warning."""
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    first = pm.reference(task(), net=net, **QUIET)
    expected = first.predict(X).mean
    other = pm.fit("map", net=net, task=task(), epochs=1, num_modes=2, progress="silent")
    elsewhere = pm.reference(task(), net=net, seed=1, **QUIET).folder
    file = next(first.folder.glob("members-*"))
    for disturb in (
        lambda: other.save(first.folder),
        lambda: shutil.copytree(elsewhere, first.folder, dirs_exist_ok=True),
        lambda: (first.folder / "reference.json").unlink(),
        lambda: next(first.folder.glob("members-*")).write_bytes(b"damaged"),
    ):
        disturb()
        before = len(fits)
        with pytest.warns(
            UserWarning, match="is not the reference asked for .*: it is fitted anew"
        ):
            again = pm.reference(task(), net=net, **QUIET)
        assert len(fits) > before and torch.equal(again.predict(X).mean, expected)
    assert file.parent == again.folder
    before = len(fits)
    assert torch.equal(pm.reference(task(), net=net, **QUIET).predict(X).mean, expected)
    assert len(fits) == before


def test_a_killed_process_leaves_a_fit_that_goes_on(fits, tmp_path, monkeypatch) -> None:
    """Killed when the posterior is saved and its mark is not: the training need not be repeated."""
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "write_json", lambda *_: signal.raise_signal(signal.SIGINT))
        pm.reference(task(), net=net, **QUIET)
    (folder,) = (tmp_path / "references").iterdir()
    assert (folder / "training").is_dir() and (folder / "posterior.json").is_file()
    steps = []
    monkeypatch.setattr(module, "fit", lambda *a, **k: pm.fit(*a, on_event=steps.append, **k))
    with pytest.warns(UserWarning, match="it is fitted anew"):
        pm.reference(task(), net=net, **QUIET)
    assert "resume" in {event.kind for event in steps}
    assert not (folder / "training").exists()


def test_a_cache_that_cannot_be_written_is_said_and_one_that_can_be_read_is(
    tmp_path, monkeypatch
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/nowhere")):
        monkeypatch.setenv("POLYMODE_CACHE", str(place))
        with pytest.raises(FileProblem, match="cannot be kept in .*; set POLYMODE_CACHE to a"):
            pm.reference(task(), net=net, **QUIET)
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path / "cache"))
    first = pm.reference(task(), net=net, **QUIET)
    lock = first.folder / "reference.lock"
    lock.unlink()
    lock.mkdir()  # as little to be opened as in a read-only folder, for any user
    assert torch.equal(
        pm.reference(task(), net=net, **QUIET).predict(X).mean, first.predict(X).mean
    )
    lock.rmdir()
    os.mkfifo(lock)  # would wait for a reader
    with pytest.raises(FileProblem, match="reference.lock is not a plain file"):
        pm.reference(task(), net=net, **QUIET)


def test_loaders_are_told_apart_by_their_values() -> None:
    folders = {
        pm.reference(
            pm.Task(
                train=DataLoader(TensorDataset(X, X[:, :1] + shift), batch_size=7, shuffle=True),
                test=(X, X[:, :1]),
                likelihood=Gaussian(noise=0.5),
                target_scaling=None,
            ),
            net=net,
            **QUIET,
        ).folder
        for shift in (0.0, 0.0, 0.1)
    }
    assert len(folders) == 2


def test_the_users_cache_is_where_xdg_says(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("POLYMODE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "polymode"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_folder().parts[-2:] == (".cache", "polymode")


def test_chains_that_have_not_mixed_are_told() -> None:
    """Chains that hardly move from where they begin: R-hat with its value, and what to do."""
    with pytest.warns(UserWarning, match=r"have not mixed: R-hat .* more epochs \(now 100"):
        pm.reference(
            task(), net=net, progress="silent", num_modes=4, epochs=100, leapfrog_steps=1,
            samples_per_mode=20, lr=1e-5, target_acceptance=None, training_steps=0,
        )  # fmt: skip


def test_networks_that_are_given_are_refused() -> None:
    with pytest.raises(ValueError, match="must be a builder from pm.nets or a function"):
        pm.reference(task(), net=nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_modes": 1}, "R-hat compares chains, and there is 1"),
        ({"samples_per_mode": 3}, "at least 4 draws per chain, got 3"),
        ({"leapfrogs": 3}, "Unknown option 'leapfrogs' .* Did you mean 'leapfrog_steps'"),
    ],
)
def test_what_could_not_be_judged_is_refused_before_anything_is_fitted(
    fits, options, message
) -> None:
    with pytest.raises(ValueError, match=message):
        pm.reference(task(), net=net, **QUIET | options)
    assert not fits


@pytest.mark.cpu_seconds(6)
def test_hmc_is_close_to_its_reference_and_a_point_is_not() -> None:
    """On linear regression with few data: another run of `hmc` has a distance of its Monte-Carlo
    error, below a tenth of the predictive spread; a prior three times as wide is farther away, and
    its spread larger."""
    few = pm.Task(
        train=(X[:4], X[:4, :1]), test=(X, X[:, :1]), ood={"far": 4 * X},
        likelihood=Gaussian(noise=0.5), target_scaling=None,
    )  # fmt: skip
    sizes = {"epochs": 240, "leapfrog_steps": 5, "num_modes": 4, "samples_per_mode": 100}
    asked = {"chains": 4, "trajectories": 240, "leapfrog_steps": 5, "draws": 100}
    post = pm.fit("hmc", net=net, task=few, seed=3, progress="silent", **sizes)
    found = pm.examine(post, few, "reference", **asked)
    assert found["w1"].value < 0.06 and found["w1"].value <= found["w2"].value
    assert abs(found["std_ratio"].value - 1) < 0.05
    point = pm.fit("map", net=net, task=few, epochs=200, lr=0.02, progress="silent")
    other = pm.examine(point, few, "reference", **asked)
    assert other["w1"].value > 2 * found["w1"].value
    assert other["std_ratio"].value < 0.9 and other["std_ratio_ood"].value < 0.6
    assert other["reference_r_hat"].value == found["reference_r_hat"].value < 1.1
    assert found["reference_r_hat_median"].value <= found["reference_r_hat"].value
    yardstick = found["reference_w1"]  # two halves of half as many draws: about twice the distance
    assert yardstick == other["reference_w1"] and 0 < yardstick.value < 4 * found["w1"].value
    held = pm.reference(
        few, net=lambda: fresh(net()), seed=1000, progress="silent", mass="diagonal", **sizes
    ).post
    halves = held[:2].predict(X), held[2:].predict(X)
    assert yardstick.value == pytest.approx(pm.metrics.reference.w1(*halves).value)


def test_a_fresh_network_has_the_architecture_and_values_of_its_own() -> None:
    stack = pm.fit("map", net=pm.nets.mlp, task="two_moons", epochs=0, progress="silent").stack
    torch.manual_seed(0)
    made = [fresh(stack.template) for _ in range(2)]
    assert [tuple(p.shape) for p in made[0].parameters()] == [
        tuple(p.shape[1:]) for p in stack.params.values()
    ]
    assert not torch.equal(next(made[0].parameters()), next(made[1].parameters()))

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

    with pytest.raises(ValueError, match="type Own have no `reset_parameters`"):
        fresh(Own().to("meta"))
