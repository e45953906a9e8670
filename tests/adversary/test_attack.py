"""Attacks: they stay where they may, more is never weaker, and they follow the predictive."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import polymode as pm
from polymode.adversary import attack, sweep, transfer
from polymode.adversary.ball import Ball
from polymode.adversary.gradient_steps import pgd
from polymode.adversary.objective import Aim
from polymode.adversary.search import Search
from polymode.adversary.victim import Victim
from polymode.prediction import CategoricalPrediction

from .small_posteriors import CLASSES, SHAPES, posterior

OPTIONS = {
    "fgsm": {}, "bim": {"steps": 5}, "pgd": {"steps": 5, "restarts": 2}, "square": {"queries": 20},
    "noise": {"draws": 3},
}  # fmt: skip


def inputs(post, count=24, seed=1):
    """Return inputs, some at the sides of the box, and the classes predicted there."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.rand(count, *post.input_shape, generator=stream).to(post.stack.dtype)
    x[::3] = x[::3].round()
    return x, post.predict(x).classes


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("eps", [0.0, 1e-9, 0.03, 0.3, 5.0])
@pytest.mark.parametrize("kind", list(OPTIONS))
def test_ball_and_box_are_never_left(kind, eps, norm):
    """Exactly, not up to rounding: of every input on the way."""
    if kind == "square" and norm == "l2":
        pytest.skip("the square attack is in L∞ only, which it says")
    post = posterior("lenet")
    x, y = inputs(post)
    options = {"norm": norm, "checks": "none", "trajectories": len(x), **OPTIONS[kind]}
    found = attack(post, x, y, kind=kind, eps=eps, **options)
    path = torch.cat([found.trajectories, found.adversarial[None]])
    assert path.min() >= 0 and path.max() <= 1
    moved = (path.double() - x.double()).flatten(2)
    distance = moved.abs().amax(2) if norm == "linf" else moved.norm(dim=2)
    assert distance.max().item() <= eps
    if eps in (0.03, 0.3):
        assert distance.max().item() > 0.9 * eps  # and it goes as far as it may
    if eps == 0:
        assert torch.equal(found.adversarial, x)


@pytest.mark.parametrize("adaptive", [None, "mutual_information"])
def test_more_steps_and_restarts_are_never_weaker(adaptive):
    """For the same seed and step size; each example by itself, and what it is worth too."""
    post = posterior("mlp")
    x, y = inputs(post, 60)

    def found(steps: int, restarts: int) -> Search:
        ball = Ball(x, 0.15)
        search = Search(Victim(post, None, 1, 1, 0), Aim(y, score=adaptive), ball)
        pgd(search, steps=steps, restarts=restarts, step_size=0.05)
        return search

    runs = [found(1, 1), found(3, 1), found(9, 1), found(9, 3)]
    for less, more in zip(runs, runs[1:], strict=False):
        assert not (less.reached & ~more.reached).any()
        level = less.reached == more.reached
        assert (more.worth >= less.worth)[level].all()
    assert runs[-1].reached.sum() > runs[0].reached.sum()
    public = attack(post, x, y, eps=0.15, steps=9, restarts=3, step_size=0.05, adaptive=adaptive)
    assert torch.equal(public.success, runs[-1].reached)


def test_a_posterior_that_draws_is_judged_by_the_same_samples_at_every_step():
    post = posterior("mlp", dropout=0.3, samples_per_mode=4)
    x, y = inputs(post, 40)
    runs = []
    for steps in (1, 4, 8):
        search = Search(Victim(post, None, 2, 4, 0), Aim(y), Ball(x, 0.15))
        pgd(search, steps=steps, step_size=0.05)
        runs.append(search)
    for less, more in zip(runs, runs[1:], strict=False):
        assert not (less.reached & ~more.reached).any()
    seen = runs[-1].victim.judge(runs[-1].best)
    assert torch.equal(seen.classes != y, runs[-1].reached)


