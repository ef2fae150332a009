"""A comparison as lines of plain text, and as one JSON object."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from amptui.base import strictjson
from amptui.diagnosis.summary import table
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import (
    Compared,
    Contrast,
    median_of,
    peak_of,
    process_peak_of,
    rate_of,
    skipped_of,
)
from amptui.reports.compare.groups import Group, Spread, options, seed_of
from amptui.reports.compare.tables import Table, group_table, run_table
from amptui.reports.compare.trace import RunFigures

if TYPE_CHECKING:
    from collections.abc import Callable


def plain_lines(comparison: Compared, width: int | None = None) -> list[str]:
    """The whole comparison; with a ``width`` the table of runs has the columns that fit in so many cells."""
    every_run = run_table(comparison)
    runs = every_run if width is None else every_run.within(width)
    lines = [sentences.heading(comparison), ""]
    for group in comparison.groups:
        names = ", ".join(run.name for run in group.runs)
        lines.append(f"{sentences.group_name(group)}: {sentences.seeds(group)}: {names}")
    lines += [
        "",
        *_table(group_table(comparison).turned()),
        "",
        *_table(runs),
        "",
    ]
    lines += [] if comparison.contrasts else [sentences.ONE_GROUP]
    lines += [sentences.verdict(contrast, comparison) for contrast in comparison.contrasts]
    lines += [text for contrast in comparison.contrasts if (text := sentences.speed(contrast))]
    lines += [f"note: {sentences.check(check)}" for check in comparison.checks]
    if comparison.differences:
        lines += ["", "what differs:", *(f"  {line}" for line in sentences.difference_lines(comparison))]
    return [*lines, "", *sentences.how_measured(comparison)]


def _table(content: Table) -> list[str]:
    return table(content.head, content.rows)


def as_json(comparison: Compared) -> dict[str, Any]:
    """The same as JSON values; non-finite numbers are strings, those not measured null."""
    letters = [group.letter for group in comparison.groups]
    content = {
        "type": "Comparison",
        "final_loss_is": "validation" if comparison.validation else "training",
        "target_loss": comparison.target,
        "groups": [_group(group, comparison) for group in comparison.groups],
        "contrasts": [_contrast(contrast, comparison) for contrast in comparison.contrasts],
        "differences": {
            option.name: dict(zip(letters, option.values, strict=True)) for option in comparison.differences
        },
        "checks": [
            {
                "kind": check.kind,
                "about": check.groups,
                "values": check.values,
                "text": sentences.check(check),
            }
            for check in comparison.checks
        ],
    }
    plain: dict[str, Any] = strictjson.plain(content)
    return plain


def _group(group: Group, comparison: Compared) -> dict[str, Any]:
    figures: dict[str, Callable[[RunFigures], float | None]] = {
        "median_step_seconds": median_of,
        "samples_per_second": rate_of,
        "peak_allocated_bytes": peak_of,
        "peak_process_bytes": process_peak_of,
        "skipped": skipped_of,
        "final_training_loss": lambda run: run.final_training,
        "best_training_loss": lambda run: run.best_training,
        "final_validation_loss": lambda run: run.final_validation,
        "best_validation_loss": lambda run: run.best_validation,
        "seconds_to_target_loss": comparison.seconds_to_target,
        "training_seconds": lambda run: run.seconds,
    }
    return {
        "letter": group.letter,
        "label": group.label,
        "seeds": group.seeds,
        "figures": {name: _spread(group.spread(value_of)) for name, value_of in figures.items()},
        "runs": [
            _run(run) | {name: value_of(run) for name, value_of in figures.items()} for run in group.runs
        ],
    }


def _spread(spread: Spread | None) -> dict[str, Any] | None:
    return None if spread is None else asdict(spread)


def _run(run: RunFigures) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": run.folder,
        "seed": seed_of(run),
        "state": sentences.state(run),
        "steps": run.view.step,
        "samples": run.samples,
        "resumed": run.resumed,
        "options": options(run),
        "passed_over": run.passed_over,
    }


def _contrast(contrast: Contrast, comparison: Compared) -> dict[str, Any]:
    return {
        "baseline": contrast.baseline.letter,
        "other": contrast.other.letter,
        "outcome": contrast.outcome,
        "difference": contrast.difference,
        "interval": None if contrast.interval is None else asdict(contrast.interval),
        "detectable": contrast.detectable,
        "speedup": _spread(contrast.speedup),
        "text": sentences.verdict(contrast, comparison),
    }
