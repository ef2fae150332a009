"""Runs the checks, prints them with their hints or as JSON lines, and says whether training works here."""

import importlib
import json as json_text
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from amptui.base import strictjson
from amptui.base.prompt import put
from amptui.base.text import printable
from amptui.base.units import SEVERITY_SIGNS
from amptui.records.run import Severity
from amptui.reports.doctor.check import Check, Section, one_line, poor
from amptui.reports.doctor.software import software_checks

_COLOURS: dict[Severity, str] = {"info": "\x1b[32m", "warning": "\x1b[95m", "error": "\x1b[91m"}
"""The screen's own: green, bright magenta, bright red."""

_ASCII = str.maketrans({"✔": "v", "⚠": "!", "✖": "x", "→": "->", "×": "x", "…": "..."})

_WIDEST = 110
"""Columns of a line at most: longer lines are hard to read."""


def doctor(*, json: bool = False) -> int:
    """Check this machine and print what it can do; return 1 if training fails with default options, else 0.

    With ``json`` each check is one JSON object a line: ``type`` (Check), ``section`` and the fields of
    `Check`. The last line has the type Verdict, with ``can_train``, ``warnings`` and ``errors`` (counts).
    """
    show = _JsonReport() if json else _PlainReport()
    checks = []
    for section, check in examine(sections()):
        show.check(section, check)
        checks.append(check)
    counts = Counter(check.severity for check in checks)
    show.verdict(warnings=counts["warning"], errors=counts["error"], device=_device(checks))
    return 1 if counts["error"] else 0


def sections() -> tuple[Section, ...]:
    """What to check, each after what it depends on."""
    return (
        Section(title="software", look=software_checks),
        Section(title="software", look=_late("software", "compile_checks"), needs_torch=True),
        Section(title="CUDA", look=_late("cuda", "cuda_checks"), needs_torch=True),
        Section(title="GPUs", look=_late("gpus", "gpu_checks"), needs_torch=True),
        Section(title="precisions", look=_late("precisions", "precision_checks"), needs_torch=True),
        Section(title="processors and memory", look=_late("machine", "machine_checks")),
        Section(title="processors and memory", look=_late("machine", "thread_checks"), needs_torch=True),
        Section(title="terminal", look=_late("terminal_checks", "terminal_checks")),
        Section(title="folders", look=_late("storage", "storage_checks")),
        Section(title="data", look=_late("storage", "data_checks"), needs_torch=True),
    )


def _late(module: str, checks: str) -> Callable[[], Iterable[Check]]:
    """``checks`` of ``module``, imported when called: if one module fails to import, others still run."""

    def look() -> Iterable[Check]:
        results: Iterable[Check] = getattr(
            importlib.import_module(f"amptui.reports.doctor.{module}"), checks
        )()
        return results

    return look


def examine(all_sections: Iterable[Section]) -> Iterator[tuple[str, Check]]:
    """Every check with its section's title; without those that need torch if it cannot be imported."""
    torch_loads = True
    for section in all_sections:
        if section.needs_torch and not torch_loads:
            continue
        for check in _look(section):
            torch_loads = torch_loads and not (check.name == "torch-loads" and check.severity == "error")
            yield section.title, check


def _look(section: Section) -> Iterable[Check]:
    try:
        return list(section.look())
    except Exception as error:  # noqa: BLE001 - a broken machine may raise anything, and the rest still counts
        text = f"{section.title} could not be checked: {type(error).__name__}: {one_line(error)}"
        return [poor("unexamined", text, "fix the problems above, then run `amptui doctor` again")]


def _device(checks: Iterable[Check]) -> str:
    """Where training runs by default, as torch calls it: ``cuda`` or ``cpu``."""
    usable = {check.name for check in checks if check.facts.get("usable")}
    if "cuda" in usable:
        return "cuda"
    others = (str(check.facts["device_type"]) for check in checks if "device_type" in check.facts)
    return next(others, "cpu")


class _JsonReport:
    """One JSON object a line."""

    def check(self, section: str, check: Check) -> None:
        self._write({"type": "Check", "section": section, **asdict(check)})

    def verdict(self, *, warnings: int, errors: int, device: str) -> None:
        content = {"can_train": not errors, "device": None if errors else device}
        self._write({"type": "Verdict", **content, "warnings": warnings, "errors": errors})

    def _write(self, content: dict[str, object]) -> None:
        put(json_text.dumps(strictjson.plain(content), allow_nan=False) + "\n")


class _PlainReport:
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
        sign = SEVERITY_SIGNS[check.severity]
        for number, line in enumerate(self._wrapped(check.text, indent=4)):
            self._write(f"  {self._coloured(sign, check.severity)} {line}" if not number else f"    {line}")
        for line in self._wrapped(f"→ {check.hint}", indent=6) if check.hint else ():
            self._write(f"      {line}")

    def verdict(self, *, warnings: int, errors: int, device: str) -> None:
        also = f"; {_counted(warnings, 'warning')} (⚠)" if warnings else ""
        if errors:
            text = f"Training cannot run here: fix {_counted(errors, 'error')} first (✖){also}."
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

    def _coloured(self, sign: str, severity: Severity) -> str:
        return f"{_COLOURS[severity]}{sign}\x1b[0m" if self._colours else sign

    def _write(self, line: str) -> None:
        if not self._utf8:
            line = line.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        put(f"{line}\n")


def _counted(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"
