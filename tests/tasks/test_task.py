from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from polymode.likelihoods.kinds import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian
from polymode.likelihoods.scaling import Scaling
from polymode.tasks import Task, check_batch
from polymode.training.data import Arrays, Loader, Pixels

NAN, INF = float("nan"), float("inf")


def images(num: int = 12, shape: tuple[int, ...] = (1, 4, 4)) -> torch.Tensor:
    return torch.rand(num, *shape, generator=torch.Generator().manual_seed(num))


def labels(num: int = 12, classes: int = 3) -> torch.Tensor:
    return torch.arange(num) % classes


def classes(**changes) -> Task:
    return Task(**{"train": (images(), labels()), "likelihood": "categorical", **changes})


def regression(**changes) -> Task:
    arrays = (images(10, (2,)), torch.linspace(0, 1, 10))
    return Task(**{"train": arrays, "likelihood": Gaussian(noise=0.1), **changes})


class Pairs(Dataset):
    """A map-style data set that is not a TensorDataset."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int):
        return self.x[row], self.y[row]


class Dictionaries(Pairs):
    def __getitem__(self, row: int):
        return {"pixels": self.x[row], "label": self.y[row]}


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


# what a task holds


def test_arrays_in_canonical_form():
    task = classes(val=(images(5), labels(5)), test=(images(6), labels(6)))
    assert isinstance(task.train, Arrays) and isinstance(task.val, Arrays)
    assert [len(task.train), len(task.val), len(task.test)] == [12, 5, 6]
    assert task.input_shape == (1, 4, 4) and task.target_size == task.num_outputs == 3
    assert task.train.y.dtype == torch.int64 and task.likelihood == Categorical()
    assert task.ood == {} and task.shifts == {} and task.truth is None and task.exact is None


def test_numpy_arrays_of_double_precision_and_int32_labels():
    x, y = np.random.default_rng(0).normal(size=(9, 2)), np.arange(9, dtype=np.int32) % 2
    task = Task(train=(x, y), likelihood=Categorical())
    assert task.train.x.dtype == torch.float32 and task.train.y.dtype == torch.int64
    np.testing.assert_allclose(task.train.x.numpy(), x, rtol=1e-6)


def test_regression_targets_get_their_axis():
    task = regression(test=(images(4, (2,)), torch.zeros(4)))
    assert task.train.y.shape == (10, 1) and task.test.y.shape == (4, 1)
    assert task.target_size == task.num_outputs == 1
    two = regression(train=(images(5, (2,)), images(5, (3,))), likelihood=HeteroscedasticGaussian())
    assert two.target_size == 3 and two.num_outputs == 6


def test_only_train_and_likelihood_are_needed():
    task = classes()
    assert task.val is None and task.test is None and task.name == "own"


def test_target_size_for_classes_absent_from_train():
    task = classes(target_size=5, test=(images(5), torch.tensor([0, 1, 2, 3, 4])))
    assert task.num_outputs == 5


def test_integer_inputs_stay_integers():
    tokens = torch.randint(0, 100, (12, 7), generator=torch.Generator().manual_seed(0))
    task = classes(train=(tokens, labels()))
    assert task.train.x.dtype == torch.int64 and task.input_shape == (7,)


def test_ood_as_inputs_or_pairs():
    foreign = torch.tensor([90, 91, 92])
    task = classes(ood={"a": images(4), "b": images(5).double().numpy(), "c": (images(3), foreign)})
    assert isinstance(task.ood["a"], torch.Tensor) and len(task.ood["a"]) == 4
    assert task.ood["b"].dtype == torch.float32
    assert isinstance(task.ood["c"], Arrays) and torch.equal(task.ood["c"].y, foreign)
    curve = regression(ood={"gap": (images(3, (2,)), torch.zeros(3))})
    assert curve.ood["gap"].y.shape == (3, 1)


def test_shifts_in_rising_order():
    pair = (images(5), labels(5))
    task = classes(shifts={"noise": {3: pair, 1: pair}})
    assert list(task.shifts["noise"]) == [1, 3]
    assert isinstance(task.shifts["noise"][1], Arrays)


def test_repr_is_short_and_says_what_matters():
    shift = {severity: (images(5), labels(5)) for severity in (1, 2)}
    task = classes(name="mine", ood={"far": images(1234)}, shifts={"noise": shift})
    assert repr(task) == (
        "Task('mine': train 12; inputs (1, 4, 4); Categorical(), num_outputs 3; OOD far (far);"
        " shifts noise 1-2)"
    )
    assert "train by loader" in repr(classes(train=DataLoader(Pairs(images(), labels()))))


def test_arguments_are_by_name_only():
    with pytest.raises(TypeError):
        Task((images(), labels()), "categorical")


# loaders


@pytest.mark.parametrize("kind", ["loader", "dataset", "tensor dataset", "core"])
def test_sources_of_data(kind):
    x, y = images(), labels()
    source = {
        "loader": DataLoader(Pairs(x, y), batch_size=4, shuffle=True),
        "dataset": Pairs(x, y),
        "tensor dataset": TensorDataset(x, y),
        "core": Loader(DataLoader(Pairs(x, y), batch_size=4)),
    }[kind]
    task = classes(train=source, test=source)
    assert task.input_shape == (1, 4, 4) and task.num_outputs == 3
    assert len(task.train) == len(task.test) == 12
    assert isinstance(task.train, Arrays if kind == "tensor dataset" else Loader)


def test_classes_of_a_loader_are_counted_over_all_its_batches():
    loader = DataLoader(Pairs(images(), torch.arange(12)), batch_size=4)
    assert classes(train=loader).num_outputs == 12
    assert classes(train=loader, target_size=15).num_outputs == 15


class Counting(Pairs):
    touched = 0

    def __getitem__(self, row: int):
        self.touched += 1
        return super().__getitem__(row)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_size": 2},
        {"likelihood": Bernoulli()},
        {"likelihood": Gaussian(noise=1.0), "target_scaling": None},
    ],
)
def test_only_the_first_batch_is_read_where_that_is_enough(changes):
    data = Counting(images(), labels(classes=2))
    classes(train=DataLoader(data, batch_size=4), **changes)
    assert data.touched == 4


def test_looking_at_a_loader_leaves_the_seed_of_the_user_alone():
    loader = Loader(DataLoader(Pairs(images(), labels()), batch_size=4, shuffle=True))
    before = torch.get_rng_state()
    classes(train=loader)
    assert torch.equal(before, torch.get_rng_state())


def test_loader_of_dictionaries():
    task = classes(train=DataLoader(Dictionaries(images(), labels()), batch_size=4))
    assert list(task.input_shape.values()) == [(1, 4, 4)]
    with pytest.raises(ValueError, match="train: the data have no 'class', which `target` names"):
        classes(train=DataLoader(Dictionaries(images(), labels())), target="class")
    with pytest.raises(ValueError, match="test inputs have several tensors"):
        classes(test=Dictionaries(images(), labels()))


def test_loader_without_targets():
    with pytest.raises(ValueError, match="train: the loader yields a Tensor"):
        classes(train=DataLoader(images()))


def test_empty_loader():
    with pytest.raises(ValueError, match="train: the loader is empty: 0 batches"):
        classes(train=DataLoader(Nothing()))


def test_first_batch_of_a_loader_is_validated():
    x = images()
    x[1, 0, 0, 0] = NAN
    with pytest.raises(ValueError, match="train inputs have 1 of 64 values NaN"):
        classes(train=DataLoader(Pairs(x, labels()), batch_size=4))
    with pytest.raises(ValueError, match=r"test has input shape \(2,\)"):
        classes(test=DataLoader(Pairs(images(4, (2,)), labels(4))))


# what a task refuses


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize(
    "x, y, message",
    [
        (images(0), labels(0), "the data set is empty: 0 examples"),
        (images(3), labels(4), "differ in length: 3 and 4"),
        (
            images(3),
            torch.tensor([0.0, 1.0, 2.0]),
            "targets: Labels must be integers, got .*float32",
        ),
        (images(3), torch.eye(3), "one-hot"),
        (images(3), torch.eye(3).long(), r"Labels must have shape \(N,\), got \(3, 3\)"),
        (images(3), torch.tensor([0, -1, 2]), "got -1 in row 1"),
        ((255 * images(3)).to(torch.uint8), labels(3), "inputs are uint8.*x / 255"),
        (images(3) > 0.5, labels(3), "inputs are torch.bool"),
        (torch.rand(3), labels(3), r"shape \(3,\).*x\[:, None\]"),
        (torch.rand(3, 0), labels(3), r"inputs have shape \(3, 0\)"),
        ([["a", "b"]], [0], "inputs cannot be read as an array of numbers"),
    ],
)
def test_bad_arrays(split, x, y, message):
    with pytest.raises(ValueError, match=f"{split}.*{message}"):
        classes(**{split: (x, y)})


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_inputs_not_finite(split, value):
    x = images()
    x[3, 0, 1:3, 2] = value
    x[7, 0, 0, 0] = value
    message = rf"{split} inputs have 3 of 192 values NaN or infinite, the first in row 3 \(2 of 12"
    with pytest.raises(ValueError, match=message):
        classes(**{split: (x, labels())})


def test_opposite_infinities_do_not_cancel():
    x = images()
    x[0, 0, 0, 0], x[1, 0, 0, 0] = INF, -INF
    with pytest.raises(ValueError, match="train inputs have 2 of"):
        classes(train=(x, labels()))


def test_finite_inputs_whose_sum_overflows_are_accepted():
    assert len(classes(train=(torch.full((12, 2), 3e38), labels())).train) == 12


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("value", [NAN, INF])
def test_targets_not_finite(split, value):
    y = torch.zeros(10)
    y[4] = value
    with pytest.raises(ValueError, match=f"{split} targets: .*finite.*row 4"):
        regression(**{split: (images(10, (2,)), y)})


def test_labels_out_of_range():
    wrong = torch.tensor([0, 1, 3, 4])
    message = "test targets: .*0..2.*got 3 in row 2 .2 of 4.*need `target_size`"
    with pytest.raises(ValueError, match=message):
        classes(test=(images(4), wrong))
    with pytest.raises(ValueError, match="train targets: .*0..1"):
        classes(target_size=2)
    with pytest.raises(ValueError, match="shift 'noise' severity 2 targets"):
        classes(shifts={"noise": {2: (images(4), wrong)}})


def test_target_dimensions_differ():
    with pytest.raises(ValueError, match="test targets: .*1.*2"):
        regression(test=(images(4, (2,)), torch.zeros(4, 2)))


def test_input_shapes_differ():
    other, y = images(4, (3, 8, 8)), labels(4)
    tail = r"has input shape \(3, 8, 8\) but the task's inputs have shape \(1, 4, 4\)"
    for changes, what in [
        ({"test": (other, y)}, "test"),
        ({"val": (other, y)}, "val"),
        ({"ood": {"svhn": other}}, "ood set 'svhn'"),
        ({"ood": {"svhn": (other, y)}}, "ood set 'svhn'"),
        ({"shifts": {"fog": {1: (other, y)}}}, "shift 'fog' severity 1"),
    ]:
        with pytest.raises(ValueError, match=f"{what} {tail}"):
            classes(**changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"likelihood": "categorial"}, "Did you mean 'categorical'"),
        ({"likelihood": "gaussian"}, "noise"),
        ({"likelihood": 3}, "likelihood"),
        ({"target_size": 0}, "`target_size` of Task must be an integer >= 1 or None, got 0"),
        ({"target_size": 2.0}, "must be an integer >= 1 or None, got 2.0"),
        ({"train": 3}, "train: cannot read data from a int"),
        ({"ood": {"far": torch.full((2, 1, 4, 4), NAN)}}, "ood set 'far' inputs have 32 of 32"),
        ({"ood": {"far": images(0)}}, "ood set 'far': the data set is empty"),
        ({"ood": {"far": DataLoader(images(9, (2,)))}}, r"ood set 'far' has input shape \(2,\)"),
        ({"ood": {"far": images(3).mul(255).byte()}}, "ood set 'far' inputs are uint8"),
        ({"shifts": {"fog": {0: (images(), labels())}}}, "integers >= 1, got 0"),
        ({"shifts": {"fog": {"1": (images(), labels())}}}, "integers >= 1, got '1'"),
        ({"shifts": {"fog": (images(), labels())}}, "shift 'fog' must be a dict.*got tuple"),
        (
            {"shifts": {"fog": {1: Pairs(images(), labels())}}},
            "severity 1 must be arrays, got Pairs",
        ),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        classes(**changes)


# one batch


def test_check_batch_returns_canonical_targets():
    task = regression()
    x, y = task.check_batch(images(3, (2,)), torch.zeros(3, dtype=torch.float64))
    assert y.shape == (3, 1) and x.shape == (3, 2)


@pytest.mark.parametrize(
    "x, y, message",
    [
        (torch.full((3, 2), NAN), torch.zeros(3).long(), "batch inputs have 6 of 6 values NaN"),
        (torch.zeros(3, 4), torch.zeros(3).long(), r"batch has input shape \(4,\)"),
        (torch.zeros(3, 2), torch.zeros(4).long(), "batch has 3 inputs and 4 targets"),
        (
            torch.zeros(3, 2),
            torch.tensor([0, 1, 9]),
            "batch targets: .*got 9 in row 2.*target_size",
        ),
        (torch.zeros(3, 2), torch.zeros(3), "batch targets: .*integers"),
    ],
)
def test_check_batch_refuses(x, y, message):
    with pytest.raises(ValueError, match=message):
        check_batch(Categorical(), 3, (2,), x, y)


def test_shifts_and_ood_sets_are_made_when_they_are_looked_at():
    calls = []

    def make(what, source):
        calls.append(what)
        return source

    x, y = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 1, 0])
    mine = Task(
        train=(x, y),
        test=(x, y),
        likelihood="categorical",
        ood={"away": lambda: make("away", x + 9), "close": x + 1},
        near_ood=["close"],
        shifts={"noise": {2: lambda: make("noise", (x, y)), 1: lambda: make("mild", (x, y + 5))}},
    )
    repr(mine)
    assert calls == [] and list(mine.shifts["noise"]) == [1, 2] and mine.near_ood == ("close",)
    assert torch.equal(mine.ood["away"], x + 9) and torch.equal(mine.shifts["noise"][2].x, x)
    assert calls == ["away", "noise"]
    with pytest.raises(ValueError, match="shift 'noise' severity 1"):
        mine.shifts["noise"][1]


def test_images_as_bytes_stay_bytes():
    images = torch.randint(256, (6, 1, 4, 4), dtype=torch.uint8)
    y, scaling = torch.tensor([0, 1, 2, 0, 1, 2], dtype=torch.int32), Scaling(0.5, 0.5)
    mine = Task(
        train=Pixels(images, y, scaling),
        test=Pixels(images[:3], y[:3], scaling),
        ood={"other": Pixels(images, y + 50, scaling)},
        likelihood="categorical",
        class_names=["a", "b", "c"],
    )
    assert isinstance(mine.train, Pixels) and mine.train.pixels is images
    assert mine.train.y.dtype == torch.int64 and mine.input_shape == (1, 4, 4)
    assert isinstance(mine.test, Pixels) and isinstance(mine.ood["other"], Pixels)
    with pytest.raises(ValueError, match="test"):
        Task(train=mine.train, test=Pixels(images[..., :2], y, scaling), likelihood="categorical")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"near_ood": ["clsoe"], "ood": {"close": torch.ones(2, 2)}}, "Did you mean 'close'"),
        ({"near_ood": "close"}, "must be a sequence of names"),
        ({"class_names": ["a"]}, "1 `class_names` for 2 classes"),
        ({"target_scaling": Scaling(0.0, 1.0)}, "class labels have no scale"),
    ],
)
def test_bad_descriptions(changes, message):
    with pytest.raises(ValueError, match=message):
        Task(train=(torch.ones(2, 2), [0, 1]), likelihood="categorical", **changes)


def test_target_scaling_has_one_number_a_target():
    with pytest.raises(ValueError, match=r"has shape \(3,\); the targets have 2 dimension"):
        Task(
            train=(torch.ones(4, 2), torch.ones(4, 2)),
            likelihood=Gaussian(noise=1.0),
            target_scaling=Scaling(torch.zeros(3), torch.ones(3)),
        )


def test_labels_that_skip_zero_are_told():
    y = 1 + labels()
    for source in ((images(), y), DataLoader(Pairs(images(), y), batch_size=4)):
        with pytest.warns(UserWarning, match=r"labels begin at 1: none is 0, and C is taken as 4"):
            assert classes(train=source, test=None).target_size == 4
        classes(train=source, target_size=4)


def test_labels_that_are_codes_are_refused_before_a_network_has_so_many_outputs():
    """Many classes are fine where they occur, also a few in each batch of a loader."""
    codes = torch.tensor([3, 600_000_000] * 6)
    for train in ((images(), codes), DataLoader(Pairs(images(), codes), batch_size=4)):
        with pytest.raises(ValueError, match=r"600,000,001 outputs for 2 labels that.*unique"):
            classes(train=train)
    assert classes(train=(images(), codes), target_size=600_000_001).num_outputs == 600_000_001
    many = DataLoader(Pairs(images(3000, (1,)), torch.arange(3000)), batch_size=2)
    assert classes(train=many).num_outputs == 3000
