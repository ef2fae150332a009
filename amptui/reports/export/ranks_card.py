"""The ranks on a page: a row for each that the journal tells of, and which is slow."""

from collections.abc import Callable

from amptui.base import units
from amptui.diagnosis.rank_words import place_words, rank_lost, ranks_disagree, size_words, speed_sentence
from amptui.records.ranks import PERCENTILES
from amptui.reports.export.markup import Markup, card, paragraph, table, verdict
from amptui.telemetry.rank_watch import RankSummary, RanksView
from amptui.telemetry.view import SessionView


def ranks_card(view: SessionView) -> Markup | None:
    """The newest numbers of the ranks; None for a single process."""
    found = view.ranks
    if found is None:
        return None
    alarms = [*map(rank_lost, found.lost), *map(ranks_disagree, found.disagreements)]
    said = [verdict("error", "ranks", text) for text in alarms]
    if sentence := speed_sentence(found, view.run):
        said.append(verdict("info" if found.straggler is None else "warning", "speed", sentence))
    return card(
        f"{size_words(found.world_size, view.run)}",
        *said,
        _percentiles(found) if len(found.rows) < found.world_size else None,
        _rows(found) if found.rows else None,
        paragraph(_note(found), "note"),
    )


_COLUMNS: tuple[tuple[str, Callable[[RankSummary], str]], ...] = (
    ("device", lambda row: place_words(row.place)),
    ("data wait", lambda row: units.milliseconds(row.data_seconds)),
    ("compute", lambda row: units.milliseconds(row.compute_seconds)),
    ("step", lambda row: units.milliseconds(row.step_seconds)),
    ("peak", lambda row: units.number_of_bytes(row.peak_allocated_bytes)),
    ("GPU memory", lambda row: units.number_of_bytes(row.memory_used_bytes)),
    ("grad norm", lambda row: "" if row.grad_norm is None else units.loss(row.grad_norm)),
    ("skipped", lambda row: units.count(row.skipped)),
    ("own Inf", lambda row: units.count(row.overflowed)),
    ("clock", lambda row: units.megahertz(row.sm_clock_mhz)),
    ("throttled", lambda row: ", ".join(row.throttled)),
)


def _rows(found: RanksView) -> Markup:
    """Only columns that some rank measured."""
    columns = [
        (title, cells)
        for title, text in _COLUMNS
        if set(cells := [text(row) for row in found.rows]) - {"", units.NOT_AVAILABLE}
    ]
    head = ["rank", *(title for title, _ in columns)]
    lines = zip(*(cells for _, cells in columns), strict=True)
    return table(head, [[str(row.rank), *line] for row, line in zip(found.rows, lines, strict=False)])


def _percentiles(found: RanksView) -> Markup | None:
    """Of all ranks, where not all have a row."""
    names = {0: "least", 50: "median", 100: "most"}
    head = ["all ranks", *(names.get(each, f"{each}%") for each in PERCENTILES)]
    rows = [[name, *map(units.milliseconds, values)] for name, values in found.percentiles.items()]
    return table(head, rows) if rows else None


def _note(found: RanksView) -> str:
    if found.step is None:
        return "no numbers of the ranks in the journal"
    seconds = f"Times are medians of the last {found.samples} samples up to step {units.count(found.step)}."
    if len(found.rows) == found.world_size:
        return seconds
    return f"{seconds} Of {units.count(found.world_size)} ranks those that stand out have a row."
