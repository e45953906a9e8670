"""The examination of groups, against a loop over the table's own columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import polymode as pm
from polymode.examinations import NotApplicable

N = 200


def table(seed: int = 0) -> dict[str, np.ndarray]:
    """Return rows whose noise is large in one city, whose values depend on nothing else."""
    random = np.random.default_rng(seed)
    city = random.choice(["Bonn", "Kiel", "Ulm"], N, p=[0.6, 0.35, 0.05])
    size = random.normal(size=N)
    new = random.random(N) < 0.5
    noise = np.where(city == "Kiel", 2.0, 0.1) * random.normal(size=N)
    return {"size": size, "city": city, "new": new, "price": 2 * size + noise}


def fitted(target: str, **options) -> tuple[pm.Posterior, pm.Task]:
    task = pm.Task.from_frame(table(), target=target, test_fraction=0.5, **options)
    net = pm.nets.mlp
    return pm.fit("map", net=net, task=task, epochs=20, lr=0.02, progress="silent"), task


def test_groups_are_those_of_the_columns() -> None:
    columns = table()
    post, task = fitted("price")
    findings = pm.examine(post, task, "groups", least=3)
    rows = task.row_numbers["test"].numpy()
    prediction, y = post.predict(task.test.x), task.test.y
    nll = -prediction.log_prob(y).double().numpy()
    low, high = prediction.interval(0.9)
    inside = ((low <= y) & (y <= high))[:, 0].double().numpy()
    expected = {}
    for name in ("city", "new"):
        for value in np.unique(columns[name]):
            chosen = columns[name][rows] == value
            if chosen.sum() >= 3:
                expected[f"{name} = {value}"] = [
                    chosen.sum(), nll[chosen].mean(),
                    nll[chosen].std(ddof=1) / chosen.sum() ** 0.5, inside[chosen].mean(),
                ]  # fmt: skip
    assert findings.arrays.keys() == expected.keys()
    for name, numbers in expected.items():
        np.testing.assert_allclose(findings.arrays[name], numbers, rtol=1e-6)
    assert findings["num_groups"].value == len(expected)
    assert findings["worst_nll"].value == pytest.approx(max(v[1] for v in expected.values()))
    assert findings["worst_coverage"].value == pytest.approx(min(v[3] for v in expected.values()))
    one = pm.examine(post, task, "groups", column="new")
    assert [*one.arrays] == ["new = False", "new = True"]
    assert one.displays()["groups"].to_svg()


def test_classes_have_an_accuracy_and_rare_groups_are_left_out() -> None:
    post, task = fitted("city", likelihood="categorical")
    findings = pm.examine(post, task, "groups", least=10)
    right = (post.predict(task.test.x).mean.argmax(-1) == task.test.y).double()
    new = torch.tensor(table()["new"])[task.row_numbers["test"]]
    shares = [right[new].mean().item(), right[~new].mean().item()]
    assert findings["worst_accuracy"].value == pytest.approx(min(shares))
    with pytest.raises(NotApplicable, match="no group has 1000 test rows"):
        pm.examine(post, task, "groups", least=1000)


def test_wrong_calls() -> None:
    post, task = fitted("price", drop=["new"])
    with pytest.raises(ValueError, match="got 'cty'. Did you mean 'city'"):
        pm.examine(post, task, "groups", column="cty")
    with pytest.raises(ValueError, match="must be a category or truth value, got 'size'"):
        pm.examine(post, task, "groups", column="size")
    moons = pm.task("two_moons", num_train=50)
    other = pm.fit("map", net=pm.nets.mlp, task=moons, epochs=1, progress="silent")
    with pytest.raises(NotApplicable, match="groups are of the rows of a table"):
        pm.examine(other, moons, "groups")
