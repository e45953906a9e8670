"""Everyday networks with every method: a posterior that predicts and is saved, or one line.

A combination that works gives finite predictions of the right shape, and is equal after saving and
loading. One that cannot work is refused in one line that says why and what to take instead; these
are `REFUSED`, with what the line must say. Data are 8 rows, and training is one pass.

Every network meets every way to handle networks (`FAMILIES`), by methods that take turns, and every
combination that is refused by itself; a method of no family meets all networks.
"""

from __future__ import annotations

import warnings

import pytest
import torch

import polymode as pm
from polymode.methods import METHODS

from .everyday_networks import INPUTS, NETWORKS

LABELS = torch.arange(8) % 2
OPTIONS = {  # what makes fits and predictions small
    "cyclical_sgmcmc": {"num_cycles": 2},
    "snapshot": {"num_cycles": 2},
    "hmc": {"leapfrog_steps": 2},
    **{
        method: {"samples_per_mode": 2}
        for method in (
            "vi",
            "ivon",
            "laplace",
            "laplace_map",
            "dropout",
            "concrete_dropout",
            "vbll",
            "evidential",
        )
    },
}
FAMILIES = [
    ["map", "deep_ensemble", "snapshot", "checkpoint_ensemble"],
    ["swag", "swa", "ema"],
    ["sghmc", "sgld", "sgnht", "cyclical_sgmcmc"],
    ["hmc", "mile"],  # all data at each step
    ["vi", "ivon"],  # weights that are drawn at each step
    ["forde", "lit"],  # derivatives of input gradients
    ["weight_rde", "function_rde"],
    [
        "packed",
        "batch_ensemble",
        "tabm",
        "masksembles",
        "lp_bnn",
        "mimo",
    ],  # networks that are converted
]

