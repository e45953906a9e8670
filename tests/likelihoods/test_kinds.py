"""Likelihoods against torch's and scipy's densities, and their refusals."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats
from torch import Tensor

from polymode.likelihoods.kinds import (
    LIKELIHOODS,
    Bernoulli,
    Categorical,
    Categories,
    Components,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    StudentT,
    as_likelihood,
    likelihood_from_config,
)

SIZE = 3  # classes or target dimensions
BATCH = 5
ALL = [
    Categorical(),
    Bernoulli(),
    Gaussian(noise=0.3),
    Gaussian(noise=(0.1, 1.0, 4.0)),
    Gaussian(noise="learned"),
    Gaussian(noise="learned_per_output"),
    HeteroscedasticGaussian(),
    StudentT(df=3.5, scale=0.3),
    StudentT(df=1.0, scale=(0.1, 1.0, 4.0)),
    StudentT(df=0.7, scale="learned"),
    StudentT(df=8.0, scale="learned_per_output"),
]
REGRESSIONS = [likelihood for likelihood in ALL if not likelihood.classification]


def case(
    likelihood: Likelihood, lead: tuple[int, ...] = (4,), own: bool = False
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return outputs (*lead, B, K), targets (shared or of their own) and random parameters."""
    draw = torch.Generator().manual_seed(0)
    size = 2 if isinstance(likelihood, Bernoulli) else SIZE
    outputs = torch.randn(
        *lead, BATCH, likelihood.num_outputs(size), generator=draw, dtype=torch.float64
    )
    shape = (*lead, BATCH) if own else (BATCH,)
    if likelihood.classification:
        targets = torch.randint(size, shape, generator=draw)
    else:
        targets = torch.randn(*shape, size, generator=draw, dtype=torch.float64)
    params = {
        key: torch.randn((*lead, *value.shape[1:]), generator=draw, dtype=torch.float64)
        for key, value in likelihood.init(1, size).items()
    }
    return outputs, targets, params


def reference(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor, params: dict[str, Tensor]
) -> Tensor:
    """Return log_prob by torch.distributions, with one member at a time."""
    if outputs.dim() > 2:
        return torch.stack(
            [
                reference(
                    likelihood,
                    outputs[i],
                    targets[i] if targets.dim() > 2 - likelihood.classification else targets,
                    {key: value[i] for key, value in params.items()},
                )
                for i in range(len(outputs))
            ]
        )
    if isinstance(likelihood, Categorical):
        return torch.distributions.Categorical(logits=outputs).log_prob(targets)
    if isinstance(likelihood, Bernoulli):
        bernoulli = torch.distributions.Bernoulli(logits=outputs[:, 0])
        return bernoulli.log_prob(targets.double())
    if isinstance(likelihood, HeteroscedasticGaussian):
        scale = F.softplus(outputs[:, SIZE:]) + likelihood.min_scale
        return torch.distributions.Normal(outputs[:, :SIZE], scale).log_prob(targets).sum(-1)
    spec = likelihood.noise if isinstance(likelihood, Gaussian) else likelihood.scale  # type: ignore[attr-defined]
    scale = next(iter(params.values())).exp() if params else torch.tensor(spec, dtype=torch.float64)
    if isinstance(likelihood, Gaussian):
        return torch.distributions.Normal(outputs, scale).log_prob(targets).sum(-1)
    assert isinstance(likelihood, StudentT) and likelihood.df is not None
    return torch.distributions.StudentT(likelihood.df, outputs, scale).log_prob(targets).sum(-1)


