"""Rows on odd scales: networks standardise them inside, and all else stays in the units given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.likelihoods.scaling import Scaling
from polymode.nets.standardised import Standardised

STREAM = torch.Generator().manual_seed(0)
PLAIN = torch.randn(300, 3, generator=STREAM)
UNITS = Scaling(torch.tensor([-500.0, 0.0, 2000.0]), torch.tensor([1 / 300, 1.0, 1 / 0.01]))
RAW = PLAIN / UNITS.scale + UNITS.shift
LABELS = (PLAIN.sum(1) > 0).long()
QUICK = {"progress": "silent", "epochs": 20, "batch_size": 50, "execution": "loop"}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))


def fit(x: torch.Tensor, method: str = "deep_ensemble", **task) -> pm.Posterior:
    data = pm.Task(train=(x, LABELS), likelihood="categorical", **task)
    return pm.fit(method, net=net, task=data, num_modes=2, **QUICK)


@pytest.fixture(scope="module")
def raw() -> pm.Posterior:
    with pytest.warns(UserWarning, match=r"column 2 has mean 2e\+03 and standard deviation 0.01"):
        return fit(RAW)


def test_a_fit_on_raw_rows_is_that_on_standardised_ones(raw) -> None:
    """In float32, raw values of 2000 ± 0.01 keep two digits of a standardised one."""
    scaled = fit(Scaling.of(RAW)(RAW), input_scaling=None)
    for name, tensor in scaled.stack.params.items():
        assert torch.equal(tensor, raw.stack.params[f"network.{name}"])
    assert torch.equal(raw.predict(RAW).mean, scaled.predict(Scaling.of(RAW)(RAW)).mean)
    assert (raw.predict(RAW).mean.argmax(-1) == LABELS).float().mean() > 0.9


def test_files_and_members_are_in_the_units_given(raw, tmp_path: Path) -> None:
    raw.save(tmp_path)
    loaded = pm.load(tmp_path, net=net)
    assert torch.equal(loaded.predict(RAW).mean, raw.predict(RAW).mean)
    outputs = torch.stack([member(RAW) for member in loaded.members]).softmax(-1).mean(0)
    torch.testing.assert_close(outputs, raw.predict(RAW).mean)
    again = pm.fit("map", net=raw, task=pm.Task(train=(RAW, LABELS), likelihood="categorical"),
                   **QUICK | {"epochs": 0})  # fmt: skip
    assert torch.equal(again.predict(RAW).mean, raw.predict(RAW).mean)


def test_an_attack_has_its_budget_in_the_units_given(raw) -> None:
    eps = torch.tensor([30.0, 0.1, 1e-3])
    for column in range(3):
        budget = eps[column].item()
        found = pm.adversary.attack(raw, RAW[:20], LABELS[:20], kind="fgsm", eps=budget, box=None)
        moved = (found.adversarial - RAW[:20]).abs()[:, column].max().item()
        assert moved == pytest.approx(budget, rel=0.2)


@pytest.mark.parametrize("method", ["laplace", "swag", "forde", "vi", "hmc"])
def test_every_kind_of_method_works_on_raw_rows(method) -> None:
    options = {"epochs": 4} if method == "hmc" else {}
    task = pm.Task(train=(RAW, LABELS), likelihood="categorical")
    with pytest.warns(UserWarning, match="networks standardise them inside"):
        post = pm.fit(method, net=net, task=task, num_modes=2, **QUICK | options)
    assert torch.isfinite(post.predict(RAW).mean).all()
    assert isinstance(post.members[0], Standardised)


@pytest.mark.parametrize(
    ("x", "scaled"),
    [(PLAIN, False), (5 * PLAIN, False), (PLAIN * torch.tensor([1, 1e-3, 1]), False),
     (20 * PLAIN, True), (0.04 * PLAIN, True), (PLAIN + 50, True), (0 * PLAIN, False)],
)  # fmt: skip
def test_only_odd_scales_are_standardised(x, scaled) -> None:
    task = pm.Task(train=(x, LABELS), likelihood="categorical")
    assert (task.inner_scaling is not None) == scaled
    assert (
        pm.Task(train=(x, LABELS), likelihood="categorical", input_scaling=None).inner_scaling
        is None
    )
    given = pm.Task(train=(x, LABELS), likelihood="categorical", input_scaling=UNITS)
    assert given.inner_scaling is None and given.input_scaling is UNITS


def test_images_and_wrong_names_are_left_or_refused() -> None:
    images = pm.Task(train=(100 * torch.rand(20, 1, 4, 4), LABELS[:20]), likelihood="categorical")
    assert images.inner_scaling is None
    with pytest.raises(
        ValueError, match='`input_scaling` of Task must be "auto", a Scaling or None'
    ):
        pm.Task(train=(RAW, LABELS), likelihood="categorical", input_scaling="yes")
