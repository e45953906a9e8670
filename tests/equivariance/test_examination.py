"""The examination `equivariance`: numbers against the definitions, figures, refusals."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import polymode as pm
from polymode.equivariance import group
from polymode.equivariance.average import GroupAverage
from polymode.equivariance.examination import along_orbits, by_size
from polymode.equivariance.orbits import same_predictions
from polymode.examinations import read_asked

TASK = pm.task("digits")


@pytest.fixture(scope="module")
def post() -> pm.Posterior:
    return pm.fit("deep_ensemble", net=pm.nets.lenet, task=TASK, num_modes=4, epochs=2, seed=0,
                  batch_size=128, augment="orbit:C4:random", progress="silent")  # fmt: skip


def test_numbers_are_those_of_the_definitions(post) -> None:
    found = pm.examine(post, TASK, "equivariance", group="C4", num_examples=40, num_subsets=3)
    x, y = TASK.test.head(40)
    orbit = group("C4").orbit(x).flatten(0, 1)
    prediction = post.predict(orbit)
    probs = prediction.mean.unflatten(0, (4, 40))
    osp = same_predictions(probs).double()
    assert found["same_predictions"].value == pytest.approx(osp.mean().item())
    assert found["same_share"].value == pytest.approx(osp.mean().item() / 4)
    assert found["chance"].value == 1.3
    assert found["accuracy"].value == (probs[0].argmax(-1) == y).double().mean().item()
    each = prediction.probs.unflatten(1, (4, 40))
    alone = torch.stack([same_predictions(member).double().mean() for member in each])
    assert found["member_same_predictions"].value == pytest.approx(alone.mean().item())
    assert found["member_same_predictions"].n == 4 and found["same_predictions"].n == 40
    assert found["same_predictions"].direction == "up" and found["kl"].unit == "nats"
    assert found["deviation"].value < found["member_deviation"].value  # convexity
    assert found.arrays["ood"][0] == "patches"
    assert "ood_kl" in {row.metric for row in found.rows}


def test_sub_ensembles(post) -> None:
    """Of 4 members: all 4 at size 1, all 6 at size 2, the whole at size 4."""
    x = TASK.test.head(30)[0]
    along = along_orbits(post, x, group("C4"))
    found = by_size(along, ["deviation", "same_share"], num_subsets=6)
    assert found["members"].tolist() == [1, 2, 4]
    each = [along.scores([mode])["deviation"].value for mode in range(4)]
    assert found["deviation"][0] == pytest.approx(np.mean(each))
    assert found["deviation"][2] == along.scores()["deviation"].value
    assert (np.diff(found["deviation"]) < 0).all() and (found["deviation s.e."] == 0).all()
    with pytest.raises(ValueError, match="at most 4, the number of modes, got 5"):
        by_size(along, ["deviation"], sizes=[5])


def test_a_group_average_is_found_to_be_invariant(post) -> None:
    members = [GroupAverage(member, "C4") for member in post.members]
    averaged = pm.fit("deep_ensemble", net=members, task=TASK, epochs=0, progress="silent")
    found = pm.examine(averaged, TASK, "equivariance", num_examples=20, ood="noise")
    for prefix in ("", "member_", "ood_", "ood_member_"):
        assert found[f"{prefix}same_predictions"].value == 4
        assert found[f"{prefix}largest_kl"].value < 1e-8


def test_samples_of_a_mode_are_averaged_first() -> None:
    """Dropout, 2 modes with 3 samples: members are modes."""
    net = lambda: pm.nets.lenet(TASK.input_shape, 10, dropout=0.2)  # noqa: E731
    post = pm.fit("dropout", net=net, task=TASK, num_modes=2, epochs=1, samples_per_mode=3,
                  batch_size=512, progress="silent")  # fmt: skip
    x = TASK.test.head(6)[0]
    along = along_orbits(post, x, group("C4"))
    assert along.members.shape == (2, 4, 6, 10)
    expected = post.predict(group("C4").orbit(x).flatten(0, 1)).mean.unflatten(0, (4, 6))
    torch.testing.assert_close(along.ensemble().exp(), expected)


def test_values_and_vectors() -> None:
    """A linear map that commutes with rotations has no error; a random one has."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=stream)
    y = torch.linalg.cross(x[:, :3], x[:, 3:])
    task = pm.Task(train=(x, y), test=(x, y), likelihood=pm.likelihoods.Gaussian(noise=1.0),
                   target_scaling=None)  # fmt: skip
    fair, unfair = (nn.Linear(6, 3, bias=False) for _ in range(2))
    with torch.no_grad():
        fair.weight.copy_(torch.cat([2 * torch.eye(3), -torch.eye(3)], 1))
    name = "SO3-octahedral->input"
    errors = []
    for net in (fair, unfair):
        post = pm.fit("map", net=net, task=task, epochs=0, progress="silent")
        found = pm.examine(post, task, "equivariance", group=name, num_examples=20)
        errors.append(found["error"].value)
        assert found["deviation"].value >= 0 and not {"kl", "chance"} & {
            r.metric for r in found.rows
        }
        assert set(found.displays()) == {"orbit 1", "orbit 2", "orbit 3"}
    assert errors[0] < 1e-5 and errors[1] > 0.1


def test_figures(post) -> None:
    found = pm.examine(post, TASK, "equivariance", group="C8", num_examples=10, num_subsets=2)
    shown = found.displays(label="DE")
    assert list(shown) == ["members", "orbit 1", "orbit 2", "orbit 3"]
    curve = shown["orbit 1"].data
    assert curve["theta"][[0, -1]].tolist() == [0.0, 360.0] and curve["members"].shape == (4, 37)
    assert curve["control"][0] == pytest.approx(curve["mean"][0])  # nothing is turned there
    for display in shown.values():
        assert len(display.to_svg()) > 1000 and display.alt


def test_a_layer_that_breaks_the_symmetry_is_named() -> None:
    net = lambda: nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(18, 10))  # noqa: E731
    post = pm.fit("map", net=net, task=TASK, epochs=1, batch_size=512, progress="silent")
    with pytest.warns(UserWarning, match=r"layer '0' \(Conv2d.* breaks the symmetry under C4"):
        pm.examine(post, TASK, "equivariance", num_examples=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pm.examine(post, TASK, "equivariance", group="sign", num_examples=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "C44@3x4"}, "square lattice"),
        ({"group": "c4"}, "Did you mean 'C4'"),
        ({"group": "C4->input"}, "labels have no group action"),
        (
            {"num_examples": 1},
            "`num_examples` of equivariance must be an integer of at least 2",
        ),
        ({"ood": "patchs"}, "Did you mean 'patches'"),
        ({"sizes": [9]}, "at most 4, the number of modes, got 9"),
    ],
)
def test_what_cannot_be_is_refused(post, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        pm.examine(post, TASK, "equivariance", **options)


def test_as_the_command_line_says_it() -> None:
    assert str(read_asked("equivariance:group=C4@5x5,sizes=[1, 2]")) == (
        "equivariance:group=C4@5x5,sizes=[1, 2]"
    )
