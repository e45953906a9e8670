"""Tasks of several inputs: what is read, what is scored, and what is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import polymode as pm
from polymode.examinations import NotApplicable, examine

STREAM = torch.Generator().manual_seed(0)
A, B = torch.randn(40, 3, generator=STREAM), torch.randn(40, 2, generator=STREAM)
LABELS = (A[:, 0] > 0).long()
NAN = float("nan")


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.body(torch.cat([a, b], 1))


class Items(Dataset):
    """Examples as dictionaries."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"a": A[row], "b": B[row], "kind": int(LABELS[row])}


class Unlabelled:
    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Any:
        return ({"a": a, "b": b} for a, b in zip(A.split(10), B.split(10), strict=True))


def task(train: Any, **options: Any) -> pm.Task:
    return pm.Task(train=train, likelihood="categorical", **options)


def fit(task: pm.Task, **options: Any) -> pm.Posterior:
    usual = {"epochs": 2, "batch_size": 8, "progress": "silent"}
    return pm.fit("map", net=Two, task=task, **(usual | options))


SOURCES: dict[str, Callable[[], pm.Task]] = {
    "pair": lambda: task(({"a": A, "b": B}, LABELS)),
    "numpy": lambda: task(({"a": A.numpy(), "b": B.numpy()}, LABELS.numpy())),
    "dictionary": lambda: task({"a": A, "b": B, "labels": LABELS}),
    "named target": lambda: task({"a": A, "b": B, "kind": LABELS}, target="kind"),
    "tuple": lambda: task(((A, B), LABELS)),
    "data set": lambda: task(Items(), target="kind"),
    "loader": lambda: task(DataLoader(Items(), 8), target="kind"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_inputs(kind) -> None:
    source = SOURCES[kind]()
    shapes = ((3,), (2,)) if kind == "tuple" else {"a": (3,), "b": (2,)}
    assert source.input_shape == shapes
    assert sum(len(x) for x, _ in source.train.batches(8)) == 40
    x, y = next(iter(source.train.batches(8)))
    assert torch.equal(x.leaves[0], A[:8]) and torch.equal(y, LABELS[:8])
    data_order = {"data_order": "shared"} if kind == "loader" else {}
    assert fit(source, **data_order).predict((A, B) if kind == "tuple" else {"b": B, "a": A})


def test_everything_that_is_predicted_takes_several_inputs() -> None:
    """Scores of a test set, of shifts, and of OOD sets alone, with targets, and by a loader."""
    held = {"a": A, "b": B, "label": LABELS}
    outside = {"a": A + 9, "b": B}
    source = task(
        held, val=held, test=held, shifts={"moved": {1: {**held, "a": A + 1}}},
        ood={"alone": outside, "pair": (outside, LABELS), "loader": Unlabelled(),
             "late": lambda: outside},
    )  # fmt: skip
    post = fit(source, num_modes=1)
    results = pm.evaluate(post, source)
    assert {row.dataset for row in results.rows} == {
        "test", "shift:moved:1", "ood:alone", "ood:pair", "ood:loader", "ood:late",
    }  # fmt: skip
    assert "examples" not in results.kept
    by_loader = results.kept["ood:loader"].prediction.mean
    torch.testing.assert_close(by_loader, post.predict({"a": A, "b": B}).mean)
    torch.testing.assert_close(post.predict(source.test).mean, by_loader)
    whole = torch.cat([part.mean for part in post.stream({"a": A, "b": B}, batch_size=7)])
    torch.testing.assert_close(whole, by_loader)


@pytest.mark.parametrize("name", ["equivariance", "symmetry"])
def test_examinations_of_one_input_do_not_apply(name) -> None:
    source = task(((A, B), LABELS), test=((A, B), LABELS))
    options = {"against": "folder"} if name == "symmetry" else {}
    with pytest.raises(NotApplicable, match=r"these networks take several: 0 \(B, 3\), 1 \(B, 2\)"):
        examine(fit(source), source, name, **options)


def test_symmetries_and_shifts_say_why_not() -> None:
    source = task(((A, B), LABELS), val=((A, B), LABELS))
    post = fit(source)
    with pytest.raises(ValueError, match="Two takes several inputs"):
        pm.symmetry.find(post)
    with pytest.raises(ValueError, match="has several inputs .*synthetic shifts are of one"):
        pm.evaluate(post, task(((A, B), LABELS), val=((A, B), LABELS), test=((A, B), LABELS)),
                    validation=True)  # fmt: skip


def test_an_augmentation_gets_what_the_user_gave() -> None:
    seen: list[set[str]] = []

    def augment(x: dict[str, Tensor], stream: torch.Generator) -> dict[str, Tensor]:
        seen.append(set(x))
        return {**x, "a": -x["a"]}

    source = task({"a": A, "b": B, "y": LABELS})
    turned = fit(source, augment=augment, holdout=0)
    other = fit(task({"a": -A, "b": B, "y": LABELS}), holdout=0)
    assert seen[0] == {"a", "b"}
    for name, tensor in other.stack.params.items():
        assert torch.equal(turned.stack.params[name], tensor)


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        ({"a": A, "b": B}, {}, "train: the data have the names 'a', 'b', and none of them is"),
        ({"a": A, "y": LABELS, "label": LABELS}, {}, "any of which may be the targets; name one"),
        ({"a": A, "y": LABELS}, {"target": "z"}, "the data have no 'z', which `target` names"),
        (({"a": A, "b": B[:9]}, LABELS), {}, "differ in length: 'a' 40, 'b' 9"),
        (((A, B), LABELS[:9]), {}, "inputs and targets differ in length: 40 and 9"),
        (((A, torch.full((40, 2), NAN)), LABELS), {}, "train inputs '1' have 80 of 80 values NaN"),
        (((A, B.to(torch.uint8)), LABELS), {}, "train inputs '1' are uint8"),
        (({"a": ["x"] * 40}, LABELS), {}, "inputs 'a' cannot be read as an array of numbers"),
        ((A, B, LABELS), {}, r"such as \(\(a, b\), y\) for several inputs, got a tuple of 3"),
        (((A, B), LABELS), {"test": (A, LABELS)}, "test has one tensor, and not several: 0 "),
        ((A, LABELS), {"test": ((A, B), LABELS)}, "test inputs have several tensors"),
        (((A, B), LABELS), {"ood": {"far": (A, B, A)}}, "ood set 'far'"),
        (
            ({"a": A}, LABELS),
            {"val": ({"b": A}, LABELS)},
            "val inputs have no 'a' and a surplus 'b'",
        ),
    ],
)
def test_wrong_sources_are_one_line(train, options, message) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        task(train, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (A, r"take several inputs, a \(B, 3\), b \(B, 2\); give them in a dictionary"),
        ({"a": A}, r"inputs have no 'b' \(expected a, b; got a\)"),
        ({"a": A, "b": B, "c": B}, "inputs have a surplus 'c'"),
        ({"a": A, "b": B[:, None]}, r"'b' of shape \(B, 1, 2\) where \(B, 2\) is expected"),
        ({"a": A, "b": B[:3]}, "differ in length: 'a' 40, 'b' 3"),
        ({"a": A, "b": torch.full((40, 2), NAN)}, "40 of 40 inputs hold NaN"),
        ({"a": A[:0], "b": B[:0]}, "there is nothing to predict: 0 inputs"),
        ({}, "the inputs hold no tensor"),
        ({"a": "text", "b": B}, "Inputs 'a' must be numbers in a tensor or array"),
        (iter([{"a": A, "b": B}]), "an iterator, which can be read only once"),
    ],
)
def test_wrong_inputs_of_a_prediction_are_one_line(x, message) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        fit(task({"a": A, "b": B, "y": LABELS})).predict(x)
    assert "\n" not in str(refused.value)


