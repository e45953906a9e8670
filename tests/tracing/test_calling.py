"""How networks take several inputs, and which tensor of their result counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.core.rows import as_rows, shapes_of
from polymode.stack.stack import Stack
from polymode.tracing.calling import calling_for, pick

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] > 0).long()


class Named(NamedTuple):
    logits: Tensor
    hidden: Tensor


@dataclass
class Held:
    logits: Tensor
    hidden: Tensor


class Returns(nn.Module):
    """A linear layer, its output in a container."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(3, 2), wrap

    def forward(self, x: Tensor) -> Any:
        h = self.linear(x)
        return self.wrap(h)


WRAPS = {
    "dict": lambda h: {"loss": None, "logits": h, "hidden": h - 1},
    "dataclass": lambda h: Held(h, h - 1),
    "named tuple": lambda h: Named(h, h - 1),
    "single": lambda h: (h,),
}


@pytest.mark.parametrize("kind", WRAPS)
def test_logits_are_taken_unasked_also_of_a_loaded_network(kind, tmp_path) -> None:
    def build() -> nn.Module:
        return Returns(WRAPS[kind])

    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    options = {"task": task, "epochs": 3, "seed": 1, "progress": "silent"}
    post = pm.fit("map", net=build, **options)
    plain = pm.fit("map", net=lambda: Returns(lambda h: h), **options)
    assert torch.equal(post.predict(X).mean, plain.predict(X).mean)
    assert type(post.members[0](X)) is type(WRAPS[kind](X))  # the user's own network
    post.save(tmp_path)
    assert torch.equal(pm.load(tmp_path, net=build).predict(X).mean, post.predict(X).mean)


@pytest.mark.parametrize(("wrap", "output"), [(WRAPS["dict"], "hidden"), (lambda h: (h, h - 1), 1)])
def test_an_output_is_named(wrap, output, tmp_path) -> None:
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    build = lambda: Returns(wrap)  # noqa: E731
    post = pm.fit("map", net=build, task=task, epochs=2, output=output, progress="silent")
    member = post.members[0]
    torch.testing.assert_close(post.predict(X).mean, torch.softmax(member(X)[output].detach(), 1))
    post.save(tmp_path)
    assert torch.equal(pm.load(tmp_path, net=build).predict(X).mean, post.predict(X).mean)


@pytest.mark.parametrize(
    ("result", "output", "message"),
    [
        ((X, X), None, r"returns a tuple, which holds 0 \(6, 3\), 1 \(6, 3\).*output=0"),
        ({"a": X, "b": X}, None, r"'a' \(6, 3\), 'b' \(6, 3\); name the logits.*output='a'"),
        ({"a": X}, "b", r"returns a dict without 'b', which holds 'a' \(6, 3\)"),
        ({"a": 3}, None, "returns a dict without tensors; it must return one tensor"),
        (X, "logits", "output='logits' names a part, but the network returns one tensor"),
        ("text", None, "returns a str without tensors"),
    ],
)
def test_unclear_outputs_are_one_line(result, output, message) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        pick(result, output)
    assert "\n" not in str(refused.value)


class Takes(nn.Module):
    def forward(self, ids: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
        return ids * mask * scale


class Whole(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["ids"] * batch["mask"]


class Anything(nn.Module):
    def forward(self, *args: Tensor, **named: Tensor) -> Tensor:
        return named["ids"] * named["mask"]


@pytest.mark.parametrize("network", [Takes, Whole, Anything])
def test_inputs_by_name_or_as_one_argument(network) -> None:
    x = as_rows({"mask": X, "ids": X + 1})
    calling = calling_for(network(), shapes_of(x))
    stack = Stack(network).call_by(calling)
    torch.testing.assert_close(stack.views.build(0, share=False)(x), X * (X + 1))
    assert not stack.members()[0]._forward_pre_hooks


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"ids": X}, "forward of Takes needs 'mask', which the data do not have"),
        ({"ids": X, "mask": X, "masks": X}, "does not take 'masks'.*Did you mean 'mask'"),
        ((X,) * 4, r"takes 3 inputs \(ids, mask, scale\), the data have 4"),
    ],
)
def test_inputs_that_a_network_does_not_take(x, message) -> None:
    task = pm.Task(train=(x, LABELS), likelihood="categorical")
    with pytest.raises(ValueError, match=message) as refused:
        pm.fit("map", net=Takes, task=task, progress="silent")
    assert "\n" not in str(refused.value)


def test_the_output_of_a_posterior_stays_its_output() -> None:
    """Of one whose networks another method continues from."""
    task = pm.Task(train=(X, LABELS), likelihood="categorical")
    build = lambda: Returns(WRAPS["dict"])  # noqa: E731
    first = pm.fit("map", net=build, task=task, epochs=1, output="hidden", progress="silent")
    second = pm.fit("laplace", net=first, task=task, progress="silent")
    assert second.stack.calling.output == "hidden"
    torch.testing.assert_close(
        second.stack(X)[0], first.members[0](X)["hidden"].detach(), rtol=1e-5, atol=1e-6
    )
