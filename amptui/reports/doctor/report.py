"""Runs the checks, prints them with their hints or as JSON lines, and says whether training works here."""

import importlib
import os
import shutil
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from amptui.base import strictjson
from amptui.base.prompt import put
from amptui.base.text import ASCII_REPLACEMENTS, printable
from amptui.base.units import counted

Kind = Literal["good", "info", "warning", "error"]

_SIGNS: dict[Kind, str] = {"good": "✔", "info": "·", "warning": "⚠", "error": "✖"}

_COLOURS: dict[Kind, str] = {"good": "\x1b[32m", "info": "", "warning": "\x1b[95m", "error": "\x1b[91m"}
"""The screen's own: green, bright magenta, bright red."""

_WIDEST = 110
"""Columns of a line at most: longer lines are hard to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report.

    ``good``: as it should be. ``info``: a fact, neither good nor bad. ``warning``: a problem, in spite of
    which training works. ``error``: training with default options fails.
    """

    name: str
    """What was checked; the same on every machine and whatever the result: ``cuda``."""
    severity: Kind
    text: str
    hint: str = ""
    """A hint what to do about it; every warning and error has one."""


def fine(name: str, text: str) -> Check:
    """A check that found what training needs."""
    return Check(name=name, severity="good", text=text)


def fact(name: str, text: str, hint: str = "") -> Check:
    """What a user may want to know of this machine, and could change."""
    return Check(name=name, severity="info", text=text, hint=hint)


def poor(name: str, text: str, hint: str) -> Check:
    """A check that found a problem; training works in spite of it."""
    return Check(name=name, severity="warning", text=text, hint=hint)


def broken(name: str, text: str, hint: str) -> Check:
    """A check that found why training cannot run."""
    return Check(name=name, severity="error", text=text, hint=hint)


def one_line(text: object) -> str:
    """The first line of ``text`` that is not blank: libraries usually say what matters first."""
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "")


class Section(NamedTuple):
    """Checks that belong together, run on demand."""

    title: str
    checks: Callable[[], Iterable[Check]]
    needs_torch: bool = False


def _late(name: str) -> Callable[[], Iterable[Check]]:
    """The checks ``module.function``, imported when run: if one module fails to import, others still run."""
    module, _, function = name.partition(".")

    def run() -> Iterable[Check]:
        checks: Iterable[Check] = getattr(
            importlib.import_module(f"amptui.reports.doctor.{module}"), function
        )()
        return checks

    return run


SECTIONS = (
    Section("software", _late("machine.software_checks")),
    Section("software", _late("machine.compile_checks"), needs_torch=True),
    Section("CUDA", _late("gpus.cuda_checks"), needs_torch=True),
    Section("GPUs", _late("gpus.gpu_checks"), needs_torch=True),
    Section("precisions", _late("precisions.precision_checks"), needs_torch=True),
    Section("processors and memory", _late("machine.machine_checks")),
    Section("processors and memory", _late("machine.thread_checks"), needs_torch=True),
    Section("terminal", _late("machine.terminal_checks")),
    Section("folders", _late("machine.storage_checks")),
)
"""What to check, each after what it depends on."""


def doctor(*, json: bool = False) -> int:
    """Check this machine and print what it can do; return 1 if training fails with default options, else 0.

    With ``json`` each check is one JSON object a line: ``type`` (Check), ``section`` and the fields of
    `Check`. The last line has the type Verdict, with ``can_train``, ``device``, ``warnings`` and ``errors``
    (counts).
    """
    width = min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 0
    counts: Counter[Kind] = Counter()
    device, shown = None, ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a driver that the checks explain
        for section, check in examine(SECTIONS):
            if json:
                put(strictjson.line({"type": "Check", "section": section, **asdict(check)}))
            else:
                title = [] if section == shown else ["", section] if shown else [section]
                _write([*title, *_check_lines(check, width)])
                shown = section
            counts[check.severity] += 1
        if not counts["error"]:
            from amptui.device.accelerator import default_device

            try:
                device = default_device().type
            except Exception:  # noqa: BLE001 - a check that could not be made has said what is wrong
                counts["error"] += 1
    warned, failed = counts["warning"], counts["error"]
    if json:
        verdict = {"type": "Verdict", "can_train": device is not None, "device": device}
        put(strictjson.line({**verdict, "warnings": warned, "errors": failed}))
    else:
        _write(["", *_wrapped(_verdict(device, warnings=warned, errors=failed), width)])
    return 1 if device is None else 0


def examine(sections: Iterable[Section]) -> Iterator[tuple[str, Check]]:
    """Every check with its section's title; without those that need torch if it cannot be imported."""
    torch_loads = True
    for title, checks, needs_torch in sections:
        if needs_torch and not torch_loads:
            continue
        try:
            results = list(checks())
        except Exception as error:  # noqa: BLE001 - a broken machine may raise anything, and the rest counts
            text = f"{title} could not be checked: {type(error).__name__}: {one_line(error)}"
            hint = "fix the problems above, then run `amptui doctor` again"
            results = [poor("unexamined", text, hint)]
        for check in results:
            torch_loads = torch_loads and not (check.name == "torch-loads" and check.severity == "error")
            yield title, check


def _check_lines(check: Check, width: int) -> list[str]:
    """A sign before the text, and the hint below it, in lines of that width; of any if it is 0."""
    sign = _SIGNS[check.severity]
    lines = _wrapped(check.text, width, f"  {sign} ", " " * 4)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        lines[0] = lines[0].replace(sign, f"{_COLOURS[check.severity]}{sign}\x1b[0m", 1)
    return lines + (_wrapped(f"→ {check.hint}", width, " " * 6, " " * 6) if check.hint else [])


def _verdict(device: str | None, *, warnings: int, errors: int) -> str:
    also = f"; {counted(warnings, 'warning')} (⚠)" if warnings else ""
    if device is None:
        return f"Training cannot run here: fix {counted(errors, 'error')} first (✖){also}."
    return f"Training runs here, on {'the CPU' if device == 'cpu' else 'the GPU'}{also}."


def _wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    text = printable(text)  # a library's message may hold escape sequences
    if not width:
        return [first + text]
    fill = textwrap.TextWrapper(max(20, width), first, rest, break_long_words=False, break_on_hyphens=False)
    return fill.wrap(text)


def _write(lines: Sequence[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if "utf" not in (sys.stdout.encoding or "").lower():
        text = text.translate(ASCII_REPLACEMENTS).encode("ascii", "replace").decode("ascii")
    put(text)
