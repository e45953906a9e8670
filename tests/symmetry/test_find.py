"""What is found: groups, blocks and scalings of networks whose symmetries are known by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import polymode as pm
from polymode import nets
from polymode import symmetry as sym
from polymode.stack.stack import Stack
from polymode.tracing import operations

from .made_up import ALL, NETS, OWN, Net, attending, grouped, parameter, residual

logf = math.lgamma


def log_factorials(*sizes: int) -> float:
    return sum(logf(size + 1) for size in sizes)


# name -> (logarithm of the number of permutations, number of scalings), both counted by hand
KNOWN = {
    "mlp": (log_factorials(6, 5), 11),
    "mlp-tanh": (log_factorials(6, 5), 0),
    "mlp-batch": (log_factorials(6, 5), 2 * 11),  # before and after each BatchNorm
    "mlp-prelu": (log_factorials(6, 5), 11),  # LayerNorm has eps: only after it
    "tabular": (log_factorials(3, 6, 5), 3 + 6 + 5),  # numbers of an embedding, then units
    "optunet": (log_factorials(2, 5, 5, 3), 2 + 10 + 3),
    "lenet": (log_factorials(6, 16, 120, 84), 6 + 16 + 120 + 84),
    # streams of 4, 8 and 16 channels, and one inner layer in each block
    "resnet8": (log_factorials(4, 4, 8, 8, 16, 16), 4 * 5 + 8 * 5 + 16 * 5),
    # each stage takes over the stream of the last one, and adds as many channels of its own
    "resnet8-padding": (log_factorials(4, 4, 4, 8, 8, 16), 4 * 5 + 3 * 8 + 4 + 3 * 16 + 8),
    "resnet8-frn": (log_factorials(4, 4, 8, 8, 16, 16), 0),
    "resnet8-frn-relu": (log_factorials(4, 4, 8, 8, 16, 16), 2 * (4 + 8 + 16)),
    # scalar biases tie all channels: a stream, two inner ones per block, less by a tied first one
    "resnet8-fixup": (log_factorials(4, 4, 8, 8, 16, 16), 9),
    # stream; per block: heads, features of queries and keys and of values in each head, MLP
    "vit": (
        log_factorials(8) + 2 * (log_factorials(2) + 4 * log_factorials(4) + log_factorials(16)),
        5 * 8 + 2 * (8 + 8),
    ),
    "residual": (log_factorials(6, 5, 5), 6 + 5 + 5),
    "joined": (log_factorials(4, 4, 2, 3), 4 + 4 + 5),
    "grouped": (log_factorials(5, 3) + 3 * log_factorials(2, 3), 5 + 6 + 9),
    # channels 4 in two pairs, of which each channel has two outputs, three of the last per pair
    "depthwise": (4 * log_factorials(2) + 2 * log_factorials(3), 4 + 8 + 6),
    "halves": (log_factorials(4, 4), 4),
    "gated": (log_factorials(6, 4), 6 + 4 + 6),
    "repeated": (log_factorials(5), 5),
    # all three layers permute together; the shared weight has a scale of its own
    "tied": (log_factorials(5), 5 + 1),
    "cnn": (log_factorials(4, 5, 6), 4 + 5 + 6),
    "mixed": (log_factorials(8, 7), 1),
}


@pytest.mark.parametrize("name", KNOWN)
def test_groups_are_those_counted_by_hand(name) -> None:
    """Without the check that would drop wrong ones."""
    make, shape = ALL[name]
    found = sym.find(make(), shape, check=False)
    permutations, scalings = KNOWN[name]
    assert found.log_permutations == pytest.approx(permutations)
    assert found.num_scalings == scalings
    assert bool(found.unseen) == (name == "depthwise")  # pairs of channels are blocks of blocks


def test_every_network_of_nets_is_among_those_tried() -> None:
    """`resnet` itself is what the sizes 8, 18 and 20 are made by."""
    assert {name.split("-")[0] for name in NETS} == set(nets.__all__) - {"resnet"}


@pytest.mark.parametrize("name", ALL)
def test_the_check_has_nothing_to_object_to(name) -> None:
    make, shape = ALL[name]
    assert str(sym.find(make(), shape)) == str(sym.find(make(), shape, check=False))


def test_it_prints_itself() -> None:
    text = str(sym.find(nets.optunet((1, 28, 28), 10)))
    assert text == (
        "Symmetries of Sequential: 3 groups of units, e^12.1 = 10^5.2 permutations; 15 scalings\n"
        "  permute  units  blocks\n"
        "  0        1      2 of 0 blocks\n"
        "  3        5      2 of 0 blocks\n"
        "  7        3\n"
        "  scale  number\n"
        "  0      2\n"
        "  3      10\n"
        "  7      3"
    )
    text = str(sym.find(nets.resnet8((2, 8, 8), 3, width=4)))
    assert "layer1.0.conv1       4       undone by a normalisation" in text and "tied" in text


def test_eps_can_be_ignored() -> None:
    """LayerNorm undoes one scale of all it normalises, filter response norm one per channel."""
    net = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2))
    assert sym.find(net).num_scalings == 5 and sym.find(net).nearly == ("1",)
    whole = sym.find(net, ignore_eps=True)
    assert whole.num_scalings == 6 and not whole.nearly
    net[1].eps = 0.0
    assert sym.find(net).num_scalings == 6
    frn = nets.resnet8((2, 8, 8), 3, width=4, norm="filter_response", activation="silu")
    assert sym.find(frn, ignore_eps=True).num_scalings == 3 * 4 + 3 * 8 + 3 * 16


def test_the_shape_of_inputs_is_found() -> None:
    for net in (nets.lenet((1, 28, 28), 10), nets.vit((3, 32, 32), 10), nets.mlp((7,), 2)):
        assert sym.find(net).groups
    fits_nothing = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 35 * 11, 2))
    with pytest.raises(ValueError, match="no usual shape.*input_shape="):
        sym.find(fits_nothing)
    assert sym.find(fits_nothing, (1, 37, 13)).groups
    with pytest.raises(ValueError, match=r"does not take inputs of shape \(1, 8, 8\)"):
        sym.find(fits_nothing, (1, 8, 8))


def test_a_posterior_knows_the_shape() -> None:
    task = pm.task("two_moons")
    post = pm.fit("deep_ensemble", net=pm.nets.mlp, task=task, num_modes=2, epochs=1)
    assert sym.find(post).log_permutations == pytest.approx(log_factorials(64, 64))


def test_operations_without_a_rule_are_named_and_held_fixed() -> None:
    net = Net(
        lambda net, x: net.out(net.lstm(F.relu(net.b(F.relu(net.a(x)))))[0].mean(1)),
        a=nn.Linear(3, 6), b=nn.Linear(6, 5), lstm=nn.LSTM(5, 4, batch_first=True),
        out=nn.Linear(4, 2),
    )  # fmt: skip
    found = sym.find(net, (6, 3))
    assert found.unseen == ("LSTM (lstm)",) and [g.name for g in found.groups] == ["a"]
    assert "held fixed, of unknown effect: LSTM (lstm)" in str(found)


def test_layers_used_twice_are_named_and_tied() -> None:
    found = sym.find(OWN["repeated"][0](), (3,))
    assert found.shared == ("b",) and [g.size for g in found.groups] == [5]
    assert "used more than once, units tied: b" in str(found)
    layer = nn.Linear(5, 5)  # under two names
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), layer, nn.ReLU(), layer, nn.ReLU())
    found = sym.find(net.append(nn.Linear(5, 2)))
    assert found.shared == ("2",) and [g.size for g in found.groups] == [5]
    assert sym.find(OWN["tied"][0](), (3,)).shared == ("b.weight = c.weight",)
    square = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    square[2].weight = square[0].weight  # which reads inputs, and these stay
    assert not sym.find(square).groups
    assert sym.find(square).num_scalings == 1  # W -> s W, outputs of the two layers by s and s²


def test_control_flow_that_depends_on_data_is_refused() -> None:
    net = Net(lambda net, x: net.a(x) if x.sum() > 0 else net.a(-x), a=nn.Linear(3, 2))
    with pytest.raises(ValueError, match="Net cannot be traced.*control flow.*torch.where"):
        sym.find(net, (3,))
    for run in (lambda net, x: net.a(x) * x.max().item(), lambda net, x: net.a(x)[: int(x.sum())]):
        with pytest.raises(ValueError, match="values of tensors"):
            sym.find(Net(run, a=nn.Linear(3, 2)), (3,))
    hooked = nn.Linear(3, 2)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="forward hooks"):
        sym.find(hooked)
    with pytest.raises(ValueError, match="must be a module, a stack or a posterior, got a str"):
        sym.find("lenet")


def test_wrong_calls_are_named() -> None:
    net = nets.mlp((3,), 2, hidden=(4,))
    for wrong in (lambda: net, nn.Linear):
        with pytest.raises(ValueError, match="got a (function|type): .* has to be called"):
            sym.find(wrong)
    with pytest.raises(ValueError, match=r"shape of one example, such as \(3, 32, 32\), got 3"):
        sym.find(net, 3)
    with pytest.raises(ValueError, match="must be an Element.*got a str"):
        sym.apply(net, "permuted")
    found = sym.find(net)
    with pytest.raises(ValueError, match=r"scales of '0' must have shape \(4,\) or \(1, 4\)"):
        sym.element(found, scales={"0": [1.0, 2.0]})
    with pytest.raises(ValueError, match="must have one input, it has 2: input1, input2"):
        sym.find(nn.Bilinear(3, 3, 2), (3,))


def test_outputs_in_a_dictionary() -> None:
    net = Net(
        lambda net, x: {"logits": net.b(F.relu(net.a(x)))}, a=nn.Linear(3, 5), b=nn.Linear(5, 2)
    )
    assert [group.size for group in sym.find(net, (3,)).groups] == [5]


def test_a_network_without_hidden_units() -> None:
    assert str(sym.find(nn.Linear(3, 2))) == (
        "Symmetries of Linear: 0 groups of units, e^0.0 = 10^0.0 permutations; 0 scalings"
    )


def test_constants_and_buffers_hold_units_fixed() -> None:
    net = Net(
        lambda net, x: net.b(F.relu(net.a(x) + torch.arange(5.0))),
        a=nn.Linear(3, 5),
        b=nn.Linear(5, 2),
    )
    assert not sym.find(net, (3,)).groups and sym.find(net, (3,)).num_scalings == 0


def test_wrong_rules_are_caught_by_the_check(monkeypatch) -> None:
    """If tanh were taken for homogeneous, the scalings would be dropped and named."""
    wrong = operations.Operation("tanh", "elementwise", 1)
    monkeypatch.setattr(operations, "TABLE", {**operations.TABLE, "tanh": wrong})
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    assert sym.find(net, check=False).num_scalings == 5
    found = sym.find(net)
    assert found.num_scalings == 0 and found.unseen == ("all scalings (fails when tried)",)
    assert found.log_permutations == pytest.approx(log_factorials(5))


def test_shared_parameters_of_heads() -> None:
    """Both kinds of attention have two heads of four features."""
    found = sym.find(attending(), (6, 3))
    inner = log_factorials(2) + 4 * log_factorials(4)
    assert found.log_permutations == pytest.approx(log_factorials(8) + 2 * inner)
    assert len(found.blocks) == 2


def test_functional_layers_and_plain_parameters() -> None:
    net = Net(
        lambda net, x: torch.relu(F.linear(x, net.w, net.b)) @ net.v,
        w=parameter(5, 3), b=parameter(5), v=parameter(5, 2),
    )  # fmt: skip
    found = sym.find(net, (3,))
    assert found.log_permutations == pytest.approx(log_factorials(5)) and found.num_scalings == 5


def test_symmetries_of_another_network_are_refused() -> None:
    with pytest.raises(ValueError, match="those of another network, Net"):
        sym.canonical(Stack(nets.mlp((3,), 2)), sym.find(residual(), (3,)))
    with pytest.raises(ValueError, match="another group"):
        element = sym.random_element(sym.find(residual(), (3,)))
        sym.apply(grouped(), element, sym.find(grouped(), (2, 4, 4)))


def test_groups_that_fail_are_dropped_and_the_rest_is_kept(monkeypatch) -> None:
    """If a cumulative sum over units were taken for a function of each of them."""
    wrong = operations.Operation("cumsum", "elementwise", 1)
    monkeypatch.setattr(operations, "TABLE", {**operations.TABLE, "cumsum": wrong})
    net = Net(
        lambda net, x: net.c(F.relu(net.b(net.a(x).cumsum(1)))),
        a=nn.Linear(3, 5), b=nn.Linear(5, 4), c=nn.Linear(4, 2),
    )  # fmt: skip
    assert [group.name for group in sym.find(net, (3,), check=False).groups] == ["a", "b"]
    found = sym.find(net, (3,))
    assert [group.name for group in found.groups] == ["b"]
    assert found.unseen == ("a (fails when tried)", "scalings of a (fails when tried)")
    assert found.num_scalings == 4  # those of b
    monkeypatch.undo()
    assert sym.find(net, (3,)).unseen == ("cumsum",)
