"""A comparison as lines of plain text, and as one JSON object."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from amptui.base import strictjson
from amptui.diagnosis.summary import table
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import Compared, Contrast, median_of, peak_of, rate_of, skipped_of
from amptui.reports.compare.groups import Group, Spread, options, seed_of
from amptui.reports.compare.tables import Table, group_table, run_table
from amptui.reports.compare.trace import RunFigures

if TYPE_CHECKING:
    from collections.abc import Callable


def plain_lines(found: Compared, width: int | None = None) -> list[str]:
    """The whole comparison; with a ``width`` the table of runs has the columns that fit in so many cells."""
    every_run = run_table(found)
    runs = every_run if width is None else every_run.within(width)
    lines = [sentences.heading(found), ""]
    for group in found.groups:
        names = ", ".join(run.name for run in group.runs)
        lines.append(f"{sentences.group_name(group)}: {sentences.seeds(group)}: {names}")
    lines += [
        "",
        *_table(group_table(found).turned()),
        "",
        *_table(runs),
        "",
    ]
    lines += [] if found.contrasts else [sentences.ONE_GROUP]
    lines += [sentences.verdict(contrast, found) for contrast in found.contrasts]
    lines += [text for contrast in found.contrasts if (text := sentences.speed(contrast))]
    lines += [f"note: {sentences.check(check)}" for check in found.checks]
    if found.differences:
        lines += ["", "what differs:", *(f"  {line}" for line in sentences.difference_lines(found))]
    return [*lines, "", *sentences.how_measured(found)]


def _table(shown: Table) -> list[str]:
    return table(shown.head, shown.rows)


def as_json(found: Compared) -> dict[str, Any]:
    """The same as JSON values; non-finite numbers are strings, those not measured null."""
    content = {
        "type": "Comparison",
        "final_loss_is": "validation" if found.validation else "training",
        "target_loss": found.target,
        "groups": [_group(group, found) for group in found.groups],
        "contrasts": [_contrast(contrast, found) for contrast in found.contrasts],
        "differences": {
            each.name: dict(zip((group.letter for group in found.groups), each.values, strict=True))
            for each in found.differences
        },
        "checks": [
            {
                "kind": check.kind,
                "about": check.groups,
                "values": check.values,
                "text": sentences.check(check),
            }
            for check in found.checks
        ],
    }
    plain: dict[str, Any] = strictjson.plain(content)
    return plain


def _group(group: Group, found: Compared) -> dict[str, Any]:
    figures: dict[str, Callable[[RunFigures], float | None]] = {
        "median_step_seconds": median_of,
        "samples_per_second": rate_of,
        "peak_allocated_bytes": peak_of,
        "peak_process_bytes": lambda run: run.peak_process_bytes,
        "skipped": skipped_of,
        "final_training_loss": lambda run: run.final_training,
        "best_training_loss": lambda run: run.best_training,
        "final_validation_loss": lambda run: run.final_validation,
        "best_validation_loss": lambda run: run.best_validation,
        "seconds_to_target_loss": found.seconds_to_target,
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


def _contrast(contrast: Contrast, found: Compared) -> dict[str, Any]:
    return {
        "baseline": contrast.baseline.letter,
        "other": contrast.other.letter,
        "outcome": contrast.outcome,
        "difference": contrast.difference,
        "interval": None if contrast.interval is None else asdict(contrast.interval),
        "detectable": contrast.detectable,
        "speedup": _spread(contrast.speedup),
        "text": sentences.verdict(contrast, found),
    }
