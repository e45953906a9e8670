"""Are test rows among the training rows? Exactly, or nearly.

Rows with equal inputs form a cluster. If training and test set were divided at random, a cluster of
s rows has rows on both sides with probability 1 − fˢ − (1 − f)ˢ, where f is the share of the test
set. More such clusters than that, and test rows were copied. So a table whose few columns repeat
by nature raises no alarm. Near-duplicates of test rows are counted in the same spirit: against
those of as many training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import fisher_exact
from torch import Tensor

from polymode.audits.checks.laws import excess_test
from polymode.audits.checks.registry import CHECKS, NotApplicable, one_class
from polymode.audits.finding import Evidence, Finding, percent
from polymode.audits.subject import Subject
from polymode.core.rows import Inputs, Rows

NEAR = 0.05  # share of the median distance to the nearest training row
MOST = 2000  # test rows, and training rows held against them, whose neighbours are looked for
AXES = 32  # random directions in which distances are measured
CELLS = 4_000_000  # distances held at once
SMALL, LARGE = 0.01, 0.1  # share of leaked rows: medium below the second
SHOWN = 10


@CHECKS.register("duplicates")
def duplicates(subject: Subject) -> Iterator[Finding]:
    """Yield test rows that are training rows too, what they do to the score, and near ones."""
    if subject.train is None:
        raise NotApplicable("no training data were given (`train`)")
    copies = copies_of(subject.test[0], subject.train[0])
    yield _leaked(subject, copies)
    leaked = copies.source >= 0
    if leaked.any() and not leaked.all() and one_class(subject):
        yield _score(subject, leaked)
    yield from _near(subject, ~leaked)


@dataclass(frozen=True)
class Copies:
    """Rows that occur in both sets.

    Attributes:
        source: for each test row the first equal training row, or −1.
        crossing: clusters of equal rows that have some in both sets.
        sizes: of all clusters of at least two rows.
    """

    source: np.ndarray
    crossing: int
    sizes: np.ndarray


def copies_of(test: Inputs, train: Inputs) -> Copies:
    """Return which test rows have the same inputs as a training row, byte by byte."""
    first: dict[bytes, int] = {}
    train_counts: dict[bytes, int] = {}
    test_counts: dict[bytes, int] = {}
    for place, row in enumerate(row_bytes(train)):
        first.setdefault(row, place)
        train_counts[row] = train_counts.get(row, 0) + 1
    source = []
    for row in row_bytes(test):
        source.append(first.get(row, -1))
        test_counts[row] = test_counts.get(row, 0) + 1
    crossing = sum(row in train_counts for row in test_counts)
    totals = [count + train_counts.get(row, 0) for row, count in test_counts.items()]
    totals += [count for row, count in train_counts.items() if row not in test_counts]
    sizes = np.array([total for total in totals if total > 1], dtype=int)
    return Copies(np.array(source, dtype=int), crossing, sizes)


def row_bytes(inputs: Inputs) -> Iterator[bytes]:
    """Yield a digest of each row over all leaves; −0 counts as 0."""
    from hashlib import blake2b

    leaves = inputs.leaves if isinstance(inputs, Rows) else (inputs,)
    arrays = [
        leaf.detach().cpu().flatten(1) if leaf.dim() > 1 else leaf[:, None] for leaf in leaves
    ]
    parts = [(array + 0 if array.is_floating_point() else array).numpy() for array in arrays]
    for row in zip(*parts, strict=True):
        yield blake2b(b"".join(values.tobytes() for values in row), digest_size=16).digest()


def crossing_test(copies: Copies, n_test: int, n_train: int) -> float:
    """Return the p-value of "equal rows fell into the two sets at random"."""
    share = n_test / (n_test + n_train)
    rates = 1.0 - share**copies.sizes - (1.0 - share) ** copies.sizes
    return excess_test(rates, copies.crossing)


def _leaked(subject: Subject, copies: Copies) -> Finding:
    assert subject.train is not None
    labels, train_labels = subject.targets, subject.train[1]
    n, places = len(labels), np.flatnonzero(copies.source >= 0)
    share = len(places) / n
    text = f"{len(places):,} of {n:,} test rows ({percent(share, 1)}) are training rows too."
    lines, head = [], ["test row", "training row"]
    if subject.has_labels:
        head.append("labels")
        same = [bool((labels[i] == train_labels[copies.source[i]]).all()) for i in places]
        if not all(same):
            text += f" {same.count(False):,} of them have another label there."
        lines = [
            [str(i), str(copies.source[i]), "same" if equal else "differ"]
            for i, equal in zip(places[:SHOWN], same[:SHOWN], strict=True)
        ]
    else:
        lines = [[str(i), str(copies.source[i])] for i in places[:SHOWN]]
    table = Evidence(
        title="Test rows that are training rows", head=head, lines=lines,
        note=f"the first {len(lines)} of {len(places):,}; rows are counted from 0",
    )  # fmt: skip
    return Finding(
        check="duplicates",
        name="leaked test rows",
        text=text,
        remedy="Take these rows out of the test set, and divide anew by what they have in common.",
        severity="low" if share < SMALL else "medium" if share < LARGE else "high",
        estimate=share,
        unit="share of test rows",
        p_value=crossing_test(copies, n, len(train_labels)),
        n=n,
        evidence=(table,) if lines else (),
    )


def _score(subject: Subject, leaked: np.ndarray) -> Finding:
    """Compare accuracy on rows that the network has been trained on with that on new ones."""
    correct = subject.correct.numpy()
    size, right = int(leaked.sum()), int(correct[leaked].sum())
    fresh, fresh_right = len(correct) - size, int(correct[~leaked].sum())
    table = [[right, size - right], [fresh_right, fresh - fresh_right]]
    inflation = float(correct.mean()) - fresh_right / fresh
    return Finding(
        check="duplicates",
        name="score inflated by leaked rows",
        text=f"Right {percent(right / size, 1)} on test rows that are training rows,"
        f" {percent(fresh_right / fresh, 1)} on new ones: the score of"
        f" {percent(correct.mean(), 1)} is {100 * inflation:.1f} points too high.",
        remedy="Report the score on new rows.",
        severity="medium" if inflation < 0.02 else "high",
        estimate=inflation,
        unit="accuracy, all − new rows",
        p_value=float(fisher_exact(table, alternative="greater").pvalue),
        n=len(correct),
    )


def _near(subject: Subject, fresh: np.ndarray) -> Iterator[Finding]:
    """Compare how many test and training rows have a near neighbour among the training rows."""
    assert subject.train is not None
    test, train = flat_floats(subject.test[0]), flat_floats(subject.train[0])
    if test is None or train is None or len(train) < 50 or fresh.sum() < 20:
        return
    generator = subject.generator("duplicates")
    places = generator.permutation(np.flatnonzero(fresh))[:MOST]
    held = generator.permutation(len(train))[: min(MOST, len(train) // 2)]
    directions = generator.standard_normal((train.shape[1], min(AXES, train.shape[1])))
    pool, queries = projected(directions, train, test[places])
    to_test = nearest(queries, pool)
    within = nearest(pool[held], pool, skip=torch.as_tensor(held))
    limit = NEAR * float(to_test.median())
    count, usual = int((to_test < limit).sum()), int((within < limit).sum())
    table = [[count, len(places) - count], [usual, len(held) - usual]]
    share = count / len(places)
    yield Finding(
        check="duplicates",
        name="near-duplicates",
        text=f"{count:,} of {len(places):,} test rows ({percent(share, 1)}) are nearly a training"
        f" row; so are {usual:,} of {len(held):,} training rows to another.",
        remedy="Divide anew, with copies and frames of one source on one side.",
        severity="low" if share < SMALL else "medium" if share < LARGE else "high",
        estimate=share,
        unit="share of test rows",
        p_value=float(fisher_exact(table, alternative="greater").pvalue),
        n=len(places),
    )


def flat_floats(inputs: Inputs) -> Tensor | None:
    """Return floating-point leaves side by side as (N, D), None if there are none."""
    leaves = inputs.leaves if isinstance(inputs, Rows) else (inputs,)
    parts = [
        leaf.detach().cpu().reshape(len(leaf), -1) for leaf in leaves if leaf.is_floating_point()
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1) if parts else None


def projected(directions: np.ndarray, train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Return both along random directions, each column in units of its spread in training."""
    centre, scale = train.mean(0), train.std(0)
    scale[~(scale > 0)] = 1.0
    matrix = torch.as_tensor(directions).to(train) / scale[:, None] / directions.shape[1] ** 0.5
    parts = [(part - centre) @ matrix for part in train.split(4096)]
    return torch.cat(parts), (test - centre) @ matrix


def nearest(rows: Tensor, pool: Tensor, skip: Tensor | None = None) -> Tensor:
    """Return the distance of each row to the nearest of a pool, without place `skip[row]`."""
    distances = []
    step = max(1, CELLS // len(pool))
    for start in range(0, len(rows), step):
        block = torch.cdist(rows[start : start + step], pool)
        if skip is not None:
            block[torch.arange(len(block)), skip[start : start + step]] = torch.inf
        distances.append(block.amin(1))
    return torch.cat(distances)
