"""What every toy task must do, with no code per task."""

from __future__ import annotations

import inspect
from functools import cache

import pytest
import torch

from polymode.likelihoods.kinds import Gaussian
from polymode.likelihoods.scaling import Scaling
from polymode.tasks import TASKS, Task, task
from polymode.training.data import Arrays

TOYS = [name for name in TASKS.names() if TASKS.get(name).metadata["kind"] == "toy"]
MAPS = {"shapes", "shapes_depth"}  # a target at each pixel, and what it is drawn from: `exact`
NOT_TRUE = {"mnist1d"} | MAPS  # no truth: the class posterior of signals or images is not known
SPLITS = ("train", "val", "test")
SIZES = ("num_train", "num_val", "num_test")


@cache
def built(name: str, seed: int = 0, **options) -> Task:
    return task(name, seed, **options)


def parts(own: Task) -> dict[str, torch.Tensor]:
    """All tensors of a task by name."""
    sets = {split: getattr(own, split) for split in SPLITS} | dict(own.ood)
    for key, levels in own.shifts.items():
        sets |= {f"{key} {severity}": data for severity, data in levels.items()}
    tensors = {}
    for key, data in sets.items():
        pair = {"x": data.x, "y": data.y} if isinstance(data, Arrays) else {"x": data}
        tensors |= {f"{key} {letter}": tensor for letter, tensor in pair.items()}
    return tensors


def not_observed(name: str, key: str, tensor: torch.Tensor) -> torch.Tensor:
    """Where a tensor says that a pixel of a map has no target, which training sets never do."""
    split, *_, letter = key.split()
    if name not in MAPS or letter != "y" or split in SPLITS:
        return torch.zeros_like(tensor, dtype=torch.bool)
    return tensor.isnan()


