"""What tests of the command line share: runs that take a blink."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from polymode.cli.app import main
from polymode.report import page as reports

TINY = ["--set", "epochs=2", "--set", "net.hidden=[8]", "--set", "task.num_test=50"]
BOTH = ["--task", "two_moons", "--method", "map", "--method", "deep_ensemble", "--seeds", "0,1"]


class Command:
    """`polymode` in this process: the exit code is returned, the output kept in `out` and `err`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> int:
        self.capsys.readouterr()
        code = main(list(words))
        self.out, self.err = self.capsys.readouterr()
        return code

    def run(self, out: Path, *words: str, both: bool = True) -> int:
        """Run two methods with two seeds on a tiny task."""
        return self("run", *(BOTH if both else []), *TINY, "--out", str(out), *words)

    def json(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end with an empty report: figures take longer than all the rest."""
    monkeypatch.setattr(reports, "report", lambda board, path, **_: path.touch())


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is done; not to be written to."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reports, "report", lambda board, path, **_: path.touch())
        assert main(["run", *BOTH, *TINY, "--out", str(folder), "-q"]) == 0
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A run that is done, to be written to."""
    return shutil.copytree(finished, tmp_path / "copied")
