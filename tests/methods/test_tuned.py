"""Options that `fit` chooses: lengthscales="tuned" of forde, on the shifted validation set."""

from __future__ import annotations

import json
import math
import os
import signal

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.cli.app import main
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import forde
from polymode.methods.forde import ALPHAS, FoRDE, init, shifted_nll
from polymode.methods.method import Problem
from polymode.report import page as reports
from polymode.stack.stack import Stack
from polymode.tasks.validation import validation_shifts
from polymode.training.events import Event

from .small_fits import same

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=STREAM) * torch.tensor([3.0, 1.0, 0.5, 0.1])
Y = (X[:, 0] + 4 * X[:, 2] > 0).long()
TRIED = (0.0, 0.3, 1.0)
STEPS = 3 * 3  # of one candidate
SETTINGS = {"epochs": 3, "batch_size": 16, "num_modes": 3, "weight": 1.0, "lr": 0.02}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 2))


def task(**changes) -> pm.Task:
    own = {"train": (X[:48], Y[:48]), "val": (X[48:], Y[48:]), "likelihood": "categorical"}
    return pm.Task(**own | changes)


def fit(**options) -> pm.Posterior:
    own = {"net": net, "task": task(), "progress": "silent", **SETTINGS}
    return pm.fit("forde", **own | options)


def tuned(**options) -> pm.Posterior:
    return fit(**{"lengthscales": "tuned", "alphas": TRIED} | options)


def scores(post: pm.Posterior) -> dict[float, float]:
    return {each["alpha"]: each["score"] for each in post.config["search"]["candidates"]}


# ----------------------------------------------------------------------------------- what is chosen


def test_it_is_the_best_of_separate_trainings_by_a_slow_score():
    """Each candidate is `pca` with its alpha; the score is the mixture's, written out."""
    post = tuned()
    apart = {alpha: fit(lengthscales="pca", alpha=alpha) for alpha in TRIED}
    expected = {}
    for alpha, other in apart.items():
        values = []
        for makers in validation_shifts(task()).values():
            for make in makers.values():
                data = make()
                with torch.no_grad():
                    probs = other.stack(data.x).double().softmax(-1).mean(0)
                values.append(-probs[torch.arange(12), data.y].log().mean().item())
        expected[alpha] = sum(values) / len(values)
    assert len(set(expected.values())) == 3  # else the test could not fail
    assert scores(post) == pytest.approx(expected, rel=1e-5)
    best = min(expected, key=lambda alpha: expected[alpha])
    assert post.config["alpha"] == best and same(post, apart[best])


def test_the_lowest_score_wins_wherever_it_stands():
    first = tuned()
    best, others = first.config["alpha"], [a for a in TRIED if a != first.config["alpha"]]
    again = tuned(alphas=[*others, best])
    assert again.config["alpha"] == best and scores(again) == scores(first)
    assert same(first, again)  # candidates do not depend on those before them


def test_truncated_axes_are_those_of_pca():
    post = tuned(alphas=[1.0], num_components=2)
    assert same(post, fit(lengthscales="pca", alpha=1.0, num_components=2))


def test_the_score_of_a_regression_is_in_units_of_the_targets():
    values = task(
        train=(X[:48], 10 * X[:48, :1]), val=(X[48:], 10 * X[48:, :1]),
        likelihood=Gaussian(noise=0.5),
    )  # fmt: skip
    post = tuned(task=values, net=lambda: nn.Linear(4, 1), alphas=[0.5])
    shifts = validation_shifts(values)
    assert scores(post)[0.5] == shifted_nll(shifts, post)
    assert list(shifts) == ["noise"] and math.isfinite(scores(post)[0.5])


def test_what_was_found_is_kept_and_seen(tmp_path):
    post = tuned()
    config = post.config
    assert config["lengthscales"] == "tuned" and config["alphas"] == list(TRIED)
    assert config["search"]["chosen"] == {"alpha": config["alpha"]}
    assert config["alpha"] == min(scores(post), key=lambda alpha: scores(post)[alpha])
    assert "validation set under noise" in config["search"]["criterion"]
    assert json.loads(json.dumps(config)) == config
    post.save(tmp_path)
    loaded = pm.load(tmp_path, net=net)
    assert loaded.config == config and same(loaded, post)
    assert f"{scores(post)[0.3]}" in post._repr_html_()


# ------------------------------------------------------------------------------- as one long run


@pytest.mark.cpu_seconds(6)
def test_events_are_those_of_one_run():
    events: list[Event] = []
    tuned(on_event=events.append, epochs=60)
    assert [events[0].kind, events[-1].kind] == ["start", "end"]
    assert {event.kind for event in events[1:-1]} == {"progress"}
    assert {event.total for event in events} == {3 * 60 * 3}
    steps = [event.step for event in events]
    assert steps == sorted(steps) and steps[-1] == 3 * 60 * 3
    elapsed = [event.elapsed for event in events]
    assert elapsed == sorted(elapsed)
    assert all(event.eta >= 0 for event in events[1:])
    assert {event.what for event in events} == {"forde, 3 modes, 3 candidates"}


