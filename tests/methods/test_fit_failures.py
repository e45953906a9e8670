"""What `fit` says of bad data, bad calls and trainings that diverge."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.training.loop import Divergence

from .small_fits import QUICK, X, Y, net, task

# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": (X[:0], Y[:0])}, "empty: 0 examples"),
        ({"train": (X.index_fill(0, torch.tensor([4]), math.nan), Y)}, "NaN"),
        ({"train": (X, Y.float() + 0.5)}, "Labels must be integers"),
        ({"train": (X, Y - 1)}, "-1"),
        ({"train": (X, torch.ones(len(X), 3))}, r"multi-label: row 0 has 3 labels"),
        ({"train": (X, torch.zeros(len(X), 3).long())}, r"multi-label: row 0 has 0 labels"),
        ({"train": (X, torch.eye(3)[Y % 3])}, "one-hot rows"),
        ({"train": (X, Y), "test": (X[:, :2], Y)}, r"\(2,\)"),
        ({"likelihood": "categoricl"}, "Did you mean 'categorical'"),
        ({"likelihood": "gaussian"}, "noise"),
    ],
)
def test_bad_data(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        task(**changes)


@pytest.mark.parametrize("execution", ["batched", "loop"])
@pytest.mark.parametrize("order", ["shared", "own"])
def test_a_batch_of_one_under_batchnorm_is_said(execution, order) -> None:
    one = {"batch_size": 1, "data_order": order, "execution": execution, "num_modes": 2}
    with pytest.raises(ValueError, match="BatchNorm cannot normalise a batch of 1 .*batch_size >="):
        pm.fit("deep_ensemble", net=net, task=task(), **QUICK | one)


@pytest.mark.parametrize("method", ["map", "function_rde", "sghmc"])
def test_networks_with_nothing_to_train_are_refused(method) -> None:
    """As they are, they may be taken."""
    frozen = nn.Linear(3, 2).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter to train: all 8 are frozen.*epochs=0"):
        pm.fit(method, net=frozen, task=task(), **QUICK)
    with pytest.raises(ValueError, match="no parameter to train: it has none"):
        pm.fit(method, net=lambda: nn.AdaptiveAvgPool1d(2), task=task(), **QUICK)
    assert pm.fit("map", net=frozen, task=task(), **QUICK | {"epochs": 0}).num_modes == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"net": lambda: nn.Linear(3, 1)}, "gives 1 outputs.*needs 2"),
        ({"net": lambda: nn.Linear(4, 2)}, r"cannot evaluate inputs of shape \(3,\)"),
        ({"net": lambda: nn.Flatten(0)}, "outputs of shape"),
        ({"net": lambda: nn.LSTM(3, 2)}, "returns a tuple"),
        ({"net": lambda width: nn.Linear(3, 2)}, "needs width"),
        ({"net": "lenett"}, "Unknown net 'lenett'. Did you mean 'lenet'"),
        ({"net": lambda: nn.LazyLinear(2)}, r"'weight' of the network has no shape yet: .*lazy"),
        ({"net": nn.LazyLinear(2)}, r"run one batch through the network first"),
        ({"net": [nn.LazyLinear(2)]}, "belongs to a lazy layer"),
        ({"task": "two_mons"}, "Unknown task 'two_mons'. Did you mean 'two_moons'"),
        ({"task": (X, Y)}, "`task` of fit is a tuple; give a name such as 'digits'"),
        ({"learning_rate": 0.1}, "Did you mean 'lr'"),
        ({"weight_decay": 0.1}, "Did you mean 'prior_precision'"),
        ({"num_epochs": 3}, "Did you mean 'epochs'"),
        ({"num_modes": 0}, "`num_modes` of MAP must be an integer of at least 1, got 0"),
        ({"n_members": 3}, "Did you mean 'num_modes'"),
        ({"device": "cuda"}, "torch sees no GPU"),
        ({"device": "gpu"}, "`device`"),
        ({"seed": -1}, "`seed` of fit must be an integer >= 0, got -1"),
        ({"progress": "loud"}, "`progress` must be one of"),
        ({"execution": "batch"}, "Did you mean 'batched'"),
        ({"chunk_size": 2.5}, "`chunk_size` of fit must be an integer >= 1 or None, got 2.5"),
        (
            {"prior_precision": -1.0},
            "`prior_precision` of MAP must be 'auto' or a finite number ≥ 0",
        ),
    ],
)
def test_bad_calls(options, message, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        pm.fit("map", **({"net": net, "task": task()} | QUICK | options))


def test_unknown_method_suggests_the_nearest() -> None:
    with pytest.raises(
        ValueError, match="Unknown method 'deep_ensembles'. Did you mean 'deep_ensemble'"
    ):
        pm.fit("deep_ensembles", net=net, task=task())


def test_bad_batches_of_a_loader_are_found_when_they_come() -> None:
    x = X.clone()
    x[40] = math.inf
    with pytest.raises(ValueError, match="inputs have 3 of"):
        pm.fit(
            "map", net=net, **QUICK,
            task=task(train=DataLoader(TensorDataset(x, Y), 16), target_size=2),
        )  # fmt: skip
    with pytest.raises(ValueError, match="dictionaries with the keys.*none of them is a target"):
        task(train=DataLoader([{"x": X[0], "z": 1}]))


# ------------------------------------------------------------------------------------ divergence


def test_divergence_is_told_at_its_step() -> None:
    with pytest.raises(Divergence, match=r"diverged at step [\d,]+: .*Try lr=") as caught:
        pm.fit(
            "map", net=lambda: nn.Linear(1, 1), optimizer="sgd", lr=10.0, epochs=500,
            progress="silent",
            task=pm.Task(train=(X[:, :1], X[:, 1:2]), likelihood=Gaussian(noise=0.01)),
        )  # fmt: skip
    assert "last finite" in str(caught.value)


def test_divergence_in_the_very_last_step_is_not_returned(tmp_path) -> None:
    """The loss of the only step is finite, its update is not: nothing is returned or kept."""
    with pytest.raises(Divergence, match="is not finite after this step"):
        pm.fit(
            "map", net=lambda: nn.Linear(1, 1), optimizer="sgd", lr=1e38, epochs=1, batch_size=60,
            task=pm.Task(
                train=(1e4 * X[:, :1], X[:, 1:2]), likelihood=Gaussian(noise=0.01),
                input_scaling=None,
            ),
            progress="silent", checkpoint=tmp_path,
        )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["training.lock"]


def adam_at(lr: float, **options):
    return pm.fit(
        "deep_ensemble", net=net, task=task(), lr=lr, epochs=5, progress="silent", **options
    )


def test_a_loss_that_has_grown_warns_also_after_a_resume(tmp_path) -> None:
    """Adam's steps are as long as the rate, so the loss of 10⁹ nats that it ends at is finite."""
    with pytest.warns(
        UserWarning, match=r"5 of 5 members\)\. Try lr=0\.001 instead of 1e\+06"
    ) as seen:
        post = adam_at(1e6, checkpoint=tmp_path)
    assert len(seen) == 1 and post.history.train_loss[-1][0] > 1e6
    with pytest.warns(UserWarning, match="training has diverged: the loss of member"):
        adam_at(1e6, checkpoint=tmp_path)  # nothing is left to train
    adam_at(0.1)  # too fast for a good fit, and no reason to warn


