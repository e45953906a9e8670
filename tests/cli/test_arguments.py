"""What is typed: seeds, settings, and a plan that is checked before anything runs."""

from __future__ import annotations

import pytest

from polymode import nets
from polymode.cli.arguments import UsageProblem, parse_seeds, parse_settings
from polymode.cli.defaults import DEFAULTS, defaults_for
from polymode.cli.plan import make_plan
from polymode.core.augment import augmentation
from polymode.tasks import TASKS, task


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0", [0]), ("0-2", [0, 1, 2]), ("0,3,5-6", [0, 3, 5, 6]), (" 1 , 1-2 ", [1, 2])],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "-1", "a", "1-", "0..2", "3-1", "1.5"])
def test_bad_seeds(text):
    with pytest.raises(UsageProblem, match="--seeds"):
        parse_seeds(text)


def test_settings():
    parsed = parse_settings(["a.b=1e-3", "c=null", "d=x=y", "e=[1, 2]", "f=true"])
    expected = [("a", "b", 1e-3), ("", "c", None), ("", "d", "x=y"), ("", "e", [1, 2])]
    assert parsed == [*expected, ("", "f", True)]
    for bad in ("epochs", "=3", "map.=3"):
        with pytest.raises(UsageProblem, match="--set takes key=value"):
            parse_settings([bad])


def test_defaults_are_of_known_tasks_and_may_be_overridden():
    assert set(DEFAULTS) <= set(TASKS.names())
    assert defaults_for("unheard of").net == "mlp"
    plan = make_plan("digits", ["map", "deep_ensemble"], "0", ["epochs=2", "map.epochs=3"], None)
    assert plan.net_name == "lenet"
    assert plan.methods["map"]["epochs"] == 3
    assert plan.methods["deep_ensemble"]["epochs"] == 2
    assert plan.methods["map"]["schedule"] == "cosine"


def test_every_task_has_a_plan_by_default():
    """Of those that need no files; every other one has a network of its own choice, too."""
    for name in TASKS.names():
        facts = TASKS.get(name).metadata
        if facts.get("data") or facts["size"].startswith("by "):
            assert name in DEFAULTS and DEFAULTS[name].net in nets.__all__
            continue
        assert len(make_plan(name, ["map"], "0-1", [], None).cells()) == 2


def test_cells_are_told_apart_by_everything_that_matters():
    def keys(*settings, task="two_moons", net=None, seeds="0"):
        plan = make_plan(task, ["map"], seeds, list(settings), net)
        return [cell.key for cell in plan.cells()]

    same = keys()
    assert keys() == same
    assert keys("epochs=100") == same  # the default, said aloud
    others = [
        keys("epochs=7"),
        keys("task.noise=0.3"),
        keys("task.seed=1"),
        keys("net.hidden=[8]"),
        keys(seeds="1"),
    ]
    assert all(other != same for other in others)


def test_command_runs_the_same_plan():
    plan = make_plan("two_moons", ["map"], "0-1", ["net.hidden=[8]"], "mlp")
    assert plan.command("my runs/x") == (
        "polymode run --task two_moons --net mlp --method map --seeds 0,1 --set 'net.hidden=[8]'"
        " --out 'my runs/x'"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digit", ["map"], "0", [], None), "Unknown task 'digit'. Did you mean 'digits'"),
        (("digits", ["mapp"], "0", [], None), "Unknown method 'mapp'. Did you mean 'map'"),
        (("digits", ["map"], "0", [], "lennet"), "Unknown net 'lennet'. Did you mean 'lenet'"),
        (("two_moons", ["map"], "0", [], "lenet"), "lenet takes images"),
        (("digits", ["map"], "0", ["epoch=1"], None), "Did you mean 'epochs'"),
        (("digits", ["map"], "0", ["mpa.epochs=1"], None), "'mpa' is not part of this run."),
        (("digits", ["map"], "0", ["epochs=-1"], None), "`epochs` of MAP must be an integer"),
        (("two_moons", ["map"], "0", ["task.nois=1"], None), "Did you mean 'noise'"),
        (("two_moons", ["map"], "0", ["net.hiden=[1]"], None), "options of net mlp"),
    ],
)
def test_mistakes_are_found_before_anything_runs(arguments, message):
    with pytest.raises(UsageProblem, match=message.replace("(", r"\(")):
        make_plan(*arguments)


def test_the_augmentation_of_the_task_is_taken_unless_another_is_named(monkeypatch):
    flipping = task("digits")
    flipping.augment = augmentation("flip")
    monkeypatch.setattr("polymode.cli.plan.build_task", lambda name, **options: flipping)

    def augment(*settings):
        return make_plan("digits", ["map"], "0", list(settings), None).methods["map"]["augment"]

    assert augmentation(augment()) == flipping.augment
    assert augment("augment=rotate:10") == "rotate:10" and augment("augment=null") is None
    with pytest.raises(UsageProblem, match="Unknown augmentation 'flp'. Did you mean 'flip'"):
        augment("augment=flp")
