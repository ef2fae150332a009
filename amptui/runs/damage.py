"""What of a journal could not be read, in one line."""

from amptui import units
from amptui.runs.journal import JournalReader


def passed_over(reader: JournalReader) -> str:
    """``passed over: 3 damaged lines, 1 record of a later version``; empty when everything was read.

    To be asked once the reader came to its end: until then it tells of the lines so far.
    """
    found = []
    if reader.damaged_lines:
        found.append(_counted(reader.damaged_lines, "damaged line"))
    if reader.unknown_records:
        found.append(f"{_counted(reader.unknown_records, 'record')} of a later version")
    if reader.torn:
        found.append("a last line that was cut off")
    return f"passed over: {', '.join(found)}" if found else ""


def _counted(number: int, word: str) -> str:
    return f"{units.count(number)} {word}{'s' if number > 1 else ''}"
