"""The orchestrator's end of a worker process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ANSWER_SECONDS = 900


class Worker:
    """A contender's process. `error` is None while it can play, else the reason why it cannot."""

    def __init__(self, python: str | None, case: str, label: str, threads: int | None) -> None:
        self.label = label
        self.error: str | None = None
        self.ready: dict[str, Any] = {}
        self.rounds: list[dict[str, float]] = []
        self.disturbed: list[dict[str, float]] = []
        self.final: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the process)
        if python is None or not Path(python).exists():
            self.error = "not installed"
            return
        command = [python, "-m", "benchmarks.worker", case, label]
        if threads:
            command += ["--threads", str(threads)]
        source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.ready = self._answer()

    def play(self) -> None:
        """One timed round, kept in `rounds`."""
        figures = self._ask("go")
        if self.error is None:
            self.rounds.append(figures)

    def finish(self) -> None:
        """Ask for the peak memory and end the process."""
        if self.error is None:
            self.final = self._ask("peak")
        self.close()

    def close(self) -> None:
        """End the process: closing its input is enough, unless it hangs."""
        if self._process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process = None

    def _ask(self, command: str) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        if not ready:
            self.error = f"no answer in {ANSWER_SECONDS} s"
            self._process.kill()
            return {}
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            lines = self._log.read().strip().splitlines()
            self.error = f"failed: {lines[-1] if lines else 'no message'}"
            return {}
        message = json.loads(line)
        self.error = message.get("error")
        return message