def test_several_labels_are_never_reduced_to_one() -> None:
    """`argmax` would take the first of the labels, and nobody would notice."""
    with pytest.raises(
        ValueError, match="Several labels per example are likelihood=.bernoulli"
    ) as caught:
        task(train=(X, (torch.arange(len(X))[:, None] % 4 > torch.arange(3)).float()))
    assert "argmax" not in str(caught.value)


def test_a_device_that_is_not_here_takes_one_line(monkeypatch) -> None:
    def none_here(*size, **options):
        raise RuntimeError("The MPS backend is not here. This could be because.\nMore lines")

    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("torch.empty", none_here)
    with pytest.raises(ValueError, match="device='cpu'") as caught:
        pm.fit("map", net=net, task=task(), device="mps", **QUICK)
    assert str(caught.value) == (
        "device 'mps' cannot be used here: The MPS backend is not here; use device='cpu'"
    )


def test_tasks_and_networks_by_name() -> None:
    named = pm.fit("map", net="mlp", task="two_moons", epochs=1, progress="silent")
    built = pm.fit("map", net=pm.nets.mlp, task=pm.task("two_moons"), epochs=1, progress="silent")
    x = torch.zeros(1, 2)
    assert torch.equal(named.predict(x).mean, built.predict(x).mean)
