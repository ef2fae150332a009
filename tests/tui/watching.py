"""The app over a real session, driven by keys and records, for several tests."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import pytest
import textual.app
from textual.pilot import Pilot

from amptui.records.answers import Refusal
from amptui.records.control import Control, Request
from amptui.records.run import Record, RunStarted
from amptui.records.steps import Steps
from amptui.telemetry.session import Session
from amptui.tui import screen as screen_module
from amptui.tui.panels.footer import NOTICE_LINES
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.run_screen import Parts, RunScreen
from tests.builders import changed
from tests.tui import views

ENOUGH_SECONDS = 60.0


def awaited(test: Callable[..., Any]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        asyncio.run(test(*arguments, **options))

    return run


def started(**changes: Any) -> RunStarted:
    return views.run_started(**{"time": time.time(), "amp_precision": "bf16", **changes})


def step(number: int, precision: str = "fp32") -> Steps:
    last = views.fp32_only().last
    assert last is not None
    return changed(last, time=time.time(), step=number, epoch=1, precision=precision, loss=1 / number)


def steps(count: int, precision: str = "fp32") -> list[Record]:
    return [step(number, precision) for number in range(1, count + 1)]


class Shown:
    """An app on a screen."""

    app: screen_module.Screen
    pilot: Pilot[None]

    @property
    def lines(self) -> list[str]:
        """What Textual would draw."""
        dashboard = self.app._dashboard
        return [dashboard.render_line(y).text for y in range(dashboard.size.height)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def until(self, holds: Callable[[], object]) -> None:
        """Frames, until that is so."""
        limit = time.monotonic() + ENOUGH_SECONDS
        while not holds():
            assert time.monotonic() < limit, f"it never came to be:\n{self.text}"
            await self.pilot.pause(0.01)

    async def shows(self, words: str) -> None:
        await self.until(lambda: words in self.text)


class Screen(Shown):
    """An app at work, with all that it stands between."""

    app: RunScreen

    def __init__(
        self, *, patience_seconds: float = ENOUGH_SECONDS, attached: bool = False, **options: Any
    ) -> None:
        self.session = Session("runs/x")
        # As in a run's process, or behind a client: what is asked is known at once.
        self.control = Control(lambda record: self.session.fold([record]))
        self.ended = threading.Event()
        self.seen_at_start: list[str] = []
        parts = Parts(
            look=self.session.view,
            control=self.control,
            ended=self.ended,
            start=lambda: self.seen_at_start.append(self.text),
            patience_seconds=patience_seconds,
            frames_per_second=20,
            **options,
        )
        self.app = RunScreen(parts, attached=attached)

    @property
    def header(self) -> str:
        return self.lines[0]

    @property
    def footer(self) -> str:
        return self.lines[-1]

    @property
    def notice(self) -> str:
        """What stands on the lines above the footer: a message, where there is one."""
        return " ".join(" ".join(self.lines[-1 - NOTICE_LINES : -1]).split())

    @property
    def state(self) -> ScreenState:
        return self.app._state

    @property
    def overlay(self) -> str | None:
        """The name of the one that is open."""
        overlay = self.app._overlay
        return None if overlay is None else overlay.name

    @property
    def has_left(self) -> bool:
        return self.app._exit

    async def press(self, *keys: str) -> None:
        """Type, and let everybody do what the keys ask for."""

        async def settle(_seconds: float) -> None:
            # A key passes from the app to the screen to a widget; each may post what follows from it.
            for _ in range(3):
                await self.pilot.pause(0)

        with pytest.MonkeyPatch.context() as patch:
            # Textual waits until the process is idle, which one that draws 20 frames a second hardly is.
            patch.setattr(textual.app, "wait_for_idle", settle)
            await self.pilot.press(*keys)

    async def feed(self, *records: Record) -> None:
        """Records, and the frame that shows them."""
        self.session.fold(records)
        view = self.session.view()
        await self.until(lambda: self.app._view is view)

    async def answer(self, kind: type[Request], refusal: Refusal | None = None, detail: str = "") -> None:
        """The trainer's answer to the request of that kind, and the frame that shows it."""
        pending = self.control.take(kind)
        assert pending is not None
        if refusal is None:
            self.control.answer(pending)
        else:
            self.control.refuse(pending, refusal, detail)
        await self.feed()

    async def end(self, *records: Record) -> None:
        """The trainer's end."""
        await self.feed(*records)
        self.ended.set()


@asynccontextmanager
async def watching(
    *records: Record, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[Screen]:
    screen = Screen(**options)
    async with screen.app.run_test(size=size) as screen.pilot:
        await screen.until(lambda: screen.seen_at_start)
        if records:
            await screen.feed(*records)
        yield screen