def test_larger_balls_are_never_weaker_where_they_are_nested():
    post = posterior("lenet")
    x, y = inputs(post, 60)
    options = {"eps": [1.0, 0.02, 0.4, 0.1], "kind": "bim", "steps": 1}  # its step overshoots

    def lost(nested: bool) -> int:
        found = sweep(post, x, y, nested=nested, **options)
        assert found.eps.tolist() == [0.02, 0.1, 0.4, 1.0]
        pairs = zip(found.attacks, found.attacks[1:], strict=False)
        return sum(int((less.success & ~more.success).sum()) for less, more in pairs)

    assert lost(nested=True) == 0 < lost(nested=False)


def test_random_noise_of_the_same_size_is_far_weaker():
    """No gradient masking on plain networks: with 100 tries noise fools fewer than one step."""
    post = posterior("lenet")
    x, y = inputs(post, 80)
    noise, step, pgd20 = (
        attack(post, x, y, kind=kind, eps=0.06, **options).success_rate
        for kind, options in (("noise", {"draws": 100}), ("fgsm", {}), ("pgd", {"steps": 20}))
    )
    assert noise < step <= pgd20 + 0.05 and pgd20 > noise + 0.1


def test_the_gradient_is_that_of_the_log_of_the_mean_probability():
    """By hand over the members; a mean of logits points elsewhere."""
    post = posterior("mlp", num_modes=5, dtype=torch.float64)
    x, y = inputs(post, 10)
    mine = attack(post, x, y, kind="fgsm", eps=0.01, box=None, checks="none").adversarial - x
    source = x.clone().requires_grad_()
    logits = torch.stack([member(source) for member in post.members])
    by_hand = logits.softmax(-1).mean(0).log().gather(1, y[:, None]).sum()
    (gradient,) = torch.autograd.grad(by_hand, source, retain_graph=True)
    assert torch.equal(mine.sign(), -gradient.sign())
    of_logits = logits.mean(0).log_softmax(-1).gather(1, y[:, None]).sum()
    (other,) = torch.autograd.grad(of_logits, source)
    assert (other.sign() != gradient.sign()).double().mean() > 0


def test_samples_are_fresh_and_as_many_as_asked(monkeypatch):
    post = posterior("mlp", dropout=0.5, samples_per_mode=3)
    x, y = inputs(post, 8)
    calls = []
    own = post.predict_batch

    def spy(x, *, samples_per_mode=None, seed=0):
        calls.append((samples_per_mode, seed, x.requires_grad))
        return own(x, samples_per_mode=samples_per_mode, seed=seed)

    monkeypatch.setattr(post, "predict_batch", spy)
    found = attack(
        post, x, y, eps=0.1, steps=4, samples_per_mode=2, eval_samples_per_mode=5, checks="none"
    )
    gradients = [(count, seed) for count, seed, grad in calls if grad]
    judged = [(count, seed) for count, seed, grad in calls if not grad]
    assert [count for count, _ in gradients] == [2] * 4 and len(set(gradients)) == 4
    assert {count for count, _ in judged} == {5} and len(set(judged)) == 2  # steps; the end
    assert not {seed for _, seed in gradients} & {seed for _, seed in judged}
    assert (found.cost.gradients, found.cost.queries) == (4, 6)  # x itself, then T + 1
    assert found.attacked.num_samples == 15


def test_the_batch_size_changes_nothing():
    post = posterior("lenet", dropout=0.3, samples_per_mode=2, dtype=torch.float64)
    x, y = inputs(post, 20)
    for kind, options in OPTIONS.items():
        whole, parts = (
            attack(post, x, y, kind=kind, eps=0.1, batch_size=size, trajectories=9, **options)
            for size in (64, 7)
        )
        torch.testing.assert_close(whole.adversarial, parts.adversarial, rtol=0, atol=1e-12)
        torch.testing.assert_close(whole.trajectories, parts.trajectories, rtol=0, atol=1e-12)
        assert (whole.curves["classes"] == parts.curves["classes"]).all()


@pytest.mark.parametrize("name", list(SHAPES))
def test_parameters_are_not_differentiated(name):
    """The graph of a prediction ends at the inputs alone."""
    post = posterior(name)
    x, _ = inputs(post, 4)
    for kind in (post.weights, posterior(name, dropout=0.2).weights):
        post.weights = kind
        source = x.clone().requires_grad_()
        ends, todo = set(), [post.predict_batch(source).mean.grad_fn]
        while todo:
            node = todo.pop()
            if type(node).__name__ == "AccumulateGrad":
                ends.add(id(node.variable))
            todo += [parent for parent, _ in node.next_functions if parent is not None]
        assert ends == {id(source)}


