"""Orbit metrics: hand-computed cases, identities, group averages, members against ensembles."""

from __future__ import annotations

import math

import pytest
import torch

from polymode.core.rng import generator
from polymode.equivariance import group
from polymode.equivariance.orbits import (
    chance_level,
    class_scores,
    equivariance_error,
    mean_of_members,
    orbit_deviation,
    same_predictions,
    symmetrised_kl,
    value_scores,
)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def test_same_predictions_by_hand() -> None:
    """Classes 0 1 0 0 along the orbit of the first input, 2 2 2 2 of the second."""
    classes = torch.tensor([[0, 2], [1, 2], [0, 2], [0, 2]])
    scores = torch.eye(3)[classes]
    assert same_predictions(scores).tolist() == [3, 4]
    found = class_scores((scores * 5).log_softmax(-1), torch.tensor([0, 1]))
    assert found["same_predictions"].value == 3.5 and found["same_share"].value == 0.875
    assert found["same_predictions"].standard_error == pytest.approx(0.5)
    assert found["chance"].value == chance_level(4, 3) == 2.0
    assert (found["accuracy"].value, found["orbit_accuracy"].value) == (0.5, 0.375)


def test_same_predictions_of_noise_are_at_chance() -> None:
    """Uniform and independent: 20,000 orbits, within 5 standard errors; false alarm below 1e-6."""
    found = class_scores(drawn(8, 20_000, 5).log_softmax(-1))["same_predictions"]
    assert abs(found.value - chance_level(8, 5)) < 5 * found.standard_error


def test_classes_that_change_places() -> None:
    """Outputs that turn with the input are counted as the same, and others are not."""
    shift = torch.eye(4, dtype=torch.float64).roll(1, 0)
    turning = group("C4", output=torch.stack([shift.matrix_power(k) for k in range(4)]))
    scores = turning.orbit_of_outputs(drawn(10, 4))
    assert same_predictions(scores, turning).tolist() == [4] * 10
    assert same_predictions(scores).tolist() == [1] * 10


def test_symmetrised_kl_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
    expected = sum(
        float(a) * math.log(a / b) + float(b) * math.log(b / a)
        for a, b in zip(p.tolist(), q.tolist(), strict=True)
    )
    log_probs = torch.stack([p, q, p]).log()[:, None]
    assert symmetrised_kl(log_probs).flatten().tolist() == pytest.approx([expected, 0.0])
    certain = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]).log()[:, None]
    assert symmetrised_kl(certain).flatten().tolist() == [0.0, math.inf]


def test_deviation_by_hand() -> None:
    """Orbits (1, 3) and (-2, -2): s.d. 1 and 0, means 2 and -2, whose plain mean is 0."""
    found = orbit_deviation(torch.tensor([[1.0, -2.0], [3.0, -2.0]]))
    assert (found.absolute, found.relative) == (0.5, 0.25)
    assert found.each.tolist() == [1.0, 0.0]
    assert equivariance_error(torch.tensor([[1.0, -2.0], [3.0, -2.0]])) == pytest.approx(1 / 2)


@pytest.mark.parametrize("name", ["SO3-octahedral->input", "C4->input", "sign->input"])
def test_equivariant_functions_have_no_error_and_others_do(name) -> None:
    """f(x) = x ‖x‖ moves with x under every orthogonal action; a constant does not."""
    g = group(name)
    x = drawn(5, 4, 4) if name.startswith("C4") else drawn(5, 6)
    orbit = g.orbit(x)
    size = orbit.flatten(2).norm(dim=-1).view(len(g), 5, *[1] * (x.ndim - 1))
    found = value_scores(orbit * size, g)
    assert found["error"].value < 1e-14 and found["deviation"].value < 1e-12
    assert equivariance_error(orbit[:1].expand_as(orbit), g) > 0.1
    assert equivariance_error(orbit, None) > 0.1


def test_error_by_hand() -> None:
    """f(x) = 1, f(-x) = 0 where −1 is due: 1 over the mean size 1/2."""
    assert equivariance_error(torch.tensor([[1.0], [0.0]]), group("sign->input")) == 2.0


@pytest.mark.parametrize("name", ["C4", "D4", "T@4x4", "C4@4x4"])
def test_group_averages_are_exactly_invariant(name) -> None:
    """A random network averaged over an exact group: all orbit metrics are those of symmetry."""
    g, weights = group(name), drawn(16, 3, seed=1)
    x = drawn(6, 16) if name == "C4@4x4" else drawn(6, 4, 4)

    def averaged(inputs):
        logits = (g.orbit(inputs).flatten(2).tanh() @ weights) * 3
        return mean_of_members(logits.log_softmax(-1))

    plain = ((g.orbit(x).flatten(2).tanh() @ weights) * 3).log_softmax(-1)
    assert class_scores(plain)["error"].value > 0.05
    orbit = torch.stack([averaged(moved) for moved in g.orbit(x)])
    found = class_scores(orbit)
    assert found["same_predictions"].value == len(g)
    assert max(found[key].value for key in ("largest_kl", "deviation", "error")) < 1e-12


def test_many_members_are_more_symmetric_than_one() -> None:
    """Members with a common part and noise of their own: deviations fall as 1/√S."""
    common, noise = drawn(1, 1, 200, 1), drawn(400, 4, 200, 1, seed=2)
    members = common + noise
    one = torch.tensor([orbit_deviation(each).absolute for each in members[:20]]).mean()
    whole = orbit_deviation(members.mean(0)).absolute
    assert whole / one == pytest.approx(1 / 20, rel=0.1)
    logits = (2 * drawn(1, 1, 200, 5) + drawn(400, 4, 200, 5, seed=3)).log_softmax(-1)
    single, ensemble = class_scores(logits[0]), class_scores(mean_of_members(logits))
    assert ensemble["same_predictions"].value > single["same_predictions"].value + 0.5
    assert ensemble["kl"].value < single["kl"].value / 20


def test_averages_are_of_probabilities() -> None:
    """Not of logits: one sure member of two leaves the other its half."""
    logits = torch.tensor([[30.0, 0.0], [0.0, 0.5]]).log_softmax(-1).view(2, 1, 1, 2)
    expected = (1 + 1 / (1 + math.exp(0.5))) / 2
    assert mean_of_members(logits).exp()[0, 0, 0] == pytest.approx(expected)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \(G, B, C\), got \(4, 5\)"):
        class_scores(drawn(4, 5))
    haar = group("SO3-haar-4->input")
    assert set(value_scores(drawn(4, 5, 3), haar)) == {"error"}
    with pytest.raises(ValueError, match="not closed"):
        orbit_deviation(drawn(4, 5, 3), haar)


def test_deviation_of_an_orbit_of_three_is_the_root_of_the_mean_square() -> None:
    """Of (0, 0, 3) it is √2, where the mean distance is 4/3; outputs of several numbers add up."""
    one = torch.tensor([[0.0], [0.0], [3.0]])
    assert orbit_deviation(one).each.tolist() == pytest.approx([math.sqrt(2.0)])
    assert orbit_deviation(one[..., None].expand(-1, -1, 2)).each.tolist() == pytest.approx([2.0])
