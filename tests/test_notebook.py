"""What notebooks show: facts and tables, escaped, of posteriors, predictions, results, boards."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
import torch

import polymode as pm
from polymode.prediction import CategoricalPrediction, MixturePrediction

EVIL = "<script>alert(1)</script>"


class Balanced(HTMLParser):
    """Refuses HTML whose tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def fitted():
    x = torch.randn(20, 2)
    task = pm.Task(
        train=(x, torch.arange(20) % 2),
        test=(x, torch.arange(20) % 2),
        ood={EVIL: torch.randn(5, 2)},
        likelihood="categorical",
        name=EVIL,
    )
    options = {"epochs": 1, "progress": "silent"}
    posts = [
        pm.fit("map", net=pm.nets.mlp, task=task, **options),
        pm.fit("deep_ensemble", net=pm.nets.mlp, task=task, num_modes=2, **options),
    ]
    return posts, [pm.evaluate(post, task) for post in posts]


def test_a_posterior_shows_what_it_is_made_of(fitted):
    html = fitted[0][1]._repr_html_()
    Balanced(html)
    for words in ("deep_ensemble", "2 × ", "parameters", "(B, 2)", "epochs"):
        assert words in html


def test_a_prediction_shows_the_first_inputs(fitted):
    posts, _ = fitted
    html = posts[1].predict(torch.randn(20, 2))._repr_html_()
    assert Balanced(html).seen.count("tr") == 1 + 8
    assert "and 12 more; S = 2, B = 20, C = 2" in html
    assert "mutual information" in html
    alone = posts[0].predict(torch.randn(3, 2))._repr_html_()
    assert Balanced(alone).seen.count("tr") == 1 + 3
    assert "mutual information" not in alone


def test_a_mixture_shows_means_and_spreads():
    html = MixturePrediction(torch.tensor([[[1.0]], [[3.0]]]), 1.0)._repr_html_()
    Balanced(html)
    assert "1.414" in html  # root of 1 + 1
    assert "epistemic" in html
    several = MixturePrediction(torch.zeros(1, 2, 2), 1.0)._repr_html_()
    assert "mean, output 1" in several


def test_an_empty_prediction_is_shown_too():
    Balanced(CategoricalPrediction.from_probs(torch.zeros(1, 0, 3))._repr_html_())


def test_results_and_boards_show_headlines_and_escape_names(fitted):
    _, results = fitted
    for shown in (results[1], pm.compare(results)):
        html = shown._repr_html_()
        Balanced(html)
        assert "<script" not in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        assert "NLL ↓" in html
        assert "smooth ECE" not in html


def test_boards_have_times_and_say_what_is_worse_than_a_guess(fitted):
    """Two networks of one step; predictions that are the wrong way round are worse than a guess."""
    posts, results = fitted
    assert all(result.cost.train_seconds == post.history.seconds > 0
               for post, result in zip(posts, results, strict=True))  # fmt: skip
    rows = {"accuracy": 0.2, "nll": 0.9, "brier": 0.45}
    bad = results[0].replace(
        label="bad",
        rows=tuple(row._replace(value=rows.get(row.metric, row.value)) for row in results[0].rows),
    )
    board = pm.compare([bad])
    signs = [board.sign(("bad", "test", metric)) for metric in rows]
    assert signs == ["!", "!", ""]
    for text in (board.table(), board._repr_html_()):
        assert "! worse than a guess" in text and "0.200" in text


def test_tables_of_texts_are_to_the_left():
    for shown in (pm.options("forde"), pm.list_methods("deep*")):
        html = shown._repr_html_()
        Balanced(html)
        assert "text-align:left" in html and "text-align:right" not in html


def test_a_history_is_a_table_of_few_moments(fitted):
    history = fitted[0][1].history
    html = history._repr_html_()
    assert 2 <= Balanced(html).seen.count("tr") <= 11
    assert "mean of 2 modes" in repr(history) and "train loss" in html
    curve = ((1.0, 3.0),) * 99 + ((None, 0.5),)
    lines = repr(history._replace(train_steps=tuple(range(1, 101)), train_loss=curve)).splitlines()
    assert len(lines) <= 12
    assert lines[2].split() == ["1", "2"] and lines[-1].split() == ["100", "0.5"]
    assert repr(type(history)()) == "History: no training"