def test_targeted_attacks_reach_their_class():
    post = posterior("mlp")
    x, y = inputs(post, 40)
    wanted = (y + 1) % CLASSES
    found = attack(post, x, y, kind="bim", eps=math.inf, step_size=0.02, steps=40, targets=wanted)
    assert found.success_rate > 0.8
    assert torch.equal(found.success, found.attacked.classes == wanted)
    assert "targeted" in repr(found) and "target predicted" in str(found)
    rise = found.curves["rise"]  # log p(target)
    assert rise[-1].mean() > rise[0].mean() and (rise <= 0).all()


def test_probabilities_that_become_zero_do_no_harm():
    """Logits hundreds apart: log p(target) is far below the log of the smallest number, and its
    gradient is not 0. That of log p(label) is, which the flag says, and the margin's is not."""
    post = posterior("mlp", num_modes=1, scale=3e4)
    x, y = inputs(post, 30)
    assert (post.predict(x).mean.amin(1) == 0).all()
    options = {"kind": "bim", "eps": 0.3, "steps": 20}
    found = attack(post, x, y, targets=(y + 1) % CLASSES, **options)
    assert found.adversarial.isfinite().all() and found.success_rate > 0.3
    assert found.curves["rise"][0].min() < math.log(torch.finfo(torch.float32).tiny)
    stuck = attack(post, x, y, **options)
    assert [flag.name for flag in stuck.flags] == ["zero_gradient"]
    assert "gradients are 0 in all entries" in str(stuck)
    margin = attack(post, x, y, loss="margin", **options)
    assert not margin.flags and margin.success_rate > stuck.success_rate + 0.3


def test_members_that_are_certain_and_disagree_have_margins_of_their_own():
    """The predictive is then a share of votes, without a gradient whatever the loss."""
    post = posterior("mlp", num_modes=5, scale=3e6)
    x, y = inputs(post, 30)
    rates = {
        loss: attack(post, x, y, eps=0.2, steps=20, loss=loss)
        for loss in ("log_prob", "margin", "member_margin")
    }
    assert {flag.name for flag in rates["margin"].flags} == {"zero_gradient"}
    assert not rates["member_margin"].flags
    assert rates["member_margin"].success_rate > rates["margin"].success_rate + 0.2


def test_transfer_shows_each_the_inputs_of_the_others():
    posts = {"a": posterior("mlp"), "b": posterior("mlp", seed=5)}
    x, y = inputs(posts["a"], 50)
    found = transfer(posts, x, y, eps=0.1, steps=5)
    for row, (name, source) in enumerate(posts.items()):
        own = attack(source, x, y, eps=0.1, steps=5)
        assert torch.equal(own.adversarial, found.attacks[name].adversarial)
        for column, other in enumerate(posts.values()):
            right = (other.predict(own.adversarial).classes == y).double().mean()
            assert found.accuracy[row, column] == pytest.approx(right.item())
    assert found.accuracy[0, 0] < found.clean[0]
    assert str(found).splitlines()[0].split() == ["inputs", "made", "against", "a", "b"]
    with pytest.raises(ValueError, match="at least 2 posteriors, got 1"):
        transfer({"a": posts["a"]}, x, y, eps=0.1)


