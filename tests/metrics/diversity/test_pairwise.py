"""Pairs of members against a double loop in float64, closed forms and identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from polymode.metrics.diversity import (
    mean_pairwise,
    pairwise,
    pairwise_disagreement,
    pairwise_kl,
    pairwise_mutual_information,
    upper,
)
from polymode.prediction import CategoricalPrediction, MixturePrediction

ALL = [pairwise_disagreement, pairwise_kl, pairwise_mutual_information]


def draw(samples, batch, classes, seed=0, scale=2.0, dtype=torch.float64) -> CategoricalPrediction:
    stream = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(samples, batch, classes, generator=stream, dtype=torch.float64)
    return CategoricalPrediction(logits.log_softmax(-1).to(dtype))


def twin(kind, prediction) -> torch.Tensor:
    """Return the definition, pair by pair and input by input, in float64 NumPy."""
    probs = prediction.log_probs.double().softmax(-1).numpy()
    samples, batch, _ = probs.shape
    matrix = np.zeros((samples, samples))

    def entropy(p):
        return -sum(float(v) * math.log(v) for v in p if v > 0)

    def kl(p, q):
        terms = [(float(a), float(b)) for a, b in zip(p, q, strict=True) if a > 0]
        return sum(a * math.log(a / b) if b > 0 else math.inf for a, b in terms)

    for i in range(samples):
        for j in range(samples):
            for n in range(batch):
                p, q = probs[i, n], probs[j, n]
                if kind is pairwise_mutual_information:
                    matrix[i, j] += entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
                elif kind is pairwise_kl:
                    matrix[i, j] += kl(p, q)
                else:
                    matrix[i, j] += p.argmax() != q.argmax()
    return torch.from_numpy(matrix / batch)


@pytest.mark.parametrize("kind", ALL)
def test_equal_the_double_loop(kind):
    prediction = draw(19, 7, 5)
    torch.testing.assert_close(kind(prediction), twin(kind, prediction), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("kind", ALL)
def test_float32_is_within_a_millionth_of_the_double_loop(kind, scale):
    prediction = draw(6, 150, 10, scale=scale, dtype=torch.float32)
    torch.testing.assert_close(kind(prediction), twin(kind, prediction), rtol=0, atol=1e-6)


def test_mutual_information_of_known_pairs():
    """Sure of different classes: log 2. Sure, and undecided: H(3/4, 1/4) - H(1/2, 1/2) / 2."""
    probs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]], dtype=torch.float64)
    half = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) - 0.5 * math.log(2)
    expected = [math.log(2), half, half]
    values = upper(pairwise_mutual_information(probs))
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_members_have_no_distance(kind, dtype):
    member = draw(1, 300, 10, dtype=dtype).log_probs
    matrix = kind(CategoricalPrediction(member.expand(20, -1, -1)))
    assert matrix.abs().max() < 1e-12


def test_zero_probabilities_are_legal():
    """0 log 0 = 0, also where both say 0; KL is infinite where the second alone says 0."""
    probs = torch.tensor([[[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]], [[0.2, 0.3, 0.5]]])
    prediction = CategoricalPrediction(probs.double().log())
    for kind in ALL:
        torch.testing.assert_close(kind(prediction), twin(kind, prediction))
    assert pairwise_kl(prediction).isinf().tolist() == [
        [False, True, False],
        [False, False, False],
        [True, True, False],
    ]


def test_kl_of_probabilities_below_the_smallest_float_is_finite():
    """Log-probabilities know what probabilities do not: log p = -200 costs 200 nats."""
    logs = torch.tensor([[[0.0, -200.0]], [[-200.0, 0.0]]])
    assert pairwise_kl(CategoricalPrediction(logs))[0, 1].item() == pytest.approx(200.0, rel=1e-6)


sizes = st.tuples(st.integers(2, 6), st.integers(1, 5), st.integers(2, 4), st.integers(0, 10**6))


@settings(max_examples=40, deadline=None)
@given(sizes)
def test_bounds_symmetry_and_zero_diagonal(shape):
    *axes, seed = shape
    prediction = draw(*axes, seed=seed, scale=8.0)
    for kind, most in zip(ALL, (1.0, math.inf, math.log(2)), strict=True):
        matrix = kind(prediction)
        assert (matrix >= 0).all() and (matrix <= most).all()
        assert not matrix.diagonal().any()
        if kind is not pairwise_kl:
            assert torch.equal(matrix, matrix.T)


@settings(max_examples=25, deadline=None)
@given(sizes)
def test_order_of_inputs_and_classes_does_not_matter_and_that_of_members_permutes(shape):
    *axes, seed = shape
    logs = draw(*axes, seed=seed).log_probs
    stream = torch.Generator().manual_seed(seed)
    members, inputs, classes = (torch.randperm(size, generator=stream) for size in axes)
    for kind in ALL:
        expected = kind(CategoricalPrediction(logs))
        other = kind(CategoricalPrediction(logs[:, inputs][..., classes]))
        torch.testing.assert_close(other, expected, rtol=1e-9, atol=1e-12)
        permuted = kind(CategoricalPrediction(logs[members]))
        torch.testing.assert_close(permuted, expected[members][:, members], rtol=1e-9, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(sizes)
def test_means_are_those_of_the_prediction(shape):
    """Two members: the ensemble's own mutual information; any number: its disagreement."""
    samples, batch, classes, seed = shape
    prediction = draw(samples, batch, classes, seed=seed)
    disagreement = mean_pairwise(pairwise_disagreement(prediction))
    assert disagreement == pytest.approx(prediction.disagreement.mean().item(), abs=1e-12)
    pair = CategoricalPrediction(prediction.log_probs[:2])
    information = pairwise_mutual_information(pair)[0, 1].item()
    assert information == pytest.approx(pair.mutual_information.mean().item(), abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(sizes)
def test_mutual_information_is_the_mean_of_two_kls_to_the_middle(shape):
    *axes, seed = shape
    prediction = draw(*axes, seed=seed)
    p, q = prediction.probs[:2]
    middle = torch.stack([p, q, (p + q) / 2])
    to_middle = pairwise_kl(middle)[:2, 2].mean().item()
    assert pairwise_mutual_information(middle)[0, 1].item() == pytest.approx(to_middle, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(1, 9), st.integers(1, 9), st.integers(2, 200))
def test_sizes_of_blocks_do_not_matter(samples, rows, tile, piece):
    prediction = draw(samples, 11, 3)
    with pytest.MonkeyPatch.context() as patch:
        expected = [kind(prediction) for kind in ALL]
        patch.setattr(pairwise, "TILE_ROWS", rows)
        patch.setattr(pairwise, "TILE_BYTES", 512 * tile)
        patch.setattr(pairwise, "PIECE_BYTES", 32 * piece)
        for kind, matrix in zip(ALL, expected, strict=True):
            torch.testing.assert_close(kind(prediction), matrix, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ALL)
def test_batches_arrays_and_files_are_the_same_as_one_prediction(kind, tmp_path):
    prediction = draw(5, 23, 4)
    expected = kind(prediction)
    batches = (prediction[start : start + 6] for start in range(0, 23, 6))
    torch.testing.assert_close(kind(batches), expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(kind(prediction.probs), expected, rtol=1e-9, atol=1e-12)
    file = tmp_path / "probs.npy"
    np.save(file, prediction.probs.numpy())
    stored = np.load(file, mmap_mode="r")
    torch.testing.assert_close(kind(stored), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        kind([stored[:, :9], stored[:, 9:]]), expected, rtol=1e-9, atol=1e-12
    )


def test_half_precision_on_disk_is_good_to_three_digits():
    prediction = draw(4, 200, 100, scale=3.0)
    matrix = pairwise_mutual_information(prediction.probs.numpy().astype(np.float16))
    expected = pairwise_mutual_information(prediction)
    torch.testing.assert_close(matrix, expected, rtol=0, atol=1e-4)


def test_number_of_threads_does_not_matter():
    prediction = draw(70, 40, 10, dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(pairwise_mutual_information(prediction))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


class Held(TorchDispatchMode):
    """Counts the bytes of all tensors that operations of this thread made and that still live."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in torch.utils._pytree.tree_leaves(result):
            if isinstance(each, torch.Tensor):
                reference = StorageWeakRef(each.untyped_storage())
                self.alive[reference.cdata] = reference, each.untyped_storage().nbytes()
        self.alive = {key: pair for key, pair in self.alive.items() if not pair[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return result


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(("samples", "batch"), [(32, 100), (32, 1000), (96, 340)])
def test_memory_is_bounded_whatever_the_number_of_inputs_and_pairs(
    kind, samples, batch, monkeypatch
):
    """Six pieces, two tiles and what sums them up, and some matrices (S, S)."""
    monkeypatch.setattr(pairwise, "PIECE_BYTES", 2**16)
    monkeypatch.setattr(pairwise, "TILE_BYTES", 2**14)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # all in the thread that counts
    probs = draw(samples, batch, 10, dtype=torch.float32).probs.numpy()
    with Held() as held:
        kind(probs)
    assert 2**16 < held.peak < 6 * 2**16 + 3 * 2**14 + 5 * 8 * samples**2


def test_upper_has_each_pair_once():
    matrix = torch.arange(16.0).reshape(4, 4)
    assert upper(matrix).tolist() == [1.0, 2.0, 3.0, 6.0, 7.0, 11.0]
    assert upper(matrix.T).tolist() == [4.0, 8.0, 12.0, 9.0, 13.0, 14.0]
    assert mean_pairwise(matrix) == (matrix.sum() - matrix.trace()).item() / 12
    with pytest.raises(ValueError, match=r"must be \(S, S\)"):
        upper(torch.zeros(3, 2))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        (draw(1, 3, 2), "at least 2 samples, got 1"),
        (draw(2, 3, 2)[:0], "0 inputs"),
        ([], "0 inputs"),
        ([draw(2, 3, 2), draw(3, 3, 2)], "same members and classes"),
        (torch.full((2, 3, 4), 0.5), "add up to 1"),
        (torch.full((2, 3, 4), math.nan), "add up to 1"),
        (torch.full((3, 4), 0.25), "axes"),
        (MixturePrediction(torch.zeros(2, 3, 1), 1.0), "class probabilities"),
        ([[[0.5, 0.5]], [[0.5, 0.5]]], "class probabilities"),
    ],
)
def test_bad_input_is_refused(kind, predictions, message):
    with pytest.raises(ValueError, match=message):
        kind(predictions)
