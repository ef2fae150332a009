"""Scripts of keys and records, and what a screen says after each of their actions, as readable text."""

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from amptui.records.answers import Refusal, RequestMade
from amptui.records.control import Request
from amptui.records.run import PauseChanged, PrecisionChanged, Record, RunFinished
from tests.tui.watching import Screen, started, steps, watching

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


def answer(kind: type[Request], refusal: Refusal | None = None, detail: str = "") -> Action:
    """The trainer's answer."""
    words = f"{kind.__name__.removesuffix('Request')} {refusal or 'taken'}" + (
        f": {detail}" if detail else ""
    )
    return Action(words, lambda screen: screen.answer(kind, refusal, detail))


def elsewhere(request: Request) -> Action:
    """Somebody else asks."""

    async def ask(screen: Screen) -> None:
        screen.control.ask(request)
        await _shown(screen)

    return Action(f"another screen asks: {request}", ask)


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
