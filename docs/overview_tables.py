"""What there is and what to take, as tables: from the registry of methods and measured costs."""

from __future__ import annotations

from typing import Any, NamedTuple

from docs.defaults_table import cost_of, with_defaults
from docs.speed_tables import markdown
from polymode.methods import METHODS

KINDS = ("one mode", "many modes")


class Choice(NamedTuple):
    """What somebody has and wants, what to call, whose cost that is, and where to read on."""

    have: str
    want: str
    call: str
    method: str | None
    page: str


CHOICES = (
    Choice(
        "a trained network",
        "error bars",
        'pm.fit("laplace", net=net, task=task)',
        "laplace",
        "methods/laplace.md",
    ),
    Choice(
        "a trained network",
        "honest probabilities",
        "pm.recalibration.recalibrate(pred, labels)",
        None,
        "recalibration.md",
    ),
    Choice(
        "a trained network",
        "sets or intervals that hold",
        "pm.conformal.conformal_sets(pred, labels, level=0.9)",
        None,
        "conformal.md",
    ),
    Choice(
        "a trained network with dropout",
        "error bars",
        'pm.fit("dropout", net=net, task=task, epochs=0)',
        None,
        "methods/dropout.md",
    ),
    Choice(
        "several trained networks",
        "an ensemble",
        'pm.fit("map", net=[a, b, c], task=task, epochs=0)',
        None,
        "quickstart.md",
    ),
    Choice(
        "checkpoints of one run",
        "error bars",
        "pm.methods.swag.from_snapshots(...)",
        None,
        "methods/swag.md",
    ),
    Choice(
        "a frozen body",
        "error bars of its head",
        'pm.fit("laplace", net=net, trainable="head", task=task)',
        None,
        "frozen-bodies.md",
    ),
    Choice(
        "a network to train",
        "the best scores",
        'pm.fit("deep_ensemble", net=make_net, task=task)',
        "deep_ensemble",
        "methods/deep_ensemble.md",
    ),
    Choice(
        "a network to train",
        "much of that for less",
        'pm.fit("swag", net=make_net, task=task)',
        "swag",
        "methods/swag.md",
    ),
    Choice(
        "a small network",
        "the posterior itself",
        'pm.fit("mile", net=make_net, task=task)',
        "mile",
        "methods/mile.md",
    ),
    Choice(
        "a small network",
        "a reference for others",
        "pm.reference(task, net=make_net)",
        "hmc",
        "reference.md",
    ),
    Choice(
        "a table",
        "distributions and intervals",
        "pm.sklearn.PolymodeRegressor().fit(x, y)",
        "deep_ensemble",
        "tabular.md",
    ),
    Choice(
        "images with masks",
        "maps of uncertainty",
        'pm.fit("deep_ensemble", net=unet, task=task)',
        None,
        "segmentation.md",
    ),
    Choice(
        "text",
        "error bars on an encoder",
        'pm.fit("laplace", net=bert, trainable="head", task=task)',
        None,
        "your-module.md",
    ),
    Choice(
        "any posterior",
        "which inputs are unfamiliar",
        "pm.evaluate(post, task)  # task.ood",
        None,
        "metrics.md",
    ),
    Choice("any posterior", "decisions with costs", "pred.abstain(cost=0.1)", None, "metrics.md"),
    Choice("several methods", "a paper's table", "pm.compare(results)", None, "command-line.md"),
)


def chooser(rows: list[dict[str, Any]]) -> str:
    """Return what to call for what somebody has and wants, with measured costs."""
    rows = with_defaults(rows)
    lines = [["I have", "I want", "call", "cost", "more"]]
    for choice in CHOICES:
        cost = "–" if choice.method is None else cost_of(rows, choice.method)
        lines.append([choice.have, choice.want, f"`{choice.call}`", cost, f"[page]({choice.page})"])
    return markdown(lines)


def methods_table() -> str:
    """Return all methods, those of one mode first."""
    lines = [["method", "what it is", "cost", "paper"]]
    names = sorted(METHODS.names(), key=lambda n: (KINDS.index(METHODS.get(n).metadata["kind"]), n))
    for name in names:
        facts = METHODS.get(name).metadata
        cells = (facts.get(key, "–") for key in ("summary", "cost", "paper"))
        lines.append([f"[`{name}`](methods/{name}.md)", *cells])
    return markdown(lines)
