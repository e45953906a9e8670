"""Attacks on several inputs, and at the output of an embedding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.adversary import attack, sweep, transfer
from polymode.examinations import NotApplicable, examine
from polymode.likelihoods.scaling import Scaling

STREAM = torch.Generator().manual_seed(0)
N = 24
X = torch.rand(N, 7, generator=STREAM)
A, B = X[:, :6].reshape(N, 2, 3), X[:, 6]  # images of a kind, and a number (N,)
ONES = torch.ones(N, dtype=torch.long)
IDS = torch.randint(6, (N, 5), generator=STREAM)
LABELS = torch.arange(N) % 3
TABLE = torch.randn(6, 4, generator=STREAM)

KINDS: dict[str, dict[str, Any]] = {
    "fgsm": {},
    "bim": {"steps": 4},
    "pgd": {"steps": 4, "restarts": 2},
    "square": {"queries": 20},
    "noise": {"draws": 3},
}


class Joined(nn.Module):
    """A network of seven numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Parts(Joined):
    """The same of two real inputs and a factor that is a whole number."""

    def forward(self, a: Tensor, b: Tensor, factor: Tensor) -> Tensor:  # type: ignore[override]
        return self.body(torch.cat([a.flatten(1), b[:, None]], 1)) * factor[:, None]


class Embedded(nn.Module):
    """A network that takes what an embedding gives."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, e: Tensor) -> Tensor:
        return self.body(e.flatten(1))


class Tokens(Embedded):
    """The same behind a frozen table of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(TABLE)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(self.words(ids))


class Masked(Tokens):
    """The same of named inputs."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        return Embedded.forward(self, self.words(input_ids) * attention_mask[..., None])


class Typed(Tokens):
    """Two embeddings that take identifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.types = nn.Embedding(2, 4)

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:  # type: ignore[override]
        return Embedded.forward(self, self.words(ids) + self.types(kinds))


def fit(net: Any, x: Any, method: str = "deep_ensemble", **options: Any) -> pm.Posterior:
    usual = {"num_modes": 2, "epochs": 3, "batch_size": 8, "lr": 0.05, "execution": "loop"}
    if method in ("deep_ensemble", "dropout", "concrete_dropout"):
        usual["holdout"] = 0
    task = pm.Task(train=(x, LABELS), likelihood="categorical", input_scaling=None)
    options = {"seed": 1, "progress": "silent", **usual, **options}
    return pm.fit(method, net=net, task=task, dtype=torch.float64, **options)


@pytest.fixture(scope="module")
def several() -> tuple[pm.Posterior, pm.Posterior]:
    """One network, of two inputs and of the tensor of both."""
    return fit(Parts, {"a": A, "b": B, "factor": ONES}), fit(Joined, X)


def same(found: Any, expected: Any) -> None:
    """Both attacks saw the same predictions on the way, and ended in the same."""
    torch.testing.assert_close(found.attacked.mean, expected.attacked.mean, rtol=0, atol=1e-11)
    for name, curve in expected.curves.items():
        assert found.curves[name] == pytest.approx(curve, abs=1e-10)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("kind", KINDS)
def test_several_inputs_are_one_that_is_taken_apart(several, kind, norm) -> None:
    if (kind, norm) == ("square", "l2"):
        pytest.skip("squares are of L∞")
    options = {"kind": kind, "norm": norm, "eps": 0.2, "trajectories": 2, **KINDS[kind]}
    parts, joined = several
    found = attack(parts, {"a": A, "b": B, "factor": ONES}, LABELS, batch_size=10, **options)
    expected = attack(joined, X, LABELS, **options)
    moved = found.adversarial
    together = torch.cat([moved["a"].flatten(1), moved["b"][:, None]], 1)
    torch.testing.assert_close(together, expected.adversarial, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.trajectories, expected.trajectories, rtol=0, atol=1e-12)
    assert moved["a"].shape == A.shape and torch.equal(moved["factor"], ONES)
    assert not torch.equal(moved["a"], A.double()) and not torch.equal(moved["b"], B.double())
    assert torch.equal(found.inputs["a"], A.double()) and found.space == "inputs"
    predicted = parts.predict(moved).mean  # in one batch, and not in three
    torch.testing.assert_close(predicted, found.attacked.mean, rtol=0, atol=1e-14)
    same(found, expected)


