"""A real browser for the tests of the report: Debian's chromium or Chrome, without a window.

It is driven by the DevTools protocol over two pipes (`--remote-debugging-pipe`: the browser reads
commands from file descriptor 3 and writes to 4, JSON messages that end in a NUL byte), so nothing
but the browser itself is needed. It is ended by its process id when the tests are over.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import tarfile
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser", "chrome")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
    " --disable-background-networking --disable-component-update --disable-sync"
    " --disable-default-apps --disable-extensions --hide-scrollbars --remote-debugging-pipe"
).split()
START = (  # gives the pipes the numbers 3 and 4 and becomes the browser
    "import os, sys; a, b = map(int, sys.argv[1:3]);"
    "os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 30.0  # seconds for one answer, on a machine that has other things to do
AXE = "4.10.3"
AXE_INTEGRITY = (  # what npm says of this version
    "sha512-Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/"
    "PbZhideTcEg=="
)


class Browser:
    """One process; `open` gives a tab."""

    def __init__(self, program: str, profile: Path) -> None:
        (theirs_in, mine_out), (mine_in, theirs_out) = _high_pipe(), _high_pipe()
        self.program = program
        self._out, self._in, self._buffer, self._number = mine_out, mine_in, b"", 0
        self._tabs: dict[str, Tab] = {}
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", START, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def open(self, width: int = 1280, *, dark: bool = False, scripts: bool = True) -> Tab:
        """Return a new tab as wide as asked for."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"], target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        tab.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        return tab

    def call(self, method: str, params: dict[str, Any] | None = None, session: str = "") -> Any:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        rest = json.dumps(message).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._out, rest) :]
        number = self._number
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def wait(self, method: str, session: str) -> None:
        """Wait for an event of a tab."""
        while not any(name == method for name, _ in self._tabs[session].events):
            self._next()

    def _next(self) -> dict[str, Any]:
        """Return the next message; an event is also kept by its tab."""
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError(f"the browser is silent for {PATIENCE:.0f} s or has ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        tab = self._tabs.get(message.get("sessionId", ""))
        if tab is not None and "method" in message:
            tab.events.append((message["method"], message["params"]))
        return message

    def close(self) -> None:
        """Ask the browser to end; end it by its id if it does not."""
        with contextlib.suppress(RuntimeError, OSError):
            self.call("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._in)
        os.close(self._out)


class Tab:
    """A page: what it shows, what it said on its console, what it asked the network for."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target
        self.events: list[tuple[str, dict[str, Any]]] = []

    def call(self, method: str, **params: Any) -> Any:
        return self.browser.call(method, params, self.session)

    def go(self, path: Path) -> Tab:
        """Load a file and wait until all of it is there."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.browser.wait("Page.loadEventFired", self.session)
        return self

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page, awaiting promises; works where scripts are off too."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def until(self, expression: str) -> bool:
        """Wait until an expression is true in the page, at most a few seconds."""
        for _ in range(100):
            if self.run(f"Boolean({expression})"):
                return True
            time.sleep(0.03)
        return False

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        facts = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        down = {**facts, "type": "keyDown", "text": text} if text else {**facts, "type": "keyDown"}
        self.call("Input.dispatchKeyEvent", **down)
        self.call("Input.dispatchKeyEvent", **facts, type="keyUp")

    def click(self, selector: str) -> None:
        """Click in the middle of an element, as a mouse does."""
        x, y = self.run(
            f"(() => {{const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(b64decode(shot["data"]))

    @property
    def complaints(self) -> list[str]:
        """Everything on the console that is worse than information, and uncaught errors."""
        found = []
        for name, facts in self.events:
            if name == "Runtime.exceptionThrown":
                found.append(json.dumps(facts)[:500])
            if name == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
                found.append(facts["entry"]["text"])
            if name == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning"):
                found.append(json.dumps(facts["args"])[:500])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for, without the file itself and data inside of it."""
        sent = [facts for name, facts in self.events if name == "Network.requestWillBeSent"]
        asked = [facts["request"]["url"] for facts in sent]
        return [url for url in asked if not url.startswith(("data:", "file:"))]

    def close(self) -> None:
        self.browser.call("Target.closeTarget", {"targetId": self.target})


def _high_pipe() -> tuple[int, int]:
    """Return a pipe whose ends are not 3 and 4, so that none is overwritten on the way."""
    import fcntl

    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        missing = f"no browser here: none of {', '.join(NAMES)} is on the path"
        (pytest.fail if os.environ.get("POLYMODE_BROWSER") == "required" else pytest.skip)(missing)
    made = Browser(program, tmp_path_factory.mktemp("profile"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Any]:
    """Return a function that opens tabs; they are closed after the test."""
    tabs: list[Tab] = []

    def open_tab(width: int = 1280, *, dark: bool = False, scripts: bool = True) -> Tab:
        tabs.append(browser.open(width, dark=dark, scripts=scripts))
        return tabs[-1]

    yield open_tab
    for each in tabs:
        each.close()


@pytest.fixture(scope="session")
def axe(axe_source: str) -> Callable[[Tab], list[Any]]:
    """Return a function that lists what axe-core finds wrong with a page, all of it unfolded."""

    def violations(tab: Tab) -> list[Any]:
        tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        tab.run(axe_source + ";undefined")
        return tab.run(
            "axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) =>"
            " [v.id, v.nodes.length, v.nodes[0].html.slice(0, 200), v.nodes[0].failureSummary]))"
        )

    return violations


@pytest.fixture(scope="session")
def axe_source() -> str:
    """Return the source of axe-core, from npm once and then from a cache; its hash is checked."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polymode-tests"
    archive = folder / f"axe-core-{AXE}.tgz"
    if not archive.exists():
        if shutil.which("npm") is None:
            pytest.skip("axe-core is fetched by npm, and there is no npm here")
        folder.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(
            ["npm", "pack", f"axe-core@{AXE}", "--silent", "--pack-destination", str(folder)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if packed.returncode != 0 or not archive.exists():
            pytest.skip(f"axe-core {AXE} cannot be had from npm: {packed.stderr.strip()[-200:]}")
    digest = b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    assert f"sha512-{digest}" == AXE_INTEGRITY, f"{archive} is not axe-core {AXE}: remove it"
    with tarfile.open(archive) as content:
        file = content.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


@pytest.fixture(scope="session")
def made_up() -> Any:
    """Return the module that makes up results, from the tests of the report."""
    path = Path(__file__).parents[1] / "report" / "made_up.py"
    spec = importlib.util.spec_from_file_location("made_up", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