@pytest.mark.parametrize("likelihood", ALL, ids=str)
@pytest.mark.parametrize("lead", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("own", [False, True])
def test_log_prob_is_that_of_torch_distributions(
    likelihood: Likelihood, lead: tuple[int, ...], own: bool
) -> None:
    outputs, targets, params = case(likelihood, lead, own)
    log_prob = likelihood.log_prob(outputs, targets, params)
    assert log_prob.shape == (*lead, BATCH)
    torch.testing.assert_close(log_prob, reference(likelihood, outputs, targets, params))
    nll = likelihood.nll(outputs, targets, params)
    assert nll.shape == lead and nll.dtype == torch.float64
    torch.testing.assert_close(nll, -log_prob.mean(-1))


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_vmap_over_members_gives_values_and_gradients_of_the_stack(likelihood: Likelihood) -> None:
    outputs, targets, params = case(likelihood)

    def one(out: Tensor, own: dict[str, Tensor]) -> Tensor:
        return likelihood.nll(out, targets, own)

    values = torch.func.vmap(one)(outputs, params)
    torch.testing.assert_close(values, likelihood.nll(outputs, targets, params))
    grads, own = torch.func.vmap(torch.func.grad(one, argnums=(0, 1)))(outputs, params)
    leaves = {key: value.requires_grad_() for key, value in params.items()}
    likelihood.nll(outputs.requires_grad_(), targets, leaves).sum().backward()
    torch.testing.assert_close(grads, outputs.grad)
    for key, value in leaves.items():
        torch.testing.assert_close(own[key], value.grad)


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_first_and_second_derivatives(likelihood: Likelihood) -> None:
    outputs, targets, params = case(likelihood, (2,))
    leaves = [outputs.requires_grad_(), *(value.requires_grad_() for value in params.values())]

    def nll(out: Tensor, *own: Tensor) -> Tensor:
        return likelihood.nll(out, targets, dict(zip(params, own, strict=True)))

    assert torch.autograd.gradcheck(nll, leaves)
    assert torch.autograd.gradgradcheck(nll, leaves)


@pytest.mark.parametrize("classes", [2, 10, 15, 16, 40])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_categorical_in_float32_keeps_up_with_float64(classes: int, scale: float) -> None:
    """Both memory layouts, and logits so large that exp would overflow."""
    draw = torch.Generator().manual_seed(1)
    outputs = torch.randn(3, 7, classes, generator=draw) * scale
    targets = torch.randint(classes, (7,), generator=draw)
    twin = Categorical().log_prob(outputs.double(), targets, {})
    torch.testing.assert_close(Categorical().log_prob(outputs, targets, {}), twin.float())
    assert Categorical().nll(outputs, targets, {}).isfinite().all()


def test_categorical_takes_a_strided_view() -> None:
    outputs, targets, _ = case(Categorical())
    strided = outputs.transpose(0, 1).contiguous().transpose(0, 1)
    assert not strided.is_contiguous()
    expected = Categorical().nll(outputs, targets, {})
    torch.testing.assert_close(Categorical().nll(strided, targets, {}), expected)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_gradients_without_a_graph_are_those_with_one(likelihood, lead) -> None:
    outputs, targets, params = case(likelihood, lead)
    if not params:  # else they would have gradients as well
        _same_gradients(likelihood, outputs, targets)


@pytest.mark.parametrize("classes", [2, 15, 16, 40])
def test_gradients_of_few_and_many_classes(classes: int) -> None:
    """Also of a strided view, and where all but one probability are exactly 0."""
    draw = torch.Generator().manual_seed(1)
    outputs = 5 * torch.randn(3, classes, 7, generator=draw, dtype=torch.float64).mT
    outputs[0, 0] = torch.arange(classes) * -1e3
    _same_gradients(Categorical(), outputs, torch.arange(7) % classes)


def _same_gradients(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> None:
    losses, gradient = likelihood.nll_gradient(outputs, targets)
    assert not losses.requires_grad and not gradient.requires_grad
    leaf = outputs.clone().requires_grad_()
    wanted = likelihood.nll(leaf, targets, {})
    torch.testing.assert_close(losses, wanted.detach(), rtol=1e-12, atol=1e-12)
    (by_outputs,) = torch.autograd.grad(wanted.sum(), leaf)
    torch.testing.assert_close(gradient, by_outputs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("classes", [3, 20])
def test_no_label_is_ignored_in_silence(classes: int) -> None:
    """-100 is the label that cross_entropy leaves out by default."""
    outputs, labels = torch.zeros(2, 3, classes), torch.tensor([0, -100, 1])
    with pytest.raises(IndexError):
        Categorical().nll(outputs, labels, {})
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        Categorical().nll_gradient(outputs, labels)


def test_bernoulli_is_a_categorical_whose_first_logit_is_zero() -> None:
    outputs, targets, _ = case(Bernoulli())
    both = torch.cat([torch.zeros_like(outputs), outputs], -1)
    torch.testing.assert_close(
        Bernoulli().log_prob(outputs, targets, {}), Categorical().log_prob(both, targets, {})
    )
    torch.testing.assert_close(
        Bernoulli().components(outputs, {}).log_probs, Categorical().components(both, {}).log_probs
    )


def test_bernoulli_at_extreme_logits() -> None:
    outputs = torch.tensor([[1e4], [-1e4], [math.inf], [-math.inf]])
    right = Bernoulli().log_prob(outputs, torch.tensor([1, 0, 1, 0]), {})
    wrong = Bernoulli().log_prob(outputs, torch.tensor([0, 1, 0, 1]), {})
    assert right.tolist() == [0.0] * 4
    assert wrong.tolist() == [-1e4, -1e4, -math.inf, -math.inf]


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_components_give_the_density_of_log_prob(likelihood: Likelihood) -> None:
    outputs, targets, params = case(likelihood)
    components = likelihood.components(outputs, params)
    if isinstance(components, Categories):
        torch.testing.assert_close(
            components.log_probs.logsumexp(-1), torch.zeros(4, BATCH, dtype=torch.float64)
        )
        index = targets.expand(4, BATCH).unsqueeze(-1)
        density = components.log_probs.gather(-1, index).squeeze(-1)
    else:
        assert isinstance(components, Components)
        loc, scale, df, _ = components
        assert loc.shape == scale.shape == (4, BATCH, SIZE) and loc.dtype == scale.dtype
        law = stats.norm(loc, scale) if df is None else stats.t(df, loc, scale)
        density = torch.as_tensor(law.logpdf(targets)).sum(-1)
    torch.testing.assert_close(density, likelihood.log_prob(outputs, targets, params))


@pytest.mark.parametrize("likelihood", [Gaussian(noise=0.2), StudentT(df=2.5, scale=0.2)], ids=str)
def test_density_integrates_to_one(likelihood: Likelihood) -> None:
    outputs = torch.full((1, 1), 0.7, dtype=torch.float64)

    def density(y: float) -> float:
        target = torch.tensor([[y]], dtype=torch.float64)
        return float(likelihood.log_prob(outputs, target, {}).exp())

    total = sum(integrate.quad(density, *ends)[0] for ends in ((-math.inf, 0.7), (0.7, math.inf)))
    assert total == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("df", [1e5, 1e7, 1e12, 1e300])
def test_student_t_of_many_degrees_of_freedom_is_gaussian(df: float) -> None:
    """To order 1/df: log-gammas of such numbers lose all digits if they are subtracted."""
    outputs, targets, _ = case(Gaussian(noise=1.0))
    torch.testing.assert_close(
        StudentT(df=df, scale=1.0).log_prob(outputs, targets, {}),
        Gaussian(noise=1.0).log_prob(outputs, targets, {}),
        rtol=0.0,
        atol=1e-12 + 100.0 / df,
    )


def test_heteroscedastic_scale_has_a_floor() -> None:
    outputs = torch.tensor([[0.0, -1e3]])
    likelihood = HeteroscedasticGaussian(min_scale=0.25)
    assert likelihood.components(outputs, {}).scale.tolist() == [[0.25]]
    expected = stats.norm(0.0, 0.25).logpdf(1.0)
    log_prob = likelihood.log_prob(outputs, torch.tensor([[1.0]]), {})
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)


def test_learned_noise_settles_at_the_residual_std() -> None:
    """The optimum of the mean NLL over log_noise is the root mean square residual."""
    targets = torch.randn(200, 2, dtype=torch.float64) * torch.tensor([0.5, 3.0])
    log_noise = targets.square().mean(0).sqrt().log().requires_grad_()
    outputs = torch.zeros_like(targets)
    nll = Gaussian(noise="learned_per_output").nll(outputs, targets, {"log_noise": log_noise})
    (grad,) = torch.autograd.grad(nll, log_noise)
    torch.testing.assert_close(grad, torch.zeros_like(grad))


# what is refused


@pytest.mark.parametrize(
    ("targets", "size", "message"),
    [
        (torch.tensor([0.0, 1.0]), 3, r"integers, got torch.float32.*\.long\(\)"),
        (torch.eye(3), 3, r"one-hot.*argmax"),
        (torch.eye(3).long(), 3, r"shape \(N,\), got \(3, 3\).*argmax"),
        (torch.zeros(4, 1, dtype=torch.long), 3, r"squeeze"),
        (torch.tensor(1), 3, r"shape \(N,\), got \(\)"),
        (torch.tensor([0, 1, 3, 3]), 3, r"in 0\.\.2, got 3 in row 2 \(2 of 4"),
        (torch.tensor([0, -1]), 3, r"got -1 in row 1 \(1 of 2"),
        (torch.tensor([0, -100]), None, r">= 0, got -100 in row 1"),
        (torch.zeros(0, dtype=torch.long), 3, r"empty"),
        (np.array(["cat", "dog"]), 3, r"numbers"),
        (torch.zeros(2, dtype=torch.complex64), 3, r"integers"),
    ],
)
def test_wrong_labels_are_refused(targets: Tensor, size: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Categorical().check(targets, size)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
)
def test_labels_of_any_integer_type_become_int64(dtype: torch.dtype) -> None:
    labels = torch.tensor([0, 1, 1, 0], dtype=dtype)
    for likelihood in (Categorical(), Bernoulli()):
        checked = likelihood.check(labels, 2)
        assert checked.dtype == torch.int64 and checked.tolist() == [0, 1, 1, 0]
        assert likelihood.target_size(labels) == 2
    assert Categorical().check(np.array([2, 0]), 3).tolist() == [2, 0]  # type: ignore[arg-type]


def test_number_of_classes() -> None:
    assert Categorical().target_size(torch.tensor([0, 4, 2])) == 5
    assert Categorical().target_size(torch.tensor([0, 0])) == 2
    assert Bernoulli().target_size(torch.tensor([0, 0])) == 2
    assert (Categorical().num_outputs(7), Bernoulli().num_outputs(2)) == (7, 1)
    for size in (0, 1, 2.0, True, "3"):
        with pytest.raises(ValueError, match="target_size"):
            Categorical().num_outputs(size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 classes, got 3. Use Categorical"):
        Bernoulli().num_outputs(3)
    with pytest.raises(ValueError, match=r"0\.\.1, got 2"):
        Bernoulli().check(torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="Use Categorical"):
        Bernoulli().nll(torch.zeros(5, 2), torch.zeros(5, dtype=torch.long), {})


@pytest.mark.parametrize(
    ("targets", "size", "message"),
    [
        (torch.tensor([0.0, math.nan, math.inf]), 1, r"got \[nan\] in row 1 \(2 of 3"),
        (torch.zeros(4, 2), 3, r"3 dimension\(s\), got 2"),
        (torch.zeros(4), 2, r"2 dimension\(s\), got 1"),
        (torch.zeros(4, 2, 2), None, r"shape"),
        (torch.zeros(4, 0), None, r"shape"),
        (torch.tensor(1.0), None, r"shape"),
        (torch.zeros(0, 1), 1, r"empty"),
        (torch.zeros(3, dtype=torch.bool), 1, r"real numbers, got torch.bool"),
    ],
)
def test_wrong_values_are_refused(targets: Tensor, size: int | None, message: str) -> None:
    for likelihood in (Gaussian(noise=1.0), HeteroscedasticGaussian(), StudentT(df=3, scale=1.0)):
        with pytest.raises(ValueError, match=message):
            likelihood.check(targets, size)


def test_values_take_the_canonical_shape_and_keep_their_precision() -> None:
    gaussian = Gaussian(noise="learned")
    assert gaussian.check(torch.zeros(4)).shape == (4, 1)
    assert gaussian.check(torch.zeros(4, 3, dtype=torch.float64), 3).dtype == torch.float64
    assert gaussian.check(torch.arange(4)).dtype == torch.float32
    assert gaussian.target_size(torch.zeros(4, 3)) == 3
    assert (gaussian.num_outputs(3), HeteroscedasticGaussian().num_outputs(3)) == (3, 6)


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_targets_of_another_length_never_broadcast(likelihood: Likelihood) -> None:
    """(B,) against (M, B, 1) would silently become (M, B, B)."""
    outputs, targets, params = case(likelihood)
    for wrong in (targets[:1], targets[:-1], targets.expand(2, 4, *targets.shape)):
        with pytest.raises(ValueError, match="targets of shape"):
            likelihood.nll(outputs, wrong, params)
        with pytest.raises(ValueError, match="targets of shape"):
            likelihood.log_prob(outputs, wrong, params)


def test_values_without_their_last_axis_are_paired_one_to_one() -> None:
    gaussian = Gaussian(noise=1.0)
    outputs, targets = torch.randn(4, 5, 1), torch.randn(5)
    expected = gaussian.nll(outputs, targets.unsqueeze(-1), {})
    torch.testing.assert_close(gaussian.nll(outputs, targets, {}), expected)
    with pytest.raises(ValueError, match="targets of shape"):
        gaussian.nll(torch.zeros(4, 5, 2), targets, {})


def test_noise_must_be_chosen() -> None:
    with pytest.raises(ValueError, match="`noise` of Gaussian must be chosen") as bare:
        Gaussian()
    with pytest.raises(ValueError) as named:
        as_likelihood("gaussian")
    assert str(bare.value) == str(named.value)
    with pytest.raises(ValueError, match="`df` of StudentT must be chosen"):
        as_likelihood("student_t")
    with pytest.raises(ValueError, match="`scale` of StudentT must be chosen"):
        StudentT(df=3.0)


@pytest.mark.parametrize("noise", [0, -0.1, math.nan, math.inf, True, (), (1.0, 0.0), ("1",)])
def test_noise_must_be_positive(noise: object) -> None:
    with pytest.raises(ValueError, match="`noise` of Gaussian must be"):
        Gaussian(noise=noise)  # type: ignore[arg-type]


def test_messages_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'learned_per_output'"):
        Gaussian(noise="learned_per_outputs")
    with pytest.raises(ValueError, match="Did you mean 'categorical'"):
        as_likelihood("categoric")
    with pytest.raises(ValueError, match="no field 'nois'. Did you mean 'noise'"):
        likelihood_from_config({"name": "gaussian", "nois": 1.0})
    with pytest.raises(ValueError, match="a name or a Likelihood object"):
        as_likelihood(Categorical)  # type: ignore[arg-type]
    for df in (0, -1.0, math.inf, "many"):
        with pytest.raises(ValueError, match="`df` of StudentT must be a finite number > 0"):
            StudentT(df=df, scale=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`min_scale` of HeteroscedasticGaussian must be"):
        HeteroscedasticGaussian(min_scale=0.0)


def test_a_tuple_must_have_one_number_a_target_dimension() -> None:
    gaussian = Gaussian(noise=(0.1, 0.2))
    for call in (
        lambda: gaussian.num_outputs(3),
        lambda: gaussian.init(2, 3),
        lambda: gaussian.check(torch.zeros(4, 3)),
    ):
        with pytest.raises(ValueError, match=r"has 2 value\(s\) for 3 target"):
            call()


def test_learned_parameters_have_their_shapes() -> None:
    assert Gaussian(noise=1.0).init(4, 3) == Categorical().init(4, 3) == {}
    shared = Gaussian(noise="learned").init(4, 3, dtype=torch.float64)["log_noise"]
    assert shared.shape == (4,) and shared.dtype == torch.float64
    assert StudentT(df=3, scale="learned_per_output").init(4, 3)["log_scale"].shape == (4, 3)
    with pytest.raises(ValueError, match=r"needs params\['log_noise'\]"):
        Gaussian(noise="learned").nll(torch.zeros(5, 1), torch.zeros(5, 1), {})
    with pytest.raises(ValueError, match="num_modes"):
        Gaussian(noise="learned").init(0, 3)


def test_members_equal_in_number_to_outputs_are_not_mixed_up() -> None:
    """log_noise (M,) belongs to members even if M = B = D."""
    gaussian = Gaussian(noise="learned")
    log_noise = torch.tensor([-1.0, 0.0, 2.0])
    outputs, targets = torch.zeros(3, 3, 3), torch.zeros(3, 3)
    expected = 3 * log_noise + 1.5 * math.log(2 * math.pi)
    torch.testing.assert_close(gaussian.nll(outputs, targets, {"log_noise": log_noise}), expected)
    scale = gaussian.components(outputs, {"log_noise": log_noise}).scale
    torch.testing.assert_close(scale, log_noise.exp()[:, None, None].expand(3, 3, 3))


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_configuration_survives_json(likelihood: Likelihood) -> None:
    config = likelihood.to_config()
    assert json.loads(json.dumps(config)) == config and config["name"] in LIKELIHOODS
    again = likelihood_from_config(config)
    assert again == likelihood and hash(again) == hash(likelihood)
    assert as_likelihood(likelihood) is likelihood
    for field in dataclasses.fields(likelihood):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(likelihood, field.name, 1.0)


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_an_empty_batch_has_no_examples_and_no_mean(likelihood: Likelihood) -> None:
    outputs, targets, params = case(likelihood)
    empty = outputs[:, :0], targets[:0], params
    assert likelihood.log_prob(*empty).shape == (4, 0)
    assert likelihood.nll(*empty).isnan().all() and likelihood.nll(*empty).shape == (4,)


@pytest.mark.parametrize("num_classes", [3, 40])
@pytest.mark.parametrize("by_rows", [False, True])
def test_log_probabilities_do_not_depend_on_the_memory_format(num_classes, by_rows) -> None:
    """Oracle: the definition in float64; products of batched layers have rows last in memory."""
    outputs = torch.randn(2, 7, num_classes, generator=torch.Generator().manual_seed(0)) * 20
    given = outputs.transpose(1, 2).contiguous().transpose(1, 2) if by_rows else outputs
    found = Categorical().components(given, {})
    exact = outputs.double()
    normalizer = exact.exp().sum(-1).log()
    torch.testing.assert_close(found.log_probs.double(), exact - normalizer[..., None], rtol=1e-6,
                               atol=1e-5)  # fmt: skip
    torch.testing.assert_close(found.log_normalizer.double(), normalizer, rtol=1e-6, atol=1e-5)
    assert found.log_probs.is_contiguous()
