"""What all studies share: runs by part and arm, verdicts, parts by preset."""

from __future__ import annotations

import json

import pytest

from polymode.runs.settings import UsageProblem
from polymode.studies import STUDIES, Experiment, Runs
from polymode.studies.study import PRESETS, parts_of
from polymode.studies.study_folder import StudyRequest, begin_study, read_study

NLL = ("test", "nll")


def test_runs_by_part_and_arm(make):
    made = [("a", 1, 2.0), ("b", 0, 4.0), ("a", 0, 1.0)]
    runs = Runs({"p": [make(arm, seed, {NLL: value}) for arm, seed, value in made], "empty": []})
    assert runs.parts == ["p"]
    assert runs.arms("p") == ["a", "b"] and runs.arms("nowhere") == []
    assert [each.seed for each in runs.of("p", "a")] == [0, 1]
    assert runs.values("p", "a", *NLL) == {0: 1.0, 1: 2.0}
    gap = runs.difference("p", "a", "b", *NLL)
    assert gap is not None and gap.mean == -3.0 and gap.n == 1  # seed 1 has no partner
    assert runs.difference("p", "a", "c", *NLL) is None


def test_of_an_arm_that_was_run_again_with_other_options_the_last_counts(make):
    made = [("a", 0, 9.0), ("b", 0, 4.0), ("a", 0, 1.0)]
    runs = Runs({"p": [make(arm, seed, {NLL: value}) for arm, seed, value in made]})
    assert len(runs.all("p")) == 2 and len(runs.of("p", "a")) == 1
    assert runs.values("p", "a", *NLL) == {0: 1.0}


def test_parts_that_there_are_not():
    study = STUDIES.get("forde").value
    with pytest.raises(ValueError, match="Unknown preset 'papr'. Did you mean 'paper'"):
        parts_of(study, "papr")
    with pytest.raises(ValueError, match="Unknown part 'regresion'. Did you mean 'regression'"):
        parts_of(study, "smoke", ["regresion"])
    assert list(parts_of(study, "smoke", ["classification"])) == ["classification"]


@pytest.mark.parametrize("parts", [["one", "../other"], ["/etc"], [".."], [3], "one", None])
def test_parts_that_are_no_folders_of_the_study_are_refused(tmp_path, parts):
    held = {"study": "forde", "preset": "cpu", "parts": parts}
    (tmp_path / "study.json").write_text(json.dumps(held))
    with pytest.raises(UsageProblem, match="`parts` must be names of folders in it"):
        read_study(tmp_path)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", STUDIES.names())
def test_every_arm_is_a_method_with_options_that_it_has(name, preset):
    from polymode.methods import METHODS

    for part in STUDIES.get(name).value.parts(preset).values():
        assert part.arms and part.seeds
        if isinstance(part, Experiment):
            continue
        for method, options, _ in part.arms.values():
            METHODS.get(method).value.config(**options)


def test_a_study_that_is_run_part_by_part_has_all_of_them(tmp_path):
    """Each part by its own command; those before stay, in their order, and so do its results."""
    wanted = StudyRequest("forde", "smoke", seeds=(0, 1))
    for parts in (["b"], ["a", "c"], ["b"]):
        begin_study(tmp_path, wanted._replace(only=tuple(parts)), parts)
    content = read_study(tmp_path)
    assert content["parts"] == ["b", "a", "c"]
    assert content["command"].startswith("polymode run forde --preset smoke --seeds 0,1 --out")
    with pytest.raises(UsageProblem, match="holds study 'forde', preset smoke; choose another"):
        begin_study(tmp_path, wanted._replace(preset="cpu"), ["a"])
    assert read_study(tmp_path) == content
