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
    ranks = view.ranks
    if ranks is None:
        return None
    alarms = [*map(rank_lost, ranks.lost), *map(ranks_disagree, ranks.disagreements)]
    said = [verdict("error", "ranks", text) for text in alarms]
    if sentence := speed_sentence(ranks, view.run):
        said.append(verdict("info" if ranks.straggler is None else "warning", "speed", sentence))
    return card(
        size_words(ranks.world_size, view.run),
        *said,
        _percentiles(ranks) if len(ranks.rows) < ranks.world_size else None,
        _rows(ranks) if ranks.rows else None,
        paragraph(_note(ranks), "note"),
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


def _rows(ranks: RanksView) -> Markup:
    """Only columns that some rank measured."""
    columns = [
        (title, cells)
        for title, text in _COLUMNS
        if set(cells := [text(row) for row in ranks.rows]) - {"", units.NOT_AVAILABLE}
    ]
    head = ["rank", *(title for title, _ in columns)]
    lines = zip(*(cells for _, cells in columns), strict=True)
    return table(head, [[str(row.rank), *line] for row, line in zip(ranks.rows, lines, strict=False)])


def _percentiles(ranks: RanksView) -> Markup | None:
    """Of all ranks, where not all have a row."""
    names = {0: "least", 50: "median", 100: "most"}
    head = ["all ranks", *(names.get(percentile, f"{percentile}%") for percentile in PERCENTILES)]
    rows = [[name, *map(units.milliseconds, values)] for name, values in ranks.percentiles.items()]
    return table(head, rows) if rows else None


def _note(ranks: RanksView) -> str:
    if ranks.step is None:
        return "no numbers of the ranks in the journal"
    seconds = f"Times are medians of the last {ranks.samples} samples up to step {units.count(ranks.step)}."
    if len(ranks.rows) == ranks.world_size:
        return seconds
    return f"{seconds} Of {units.count(ranks.world_size)} ranks those that stand out have a row."