def wrong(**changes):
    x = torch.rand(5, 6, generator=torch.Generator().manual_seed(2))
    return {"x": x, "y": torch.zeros(5, dtype=torch.long), "eps": 0.1} | changes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (wrong(eps=-0.1), "`eps` of an attack must be a number >= 0, got -0.1"),
        (wrong(eps=math.nan), "`eps` of an attack must be a number >= 0, got nan"),
        (wrong(eps=math.inf), "`step_size` of pgd must be given where `eps` is inf"),
        (wrong(eps=math.inf, box=None), "nothing bounds the attack"),
        (wrong(kind="fgsm", eps=math.inf), "`eps` of fgsm must be finite"),
        (wrong(targets=0), "5 of 5 targets are the label itself, the first in row 0"),
        (wrong(targets=7), "`targets` of an attack: Labels must be in 0..3, got 7"),
        (wrong(x=torch.full((5, 6), 1.5)), r"5 of 5 inputs leave the box \[0, 1\]: they lie in"),
        (wrong(x=torch.zeros(5, 6, dtype=torch.uint8)), "inputs are torch.uint8, .* / 255"),
        (wrong(x=torch.full((5, 6), math.nan)), "5 of 5 inputs hold NaN or infinity"),
        (wrong(x=torch.rand(5, 7)), r"inputs have shape \(5, 7\); .* fitted on \(N, 6\)"),
        (wrong(y=torch.zeros(4, dtype=torch.long)), r"4 label\(s\) for 5 input\(s\)"),
        (wrong(kind="pdg"), "Unknown kind of attack 'pdg'. Did you mean 'pgd'"),
        (wrong(kind="fgsm", steps=3), "Unknown option 'steps' for the attack 'fgsm'"),
        (wrong(steps=0), "`steps` of pgd must be an integer of at least 1, got 0"),
        (wrong(step_size=-1.0), "`step_size` of pgd must be > 0, got -1.0"),
        (wrong(norm="l1"), "`norm` must be one of linf, l2, got 'l1'"),
        (wrong(kind="square", norm="l2"), "`norm` of square must be 'linf'"),
        (wrong(adaptive="entropy"), "`adaptive` must be one of predictive_entropy"),
        (wrong(weight=0, adaptive="predictive_entropy"), "`weight` of an attack must be a finite"),
        (wrong(samples_per_mode=0), "`samples_per_mode` of an attack must be an integer of at"),
        (wrong(eval_samples_per_mode=0), "`eval_samples_per_mode` of an attack must be an"),
        (wrong(batch_size=0), "`batch_size` of an attack must be an integer of at least 1, got 0"),
        (wrong(box=1.0), r"`box` must be \(smallest, largest\), got 1.0"),
        (wrong(samples_per_mode=2), "`samples_per_mode` is 2, but made up kept 1 per mode"),
        (wrong(known=torch.rand(5, 6), keep="last"), "`known` inputs are of no use"),
        (wrong(known=torch.rand(1, 6)), r"`known` inputs have shape \(1, 6\), the inputs \(5, 6\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        attack(posterior("mlp"), **given)


def test_numbers_of_numpy_are_numbers():
    found = attack(posterior("mlp"), **wrong(eps=np.float32(0.125)))
    assert found.eps == 0.125


def test_regressions_are_refused_and_ignored_options_warn():
    known = {"adaptive": "mutual_information"}
    with pytest.raises(ValueError, match="needs at least 2 samples, for gradients and"):
        attack(posterior("mlp", num_modes=1), **wrong(**known))
    noisy = posterior("mlp", num_modes=1, dropout=0.3, samples_per_mode=4)
    with pytest.raises(ValueError, match="needs at least 2 samples, for gradients and"):
        attack(noisy, **wrong(eval_samples_per_mode=1, **known))
    with pytest.warns(UserWarning, match="`weight` has no effect without `adaptive`"):
        attack(posterior("mlp"), **wrong(weight=2.0))
    with pytest.warns(UserWarning, match="`away_from='predicted'` has no effect with `targets`"):
        attack(posterior("mlp"), **wrong(targets=1, away_from="predicted"))
    task = pm.task("gap_regression")
    post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=0, progress="silent")
    with pytest.raises(ValueError, match="this posterior .map. is of a regression"):
        attack(post, *task.test.head(3), eps=0.1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_there_where_they_are_switched_off(mode):
    post = posterior("mlp", dropout=0.2, samples_per_mode=2)
    x, y = inputs(post, 8)
    wanted = attack(post, x, y, eps=0.2, steps=2)
    with mode():
        found = attack(post, x.clone(), y, eps=0.2, steps=2)
    assert torch.equal(found.adversarial, wanted.adversarial)


def test_the_steepest_direction_has_norm_one():
    """Also of gradients whose squares underflow or overflow; that of no gradient is none."""
    gradients = torch.tensor([[1e-40, 0.0], [3e-30, 4e-30], [3e30, -4e30], [0.0, 0.0]])
    found = Ball(torch.zeros(4, 2), 1.0, "l2", None).steepest(gradients)
    wanted = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8], [0.0, 0.0]])
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("targeted", [False, True])
def test_what_was_wrong_before_stays_wrong(targeted):
    """An attack may leave an input alone, also where it starts from a random point elsewhere."""
    post = posterior("mlp")
    x, predicted = inputs(post, 200)
    labels, targets = (predicted + 1) % CLASSES, predicted if targeted else None
    found = attack(post, x, labels, eps=0.3, steps=1, step_size=1e-6, targets=targets)
    assert found.success.all()


