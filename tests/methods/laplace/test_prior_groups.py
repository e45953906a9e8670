"""Normalised groups, read from the graph, against what scaling weights does to the outputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode import nets
from polymode.methods.laplace.prior_groups import normalised_sets, prior_groups
from polymode.stack.stack import Stack

IMAGE = (1, 8, 8)
NETS = {
    "batch": lambda: nets.resnet(IMAGE, 3, blocks=(1, 1), width=4),
    "bias": lambda: nets.resnet(IMAGE, 3, blocks=(1, 1), width=4, bias=True),
    "preactivation": lambda: nets.resnet(IMAGE, 3, blocks=(2, 1), width=4, preactivation=True),
    "filter response": lambda: nets.resnet(
        IMAGE, 3, blocks=(1, 1), width=4, norm="filter_response", bias=True
    ),
    "fixup": lambda: nets.resnet(IMAGE, 3, blocks=(1, 1), width=4, norm=None),
    "lenet": lambda: nets.lenet(IMAGE, 3),
    "vit": lambda: nets.vit(IMAGE, 3, dim=8, depth=2, heads=2),
    "unet": lambda: nets.unet(IMAGE, 1, channels=(4, 8), skips=(4,), norm="group"),
    "mlp": lambda: nets.mlp(IMAGE, 3, hidden=(6, 6), norm="layer"),
    "silu": lambda: nets.mlp(IMAGE, 3, hidden=(6, 6), norm="layer", activation="silu"),
}
X = torch.randn(6, *IMAGE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network(name: str) -> nn.Module:
    """A network without the small constants of its norms, away from its start."""
    torch.manual_seed(0)
    module = NETS[name]().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    for layer in module.modules():
        if hasattr(layer, "eps"):
            layer.eps = 1e-18
    return module.train()


def changed(module: nn.Module, names: frozenset[str] | list[str], k: float) -> Tensor:
    named = dict(module.named_parameters())
    with torch.no_grad():
        for name in names:
            named[name].mul_(k)
        outputs = module(X)
        for name in names:
            named[name].div_(k)
    return outputs


@pytest.mark.parametrize("name", NETS)
def test_scaling_a_normalised_set_changes_nothing(name) -> None:
    module = network(name)
    before = changed(module, [], 1.0)
    for each in normalised_sets(Stack(NETS[name])):
        torch.testing.assert_close(changed(module, each, 3.0), before, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NETS)
def test_nothing_is_missed(name) -> None:
    """No further parameter tensor can be scaled by itself; every set is a union of groups."""
    module = network(name)
    before = changed(module, [], 1.0)
    stack = Stack(NETS[name])
    sets, groups = normalised_sets(stack), prior_groups(stack, "per_group")
    alone = {next(iter(each)) for each in sets if len(each) == 1}
    for parameter in set(stack.params) - alone if name != "bias" else ():  # without effect there
        assert (changed(module, [parameter], 3.0) - before).abs().max() > 1e-6, parameter
    for each in sets:
        inside = {groups[parameter] for parameter in each}
        assert {p for p, group in groups.items() if group in inside} == each
    assert (set(groups.values()) == {"rest"}) == (name in ("fixup", "lenet"))


def test_streams_of_pre_activation_networks_and_transformers_are_one_set() -> None:
    vit = normalised_sets(Stack(NETS["vit"]))
    assert len(vit) == 1
    assert {"token", "positions", "embed.weight", "blocks.1.linear2.weight"} < vit[0]
    assert not any("qkv" in name or "linear1" in name for name in vit[0])
    sets = normalised_sets(Stack(NETS["preactivation"]))
    ends = {"conv1.weight", "layer1.0.conv2.weight", "layer1.1.conv2.weight"}
    assert frozenset(ends) in sets  # the stream of the first stage; the second starts anew


def test_other_kinds_of_groups() -> None:
    stack = Stack(NETS["mlp"])
    assert set(prior_groups(stack, "single").values()) == {"all"}
    layers = prior_groups(stack, "per_layer")
    assert layers["1.weight"] == layers["1.bias"] == "1" and len(set(layers.values())) == 5


class Odd(nn.Module):
    """Terms that end a set: padding with ones, constants, powers, two factors."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.last, self.kind = nn.Linear(6, 2), kind
        self.slope = nn.Parameter(torch.full((6,), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.kind == "constant":
            h = h + 1.0
        elif self.kind == "square":
            h = h * h
        elif self.kind == "half":
            h = 0.5 * h
        elif self.kind == "joined":
            h = torch.cat([h[:, :3], h[:, 3:]], 1)
        elif self.kind == "padded":
            h = F.pad(h[:, :5], (0, 1), value=1.0)
        elif self.kind == "inverse":
            h = 1.0 / h
        elif self.kind == "turned":  # another way to the outputs, past the norm
            return self.last(torch.tanh(self.norm(h))) + h.mT.sum()
        elif self.kind == "with sizes":
            h = h + 0.0 * x.shape[0]
        elif self.kind == "slopes":
            h = F.prelu(h, self.slope)
        return self.last(torch.tanh(self.norm(h)))


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("constant", 0), ("square", 0), ("padded", 0), ("inverse", 0), ("turned", 0),
        ("with sizes", 0), ("half", 1), ("joined", 1), ("slopes", 1),
    ],
)  # fmt: skip
def test_what_ends_a_set(kind, number) -> None:
    sets = normalised_sets(Stack(lambda: Odd(kind)))
    assert sets == [frozenset(("first.weight", "first.bias"))] * number


class Crossed(nn.Module):
    """A product whose second factor is scaled only because of a sum elsewhere."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 6)
        self.norm, self.last, self.late = nn.RMSNorm(6, 1e-300), nn.Linear(6, 2), late

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x), self.second(x)
        if self.late:
            total = a + b
            product = a * b
        else:
            product = a * b
            total = a + b
        return self.last(self.norm(total) + self.norm(product + total))


@pytest.mark.parametrize("late", [False, True])
def test_a_factor_that_comes_twice_is_no_factor(late) -> None:
    """k a · k b is not k (a · b), in whichever order the graph is read."""
    assert not any(
        "first.weight" in names for names in normalised_sets(Stack(lambda: Crossed(late)))
    )


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


def test_a_network_without_a_graph_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"Branching does not have .* use prior='per_layer'"):
        prior_groups(Stack(Branching), "per_group")
