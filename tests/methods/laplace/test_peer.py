"""Against laplace-torch 0.3 where it is right: functional variances, evidence, probit.

Run where it is installed: it brings a torchvision that does not import beside a CPU build of torch,
so it is not among the requirements of the tests. `pip install laplace-torch==0.3`, then
`pip uninstall torchvision`.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods.laplace.curvature import Curvature
from polymode.methods.laplace.gaussian import log_evidence
from polymode.stack.stack import Stack

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    laplace = pytest.importorskip("laplace", reason="laplace-torch is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")
STREAM = torch.Generator().manual_seed(0)
IMAGES = torch.randn(24, 1, 8, 8, generator=STREAM)
ROWS = torch.randn(24, 5, generator=STREAM)
LABELS = torch.randint(3, (24,), generator=STREAM)
VALUES = torch.randn(24, 2, generator=STREAM)


def mlp(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip


def both(net: nn.Module, x: Tensor, y: Tensor, subset: str, structure: str, noise: float | None):
    """The same posterior twice, precision 0.7."""
    kind = "classification" if noise is None else "regression"
    options = {} if noise is None else {"sigma_noise": noise}
    peer = laplace.Laplace(net, kind, subset, structure, prior_precision=0.7, **options)
    peer.fit(DataLoader(TensorDataset(x, y), batch_size=10))
    likelihood = "categorical" if noise is None else Gaussian(noise=noise)
    ours = pm.fit("laplace", net=net, task=pm.Task(train=(x, y), likelihood=likelihood),
                  structure="last_layer" if subset == "last_layer" else structure, link="mc",
                  prior_precision=0.7, batch_size=10, progress="silent")  # fmt: skip
    return peer, ours


CASES = [
    (mlp, ROWS, LABELS, "all", "kron", None),
    (mlp, ROWS, LABELS, "all", "diag", None),
    (mlp, ROWS, LABELS, "all", "full", None),
    (mlp, ROWS, LABELS, "last_layer", "full", None),
    (lambda: mlp(2), ROWS, VALUES, "all", "kron", 0.4),
    (convolutional, IMAGES, LABELS, "all", "kron", None),
    (convolutional, IMAGES, LABELS, "all", "diag", None),
]


@pytest.mark.cpu_seconds(20)
@pytest.mark.parametrize(("make", "x", "y", "subset", "structure", "noise"), CASES)
def test_variances_and_evidence(make, x, y, subset, structure, noise) -> None:
    peer, ours = both(make().eval(), x, y, subset, structure, noise)
    mean, covariance = peer._glm_predictive_distribution(x)
    found = ours.weights.linearised(x)
    torch.testing.assert_close(found.loc[0].detach(), mean.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.spread[0].detach(), covariance.detach(), rtol=1e-4, atol=1e-5)
    posterior = ours.weights.posteriors[0]
    with torch.no_grad():
        outputs = ours.stack.module(0)(x)
    likelihood = ours.likelihood.log_prob(outputs, y, {}).sum()
    params = {name: tensor.detach()[0] for name, tensor in Stack(make()).params.items()}
    made = Curvature(posterior.blocks, float(likelihood), len(x))
    value = log_evidence(made, params, posterior.precision)
    torch.testing.assert_close(
        value.float(), peer.log_marginal_likelihood().detach(), rtol=1e-4, atol=1e-3
    )


@pytest.mark.cpu_seconds(20)
def test_probit() -> None:
    net = mlp().eval()
    peer, _ = both(net, ROWS, LABELS, "all", "kron", None)
    ours = pm.fit("laplace", net=net, task=pm.Task(train=(ROWS, LABELS), likelihood="categorical"),
                  link="probit", prior_precision=0.7, progress="silent")  # fmt: skip
    expected = peer(ROWS, pred_type="glm", link_approx="probit")
    torch.testing.assert_close(ours.predict(ROWS).mean, expected.detach(), rtol=1e-4, atol=1e-5)