@pytest.mark.cpu_seconds(6)
def test_lines_are_one_for_each_tenth(capsys):
    tuned(progress="lines", epochs=60)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 10 and "100 %" in lines[-1]


@pytest.mark.parametrize("candidate", [0, 1, 2])
def test_interrupted_anywhere_it_resumes_as_if_nothing_had_happened(candidate, tmp_path):
    whole, wanted = tuned(epochs=8), candidate * 24 + 5
    options = {"epochs": 8, "checkpoint": tmp_path, "checkpoint_seconds": 0}

    def interrupt(event: Event) -> None:
        if event.kind == "checkpoint" and event.step >= wanted:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="the same call resumes"):
        tuned(on_event=interrupt, **options)
    events: list[Event] = []
    resumed = tuned(on_event=events.append, **options)
    assert events[0].kind == "resume" and events[0].total == 72
    assert wanted <= events[0].step <= wanted + 1
    assert [event.kind for event in events].count("resume") == 1
    assert same(resumed, whole) and resumed.config == whole.config


class Killed(Exception):
    """What no code catches."""


def test_after_a_kill_between_candidates_none_is_trained_again(tmp_path, monkeypatch):
    whole = tuned()
    plain, alphas = forde.Lengthscales, []

    def counting(axes, alpha):  # called in every step
        alphas.append(alpha)
        if alphas == [0.0] * STEPS + [0.3]:
            raise Killed
        return plain(axes, alpha)

    monkeypatch.setattr(forde, "Lengthscales", counting)
    with pytest.raises(Killed):  # in the first step of the second candidate, nothing of it kept
        tuned(checkpoint=tmp_path)
    assert [p.name for p in tmp_path.glob("*/training.safetensors")] == ["training.safetensors"]
    alphas.clear()
    events: list[Event] = []
    resumed = tuned(checkpoint=tmp_path, on_event=events.append)
    assert [events[0].kind, events[0].step] == ["resume", STEPS]
    assert alphas == [0.3] * STEPS + [1.0] * STEPS
    assert same(resumed, whole) and resumed.config == whole.config
    alphas.clear()
    done = tuned(checkpoint=tmp_path, alphas=[1.0, 0.3])  # another grid: what is there is used
    assert not alphas and scores(done) == {a: scores(whole)[a] for a in (0.3, 1.0)}


@pytest.mark.cpu_seconds(6)
def test_through_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "report", lambda board, path, **_: path.touch())
    words = ["run", "--task", "digits", "--method", "forde", "--seeds", "0", "-q"]
    for setting in (
        "lengthscales=tuned",
        "alphas=[0,1]",
        "batch_size=128",
        "num_modes=2",
        "epochs=1",
    ):
        words += ["--set", f"forde.{setting}"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    (line,) = (tmp_path / "run" / "results.jsonl").read_text().splitlines()
    config = json.loads(line)["config"]
    assert config["alpha"] in (0.0, 1.0) and config["lengthscales"] == "tuned"
    tried = [each["alpha"] for each in config["search"]["candidates"]]
    assert tried == [0.0, 1.0] and "spatter" in config["search"]["criterion"]
    events = [json.loads(e) for e in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert {e["total"] for e in events if "total" in e} == {2 * 10}
    assert not (tmp_path / "run" / "checkpoints").exists()


# ----------------------------------------------------------------------------------------- refusals


def test_a_task_that_cannot_be_chosen_on_is_refused_before_anything_is_built():
    def never() -> nn.Module:
        raise AssertionError("a network was built")

    with pytest.raises(ValueError, match="chooses alpha .*no validation set.*give one.*'pca'"):
        tuned(net=never, task=task(val=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengthscales": "tuned", "alpha": 0.2}, "chooses alpha, but alpha=0.2 is given"),
        ({"lengthscales": "tuned", "alpha": 1.0}, "chooses alpha, but alpha=1 is given"),
        ({"lengthscales": "pca", "alphas": [0.5]}, "`alphas` of FoRDE belong to .*'tuned'"),
        ({"lengthscales": "tuned", "alphas": []}, "`alphas` of FoRDE must be different numbers"),
        ({"lengthscales": "tuned", "alphas": [0.5, 0.5]}, "`alphas` of FoRDE must be different"),
        ({"lengthscales": "tuned", "alphas": [0.5, 1.5]}, r"in \[0, 1\], at least one, got"),
        ({"lengthscales": "tuned", "alphas": 0.5}, "`alphas` of FoRDE"),
        ({"lengthscales": "tuned", "alphas": "01"}, "`alphas` of FoRDE"),
        ({"lengthscales": "tune"}, "Did you mean 'tuned'"),
        ({"alpha": 1.0}, "belong to lengthscales='pca', not to 'identity'"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        FoRDE(**options)


def test_the_papers_grid_is_the_default():
    assert FoRDE().alphas == ALPHAS == (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)


def test_a_loop_of_ones_own_cannot_search():
    stack = Stack(net, 2)
    with pytest.raises(ValueError, match="pm.fit does; .*lengthscales='pca'"):
        init(FoRDE(lengthscales="tuned"), Problem(task().likelihood, 48, 2, 3), stack)
