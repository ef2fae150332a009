"""A finished measurement with its recommendation: lines to read, an HTML page, one JSON object."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from amptui.base import units
from amptui.base.table import GAP, Column, table_lines, table_width
from amptui.base.version import __version__
from amptui.diagnosis.labels import data_label
from amptui.reports.advise import advise_words
from amptui.reports.advise.recommendation import NAMES, Recommendation
from amptui.reports.export.template import Span, document

WIDTH = 80


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


def report_lines(result: Recommendation) -> list[str]:
    """The recommendation, why, the table, what was not measured, and the lines to paste, in 80 columns."""
    lines = [heading(result), "", *_wrapped(advise_words.headline(result.advice) + ".")]
    if result.interrupted:
        lines += _wrapped("Interrupted: based on what was measured so far.")
    for label, text in result.notes:
        lines += _wrapped(text, f"  {label}: ", " " * (len(label) + 4))
    rows = advise_words.table_rows(result.view, result.candidates)
    lines += ["", *_table_lines(rows)] if rows else []
    missing = [line for text in result.missing for line in _wrapped(text, "  ", "    ")]
    lines += ["", "not measured:", *missing] if missing else []
    how = [line for text in result.how_measured for line in _wrapped(text)]
    lines += ["", *how] if how else []
    return lines + list(_paste_lines(result))


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """The columns side by side; those that do not fit into 80 columns stand below, with the labels again."""
    head, *rows = rows
    labels, *others = (
        Column(title=title, cell=itemgetter(place), align="left", is_optional=False)
        for place, title in enumerate(head)
    )
    label_width = max(len(row[0]) for row in rows)
    labels = replace(labels, min_width=label_width)
    lines: list[str] = []
    while others:
        shown = [labels]
        while others and (len(shown) == 1 or table_width([*shown, others[0]], rows) <= WIDTH):
            # One too wide for a table of its own is cut.
            shown.append(replace(others.pop(0), max_width=WIDTH - label_width - GAP))
        filled = [row for row in rows if any(column.cell(row) for column in shown[1:])]
        lines += [""] * bool(lines) + table_lines(shown, filled)
    return lines


def _paste_lines(result: Recommendation) -> Iterator[str]:
    """The lines of PyTorch's own in full, those of frameworks, which are few, beside their names."""
    lines = result.lines
    if result.advice.reason == "weights":
        yield from ("", "Nothing to paste: train it as it is, or with float32 weights and autocast.")
    elif result.advice.precision == "fp32":
        what = " but for torch.compile" if lines else ""
        yield from ("", f"Nothing to paste{what}: FP32 is what PyTorch trains in by default.")
    if "pytorch" in lines:
        yield from ("", f"{NAMES['pytorch']}:", *(f"    {line}" for line in lines["pytorch"]))
    width = max(map(len, NAMES.values())) + 1
    for place, name in enumerate(name for name in NAMES if name in lines and name != "pytorch"):
        yield from [""] * (place == 0)
        yield f"{NAMES[name] + ':':<{width}} {lines[name][0]}"
        yield from (f"{'':<{width}} {line}" for line in lines[name][1:])


# ------------------------------------------------------------------------------------- HTML page


def advice_page(result: Recommendation) -> str:
    """The page as HTML."""
    partial = "Interrupted: based on what was measured so far." if result.interrupted else ""
    lines = [(NAMES[name], "\n".join(result.lines[name])) for name in NAMES if name in result.lines]
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
        "text": advise_words.headline(advice),
        "notes": [{"label": label, "text": text} for label, text in result.notes],
        "baseline": None if result.view.compared is None else next(iter(result.view.compared.rows), None),
        "candidates": [
            {
                "precision": candidate.precision,
                "recommended": candidate.precision == advice.precision,
                "excluded": candidate.exclusion,
                "measured": candidate.row,
                "memory_ratio": candidate.memory,
                "answer": candidate.answer,
                "loss": candidate.loss,
            }
            for candidate in result.candidates
        ],
        "loss_steps": None if result.race is None else result.race.steps,
        "losses": None if result.race is None else result.race.finals,
        "not_measured": result.missing,
        "how": result.how_measured,
        "lines": result.lines,
    }
