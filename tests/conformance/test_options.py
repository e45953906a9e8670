"""No dead flags: every option of every registered method changes something, or says why it cannot.

Other values come from an option's type, its default and what its refusal lists; with them a short
fit has other weights, another prediction or another history than without, or a refusal or a warning
names the option. `PARTNERS` are options without which another rests. Refused values do not count
where another is taken.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polymode.likelihoods.kinds import Gaussian
from polymode.methods import METHODS, Problem
from polymode.posterior import Weights
from polymode.stack.stack import Stack
from polymode.training.data import Arrays
from polymode.training.loop import Batch

from .option_effects import dead_options
from .small_fits import X, net_for


@pytest.mark.parametrize("method", METHODS.names())
def test_every_option_changes_something(method) -> None:
    assert not dead_options(method)


# ------------------------------------------------- options away from their defaults, several modes

VALUES = torch.stack([X[:24, 0].sin(), 10 * X[:24, 1] + 3], 1)
TEMPERED = {"temperature": 0.25, "burn_in": 4, "preconditioner": "rmsprop"}
TOGETHER: dict[str, tuple[str, dict[str, Any]]] = {
    "map": ("map", {"clip_norm": 0.3, "schedule": "cosine", "prior_precision": 3.0}),
    "swag": ("swag", {"clip_norm": 0.3, "rank": 2, "samples_per_mode": 2}),
    "snapshot": ("snapshot", {"num_cycles": 2, "clip_norm": 0.3}),
    "sgld": ("sgld", TEMPERED),
    "sghmc": ("sghmc", TEMPERED),
    "sgnht": ("sgnht", TEMPERED),
    "cyclical": (
        "cyclical_sgmcmc", {"temperature": 0.25, "num_cycles": 2, "preconditioner": "rmsprop"}
    ),
    "hmc": ("hmc", {"temperature": 0.25, "burn_in": 14, "leapfrog_steps": 2}),
    "mile": ("mile", {"temperature": 0.25, "clip_norm": 0.3}),
    "vi, mixture": (
        "vi",
        {"estimator": "weights", "mixture": (0.4, 0.1), "kl_weight": 0.3, "temperature": 0.25},
    ),
    "vi, alpha": ("vi", {"alpha": 0.5, "num_passes": 3, "clip_norm": 0.3}),
    "ivon": ("ivon", {"num_passes": 2, "accumulate": 2, "temperature": 0.25}),
    "dropout": ("dropout", {"alpha": 0.5, "num_passes": 3}),
    "concrete dropout": ("concrete_dropout", {"alpha": 0.5, "num_passes": 3, "relaxation": 0.3}),
    "laplace, drawn": ("laplace", {"fisher": "mc", "mc_samples": 2, "prior": "per_layer"}),
    "laplace, sampled": ("laplace", {"predictive": "sampled", "prior_precision": 2.0}),
}  # fmt: skip
WHOLE = ("hmc", "mile", "laplace")  # they take all data in every step


def unequal_networks(method: str) -> Stack:
    """Three members whose weights, and so their gradients, are of different sizes."""
    stack = Stack(net_for(method), 3, seed=1, execution="batched", dtype=torch.float64)
    for tensor in stack.params.values():
        tensor.data *= torch.tensor([1.0, 3.0, 0.3]).view(3, *(1,) * (tensor.dim() - 1))
    return stack


def finished(method: str, options: dict[str, Any], stack: Stack, batches: torch.Tensor) -> Weights:
    """Return the weights after 20 steps; `batches` are rows of the data, (20, M, 8)."""
    core: Any = METHODS.get(method).value
    config = core.config(epochs=20, batch_size=24, **options)
    data = Arrays(X[:24].double(), VALUES.double())
    problem = Problem(Gaussian(noise="learned_per_output"), 24, 2, 1, data=data, seed=3)
    state = core.init(config, problem, stack)
    state.stack.train()
    for rows in () if core.post_hoc else batches:
        own = method not in WHOLE
        x, y = (data.x[rows], data.y[rows]) if own else (data.x, data.y)
        state, _ = core.step(config, problem, state, Batch(x, y, own))
    return core.finish(config, problem, state)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", TOGETHER)
def test_a_mode_among_others_is_what_it_is_alone(name) -> None:
    """Each with data, weights, noise and draws of its own."""
    method, options = TOGETHER[name]
    batches = torch.randint(24, (20, 3, 8), generator=torch.Generator().manual_seed(2))
    together = finished(method, options, unequal_networks(method), batches)
    for k in range(3):
        alone = finished(method, options, unequal_networks(method)[[k]], batches[:, k : k + 1])
        part = together[k : k + 1]
        for key, tensor in alone.tensors().items():
            torch.testing.assert_close(part.tensors()[key], tensor, rtol=1e-5, atol=1e-7)
        if alone.kind != "noisy":
            pair = (each.draw(0, 7).tensors() for each in (part, alone))
            torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-7)
