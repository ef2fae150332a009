"""A real headless Chromium, driven over its DevTools protocol through two pipes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "AMPTUI_TEST_BROWSER"
"""Names a Chromium where none is on the PATH."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

_OPTIONS = (
    "--headless",
    "--no-sandbox",  # a container has no user namespaces, and the page is our own
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)

_START = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and answers on 4."""


def find_browser() -> str:
    """The program, as ``AMPTUI_TEST_BROWSER`` or one of the usual names on the PATH; skips without one."""
    path = os.environ.get(VARIABLE)
    browser = shutil.which(path) if path else next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip(f"no Chromium: set {VARIABLE} to one, or have {' or '.join(NAMES[:3])} on the PATH")
    return browser


class Tab:
    """One page: loaded, looked at, asked."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.events: list[tuple[str, Any]] = []
        """What the browser told unasked: names and parameters."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append((answer["method"], answer["params"]))
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            data = os.read(self._in, 1 << 16)
            assert data, "the browser is gone"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def wait_for(self, event: str) -> None:
        """Until the browser tells of it."""
        while event not in (name for name, _ in self.events):
            answer = self._next()
            self.events.append((answer["method"], answer["params"]))

    def open(self, page: Path, *, width: int, height: int, dark: bool = False) -> None:
        """Load a file in a window of that size."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for("Page.loadEventFired")

    def resize(self, width: int, height: int) -> None:
        """As a phone of that width would have it, or a window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def point_at(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    @property
    def requests(self) -> list[str]:
        """What was asked for from anywhere."""
        return [about["request"]["url"] for name, about in self.events if name == "Network.requestWillBeSent"]

    @property
    def complaints(self) -> list[str]:
        """Exceptions, what the policy refused, and whatever else the console would show."""
        self.evaluate("0")  # what came before is told by now
        methods = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(about) for name, about in self.events if name in methods]


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, which ends with the block. Skips where there is no browser."""
    program = find_browser()
    to_browser, from_browser = os.pipe(), os.pipe()
    theirs = (to_browser[0], from_browser[1])
    command = [sys.executable, "-c", _START, *map(str, theirs)]
    process = subprocess.Popen(
        [*command, program, *_OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=theirs,
        stderr=subprocess.DEVNULL,
    )
    for descriptor in theirs:
        os.close(descriptor)
    try:
        yield Tab(to_browser[1], from_browser[0])
    finally:
        process.terminate()
        process.wait()
        os.close(to_browser[1])
        os.close(from_browser[0])