class Packed(nn.Module):
    """An LSTM over sequences of their own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, steps: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            steps, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return self.head(self.cells(packed)[1][0][-1])


def test_packed_sequences_are_taken_but_by_laplace() -> None:
    """One number per example is an input as any other. torch.func takes no packed sequences."""
    steps = torch.randn(40, 5, 3, generator=torch.Generator().manual_seed(1))
    x = {"steps": steps, "lengths": torch.arange(40) % 5 + 1}
    source = task((x, LABELS))
    options = {
        "net": Packed,
        "task": source,
        "epochs": 1,
        "execution": "loop",
        "progress": "silent",
    }
    post = pm.fit("deep_ensemble", num_modes=2, **options)
    beyond = torch.arange(5) >= x["lengths"][:, None]
    other = {**x, "steps": steps.masked_fill(beyond[..., None], 9.0)}
    torch.testing.assert_close(post.predict(other).mean, post.predict(x).mean)
    with pytest.raises(ValueError, match="torch.func does not take packed sequences.*mask padded"):
        pm.fit("laplace", **options)


def test_points_of_repulsion_between_inputs() -> None:
    """Noise goes to every input of real numbers; points of one tensor are refused."""
    options = {"net": Two, "num_modes": 2, "epochs": 1, "progress": "silent"}
    source = task(((A, B), LABELS))
    posts = [
        pm.fit("function_rde", task=source, points=points, **options)
        for points in ("batch", "perturbed")
    ]
    weights = [post.stack.params["body.0.weight"] for post in posts]
    assert not torch.equal(*weights)
    with pytest.raises(ValueError, match=r"`points` .* are one tensor.*several inputs: 0 \(B, 3\)"):
        pm.fit("function_rde", task=source, points=[[0.0] * 5], **options)


class Streamed(torch.utils.data.IterableDataset):
    """Examples as dictionaries, one after another."""

    def __iter__(self) -> Any:
        return (Items()[row] for row in range(40))


@pytest.mark.parametrize("source", [Items(), Streamed()], ids=["in a process", "streamed"])
def test_loaders_with_workers_and_without_a_length(source) -> None:
    loader = DataLoader(source, 8, num_workers=int(isinstance(source, Items)))
    read = task(loader, target="kind")
    x = torch.cat([x for x, _ in read.train.batches(8)])
    assert torch.equal(x.tree["a"], A) and torch.equal(x.tree["b"], B)
    mean = fit(read, data_order="shared").predict(loader_of_inputs()).mean
    torch.testing.assert_close(mean.sum(1), torch.ones(40))


def loader_of_inputs() -> DataLoader:
    rows = [{"a": a, "b": b} for a, b in zip(A, B, strict=True)]
    return DataLoader(rows, 8)


def test_a_list_is_no_loader() -> None:
    with pytest.raises(ValueError, match="is a pair .inputs, targets., such as .*got a list of 1"):
        task([{"a": A, "b": B, "kind": LABELS}], target="kind")
