"""Runs the checks, prints them with their hints or as JSON lines, and says whether training works here."""

import importlib
import os
import shutil
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from amptui.base import strictjson
from amptui.base.prompt import put
from amptui.base.text import printable
from amptui.base.units import counted

Kind = Literal["good", "info", "warning", "error"]

_SIGNS: dict[Kind, str] = {"good": "✔", "info": "·", "warning": "⚠", "error": "✖"}

_COLOURS: dict[Kind, str] = {"good": "\x1b[32m", "info": "", "warning": "\x1b[95m", "error": "\x1b[91m"}
"""The screen's own: green, bright magenta, bright red."""

_ASCII = str.maketrans({"✔": "v", "·": ".", "⚠": "!", "✖": "x", "→": "->", "×": "x", "…": "..."})

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
    report = PlainReport()
    counts: Counter[Kind] = Counter()
    device = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a driver that the checks explain
        for section, check in examine(SECTIONS):
            if json:
                put(strictjson.line({"type": "Check", "section": section, **asdict(check)}))
            else:
                report.check(section, check)
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
        report.verdict(device, warnings=warned, errors=failed)
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


class PlainReport:
    """A heading for each section, a sign before each line, and the hint below it."""

    def __init__(self) -> None:
        is_terminal = sys.stdout.isatty()
        self._colours = is_terminal and not os.environ.get("NO_COLOR")
        self._width = min(_WIDEST, shutil.get_terminal_size().columns) if is_terminal else 0
        self._utf8 = "utf" in (sys.stdout.encoding or "").lower()
        self._section = ""

    def check(self, section: str, check: Check) -> None:
        if section != self._section:
            self._write(f"\n{section}" if self._section else section)
            self._section = section
        sign = _SIGNS[check.severity]
        if self._colours:
            sign = f"{_COLOURS[check.severity]}{sign}\x1b[0m"
        first, *rest = self._wrapped(check.text, indent=4)
        self._write(f"  {sign} {first}")
        for line in rest:
            self._write(f"    {line}")
        for line in self._wrapped(f"→ {check.hint}", indent=6) if check.hint else ():
            self._write(f"      {line}")

    def verdict(self, device: str | None, *, warnings: int, errors: int) -> None:
        also = f"; {counted(warnings, 'warning')} (⚠)" if warnings else ""
        if device is None:
            text = f"Training cannot run here: fix {counted(errors, 'error')} first (✖){also}."
        else:
            text = f"Training runs here, on {'the CPU' if device == 'cpu' else 'the GPU'}{also}."
        self._write("")
        for line in self._wrapped(text, indent=0):
            self._write(line)

    def _wrapped(self, text: str, *, indent: int) -> list[str]:
        text = printable(text)  # a library's message may hold escape sequences
        if not self._width:
            return [text]
        width = max(20, self._width - indent)
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _write(self, line: str) -> None:
        if not self._utf8:
            line = line.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        put(f"{line}\n")