ALL = "every method"
# Network and method: what the one line says.
REFUSED: dict[tuple[str, str], str] = {
    # sizes that are not known, weights that are no plain real tensors
    ("lazy", ALL): "'0.weight' of the network has no shape yet: it belongs to a lazy layer",
    ("quantised", ALL): "'0' of the network is a quantised Linear.*quantise it after fitting",
    ("torch.jit.script", ALL): "the network is a TorchScript module.*give the module that it was",
    ("torch.jit.trace", ALL): "the network is a TorchScript module.*give the module that it was",
    ("old weight norm", ALL): "'0' of the network has torch.nn.utils.weight_norm.*parametrizations",
    ("complex parameters", ALL): "'a' of the network is torch.complex64.*view_as_real",
    # members are spread by polymode itself, and share their batches
    ("DataParallel", ALL): "the network is wrapped in nn.DataParallel.*give what it wraps",
    ("changes its input", ALL): r"the network changes its inputs in place.*x = x.clone\(\)",
    # an operation that draws, without a stream per member
    ("RReLU", ALL): "random operation aten.rrelu_with_noise",
    ("RReLU", "mc_batchnorm"): "mc_batchnorm needs a network with BatchNorm",
    ("RReLU", "concrete_dropout"): "concrete_dropout learns the rates of nn.Dropout layers",
    # derivatives with respect to tokens do not exist, and bags of them are no embeddings of each
    **{
        ("embedding bag", method): f"{method} differentiates with respect to the inputs, but they"
        for method in ("forde", "lit")
    },
    # a direction in one dimension cannot turn
    ("one parameter", "mile"): "mile needs at least 2 parameters per network.*take hmc or sghmc",
    # curvatures are sums that half precision rounds away
    **{
        ("bfloat16", method): "needs weights in float32 or float64, and '0.weight' is bfloat16"
        for method in ("laplace", "laplace_map", "sngp", "ddu")
    },
    # curvatures are sums over single examples, whose gradients must exist
    **{
        (network, method): text
        for network, text in (
            ("BatchNorm without statistics", "'1' of the network normalises by the statistics of"),
            ("a branch on the batch", "an example depend on the rest of its batch.*by itself"),
            ("gradient checkpointing", "checkpoint computes layers again.*not in training"),
            ("in-place ReLU", r"modified by an inplace.*h = h \+ y.*inplace=False in 'relu'"),
        )
        for method in ("laplace", "laplace_map")
    },
    ("in-place ReLU", "sngp"): r"modified by an inplace.*h = h \+ y.*inplace=False in 'relu'",
    ("autograd Function", "laplace"): "override the setup_context.*take evidence='trained'",
    # members that share weights need layers whose weights can have adapters
    **{
        (network, method): f"{method} has no conversion for '.*take deep_ensemble"
        for network in (
            "LSTM", "GRU", "RNN", "ParameterList", "ParameterDict", "einsum", "bilinear",
            "a subclass of Linear", "weight norm", "spectral norm", "old spectral norm",
            "embedding bag",
        )
        for method in ("batch_ensemble", "tabm", "lp_bnn")
    },
    **{
        ("in-place ReLU", method): "cannot be differentiated: .*inplace.*take h = h"
        for method in ("batch_ensemble", "tabm", "masksembles", "lp_bnn", "mimo")
    },
    # several inputs at once need one first layer for all of them, and a last one for each
    **{
        (network, "mimo"): f"mimo widens the first layer.*but '{first}.* comes first; take batch"
        for network, first in (
            ("LSTM", "cells"), ("GRU", "cells"), ("RNN", "cells"), ("bilinear", "pair"),
            ("one parameter", "OneParameter"), ("a subclass of Linear", "0"), ("weight norm", "0"),
            ("spectral norm", "0"), ("old spectral norm", "0"), ("embedding", "0"),
            ("embedding bag", "0"), ("attention", "mix"), ("transformer", "block.self_attn"),
            ("transposed convolution", "0"),
        )
    },
    **{
        (network, "mimo"): "mimo widens the first layer.*inputs do not all go through '"
        for network in (
            "ReZero", "layer scale", "einsum", "stochastic depth", "mixture of experts",
            "experts by row", "skip by cat",
        )
    },
    **{
        (network, "mimo"): "mimo widens the first trained layer.*take a network with a hidden layer"
        for network in ("frozen trunk", "capsules", "views", "squeeze")
    },
    **{
        (network, "mimo"): "mimo computes all heads in one pass.*does not allow: .*take deep_ens"
        for network in ("RReLU", "gradient checkpointing", "autograd Function")
    },
    **{
        (network, "mimo"): "mimo widens the first layer.*but no trained layer sees the inputs"
        for network in ("ParameterList", "ParameterDict")
    },
    ("tied weights", "mimo"): "the weight of 'a' is tied to another layer's",
    ("a layer called twice", "mimo"): "'a' is called again",
    ("grouped convolution", "mimo"): "'0' is a grouped convolution",
    ("a branch on the batch", "mimo"): "but not all inputs go through the same one",
    # there must be a hidden layer to mask
    **{
        (network, "masksembles"): "masksembles masks what linear layers.*take one with hidden"
        for network in (
            "one parameter", "ParameterList", "ParameterDict", "capsules", "views", "squeeze",
            "mixture of experts", "experts by row", "frozen trunk",
        )
    },
    # features are inputs of the last linear layer, behind others that learn
    **{
        (network, "feature_rde"): "feature_rde repels the inputs of the last linear layer.*use func"
        for network in (
            "learned temperature", "one parameter", "frozen trunk", "ParameterList",
            "ParameterDict", "mixture of experts", "experts by row", "capsules", "views",
            "squeeze", "a branch on the batch",
        )
    },
}  # fmt: skip
# networks that do not end in an nn.Linear of their own
NO_HEAD = {
    "learned temperature", "one parameter", "ParameterList", "ParameterDict", "mixture of experts",
    "experts by row", "capsules", "views",
}  # fmt: skip
LAST_LAYER = {"vbll", "sngp", "ddu"}  # methods about that layer
DRAWING = {"dropout", "alpha dropout", "functional dropout", "stochastic depth", "transformer"}
NORMALISED = {"BatchNorm", "BatchNorm without affine"}
RATES = {"dropout", "transformer"}  # of layers that `concrete_dropout` learns


