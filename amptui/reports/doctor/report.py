"""Runs the checks, prints them with their hints or as JSON lines, and says whether training works here."""

import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

from amptui.base import strictjson
from amptui.base.prompt import put
from amptui.base.text import ASCII_REPLACEMENTS, printable, wrapped
from amptui.base.units import counted
from amptui.reports.doctor import gpus, machine
from amptui.reports.doctor.check import Check, Kind, one_line, poor

_SIGNS: dict[Kind, str] = {"good": "✔", "info": "·", "warning": "⚠", "error": "✖"}

_COLOURS: dict[Kind, str] = {"good": "\x1b[32m", "info": "", "warning": "\x1b[95m", "error": "\x1b[91m"}
"""The screen's own: green, bright magenta, bright red."""

_WIDEST = 110
"""Columns of a line at most: longer lines are hard to read."""

Section = tuple[str, bool, Callable[[], Iterable[Check]]]
"""A title, whether the checks need torch, and the checks, run on demand."""


def _precision_checks() -> Iterable[Check]:
    from amptui.reports.doctor import precisions  # which imports numpy: it may be missing

    return precisions.precision_checks()


SECTIONS: Sequence[Section] = (
    ("software", False, machine.software_checks),
    ("CUDA", True, gpus.cuda_checks),
    ("GPUs", True, gpus.gpu_checks),
    ("precisions", True, _precision_checks),
    ("processors and memory", True, machine.machine_checks),
    ("terminal", False, machine.terminal_checks),
    ("runs", False, machine.storage_checks),
)
"""What to check, each after what it depends on."""


def doctor(*, json: bool = False) -> int:
    """Check this machine and print what it can do; return 1 if training fails with default options, else 0.

    With ``json`` each check is one JSON object a line: ``type`` (Check), ``section`` and the fields of
    `Check`. The last line has the type Verdict, with ``can_train``, ``device``, ``warnings`` and ``errors``
    (counts).
    """
    width = min(_WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
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
        _write(["", *wrapped(_verdict(device, warnings=warned, errors=failed), width)])
    return 1 if device is None else 0


def examine(sections: Iterable[Section]) -> Iterator[tuple[str, Check]]:
    """Every check with its section's title; without those that need torch if it cannot be imported."""
    torch_loads = True
    for title, needs_torch, checks in sections:
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


def _check_lines(check: Check, width: int | None) -> list[str]:
    """A sign before the text, and the hint below it, in lines of that width; of any if it is None."""
    sign, text = _SIGNS[check.severity], printable(check.text)  # a library's message may hold escapes
    lines = wrapped(text, width, f"  {sign} ", " " * 4)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        lines[0] = lines[0].replace(sign, f"{_COLOURS[check.severity]}{sign}\x1b[0m", 1)
    return lines + (wrapped(f"→ {check.hint}", width, " " * 6, " " * 6) if check.hint else [])


def _verdict(device: str | None, *, warnings: int, errors: int) -> str:
    also = f"; {counted(warnings, 'warning')} (⚠)" if warnings else ""
    if device is None:
        return f"Training cannot run here: fix {counted(errors, 'error')} first (✖){also}."
    return f"Training runs here, on {'the CPU' if device == 'cpu' else 'the GPU'}{also}."


def _write(lines: Sequence[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if "utf" not in (sys.stdout.encoding or "").lower():
        text = text.translate(ASCII_REPLACEMENTS).encode("ascii", "replace").decode("ascii")
    put(text)
