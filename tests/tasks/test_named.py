from __future__ import annotations

import doctest
import sys

import pytest

from polymode.tasks import TASKS, Task, task
from polymode.tasks.files import DATASETS


@pytest.mark.parametrize("module", ["named", "task"])
def test_docstring_examples(module):
    assert doctest.testmod(sys.modules[f"polymode.tasks.{module}"]).failed == 0


def by_files(name: str) -> bool:
    """Whether a task needs files; those are built from small ones in the tests of their rooms."""
    metadata = TASKS.get(name).metadata
    return bool(metadata.get("data")) or metadata["size"].startswith("by ")


@pytest.mark.parametrize("name", TASKS.names())
def test_every_entry_says_what_it_is(name):
    metadata = dict(TASKS.get(name).metadata)
    for needed in metadata.pop("data", ()):
        assert needed in DATASETS.names()
    assert set(metadata) == {"description", "source", "licence", "kind", "size"}
    assert all(isinstance(value, str) and value for value in metadata.values())
    assert metadata["kind"] in ("toy", "real")


@pytest.mark.parametrize("name", [name for name in TASKS.names() if not by_files(name)])
def test_every_entry_builds(name):
    built = task(name)
    assert isinstance(built, Task) and built.name == name and built.description
    sizes = [len(data) for data in (built.train, built.val, built.test)]
    assert TASKS.get(name).metadata["size"] == " / ".join(f"{size:,}" for size in sizes)


def test_the_rooms_first_tasks_are_there():
    assert {"two_moons", "gap_regression", "linear_regression", "digits"} <= set(TASKS.names())


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="Unknown task 'two_moon'. Did you mean 'two_moons'"):
        task("two_moon")


def test_unknown_option_names_the_valid_ones():
    with pytest.raises(ValueError, match="no option 'nois'. Did you mean 'noise'.*num_train"):
        task("two_moons", nois=0.1)
    with pytest.raises(ValueError, match="no option 'size'. Its options: none"):
        task("digits", size=3)
