"""What to know before believing the rest of a report: each with its number and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from polymode.chains.examination import r_hat_of
from polymode.metrics.leaderboard import Entry, Leaderboard
from polymode.metrics.results import EXAMINED, is_headline, title_of

SMALL = 0.01  # members that differ less than this on every data set are one function
UNMIXED = 1.1  # R-hat above it: chains have not found the same distribution
FALLING = 0.05  # share of the whole fall of a train loss, in the last fifth of training
RISING, LEAST_RISE = 0.05, 0.02  # of a validation NLL above its best: a share, and in nats
BEHIND, LEAST_BEHIND = 0.2, 0.05  # of a train loss above others: share of their fall, nats
EARLY = 0.9  # share of training before which the best moment must lie
CURVES = f"{EXAMINED}convergence"
NAMED = 4  # of a longer list, only these are named

Failures = int | Sequence[Mapping[str, Any]]
"""How many cells failed, or what is known of each: "method", "seed", "error"."""


class Alert(NamedTuple):
    """A warning with its number and what to do about it; `level` is error, warning or note."""

    title: str
    text: str
    level: str = "warning"


def alerts(board: Leaderboard, failures: Failures = 0) -> list[Alert]:
    """Return the warnings that apply, the gravest first."""
    return [
        *_failed(failures),
        *_one_seed(board),
        *(alert for entry in board.entries for alert in _unmixed(entry)),
        *(alert for entry in board.entries for alert in _too_alike(entry)),
        *(alert for entry in board.entries for alert in _doubtful(entry)),
        *_not_converged(board),
        *_undertrained(board),
        *_overfits(board),
        *_backwards(board),
        *_within_noise(board),
        *_other_seeds(board),
        *_not_defined(board),
    ]


def how_many(failures: Failures) -> int:
    """Return the number of failed cells."""
    return failures if isinstance(failures, int) else len(failures)


def listed(names: Sequence[str]) -> str:
    """Return names as a list; of a long one, the first names and how many follow.

    >>> listed(["a", "b"]), listed(list("abcdef"))
    ('a, b', 'a, b, c, d and 2 more')
    """
    more = len(names) - NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:NAMED])} and {more} more"


def _failed(failures: Failures) -> Iterator[Alert]:
    count = how_many(failures)
    if not count:
        return
    text = "They are missing from the leaderboard; failures.jsonl has the tracebacks."
    if not isinstance(failures, int):
        cells = [f"{f.get('method', '?')}, seed {f.get('seed', '?')}" for f in failures]
        reasons = dict.fromkeys(str(f.get("error", "")) for f in failures)
        errors = "; ".join(reason[:200] for reason in list(reasons)[:2] if reason)
        text = f"{listed(cells)}{f': {errors}' if errors else ''}. {text}"
    yield Alert(f"{count} cell{'s' if count > 1 else ''} failed", text, "error")


def _one_seed(board: Leaderboard) -> Iterator[Alert]:
    single = [entry.label for entry in board.entries if len(entry.results) == 1]
    if single:
        yield Alert(
            "One seed only",
            f"{listed(single)}: the spread over seeds is unknown, so a difference may be luck. Run"
            " at least three seeds.",
        )


def _doubtful(entry: Entry) -> Iterator[Alert]:
    """Repeat what the look at a posterior, right after its fit, was concerned about."""
    found: dict[str, list[tuple[int, str]]] = {}
    for results in entry.results:
        for concern in results.config.get("concerns", ()):
            found.setdefault(concern["name"], []).append((results.seed, concern["text"]))
    for name, seeds in found.items():
        text = f"{len(seeds)} of {len(entry.results)} seeds; seed {seeds[0][0]}: {seeds[0][1]}."
        yield Alert(f"Doubtful: {entry.label}, {name}", text)


def _unmixed(entry: Entry) -> Iterator[Alert]:
    """Warn where R-hat of predictions says so; numbers whose name starts with r_hat."""
    rows = [
        row for results in entry.results for row in results.rows if row.metric.startswith("r_hat")
    ]
    measured = [(value, row) for row in rows if (value := r_hat_of(row)) is not None]
    value, row = max(measured, key=lambda pair: pair[0], default=(0.0, None))
    if row is not None and value > UNMIXED:
        where = "" if row.dataset == "test" else f" on {row.dataset}"
        yield Alert(
            f"Chains have not mixed: {entry.label}",
            f"{title_of(row.metric)} is up to {value:.3g}{where}, more than {UNMIXED}: the chains"
            " have not reached the same distribution, and averages over them depend on where they"
            " started. Run longer chains.",
        )


def _too_alike(entry: Entry) -> Iterator[Alert]:
    """Warn where members hardly differ on any data set, the OOD sets included."""
    disagreement = _most(entry, "disagreement")
    share = _most(entry, "epistemic_share") or _most(
        entry, "mutual_information", "predictive_entropy"
    )
    if disagreement is not None and disagreement < SMALL:
        yield Alert(
            f"Members collapsed: {entry.label}",
            f"Mean disagreement is at most {100 * disagreement:.2g} % on every data set: the"
            " members are nearly the same function, and their spread says nothing about epistemic"
            " uncertainty.",
        )
    elif share is not None and share < SMALL:
        yield Alert(
            f"Epistemic share below 1 %: {entry.label}",
            f"At most {100 * share:.2g} % of the uncertainty is epistemic on any data set: the"
            " method claims to know all there is to know. Do not expect it to detect inputs from"
            " elsewhere.",
        )


def _most(entry: Entry, metric: str, of: str = "") -> float | None:
    """Return the largest value over seeds and data sets, of a ratio if `of` names its base."""
    values = []
    for results in entry.results:
        for row in results.rows:
            base = results.get(row.dataset, of) if of else None
            if row.metric != metric or row.value is None or (of and base is None):
                continue
            scale = base.value if base is not None else 1.0
            if scale:
                values.append(row.value / scale)
    return max(values, default=None)


def _not_converged(board: Leaderboard) -> Iterator[Alert]:
    """Warn where the train loss still falls clearly at the end of training."""
    labels = []
    for label in board.labels:
        slope, drop = (_curve(board, label, name) for name in ("train_slope", "train_drop"))
        error = _largest_error(board, label, "train_slope")
        if slope is None or drop is None or drop <= 0:
            continue
        if slope + 2 * error < 0 and -slope > FALLING * drop:
            labels.append(
                f"{label} by {-slope:.2g} ± {error:.1g} nats/example, {100 * -slope / drop:.0f} %"
                " of its whole fall"
            )
    if labels:
        yield Alert(
            "Not converged",
            f"The train loss was still falling over the last fifth of training: {listed(labels)}."
            " Train for more epochs (--set epochs=...), or with a larger learning rate.",
        )


def _undertrained(board: Leaderboard) -> Iterator[Alert]:
    """Warn of methods whose train loss ends far above that of the others.

    Bounds of variational methods and energies of samplers are higher by nature, so they are left
    out.
    """
    ends = {}
    for entry in board.entries:
        loss, drop = (_curve(board, entry.label, name) for name in ("train_loss", "train_drop"))
        options = entry.results[0].config
        descends = "optimizer" in options and not {"kl_weight", "temperature"} & options.keys()
        if loss is not None and drop is not None and descends:
            ends[entry.label] = (loss, drop)
    behind = []
    for label, (loss, _) in ends.items():
        others = [value for name, value in ends.items() if name != label]
        if len(others) < 2:
            continue
        usual = median(value for value, _ in others)
        fall = median(drop for _, drop in others)
        error = 2 * _largest_error(board, label, "train_loss")
        if loss - usual > max(BEHIND * fall, LEAST_BEHIND) + error:
            behind.append(f"{label} {loss:.3g}, the others {usual:.3g} nats/example")
    if behind:
        yield Alert(
            "Undertrained?",
            f"The train loss ends far above that of the other methods: {listed(behind)}. Its scores"
            " may say more about the length of training than about the method: give it more epochs"
            " or a larger rate (--set METHOD.epochs=...).",
        )


def _overfits(board: Leaderboard) -> Iterator[Alert]:
    """Warn where the validation NLL of members was clearly lower before the end of training."""
    labels = []
    for label in board.labels:
        names = ("val_rise", "best_val_nll", "best_val_at")
        rise, best, place = (_curve(board, label, name) for name in names)
        if rise is None or best is None or place is None or place > EARLY:
            continue
        error = _largest_error(board, label, "val_rise")
        if rise - 2 * error > 0 and rise > max(RISING * abs(best), LEAST_RISE):
            labels.append(
                f"{label} from {best:.3g} at {100 * place:.0f} % of training to {best + rise:.3g}"
            )
    if labels:
        yield Alert(
            "Overfits",
            f"The members' validation NLL was lower before training ended: {listed(labels)}. Train"
            " for fewer epochs, or with a larger prior precision, more data or augmentation. The"
            " mixture of the members may be better than they are: see its test NLL.",
        )


def _curve(board: Leaderboard, label: str, metric: str) -> float | None:
    """Return a number of the loss curves, mean over seeds."""
    cell = board.cells.get((label, CURVES, metric))
    return None if cell is None else cell.mean


def _largest_error(board: Leaderboard, label: str, metric: str) -> float:
    """Return the largest standard error of any seed, 0 where none is known."""
    entry = next(entry for entry in board.entries if entry.label == label)
    rows = [results.get(CURVES, metric) for results in entry.results]
    return max((row.standard_error or 0.0 for row in rows if row is not None), default=0.0)


def _backwards(board: Leaderboard) -> Iterator[Alert]:
    """Warn where an OOD score ranks clearly worse than chance, one alert per score."""
    below: dict[str, list[str]] = {}
    for column in board.columns:
        name = column.dataset.removeprefix("ood:")
        if not column.metric.startswith("auroc_") or not is_headline(column.metric):
            continue
        if name.startswith("mean:") or not column.dataset.startswith("ood:"):
            continue
        for label in board.labels:
            cell = board[label, column.dataset, column.metric]
            if cell.mean is not None and cell.mean + 2 * (cell.standard_error or 0.0) < 0.5:
                below.setdefault(column.title, []).append(f"{label} on {name} {cell.mean:.3f}")
    for title, labels in below.items():
        yield Alert(
            f"{title} below 0.5",
            f"{listed(labels)}: the score is lower on these inputs than on the test set, so it"
            " would accept them as familiar. This happens when all members extrapolate alike.",
        )


def _within_noise(board: Leaderboard) -> Iterator[Alert]:
    """Say which leads on the test set paired tests do not separate from luck."""
    unclear = []
    for column in board.columns:
        if column.dataset != "test" or not column.direction or not is_headline(column.metric):
            continue
        cells = {label: board[label, "test", column.metric] for label in board.labels}
        best = [label for label, cell in cells.items() if cell.best]
        tied = [label for label, cell in cells.items() if cell.tied]
        if len(best) == 1 and tied:
            unclear.append(f"{column.title} ({best[0]} ≈ {listed(tied)})")
    if unclear:
        yield Alert(
            "Difference within noise",
            f"Test {', '.join(unclear)}: paired tests over the seeds do not separate the best from"
            " these. More seeds may separate them.",
            "note",
        )


def _other_seeds(board: Leaderboard) -> Iterator[Alert]:
    most = max(len(entry.results) for entry in board.entries)
    fewer = [
        f"{e.label} ({len(e.results)} of {most})" for e in board.entries if len(e.results) < most
    ]
    if fewer:
        yield Alert(
            "Not all seeds",
            f"{listed(fewer)}: differences use the seeds that two methods share, means use all"
            " seeds of each.",
            "note",
        )


def _not_defined(board: Leaderboard) -> Iterator[Alert]:
    """Explain, reason by reason, why tables say n/a."""
    reasons: dict[str, tuple[list[str], list[str]]] = {}
    for (label, _, metric), cell in board.cells.items():
        if cell.mean is None and cell.note:
            reason = re.sub(r"^n/a \((.*)\)$", r"\1", cell.note)
            metrics, labels = reasons.setdefault(reason, ([], []))
            title = re.sub(r", (.*)$", r" (\1)", title_of(metric))  # a list has commas of its own
            metrics += [] if title in metrics else [title]
            labels += [] if label in labels else [label]
    for reason, (metrics, labels) in reasons.items():
        yield Alert(f"n/a: {reason}", f"{listed(metrics)}, for {listed(labels)}.", "note")