def refusal(network: str, method: str) -> str | None:
    """Return what the one line must say, None where the method takes the network."""
    if (network, ALL) in REFUSED and (network, method) not in REFUSED:
        return REFUSED[network, ALL]
    if method == "dropout" and network not in DRAWING:
        return "dropout needs a network that draws noise in training.*Add nn.Dropout"
    if method in LAST_LAYER and network == "a branch on the batch":
        return "it does not end in that layer for every batch"
    if method in LAST_LAYER and network in NO_HEAD:
        return f"{method} needs a network that ends in a linear layer.*take laplace or swag"
    if method == "mc_batchnorm" and network not in NORMALISED:
        return "mc_batchnorm needs a network with BatchNorm.*take dropout or swag"
    if method == "concrete_dropout" and network not in RATES:
        return "concrete_dropout learns the rates of nn.Dropout layers.*Add nn.Dropout"
    return REFUSED.get((network, method))


def inputs(network: str) -> torch.Tensor:
    shape, stream = (8, *INPUTS[network]), torch.Generator().manual_seed(0)
    if "embedding" in network:
        return torch.randint(6, shape, generator=stream)
    return torch.randn(shape, generator=stream)


def takes_its_turn(method: str, number: int) -> bool:
    """Whether the method stands for its family with the network of this number."""
    family = next((members for members in FAMILIES if method in members), [method])
    return family[number % len(family)] == method


COMBINATIONS = [
    (method, network)
    for method in METHODS.names()
    for number, network in enumerate(NETWORKS)
    if takes_its_turn(method, number) or (network, method) in REFUSED
]


def test_combinations_cover_all_that_can_fail() -> None:
    """A fault of a network fails with a method of each family; one of a method, with ten networks
    or more."""
    methods = METHODS.names()
    for network in NETWORKS:
        present = {method for method, other in COMBINATIONS if other == network}
        assert all(present & set(members) for members in FAMILIES)
        assert present >= set(methods) - {name for members in FAMILIES for name in members}
    for method in methods:
        assert sum(name == method for name, _ in COMBINATIONS) >= 10


@pytest.mark.parametrize(("method", "network"), COMBINATIONS)
def test_everyday_network(method, network, tmp_path) -> None:
    x, build = inputs(network), NETWORKS[network]
    expected = refusal(network, method)
    task = pm.Task(train=(x, LABELS), likelihood="categorical")
    options = {"epochs": 1, "batch_size": 4, "num_modes": 2, "progress": "silent"}

    def fit() -> pm.Posterior:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return pm.fit(method, net=build, task=task, **options, **OPTIONS.get(method, {}))

    if expected is not None:
        with pytest.raises(ValueError, match=expected) as refused:
            fit()
        assert "\n" not in str(refused.value)
        return
    post = fit()
    with warnings.catch_warnings():  # of vmap, which has no rule for some layers and loops
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        prediction = post.predict(x)
    assert prediction.log_probs.shape == (prediction.num_samples, 8, 2)
    assert torch.isfinite(prediction.log_probs).all()
    post.save(tmp_path)
    saved, loaded = post.weights.tensors(), pm.load(tmp_path, net=build).weights.tensors()
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in saved.items())


@pytest.mark.parametrize("method", ["evidential", *sorted(LAST_LAYER)])
def test_positions_are_refused_in_one_line(method) -> None:
    """By methods that take one target per example; `test_positions.py` leaves these out."""
    assert METHODS.get(method).metadata["positions"] == "no"
    x, y = torch.randn(8, 3, 4), torch.arange(24).view(8, 3) % 2
    likelihood = pm.likelihoods.Positions(pm.likelihoods.Categorical(), axes=1, outputs="last")
    task = pm.Task(train=(x, y), likelihood=likelihood)
    net = lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))  # noqa: E731
    with pytest.raises(ValueError, match=f"{method} .*one target per example") as refused:
        pm.fit(method, net=net, task=task, epochs=1, progress="silent")
    assert "\n" not in str(refused.value)