def test_the_budget_of_several_inputs_is_one(several) -> None:
    """In L2 that of all entries of an example together: the gradient step has just this length."""
    found = attack(
        several[0], {"a": A, "b": B, "factor": ONES}, LABELS, kind="fgsm", norm="l2", eps=0.1,
        box=None,
    )  # fmt: skip
    steps = [(found.adversarial[name] - found.inputs[name]).reshape(N, -1) for name in ("a", "b")]
    lengths = torch.cat(steps, 1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.1), rtol=1e-5, atol=0)
    assert (steps[1].abs() < 0.1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_attacked_at_their_embedding(kind) -> None:
    """As the network that begins behind the embedding is, given embedded tokens."""
    options = {"kind": kind, "eps": 0.3, "box": None, **KINDS[kind]}
    embedded = TABLE[IDS].double()
    tokens = attack(fit(Tokens, IDS), IDS, LABELS, batch_size=10, **options)
    expected = attack(fit(Embedded, embedded), embedded, LABELS, **options)
    moved = expected.adversarial - embedded
    torch.testing.assert_close(tokens.adversarial, moved, rtol=0, atol=1e-12)
    assert torch.equal(tokens.inputs, IDS) and tokens.accuracy < tokens.clean_accuracy
    assert tokens.space == "embedding 'words'" and "linf 0.3 of the embedding 'words'" in repr(
        tokens
    )
    same(tokens, expected)


METHODS: dict[str, dict[str, Any]] = {
    "dropout": {},
    "concrete_dropout": {},
    "laplace": {"structure": "diag"},
    "swag": {},
    "vi": {},
    "sgld": {"burn_in": 1, "samples_per_mode": 2},
}


@pytest.mark.parametrize("method", METHODS)
def test_posteriors_of_every_kind_are_attacked_at_their_embedding(method) -> None:
    options = {"eps": 0.3, "box": None, "steps": 3}
    embedded = TABLE[IDS].double()
    behind = fit(Tokens, IDS, method, **METHODS[method])
    begins = fit(Embedded, embedded, method, **METHODS[method])
    tokens = attack(behind, IDS, LABELS, **options)
    expected = attack(begins, embedded, LABELS, **options)
    moved = expected.adversarial - embedded
    torch.testing.assert_close(tokens.adversarial, moved, rtol=0, atol=1e-10)
    same(tokens, expected)


@pytest.mark.parametrize("execution", ["batched", "threads"])
def test_executions_agree_on_an_attack_at_an_embedding(execution) -> None:
    expected = attack(fit(Tokens, IDS), IDS, LABELS, eps=0.3, box=None, steps=3)
    found = attack(fit(Tokens, IDS, execution=execution), IDS, LABELS, eps=0.3, box=None, steps=3)
    torch.testing.assert_close(found.adversarial, expected.adversarial, rtol=0, atol=1e-10)


def test_a_mask_stays_and_a_trunk_is_passed_through(tmp_path) -> None:
    """The embedding lies in a frozen trunk; and the posterior comes from files."""
    mask = torch.ones_like(IDS)
    mask[:, 3:] = 0
    x = {"input_ids": IDS, "attention_mask": mask}
    whole = fit(Masked, x)
    found = attack(whole, x, LABELS, eps=0.3, box=None, steps=3)
    assert (found.adversarial[:, :3].abs().amax((1, 2)) > 0).all()
    assert torch.equal(found.inputs["attention_mask"], mask)
    whole.save(tmp_path / "post")
    loaded = pm.load(tmp_path / "post", net=Masked)
    again = attack(loaded, x, LABELS, eps=0.3, box=None, steps=3)
    assert torch.equal(again.adversarial, found.adversarial)

    body = Tokens()
    head = fit(lambda: with_head(body), IDS, trainable="body.2")
    assert head.weights.kind.startswith("on_trunk")
    fgsm = attack(head, IDS, LABELS, kind="fgsm", eps=1e-3, box=None)
    shift = torch.zeros(N, 5, 4, dtype=torch.float64, requires_grad=True)
    outputs = [member.eval().body(shift_of(shift)) for member in head.members]
    loss = -torch.stack(outputs).softmax(-1).mean(0).log()[torch.arange(N), LABELS].sum()
    (gradient,) = torch.autograd.grad(loss, shift)
    torch.testing.assert_close(fgsm.adversarial, 1e-3 * gradient.sign(), rtol=0, atol=1e-12)


def with_head(body: Tokens) -> Tokens:
    """The same frozen body with a new last layer, and without noise before it."""
    net = copy.copy(body)
    net._modules = {**body._modules, "body": nn.Sequential(*body.body[:2], nn.Linear(8, 3))}
    return net


def shift_of(shift: Tensor) -> Tensor:
    return (TABLE[IDS].double() + shift).flatten(1)


@pytest.mark.parametrize("net", [Parts, Tokens])
def test_larger_balls_start_from_smaller_ones(net) -> None:
    x = IDS if net is Tokens else {"a": A, "b": B, "factor": ONES}
    post = fit(net, x)
    rising = sweep(post, x, LABELS, eps=[0.05, 0.1, 0.4], box=None, steps=3, checks="full")
    success = rising.success_rate
    assert (success[1:] >= success[:-1]).all() and success[-1] > success[0]


@pytest.mark.parametrize("net", [Parts, Masked])
def test_the_examination_takes_such_tasks(net) -> None:
    named = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    x = named if net is Masked else {"a": A, "b": B, "factor": ONES}
    task = pm.Task(train=(x, LABELS), test=(x, LABELS), likelihood="categorical")
    findings = examine(fit(net, x), task, "attack", eps=0.3, steps=3, num_examples=20)
    scores = {row.metric: row.value for row in findings.rows}
    assert scores["attacked_accuracy"] < scores["unattacked_accuracy"]
    space = ["embedding 'words'"] if net is Masked else []
    assert findings.arrays.get("space", torch.zeros(0).numpy()).tolist() == space


def test_what_does_not_move_is_refused_at_the_start() -> None:
    x = (IDS, torch.zeros_like(IDS))
    typed = fit(Typed, x)
    with pytest.raises(ValueError, match="one embedding, and 2 take these .*: words, types"):
        attack(typed, x, LABELS, eps=0.1, box=None)
    task = pm.Task(train=(x, LABELS), test=(x, LABELS), likelihood="categorical")
    with pytest.raises(NotApplicable, match="one embedding, and 2"):
        examine(typed, task, "attack")
    tokens = fit(Tokens, IDS)
    with pytest.raises(ValueError, match="the embedding 'words' has none: .* give box=None, got"):
        attack(tokens, IDS, LABELS, eps=0.1)
    with pytest.raises(ValueError, match="'words' of the network has 6 entries, 0 to 5"):
        attack(tokens, torch.cat([IDS[1:], IDS[:1] + 6]), LABELS, eps=0.1, box=None)
    with pytest.raises(ValueError, match=r"inputs have shape \(24, 3\); this posterior was fitted"):
        attack(tokens, IDS[:, :3], LABELS, eps=0.1, box=None)
    with pytest.raises(ValueError, match="0 inputs"):
        attack(tokens, IDS[:0], LABELS[:0], eps=0.1, box=None)
    with pytest.raises(ValueError, match="`known` inputs have shape"):
        attack(tokens, IDS, LABELS, eps=0.1, box=None, known=torch.zeros(N, 5, 3))
    with pytest.raises(ValueError, match="attack on 'a' moves the embedding 'words'"):
        transfer({"a": tokens, "b": tokens}, IDS, LABELS, eps=0.1, box=None)
    with pytest.raises(ValueError, match="torch.int64, which an attack cannot move by less than 1"):
        attack(fit(Joined, X), (X > 0.5).long(), LABELS, eps=0.1)
    parts = fit(Parts, {"a": A, "b": B, "factor": ONES})
    outside = {"a": A + 9, "b": B, "factor": ONES}
    with pytest.raises(ValueError, match=r"24 of 24 inputs leave the box"):
        attack(parts, outside, LABELS, eps=0.1)
    with pytest.raises(ValueError, match="`scaling` is of one tensor .* several inputs"):
        scaling = Scaling(torch.zeros(1), torch.ones(1))
        attack(parts, {"a": A, "b": B, "factor": ONES}, LABELS, eps=0.1, scaling=scaling)
