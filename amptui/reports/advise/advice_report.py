"""A finished measurement with its recommendation: lines to read, an HTML page, one JSON object."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from amptui.base import units
from amptui.base.version import __version__
from amptui.diagnosis.labels import data_label
from amptui.recipe.request import FRAMEWORKS, Framework
from amptui.reports.advise import advise_words
from amptui.reports.advise.advice import Advice
from amptui.reports.advise.evidence import Candidate
from amptui.reports.advise.recommendation import NAMES, Recommendation
from amptui.reports.export.template import Span, document

WIDTH = 80

_GAP = 2
"""Cells between two columns of the table."""


def heading(result: Recommendation) -> str:
    """``simple-cnn on H200, CIFAR-10, batch 128``."""
    run = result.view.run
    if run is None:
        return result.subject
    parts = [f"{run.model} on {run.device_name}"]
    parts += [] if result.is_script else [data_label(run.data)]
    if run.batch_size:
        parts.append(f"batch {units.count(run.batch_size)}")
    return ", ".join(parts)


def report_lines(result: Recommendation, framework: Framework | None = None) -> list[str]:
    """The recommendation, why, the table, what was not measured, and the lines to paste, in 80 columns.

    ``framework``: only its lines, in full; None is plain PyTorch in full and the others in brief.
    """
    lines = [heading(result), "", *_wrapped(advise_words.headline(result.advice) + ".")]
    if result.interrupted:
        lines += _wrapped("Interrupted: based on what was measured so far.")
    for label, text in result.notes:
        lines += _wrapped(text, f"  {label}: ", " " * (len(label) + 4))
    rows = advise_words.table_rows(result.view, result.candidates)
    lines += ["", *table_lines(rows)] if rows else []
    missing = [line for text in result.missing for line in _wrapped(text, "  ", "    ")]
    lines += ["", "not measured:", *missing] if missing else []
    how = [line for text in result.how_measured for line in _wrapped(text)]
    lines += ["", *how] if how else []
    return lines + list(_paste_lines(result, framework))


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """The columns side by side; those that do not fit into 80 columns stand below, with the labels again."""
    labels, *columns = (list(column) for column in zip(*rows, strict=True))
    lines: list[str] = []
    while columns:
        side_by_side = [labels]
        while columns and (len(side_by_side) == 1 or _width([*side_by_side, columns[0]]) <= WIDTH):
            side_by_side.append(columns.pop(0))
        lines += [""] * bool(lines) + _table(side_by_side)
    return lines


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) for column in columns) + _GAP * (len(columns) - 1)


def _table(columns: Sequence[Sequence[str]]) -> list[str]:
    """Without the rows that say nothing; a column too wide for a table of its own is cut."""
    first = max(map(len, columns[0]))
    widths = [min(max(map(len, column)), WIDTH - first - _GAP) for column in columns]
    rows = [row for row in zip(*columns, strict=True) if any(row[1:])]
    return [
        (" " * _GAP)
        .join(_fitted(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
        .rstrip()
        for row in rows
    ]


def _fitted(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"


def _paste_lines(result: Recommendation, framework: Framework | None) -> Iterator[str]:
    lines = result.lines
    if result.advice.reason == "weights":
        yield from ("", "Nothing to paste: train it as it is, or with float32 weights and autocast.")
    elif result.advice.precision == "fp32":
        what = " but for torch.compile" if lines else ""
        yield from ("", f"Nothing to paste{what}: FP32 is what PyTorch trains in by default.")
    if not lines:
        return
    full: Framework = framework or "pytorch"
    if full not in lines and "pytorch" in lines and framework != "amptui":
        yield from ("", f"No lines for {NAMES[full]}: it chooses other layers, or another library, for FP8.")
        full = "pytorch"
    if full in lines:
        yield from ("", f"{NAMES[full]}:", *(f"    {line}" for line in lines[full]))
    if framework is None:
        yield ""
        width = max(map(len, NAMES.values())) + 1
        for name in FRAMEWORKS[1:]:
            if name in lines:
                yield f"{NAMES[name] + ':':<{width}} {lines[name][0]}"
                yield from (f"{'':<{width}} {line}" for line in lines[name][1:])


# ------------------------------------------------------------------------------------- HTML page


def advice_page(result: Recommendation) -> str:
    """The page as HTML."""
    partial = "Interrupted: based on what was measured so far." if result.interrupted else ""
    lines = [(NAMES[name], "\n".join(result.lines[name])) for name in FRAMEWORKS if name in result.lines]
    return document(
        f"{result.subject}: which precision · amptui",
        [
            (
                "why",
                ("note", [partial]),
                ("verdict", [[Span(label, "label"), f" {text}"] for label, text in result.notes]),
            ),
            ("evidence", ("table", advise_words.table_rows(result.view, result.candidates))),
            ("lines to paste", ("pre", lines)),
            ("not measured", ("", result.missing)),
            ("how it is measured", ("note", result.how_measured)),
        ],
        heading=f"{advise_words.headline(result.advice)}.",
        where=heading(result),
        footer=f"measured by amptui {__version__}",
    )


# ------------------------------------------------------------------------------------------ JSON


def report_json(result: Recommendation) -> dict[str, Any]:
    """The same as one JSON object; what was not measured is null."""
    view, advice = result.view, result.advice
    run = view.run
    return {
        "type": "Advice",
        "version": __version__,
        "subject": result.subject,
        "model": None if run is None else run.model,
        "machine": None if run is None else {"device": run.device, "name": run.device_name, **run.hardware},
        "versions": None if run is None else run.versions,
        "data": None if run is None or result.is_script else run.data,
        "batch_size": None if run is None else run.batch_size,
        "interrupted": result.interrupted,
        "seconds": result.seconds,
        "recommended": advice.precision,
        "reason": advice.reason,
        "about": None if advice.about is None else advice.about.precision,
        "compile": advice.compiles,
        "text": advise_words.headline(advice),
        "notes": [{"label": label, "text": text} for label, text in result.notes],
        "baseline": None if result.view.compared is None else next(iter(result.view.compared.rows), None),
        "candidates": [_candidate(candidate, advice) for candidate in result.candidates],
        "loss_steps": None if result.race is None else result.race.steps,
        "not_measured": result.missing,
        "how": result.how_measured,
        "lines": result.lines,
    }


def _candidate(candidate: Candidate, advice: Advice) -> dict[str, Any]:
    return {
        "precision": candidate.precision,
        "recommended": candidate.precision == advice.precision,
        "excluded": candidate.exclusion,
        "measured": candidate.row,
        "memory_ratio": candidate.memory,
        "compiled": candidate.compiling,
        "answer": candidate.answer,
        "losses": candidate.losses,
    }
