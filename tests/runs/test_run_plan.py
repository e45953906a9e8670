"""A plan is checked before anything runs, and its cells are told apart by all that matters."""

from __future__ import annotations

import pytest

from polymode import nets
from polymode.cli.arguments import parse_seeds, parse_settings
from polymode.runs.defaults import DEFAULTS, SMOKE_SIZES, defaults_for
from polymode.runs.part import Request
from polymode.runs.run_plan import Plan, make_plan
from polymode.runs.settings import UsageProblem
from polymode.tasks import TASKS, task
from polymode.tasks.augment import augmentation


def plan_of(
    task: str, methods: list[str], seeds: str = "0", *settings: str, net=None, preset="cpu"
) -> Plan:
    chosen = tuple(parse_settings(settings))
    return make_plan(Request(task, tuple(methods), tuple(parse_seeds(seeds)), chosen, net, preset))


def test_defaults_are_of_known_tasks_and_may_be_overridden():
    assert set(DEFAULTS) <= set(TASKS.names())
    assert defaults_for("unheard of").net == "mlp"
    plan = plan_of("digits", ["map", "deep_ensemble"], "0", "epochs=2", "map.epochs=3")
    assert plan.recipe.net_name == "lenet"
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
        assert len(plan_of(name, ["map"], "0-1").cells()) == 2


def test_presets():
    """The sizes of `smoke` are options that the tasks have, `cpu` is the default."""
    import inspect

    assert defaults_for("digits", "cpu") == DEFAULTS["digits"]
    for name in DEFAULTS:
        assert defaults_for(name, "smoke").options["epochs"] == 2
        assert defaults_for(name, "smoke").net == DEFAULTS[name].net
    for name, sizes in SMOKE_SIZES.items():
        assert set(sizes) <= set(inspect.signature(TASKS.get(name).value).parameters)
    plan = plan_of("mnist1d", ["map"], "0", "task.num_test=100", "epochs=3", preset="smoke")
    assert (len(plan.task.train), len(plan.task.test)) == (512, 100)
    assert plan.methods["map"]["epochs"] == 3
    assert "--preset smoke" in plan.command("x")


def test_cells_are_told_apart_by_everything_that_matters():
    def keys(*settings, task="two_moons", net=None, seeds="0"):
        return [cell.key for cell in plan_of(task, ["map"], seeds, *settings, net=net).cells()]

    same = keys()
    assert keys() == same
    assert keys("epochs=500") == same  # the default, said aloud
    others = [
        keys("epochs=7"),
        keys("task.noise=0.3"),
        keys("task.seed=1"),
        keys("net.hidden=[8]"),
        keys(seeds="1"),
    ]
    assert all(other != same for other in others)


def test_the_setup_of_a_cell_is_all_but_its_seed():
    zero, one, *_ = (c for s in ("", "epochs=3") for c in _cells(s))
    assert zero.setup == one.setup and zero.key != one.key
    assert _cells("epochs=3")[0].setup != zero.setup


def _cells(setting):
    return plan_of("two_moons", ["map"], "0-1", *filter(None, [setting])).cells()


def test_command_runs_the_same_plan():
    plan = plan_of("two_moons", ["map"], "0-2", "net.hidden=[8]", net="mlp")
    line = (
        "polymode run --task two_moons --net mlp --method map --seeds 0-2 --set 'net.hidden=[8]'"
        " --out 'my runs/x'"
    )
    assert plan.command("my runs/x") == line
    assert "--jobs 2" in plan.command("x", "--jobs", "2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digit", ["map"]), "Unknown task 'digit'. Did you mean 'digits'"),
        (("digits", ["mapp"]), "Unknown method 'mapp'. Did you mean 'map'"),
        (("digits", ["map"], "0", "epoch=1"), "Did you mean 'epochs'"),
        (("digits", ["map"], "0", "mpa.epochs=1"), "'mpa' is not part of this run."),
        (("digits", ["map"], "0", "epochs=-1"), "`epochs` of MAP must be an integer"),
        (("two_moons", ["map"], "0", "task.nois=1"), "Did you mean 'noise'"),
        (("two_moons", ["map"], "0", "task.num_train=many"), "num_train"),
        (
            ("two_moons", ["map"], "0", "net.hiden=[1]"),
            "Unknown option 'hiden' for net 'mlp'. Did you mean 'hidden'",
        ),
        (("two_moons", ["map"], "0", "net.hidden=3"), "net mlp|hidden"),
        (("two_moons", ["map"], "0", "fit.trainble=head"), "Did you mean 'trainable'"),
        (("two_moons", ["map"], "0", "fit.trainable=["), "not a regular expression"),
    ],
)
def test_mistakes_are_found_before_anything_runs(arguments, message):
    with pytest.raises(UsageProblem, match=message):
        plan_of(*arguments)


def test_a_network_that_does_not_fit_is_found_before_anything_runs():
    with pytest.raises(UsageProblem, match="Unknown net 'lennet'. Did you mean 'lenet'"):
        plan_of("digits", ["map"], net="lennet")
    with pytest.raises(UsageProblem, match="lenet takes images"):
        plan_of("two_moons", ["map"], net="lenet")


def test_the_augmentation_of_the_task_is_taken_unless_another_is_named(monkeypatch):
    flipping = task("digits")
    flipping.augment = augmentation("flip")
    monkeypatch.setattr("polymode.runs.run_plan.build_task", lambda name, **options: flipping)

    def augment(*settings):
        return plan_of("digits", ["map"], "0", *settings).methods["map"]["augment"]

    assert augmentation(augment()) == flipping.augment
    assert augment("augment=rotate:10") == "rotate:10" and augment("augment=null") is None
    with pytest.raises(UsageProblem, match="Unknown augmentation 'flp'. Did you mean 'flip'"):
        augment("augment=flp")


def test_what_is_trained_is_in_the_key_of_every_cell():
    plans = [plan_of("two_moons", ["map", "sgld"], "0", *s) for s in ((), ("fit.trainable=head",))]
    usual, head = ([cell.key for cell in plan.cells()] for plan in plans)
    assert len({*usual, *head}) == 4
    assert all(cell.options["trainable"] == "head" for cell in plans[1].cells())
    assert "--set fit.trainable=head" in plans[1].command("out")
    assert "trainable=head" in plans[1].text()


def test_the_output_is_in_the_key_of_every_cell():
    plans = [plan_of("two_moons", ["map"], "0", *s) for s in ((), ("fit.output=logits",))]
    usual, named = (plan.cells()[0] for plan in plans)
    assert usual.key != named.key and named.options["output"] == "logits"
