"""Attacks on one deterministic network are foolbox's, an independent implementation."""

from __future__ import annotations

import pytest
import torch

from .small_posteriors import NETWORKS, posterior

foolbox = pytest.importorskip(
    "foolbox", reason="foolbox is not installed (extra 'peers'), and is the oracle here"
)

from polymode.adversary import attack  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # foolbox and what it brings warn on import


@pytest.fixture(scope="module", params=list(NETWORKS))
def case(request):
    """A network in float64, where no gradient is near enough to 0 to have another sign."""
    post = posterior(request.param, num_modes=1, dtype=torch.float64)
    stream = torch.Generator().manual_seed(1)
    x = torch.rand(40, *post.input_shape, generator=stream, dtype=torch.float64)
    y = torch.randint(post.target_size, (40,), generator=stream)
    return post, x, y, foolbox.PyTorchModel(post.members[0], bounds=(0, 1), device="cpu")


@pytest.mark.parametrize("eps", [0.01, 0.1, 0.7])
def test_fgsm(case, eps):
    post, x, y, model = case
    theirs = foolbox.attacks.LinfFastGradientAttack(random_start=False)(model, x, y, epsilons=eps)
    mine = attack(post, x, y, kind="fgsm", eps=eps)
    assert (mine.adversarial - theirs[1]).abs().max() < 1e-12
    assert torch.equal(mine.success, theirs[2])


@pytest.mark.parametrize("targeted", [False, True])
def test_pgd_in_linf(case, targeted):
    post, x, y, model = case
    targets = (y + 1) % post.target_size if targeted else None
    criterion = foolbox.criteria.TargetedMisclassification(targets) if targeted else y
    theirs = foolbox.attacks.LinfPGD(abs_stepsize=0.03, steps=12, random_start=False)
    expected = theirs(model, x, criterion, epsilons=0.1)
    mine = attack(
        post, x, y, kind="bim", eps=0.1, steps=12, step_size=0.03, targets=targets, keep="last"
    )
    assert (mine.adversarial - expected[1]).abs().max() < 1e-12
    assert torch.equal(mine.success, expected[2])


def test_pgd_in_l2(case):
    post, x, y, model = case
    theirs = foolbox.attacks.L2PGD(abs_stepsize=0.2, steps=8, random_start=False)
    expected = theirs(model, x, y, epsilons=0.8)
    mine = attack(post, x, y, kind="bim", norm="l2", eps=0.8, steps=8, step_size=0.2, keep="last")
    assert (mine.adversarial - expected[1]).abs().max() < 2e-6  # a step back into the ball