def test_inputs_that_were_wrong_before_raise_no_flag():
    """A ball too small for anything to change in: neither attack nor noise fools an input."""
    post = posterior("mlp")
    x, y = inputs(post, 20)
    y[:5] = (y[:5] + 1) % CLASSES
    found = attack(post, x, y, eps=1e-6, checks="full")
    assert found.success_rate == 0.25 and found.flags == ()


class Rounded(nn.Module):
    """Rounds its inputs: a useful function without gradients."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net((x * 4).round() / 4)


def test_flags_are_raised_where_gradients_say_nothing():
    assert attack(posterior("mlp"), **wrong(checks="full")).flags == ()
    noisy = posterior("mlp", num_modes=1, dropout=0.8)
    found = attack(noisy, **wrong(eps=0.2, steps=2))
    assert found.flags[-1].name == "randomised" and "mean cosine of" in str(found.flags[-1])
    clear = attack(noisy, **wrong(eps=0.2, steps=2, samples_per_mode=200))
    assert not clear.flags


class Jittered(Rounded):
    """Adds noise to its outputs, in evaluation too."""

    def forward(self, x):
        logits = self.net(x)
        return logits + torch.randn_like(logits)


@pytest.mark.parametrize(
    ("wrap", "names"),
    [
        (Jittered, {"randomised"}),
        (Rounded, {"zero_gradient", "black_box", "noise"}),
        (lambda net: nn.Sequential(net, nn.Softmax(-1)), {"softmax_output"}),
    ],
)
def test_flags_of_networks_that_hide_their_gradients(wrap, names):
    post = posterior("mlp", num_modes=1)
    x, y = inputs(post, 40)
    task = pm.Task(train=(x, y), likelihood="categorical", target_size=CLASSES)
    with warnings.catch_warnings(action="ignore"):  # `fit` warns of a softmax, too
        hidden = pm.fit("map", net=wrap(post.members[0]), task=task, epochs=0, progress="silent")
    found = attack(hidden, x, y, eps=0.2, steps=3, checks="full")
    assert names <= {flag.name for flag in found.flags}


def test_starts_are_uniform_in_a_euclidean_ball():
    """The d-th power of the radius is uniform: Kolmogorov-Smirnov, false alarms 1 in 10⁶; the
    direction has mean 0, five standard errors."""
    centre = torch.full((2000, 1, 1, 3), 0.5, dtype=torch.float64)
    streams = [torch.Generator().manual_seed(seed) for seed in range(2000)]
    ball = Ball(centre, 0.2, "l2", box=None)
    x = ball.random(streams)
    assert stats.kstest((ball.distances(x) / 0.2) ** 3, "uniform").pvalue > 1e-6
    moved = (x - centre).flatten(1)
    assert (moved.mean(0).abs() < 5 * moved.std(0) / 2000**0.5).all()


def test_an_adaptive_aim_takes_off_the_score_times_its_weight():
    stream = torch.Generator().manual_seed(0)
    probs = torch.rand(3, 5, CLASSES, generator=stream, dtype=torch.float64)
    prediction = CategoricalPrediction.from_probs(probs / probs.sum(-1, keepdim=True))
    aim = Aim(torch.zeros(5, dtype=torch.long), score="predictive_entropy")
    one, more = (aim._replace(weight=weight).rise(prediction) for weight in (1.0, 3.5))
    torch.testing.assert_close(one - more, 2.5 * prediction.predictive_entropy)
