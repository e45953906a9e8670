"""`prior_precision="auto"`, with no code of a method's own: a number, or one line that refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.methods import METHODS

from .small_fits import SHORT, classes, fit

pytestmark = pytest.mark.parametrize("method", METHODS.names())


def new_body() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh()).requires_grad_(False)


BODY = new_body()
IN_COMMON = ("batch_ensemble", "tabm", "masksembles", "lp_bnn", "mimo")


def head_under_noise() -> nn.Module:
    return nn.Sequential(BODY, nn.Dropout(0.2), nn.Linear(8, 2))


def test_a_linear_head_has_the_prior_of_its_evidence(method) -> None:
    """The same number for every method that trains a head alone, and its effect."""
    chosen = pm.fit(
        "map", net=head_under_noise, task=classes(), prior_precision="auto", **SHORT
    ).config["prior_precision"]
    assert chosen > 0
    try:
        post = fit(method, net=head_under_noise, prior_precision="auto")
    except ValueError as error:
        if "train weights in common" in str(error):  # the head is no linear layer any more
            assert method in IN_COMMON
            return
        # a method that needs more than a head says so for any prior
        with pytest.raises(ValueError) as same:
            fit(method, net=head_under_noise, prior_precision=1.0)
        assert str(error) == str(same.value)
        return
    if METHODS.get(method).value.convert is None:  # else the head may be another one
        assert post.config["prior_precision"] == chosen
    chosen = post.config["prior_precision"]
    assert post.config["prior_choice"]["layer"]
    fixed = fit(method, net=head_under_noise, prior_precision=chosen)
    x = classes().train.x
    assert torch.equal(post.predict(x).mean, fixed.predict(x).mean)


def test_whole_networks_have_the_prior_that_a_member_is_trained_to(method) -> None:
    """A number for every method, and its effect."""
    try:
        post = fit(method, prior_precision="auto")
    except ValueError as error:  # no member can be trained alone
        assert "train weights in common" in str(error) and "\n" not in str(error)
        assert method in IN_COMMON
        return
    chosen = post.config["prior_precision"]
    assert chosen not in (0, 1)
    fixed = fit(method, prior_precision=chosen)
    x = classes().train.x
    assert torch.equal(post.predict(x).mean, fixed.predict(x).mean)
