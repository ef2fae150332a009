"""The app over a real session, driven by keys and records, and what it says after each, for several tests."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple

import pytest
import textual.app
from textual.pilot import Pilot

from amptui.records.answers import Refusal, RequestKind, RequestMade
from amptui.records.control import Control
from amptui.records.run import PauseChanged, PrecisionChanged, Record, RunFinished, RunStarted
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


class QuickScreen(RunScreen):
    FRAME_SECONDS = 0.05


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
            **options,
        )
        self.app = QuickScreen(parts, attached=attached)

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

    async def answer(self, kind: RequestKind, refusal: Refusal | None = None, detail: str = "") -> None:
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


# ------------------------------------------------------------- scripts of keys and records, as text
SIZE = (230, 40)
"""Of a screen on which every key has room in the footer."""


class Action(NamedTuple):
    """Something that happens, in words."""

    words: str
    do: Callable[[Screen], Awaitable[object]]


Step = Action | str
"""A text is keys."""


def _action(step: Step) -> Action:
    if isinstance(step, Action):
        return step
    return Action(f"press {step}", lambda screen: screen.press(*step.split()))


def feed(words: str, *records: Record) -> Action:
    """Records that arrive."""

    async def arrive(screen: Screen) -> None:
        screen.session.fold(_now(records))
        await _shown(screen)

    return Action(words, arrive)


async def _shown(screen: Screen) -> None:
    """The frame that shows all that has come, also what this screen asks for on seeing it."""
    await screen.until(lambda: screen.app._view is screen.session.view())


def answer(kind: RequestKind, refusal: Refusal | None = None, detail: str = "") -> Action:
    """The trainer's answer."""
    words = f"{kind} {refusal or 'taken'}" + (f": {detail}" if detail else "")
    return Action(words, lambda screen: screen.answer(kind, refusal, detail))


def elsewhere(request: RequestMade) -> Action:
    """Somebody else asks."""

    async def ask(screen: Screen) -> None:
        screen.control.ask(request)
        await _shown(screen)

    facts = [request.precision, request.reason, "ends" if request.paused is False else ""]
    return Action(" ".join(["another screen asks:", request.kind, *filter(None, facts)]), ask)


def end(*records: Record) -> Action:
    """The run's end, with its last record; without any, it is lost."""

    async def end_and_see(screen: Screen) -> None:
        screen.session.fold(_now(records))
        screen.ended.set()
        await screen.until(lambda: screen.app._over)

    return Action("the run ends" if records else "the run disappears", end_and_see)


def _now(records: Sequence[Record]) -> list[Record]:
    return [replace(record, time=time.time()) if record.time < 1.0 else record for record in records]


def switched(step: int, previous: str, current: str) -> PrecisionChanged:
    return PrecisionChanged(time=0.0, step=step, previous=previous, current=current)


def paused(reason: str = "") -> PauseChanged:
    return PauseChanged(time=0.0, step=5, paused=True, reason=reason)


RESUMED = PauseChanged(time=0.0, step=5, paused=False)
FINISHED = RunFinished(time=0.0, steps=5, seconds=1.0, reason="done")
STOPPED = replace(FINISHED, reason="stopped")


class Script(NamedTuple):
    """A run so far, and what happens to its screen."""

    before: Sequence[Record]
    actions: Sequence[Step]
    options: dict[str, Any] = {}  # noqa: RUF012  # nobody changes it


def run(*more: Record, count: int = 5, **changes: Any) -> list[Record]:
    """A run that has begun, after some steps in the precision that it began with."""
    begun = started(**changes)
    return [begun, *steps(count, begun.precision), *more]


async def transcript(script: Script) -> str:
    """What the screen of a run says at first and what is new after each action."""
    async with watching(*_now(script.before), size=SIZE, **script.options) as screen:
        return await said_after([Action("the screen opens", _shown), *script.actions], screen)


async def said_after(steps: Sequence[Step], screen: Screen) -> str:
    """What is new on the screen after each action, until it has left."""
    lines: list[str] = []
    before: dict[str, str] = {}
    for action in map(_action, steps):
        await action.do(screen)
        now = _said(screen)
        lines.append(f"> {action.words}")
        lines += [f"    {name:8} {words}" for name, words in now.items() if before.get(name) != words]
        before = now
        if screen.has_left:
            break
    return "\n".join(lines)


def _said(screen: Screen) -> dict[str, str]:
    """What a person reads at the edges of the screen, and what the run was asked for."""
    overlay = screen.app._overlay
    page = screen.overlay or (f"{screen.state.focus} enlarged" if screen.state.focus else "the panels")
    return {
        "header": _collapsed(screen.lines[0] if overlay and overlay.covers_all else _header(screen.header)),
        "footer": _collapsed(screen.footer),
        "page": page,
        "curves": f"zoom {screen.state.zoom}" + ", log" * screen.state.log_y,
        "message": f"{screen.state.message} ({screen.state.severity})" if screen.state.message else "none",
        "pending": "; ".join(map(_request, screen.session.view().pending)) or "nothing",
        "left": str(screen.app.left) if screen.has_left else "no",
    }


def _header(line: str) -> str:
    """Without what depends on the clock."""
    return re.sub(r"about +[\d:]+ left|[\d:]+ left|in +[\d:]+", "", line)


def _collapsed(line: str) -> str:
    return " ".join(line.strip("─╭╮╰╯ ").replace("─", " ").split())


def _request(made: RequestMade) -> str:
    facts = (made.precision, *made.precisions, {True: "on", False: "off"}.get(made.paused), made.reason)  # type: ignore[arg-type]
    return " ".join([made.kind, *(fact for fact in facts if fact), *["at once"] * made.at_once])
