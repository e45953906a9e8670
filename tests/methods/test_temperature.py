"""What `temperature` means, the same in every method that has one: the law is p(θ | D)^(1/T).

For regression with known noise, tempering is another regression at T = 1: noise σ√T, prior λ/T, for

    [Σ_n log p(y_n | θ) + log p(θ)] / T  =  −½ Σ_n (y_n − f(x_n))²/(σ²T) − ½ (λ/T) ‖θ‖² + const.

A method that is right at T = 1, which its own tests show, and takes the same steps in both problems
has the tempered law. Steps are the same once rates are in the same units: gradients of the second
problem are 1/T times those of the first. Only the fits of `vi` depend on chance.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import polymode as pm
from polymode.core.safe_files import write_json
from polymode.likelihoods.kinds import Gaussian
from polymode.methods import METHODS, SGHMC, SGNHT, Problem, sghmc, sgnht
from polymode.stack.stack import Stack

from .conjugate import NOISE, PRECISION, N, X, Y, linear

STEPS: dict[str, Any] = {"burn_in": 6, "samples_per_mode": 6, "thinning": 1}
FITS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {  # options, and rates that scale with T
    "sgld": ({"lr": 0.05, **STEPS}, ("lr",)),
    "sghmc": ({"lr": 0.05, **STEPS}, ("lr",)),
    "sgnht": ({"lr": 0.05, "thermostat": 0.1, **STEPS}, ("lr", "thermostat")),
    "cyclical_sgmcmc": (
        {"lr": 0.05, "num_cycles": 2, "exploration": 0.5, "samples_per_cycle": 3,
         "clip_norm": None}, ("lr",)
    ),
    "hmc": ({"leapfrog_steps": 3, **STEPS}, ()),
    "mile": ({"training_steps": 0, **STEPS}, ()),
    "vi": (
        {"optimizer": "sgd", "lr": 0.05, "std_lr": 0.03, "initial_std": 0.3}, ("lr", "std_lr")
    ),
    "ivon": ({"hessian_memory": 0.9, "hessian_init": 2.0, "num_passes": 2}, ()),
}  # fmt: skip


def test_every_temperature_is_looked_at() -> None:
    tempered = {
        name
        for name in METHODS.names()
        if "temperature" in {f.name for f in dataclasses.fields(METHODS.get(name).value.config)}
    }
    assert tempered == FITS.keys()


def fitted(method: str, temperature: float, scaled: bool, **more: Any) -> dict[str, Tensor]:
    """Return the tensors of a fit at T, or of one to the problem that is tempered by hand."""
    options, rates = FITS[method]
    options, noise, precision = dict(options) | more, NOISE, PRECISION
    if scaled:
        noise, precision = NOISE * math.sqrt(temperature), PRECISION / temperature
        options |= {name: options[name] * temperature for name in rates}
        if method == "ivon":
            options["hessian_init"] /= temperature
    else:
        options["temperature"] = temperature
    task = pm.Task(train=(X, Y), likelihood=Gaussian(noise=noise), target_scaling=None)
    whole = method in ("hmc", "mile")  # a step per epoch, otherwise two
    post = pm.fit(
        method, net=linear, task=task, prior_precision=precision, num_modes=2,
        epochs=12 if whole else 6, batch_size=N if whole else N // 2, dtype=torch.float64,
        progress="silent", **options,
    )  # fmt: skip
    return {name: t for name, t in post.weights.tensors().items() if t.is_floating_point()}


@pytest.mark.filterwarnings("ignore:the chains ran at a kinetic temperature:UserWarning")
@pytest.mark.parametrize("temperature", [0.25, 4.0])
@pytest.mark.parametrize("method", FITS)
def test_tempering_divides_the_log_joint(method, temperature) -> None:
    """Twelve steps of two members, to rounding; at T = 1 the same steps end elsewhere."""
    asked, by_hand = (fitted(method, temperature, scaled) for scaled in (False, True))
    plain = fitted(method, 1.0, scaled=False)
    assert asked.keys() == by_hand.keys()
    for name, tensor in asked.items():
        torch.testing.assert_close(tensor, by_hand[name], rtol=1e-7, atol=1e-9)
    assert any(not torch.allclose(asked[name], plain[name], rtol=1e-3) for name in asked)


@pytest.mark.parametrize(("method", "config"), [(sghmc, SGHMC), (sgnht, SGNHT)])
def test_chains_begin_with_the_momentum_of_their_temperature(method, config) -> None:
    """√(T lr/N) ε, with the ε of the stream."""
    problem = Problem(Gaussian(noise=NOISE), N, 1, 1)
    stack = Stack(linear, 2, dtype=torch.float64)
    momenta = [
        method.init(config(epochs=2, lr=0.05, temperature=t), problem, stack).momentum.clone()
        for t in (1.0, 0.25)
    ]
    torch.testing.assert_close(momenta[1], 0.5 * momenta[0], rtol=1e-12, atol=0)


@pytest.mark.cpu_seconds(6)
@pytest.mark.parametrize(("temperature", "kl_weight"), [(0.25, 0.5)])
def test_vi_has_the_closed_form_of_both_weights(temperature, kl_weight) -> None:
    """σ² = T/(H/w + λ) along each axis, around the mean of p(D | θ)^(1/w) p(θ). Eight modes are
    eight runs; their mean is within 4 standard errors plus 1 % of σ, false alarms below 1e-3."""
    features = torch.cat([X, torch.ones(N, 1).double()], 1)
    precision = features.T @ features / NOISE**2 / kl_weight + PRECISION * torch.eye(3).double()
    mean = torch.linalg.solve(precision, features.T @ Y[:, 0]) / NOISE**2 / kl_weight
    std = (temperature / precision.diag()).sqrt()
    task = pm.Task(train=(X, Y), likelihood=Gaussian(noise=NOISE), target_scaling=None)
    post = pm.fit(
        "vi", net=linear, task=task, num_modes=8, epochs=700, batch_size=N, lr=0.03, std_lr=0.03,
        schedule="cosine", prior_precision=PRECISION, temperature=temperature,
        kl_weight=kl_weight, dtype=torch.float64, progress="silent",
    )  # fmt: skip
    means = torch.cat([post.stack.params["weight"].detach()[:, 0], post.stack.params["bias"]], 1)
    stds = torch.cat([post.weights.std["weight"][:, 0], post.weights.std["bias"]], 1)
    for values in ((means - mean).detach() / std, stds.log() - std.log()):
        bound = 4 * values.std(0) / math.sqrt(len(values)) + 0.01
        assert (values.mean(0).abs() < bound).all(), values.mean(0)


def test_posteriors_that_were_saved_before_the_weight_had_a_name_load(tmp_path) -> None:
    """Their `temperature` was the weight of the KL; options are a record, and no part of the law
    that was saved."""
    task = pm.Task(train=(X, Y), likelihood=Gaussian(noise=NOISE), target_scaling=None)
    post = pm.fit("vi", net=linear, task=task, epochs=2, kl_weight=0.5, progress="silent")
    post.save(tmp_path)
    manifest = tmp_path / "posterior.json"
    content = json.loads(manifest.read_text())
    del content["config"]["kl_weight"], content["input_scaling"], content["digest"]
    content["config"]["temperature"] = 0.5
    write_json(manifest, content)
    loaded = pm.load(tmp_path, net=linear)
    assert loaded.config["temperature"] == 0.5 and loaded.input_scaling is None
    torch.testing.assert_close(loaded.predict(X).mean, post.predict(X).mean)