def equal(name: str, key: str, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are the same, and lack targets at the same pixels."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    missing = not_observed(name, key, first)
    return torch.equal(missing, not_observed(name, key, second)) and torch.equal(
        first[~missing], second[~missing]
    )


def rows(x: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in x.flatten(1).tolist()}


def raw(own: Task, split: str) -> torch.Tensor:
    """Inputs before standardising, where they are standardised."""
    x = getattr(own, split).x
    return x if own.input_scaling is None else own.input_scaling.inverse(x)


def test_the_toys_of_the_papers_are_there():
    assert set(TOYS) >= {
        "curve", "donuts", "five_gaussians", "gap_regression", "linear_regression",
        "logistic_regression", "matern", "mnist1d", "synthetic_regression", "three_clusters",
        "tiny_nets", "two_modes", "two_moons", "wiggle", "x_sin_x",
    }  # fmt: skip


@pytest.mark.parametrize("name", TOYS)
def test_metadata_sizes_and_truth(name):
    own, metadata = built(name), TASKS.get(name).metadata
    sizes = [len(getattr(own, split)) for split in SPLITS]
    assert metadata["size"] == " / ".join(f"{size:,}" for size in sizes)
    assert all(metadata[key] for key in ("description", "source", "licence"))
    assert (own.truth is None) == (name in NOT_TRUE)
    assert own.ood or name == "linear_regression"


@pytest.mark.parametrize("name", TOYS)
def test_every_number_is_finite_and_single(name):
    for key, tensor in parts(built(name)).items():
        assert (tensor.isfinite() | not_observed(name, key, tensor)).all(), key
        assert tensor.dtype == (torch.int64 if not tensor.is_floating_point() else torch.float32)


@pytest.mark.parametrize("name", TOYS)
def test_same_seed_agrees_other_seed_differs(name):
    first, again, other = parts(built(name, 5)), parts(task(name, 5)), parts(built(name, 6))
    for key, tensor in first.items():
        assert equal(name, key, tensor, again[key]), key
    changed = {key.split()[0] for key in first if not equal(name, key, first[key], other[key])}
    assert changed >= set(SPLITS)


@pytest.mark.parametrize("name", TOYS)
def test_splits_share_no_row_and_no_random_stream(name):
    """Sets of one size would be equal, or equal in their noise, if they shared a stream."""
    own = built(name, **dict.fromkeys(SIZES, 40))
    sets = [getattr(own, split) for split in SPLITS]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not rows(sets[i].x) & rows(sets[j].x)
        assert not torch.equal(sets[i].x, sets[j].x)
        if own.truth is not None and not own.likelihood.classification:
            noise = [data.y - own.truth(data.x) for data in (sets[i], sets[j])]
            correlation = torch.corrcoef(torch.cat(noise, dim=1).T)[0, 1]
            assert abs(float(correlation)) < 0.9
    own = built(name)
    x = [rows(getattr(own, split).x) for split in SPLITS]
    assert not x[0] & x[1] and not x[0] & x[2] and not x[1] & x[2]


@pytest.mark.parametrize("name", TOYS)
def test_size_of_one_set_leaves_the_others(name):
    own, more_val, more_train = built(name), task(name, num_val=77), task(name, num_train=177)
    for split in ("train", "test"):
        assert torch.equal(getattr(own, split).x, getattr(more_val, split).x)
        assert torch.equal(getattr(own, split).y, getattr(more_val, split).y)
    torch.testing.assert_close(raw(own, "test"), raw(more_train, "test"), rtol=1e-5, atol=1e-5)
    assert (len(more_val.val), len(more_train.train)) == (77, 177)


@pytest.mark.parametrize("name", TOYS)
def test_global_random_state_is_neither_read_nor_moved(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = parts(task(name, 5))
    assert torch.equal(before, torch.get_rng_state())
    again = parts(built(name, 5))
    assert all(equal(name, key, first[key], tensor) for key, tensor in again.items())


def noise_std(own: Task) -> float:
    """Standard deviation that the likelihood is told, in the units of the targets."""
    assert isinstance(own.likelihood, Gaussian) and isinstance(own.likelihood.noise, float)
    scaling = own.target_scaling or Scaling(torch.tensor(0.0), torch.tensor(1.0))
    return own.likelihood.noise * scaling.scale.item()


@pytest.mark.parametrize("name", [name for name in TOYS if name not in NOT_TRUE])
def test_targets_are_truth_and_noise_as_stated(name):
    """Test sets of 4,000 have residuals of mean 0 and the standard deviation that the likelihood is
    told; class labels have the probabilities of the truth, and its entropy as NLL. All within 4
    standard errors: false-alarm rate 6e-5 a comparison, 0.003 over the 40 of all tasks.
    """
    own = task(name, 3, num_test=4000)
    truth = own.truth(own.test.x)
    if not own.likelihood.classification:
        residuals, std = own.test.y - truth, noise_std(own)
        assert truth.shape == own.test.y.shape and truth.dtype == own.test.x.dtype
        assert abs(float(residuals.mean())) < 4 * std / 4000**0.5
        assert float(residuals.std()) == pytest.approx(std, abs=4 * std / 8000**0.5)
        return
    assert truth.shape == (4000, own.target_size)
    torch.testing.assert_close(truth.sum(1), torch.ones(4000))
    truth = truth.double()
    excess = torch.nn.functional.one_hot(own.test.y, own.target_size) - truth
    error = (truth * (1 - truth)).sum(0).sqrt()
    assert (excess.sum(0).abs() <= 4 * error + 1e-9).all()
    surprise = -truth.clamp(min=1e-300).log()
    entropy = (truth * surprise).sum(1)
    spread = ((truth * surprise.square()).sum(1) - entropy.square()).clamp(min=0).sum().sqrt()
    nll = surprise.gather(1, own.test.y[:, None])[:, 0]
    assert abs(float((nll - entropy).sum())) <= 4 * float(spread) + 1e-9


@pytest.mark.parametrize("name", sorted(MAPS))
def test_maps_are_drawn_from_what_is_known_of_each_pixel(name):
    """As above, with 4 standard errors: of the mean and the standard deviation of all residuals of
    a set, or of the number of pixels of each class and of the NLL of the known probabilities.
    """
    own = built(name, 3)
    for split in SPLITS:
        y = getattr(own, split).y
        if not own.likelihood.classification:
            z = (y - own.exact.mean[split]).double() / own.exact.noise[split]
            assert y.shape == own.exact.mean[split].shape and z.numel() == y.numel()
            assert abs(float(z.mean())) < 4 / z.numel() ** 0.5
            assert float(z.std()) == pytest.approx(1, abs=4 / (2 * z.numel()) ** 0.5)
            continue
        probs = own.exact.probs[split].double()
        assert probs.shape == (*y.shape, own.target_size)
        probs, y = probs.flatten(0, -2), y.flatten()
        assert (probs.sum(1) - 1).abs().max() < 1e-6  # of single numbers
        excess = torch.nn.functional.one_hot(y, own.target_size) - probs
        assert (excess.sum(0).abs() <= 4 * (probs * (1 - probs)).sum(0).sqrt()).all()
        surprise = -probs.clamp(min=1e-300).log()
        entropy = (probs * surprise).sum(1)
        spread = ((probs * surprise.square()).sum(1) - entropy.square()).clamp(min=0).sum().sqrt()
        nll = surprise.gather(1, y[:, None])[:, 0]
        assert abs(float((nll - entropy).sum())) <= 4 * float(spread)
        assert (own.exact.entropy(split).flatten() - entropy).abs().max() < 1e-5


@pytest.mark.parametrize("name", [name for name in TOYS if name not in NOT_TRUE])
def test_ood_targets_of_regressions_follow_the_truth(name):
    """200 residuals and more have mean 0 within 4 standard errors (rate 6e-5 a set)."""
    own = built(name)
    if own.likelihood.classification:
        return
    shifted = [data for levels in own.shifts.values() for data in levels.values()]
    for data in [*own.ood.values(), *shifted]:
        residuals = data.y - own.truth(data.x)
        assert abs(float(residuals.mean())) < 4 * noise_std(own) / len(data) ** 0.5


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("option", SIZES)
def test_sizes_are_checked(name, option):
    for wrong, said in ((0, "must be >= 1, got 0"), (2.5, "an integer, got 2.5")):
        with pytest.raises(ValueError, match=f"`{option}` of {name} must be.*{said[-6:]}"):
            task(name, **{option: wrong})
    assert set(SIZES) <= set(inspect.signature(TASKS.get(name).value).parameters)


REGRESSIONS = [
    name for name in TOYS if "noise_std" in inspect.signature(TASKS.get(name).value).parameters
]


@pytest.mark.parametrize("name", REGRESSIONS)
def test_noise_may_be_learned_and_its_options_are_checked(name):
    learned, known = task(name, noise="learned"), built(name)
    assert learned.likelihood == Gaussian(noise="learned")
    assert torch.equal(learned.train.y, known.train.y)
    with pytest.raises(ValueError, match=f"`noise` of {name} must.*`noise_std`.*got 0.3"):
        task(name, noise=0.3)
    for wrong in (0.0, -1.0, float("nan"), float("inf"), "much"):
        with pytest.raises(ValueError, match=f"`noise_std` of {name} must be"):
            task(name, noise_std=wrong)
