"""Averages of predictions: the scores of whole predictions to the bit, without the samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.metrics import calibration, classification, evaluation
from polymode.metrics.score import CLASSIFICATION, OOD_CLASSIFICATION, NotDefined, entries
from polymode.prediction import CategoricalPrediction
from polymode.prediction.averages import Averages, averaged


def predictions(rows: int, seed: int, sharp: float = 1.0, outputs: bool = True):
    """A prediction of four networks, as a whole and in batches; sharp ones have tiny means."""
    logits = torch.randn(4, rows, 9, generator=torch.Generator().manual_seed(seed)) * sharp
    whole = CategoricalPrediction.from_logits(logits)
    if not outputs:
        whole = CategoricalPrediction(whole.log_probs)
    return whole, Averages(whole[start : start + 40] for start in range(0, rows, 40))


@pytest.mark.parametrize("sharp", [1.0, 60.0])
@pytest.mark.parametrize("outputs", [True, False])
def test_all_metrics_are_those_of_the_whole_prediction(sharp, outputs, monkeypatch) -> None:
    """Exactly, also where probabilities underflow, and with metrics computed block by block."""
    whole, averages = predictions(230, 0, sharp, outputs)
    outside, averages_outside = predictions(90, 1, sharp, outputs)
    labels = torch.randint(9, (230,), generator=torch.Generator().manual_seed(2))
    assert (sharp > 1) == bool((whole.mean < 1e-31).any())

    def value(metric, *given):
        try:
            score = metric(*given)
        except (NotDefined, ValueError) as reason:
            return str(reason)
        return score.value, score.n, score.standard_error

    expected, found = [], []
    for table, sides in ((CLASSIFICATION, (labels, labels)), (OOD_CLASSIFICATION, None)):
        for entry in entries(table):
            if entry.metadata["samples"]:
                continue
            plain, reduced = sides or (outside, averages_outside)
            expected.append((entry.name, value(entry.value, whole, plain)))
            monkeypatch.setattr(calibration, "_BLOCK", 500)
            monkeypatch.setattr(classification, "_BLOCK", 500)
            found.append((entry.name, value(entry.value, averages, reduced)))
            monkeypatch.undo()
    assert found == expected and len(found) > 20
    assert averages.num_samples == 4 and len(averages) == 230 and averages.has_epistemic
    for name in ("mean", "log_mean", "predictive_entropy", "expected_entropy", "mutual_information",
                 "disagreement", "confidence", "classes", "one_minus_confidence"):  # fmt: skip
        assert torch.equal(getattr(averages, name), getattr(whole, name)), name


def test_what_needs_samples_says_that_there_are_none() -> None:
    _, averages = predictions(50, 0)
    for ask in (lambda: averages.log_probs, lambda: averages.epistemic_variance,
                lambda: averages.take_modes([0]),
                lambda: averages.to_arrays(), lambda: averages.within_modes):  # fmt: skip
        with pytest.raises(ValueError, match="holds averages over its samples.*keep=True"):
            ask()
    assert "Averages(S=4, B=50, C=9" in repr(averages)
    assert torch.equal(averages[:3].mean, averages.mean[:3])


def test_one_sample_and_half_precision_are_not_reduced() -> None:
    logits = torch.randn(2, 3, 5)
    assert Averages.possible(CategoricalPrediction.from_logits(logits))
    assert not Averages.possible(CategoricalPrediction.from_logits(logits[:1]))
    assert not Averages.possible(CategoricalPrediction.from_logits(logits.bfloat16()))
    at_positions = CategoricalPrediction.from_logits(torch.randn(2, 3, 4, 5))
    assert Averages.possible(at_positions)
    assert averaged(at_positions) is at_positions  # joint scores need its samples


class Batches:
    """A loader of two columns."""

    def __init__(self, x, y) -> None:
        self.pairs = list(zip(x.split(64), y.split(64), strict=True))

    def __iter__(self):
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


@pytest.mark.parametrize("as_loader", [False, True])
def test_evaluations_are_equal_whatever_is_kept(as_loader, monkeypatch) -> None:
    """In pieces of two batches: every row, and the examples of the test set."""
    monkeypatch.setattr(evaluation, "PIECE", 2 * 256 * 3 * 7 * 4)
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randn(900, 4, generator=stream), torch.randint(7, (900,), generator=stream)
    test = Batches(x, y) if as_loader else (x, y)
    task = pm.Task(train=(x[:64], y[:64]), test=test, ood={"far": 3 * x[:600]},
                   likelihood="categorical")  # fmt: skip
    options = {"num_modes": 3, "epochs": 1, "progress": "silent"}
    post = pm.fit("deep_ensemble", net=lambda: nn.Linear(4, 7), task=task, **options)
    every, none = pm.evaluate(post, task), pm.evaluate(post, task, keep=False)
    some = pm.evaluate(post, task, keep=("examples",))
    needs_samples = {e.name for e in entries(CLASSIFICATION) if e.metadata["samples"]}
    rows, fewer, examples = (
        [row for row in results.rows if row.metric not in needs_samples]
        for results in (every, none, some)
    )
    assert rows == fewer == examples and every.data == none.data
    assert all("averages" in none["test", name].note for name in needs_samples)
    assert all(row.value is None or math.isfinite(row.value) for row in none.rows)
    assert not none.kept and some.kept.keys() == {"examples"}
    for name in ("inputs", "targets"):
        a, b = (getattr(results.kept["examples"], name) for results in (every, some))
        assert torch.equal(a, b), name
