"""Makes the checks, prints them with their mends for a person or as JSON lines, and says how it stands."""

import json as json_text
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from amptui import strictjson
from amptui.doctor.check import Check, Section, one_line, poor
from amptui.doctor.software import software_checks
from amptui.inert import printable
from amptui.prompt import put
from amptui.records import Severity

_SIGNS: dict[Severity, str] = {"info": "✔", "warning": "⚠", "error": "✖"}

_COLOURS: dict[Severity, str] = {"info": "\x1b[32m", "warning": "\x1b[95m", "error": "\x1b[91m"}
"""The screen's own: green, bright magenta, bright red."""

_ASCII = str.maketrans({"✔": "v", "⚠": "!", "✖": "x", "→": "->", "×": "x", "…": "..."})

_DEVICES = {"cuda": "the GPU", "cpu": "the CPU"}

_WIDEST = 110
"""Columns of a line at most: longer ones are hard to read."""


def doctor(*, json: bool = False) -> int:
    """Look at this machine and print what it can do; 1 if training does not run here by default, else 0.

    With ``json`` every check is one JSON object a line: ``type`` (Check), ``section`` and the fields of
    `Check`; a last line of type Verdict says ``can_train`` and counts ``warnings`` and ``errors``.
    """
    show = _JsonReport() if json else _PlainReport()
    checks = []
    for section, check in examine(sections()):
        show.check(section, check)
        checks.append(check)
    counts = {severity: sum(check.severity == severity for check in checks) for severity in _SIGNS}
    show.verdict(warnings=counts["warning"], errors=counts["error"], device=_device(checks))
    return 1 if counts["error"] else 0


def sections() -> tuple[Section, ...]:
    """What is looked at, in the order in which one thing stands on another.

    Each part is loaded when it is looked at: on a machine where one does not load, the others still tell.
    """
    return (
        Section(title="software", look=software_checks),
        Section(title="CUDA", look=_cuda, needs_torch=True),
        Section(title="GPUs", look=_gpus, needs_torch=True),
        Section(title="precisions", look=_precisions, needs_torch=True),
        Section(title="processors and memory", look=_machine),
        Section(title="processors and memory", look=_threads, needs_torch=True),
        Section(title="terminal", look=_terminal),
        Section(title="folders", look=_storage),
        Section(title="data", look=_data, needs_torch=True),
    )


def examine(all_sections: Iterable[Section]) -> Iterator[tuple[str, Check]]:
    """Every check with its section's title; where torch does not load, what needs it is left out."""
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
    except Exception as error:  # noqa: BLE001 - a sick machine fails in its own ways, and the rest shall be told
        text = f"{section.title} could not be looked at: {type(error).__name__}: {one_line(error)}"
        return [poor("unexamined", text, "mend what is marked above, then run `amptui doctor` again")]


def _cuda() -> list[Check]:
    from amptui.doctor.cuda import cuda_checks

    return cuda_checks()


def _gpus() -> list[Check]:
    from amptui.doctor.gpus import gpu_checks

    return gpu_checks()


def _precisions() -> list[Check]:
    from amptui.doctor.precisions import precision_checks

    return precision_checks()


def _machine() -> list[Check]:
    from amptui.doctor.machine import machine_checks

    return machine_checks()


def _threads() -> list[Check]:
    from amptui.doctor.machine import thread_checks

    return thread_checks()


def _terminal() -> list[Check]:
    from amptui.doctor.terminal import terminal_checks

    return terminal_checks()


def _storage() -> list[Check]:
    from amptui.doctor.storage import storage_checks

    return storage_checks()


def _data() -> list[Check]:
    from amptui.doctor.storage import data_checks

    return data_checks()


def _device(checks: Iterable[Check]) -> str:
    """Where training runs by default: ``cuda`` or ``cpu``."""
    on_gpu = any(check.name == "cuda" and check.facts.get("usable") for check in checks)
    return "cuda" if on_gpu else "cpu"


class _JsonReport:
    """One JSON object a line."""

    def check(self, section: str, check: Check) -> None:
        self._write({"type": "Check", "section": section, **asdict(check)})

    def verdict(self, *, warnings: int, errors: int, device: str) -> None:
        self._write(
            {
                "type": "Verdict",
                "can_train": not errors,
                "device": None if errors else device,
                "warnings": warnings,
                "errors": errors,
            }
        )

    def _write(self, content: dict[str, object]) -> None:
        put(json_text.dumps(strictjson.plain(content), allow_nan=False) + "\n")


class _PlainReport:
    """A heading for each section, a sign before each line, and the mend below it."""

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
        for number, line in enumerate(self._wrapped(check.text, indent=4)):
            self._write(f"  {self._coloured(sign, check.severity)} {line}" if not number else f"    {line}")
        for line in self._wrapped(f"→ {check.mend}", indent=6) if check.mend else ():
            self._write(f"      {line}")

    def verdict(self, *, warnings: int, errors: int, device: str) -> None:
        better = f"; {_things(warnings)} could be better (⚠)" if warnings else ""
        if errors:
            text = f"Training does not run here: {_things(errors)} must be mended first (✖){better}."
        else:
            text = f"Training runs here, on {_DEVICES[device]}{better}."
        self._write("")
        for line in self._wrapped(text, indent=0):
            self._write(line)

    def _wrapped(self, text: str, *, indent: int) -> list[str]:
        text = printable(text)  # a library's words may hold escape sequences
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


def _things(count: int) -> str:
    return "1 thing" if count == 1 else f"{count} things"
