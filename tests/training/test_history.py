"""Loss curves: bounded, exact, the same after a resume, validated where there is time for it."""

from __future__ import annotations

import pytest
import torch

import polymode as pm
from polymode.likelihoods.kinds import Categorical, Gaussian
from polymode.stack.stack import Stack
from polymode.tasks.task import Task
from polymode.training import history
from polymode.training.data import Arrays, Loader
from polymode.training.history import History, Recorder, validation_for


def stack(outputs: int = 3) -> Stack:
    return Stack(lambda: torch.nn.Linear(2, outputs), 2, seed=0)


@pytest.mark.parametrize("total", [1, 7, 100, 101, 12_345])
def test_train_losses_are_means_over_windows_of_bounded_number(total):
    recorder = Recorder(total, 2)
    for step in range(1, total + 1):
        recorder.add(step, [float(step), 2.0 * step], stack)
    found = recorder.history()
    assert len(found.train_steps) == len(found.train_loss) <= history.POINTS
    assert found.train_steps[-1] == total == found.total_steps
    begin = 0
    for end, (first, second) in zip(found.train_steps, found.train_loss, strict=True):
        assert first == pytest.approx((begin + 1 + end) / 2) and second == pytest.approx(2 * first)
        begin = end


def test_many_members_have_fewer_points():
    recorder = Recorder(1000, 1000)
    for step in range(1, 1001):
        recorder.add(step, [1.0] * 1000, stack)
    assert len(recorder.history().train_steps) == history.LEAST_POINTS


def test_a_recorder_continues_in_the_middle_of_a_window_and_its_time_adds_up():
    whole, first, second = Recorder(1000, 1), Recorder(1000, 1), Recorder(1000, 1)
    losses = [[0.1 * step**0.5] for step in range(1000)]
    for step, loss in enumerate(losses, 1):
        whole.add(step, loss, stack)
        (first if step <= 333 else second).add(step, loss, stack)
        if step == 333:
            second.load({**first.numbers(), "seconds": 1000.0})
    a, b = whole.history(), second.history()
    assert a._replace(seconds=0.0) == b._replace(seconds=0.0)
    assert 1000 < b.seconds < 1100
    second.load(None)  # the file of an older release: what is there stays
    assert second.history().train_loss == b.train_loss


def test_a_history_survives_json():
    import json

    made = History((1, 2), ((0.5, None), (0.1, 0.2)), (2,), ((0.3, 0.4),), 9, 2, 1.5)
    assert History.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_the_validation_loss_is_each_members_nll_in_the_units_of_the_targets():
    """Against the NLL by hand; the stack is left in training mode, its plans untouched."""
    x, y = torch.randn(300, 2), torch.randn(300, 1) * 5 + 2
    likelihood, net = Gaussian(noise=0.5), stack(1).train()
    data = Arrays(x, (y - 2) / 5)
    made = validation_for(data, likelihood, 1000, 10**6, log_scale=float(torch.tensor(5.0).log()))
    assert made is not None and made.num_examples == 300
    normal = torch.distributions.Normal(5 * net(x, step=0).detach() + 2, 5 * 0.5)
    expected = -normal.log_prob(y).sum(-1).mean(-1)
    plans = dict(net.plans)
    torch.testing.assert_close(made.loss(net), expected.double(), rtol=1e-5, atol=1e-5)
    assert net.training and net.plans == plans


def test_the_validation_is_as_rare_and_small_as_it_must_be():
    """Examples validated cost at most SHARE of those trained on; a short training has none."""
    data = Arrays(torch.randn(5000, 2), torch.zeros(5000, dtype=torch.long))
    for total, trained in ((100_000, 10**7), (1000, 64_000), (400, 10_000)):
        made = validation_for(data, Categorical(), total, trained)
        assert made is not None and max(made.moments) == total
        assert made.num_examples <= history.ROWS and len(made.moments) <= history.MOMENTS
        assert made.num_examples * len(made.moments) <= history.SHARE * trained
    assert validation_for(None, Categorical(), 1000, 10**6) is None
    assert validation_for(data, Categorical(), 100, 10**6) is None  # few steps
    assert validation_for(data, Categorical(), 1000, 1000) is None  # few examples


def test_rows_are_spread_over_arrays_and_the_same_of_a_shuffled_loader():
    x = torch.arange(1000.0)[:, None]
    ((rows, _),) = history.spread_rows(Arrays(x, x), 10)
    assert rows[0] == 0 and rows[-1] == 999
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, x), batch_size=7, shuffle=True
    )
    first, second = (
        torch.cat([x for x, _ in history.spread_rows(Loader(loader), 20)]) for _ in range(2)
    )
    assert len(first) == 20 and torch.equal(first, second)


def moons() -> Task:
    return pm.task("two_moons", num_train=400, num_val=100)


OPTIONS = {"net": pm.nets.mlp, "epochs": 120, "batch_size": 100, "progress": "silent"}
OPTIONS["holdout"] = 0  # else the validation data choose when to stop


@pytest.fixture(scope="module")
def fitted():
    return pm.fit("deep_ensemble", num_modes=2, task=moons(), **OPTIONS)


def test_fit_keeps_curves_that_are_saved_and_loaded(fitted, tmp_path):
    found = fitted.history
    assert found.total_steps == found.train_steps[-1] == 480 and len(found.val_steps) >= 3
    assert len(found.val_nll[0]) == len(found.train_loss[0]) == 2 and found.seconds > 0
    task = moons()
    members = fitted.predict(task.val.x).log_probs
    nll = -members.gather(-1, task.val.y.expand(2, -1)[..., None]).mean((1, 2))
    assert found.num_val == len(task.val) == 100
    torch.testing.assert_close(torch.tensor(found.val_nll[-1]).float(), nll.float())
    fitted.save(tmp_path)
    assert pm.load(tmp_path, net=pm.nets.mlp).history == found


def test_validating_changes_no_weight(fitted):
    task = moons()
    task.val = None
    alone = pm.fit("deep_ensemble", num_modes=2, task=task, **OPTIONS)
    assert alone.history.val_steps == () and alone.history.train_loss == fitted.history.train_loss
    for name, tensor in fitted.stack.tensors().items():
        assert torch.equal(tensor, alone.stack.tensors()[name]), name


def test_curves_are_the_same_after_an_interrupt(fitted, tmp_path):
    def stop(event):
        if event.kind == "checkpoint" and event.step >= 333:
            raise RuntimeError("stopped")

    how = {"task": moons(), "checkpoint": tmp_path, "checkpoint_seconds": 0.0, **OPTIONS}
    with pytest.raises(RuntimeError, match="stopped"):
        pm.fit("deep_ensemble", num_modes=2, on_event=stop, **how)
    again = pm.fit("deep_ensemble", num_modes=2, **how)
    assert again.history._replace(seconds=0.0) == fitted.history._replace(seconds=0.0)
